"""Probabilities of strings, against every token sequence that decodes to them."""

from __future__ import annotations

import itertools
import math

import pytest

from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from tests import tiny_causal
from tests.wrappers import asking

LONGEST = 4

KINDS = {
    "letters": (tiny_causal.letters, "ab"),
    "spaced": (tiny_causal.spaced, "ab "),
    "words": (tiny_causal.words, "ab# "),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    """A model, all of its sequences, and the letters of its strings."""
    tokenizer, letters = KINDS[request.param]
    network = tiny_causal.network(tokenizer())
    return SegmentedLM(network), tiny_causal.Listed(network, LONGEST + 1), letters


def exactly(model, **options):
    return model.scorer({"estimator": "exact", **options}, quiet=True)


def log_p(model, *texts, context="", **options):
    found = asking.answers(exactly(model, **options), *texts, context=context)
    return [answer.estimate.log_evidence for answer in found]


def strings(kind, longest):
    """Those that the tokenizer restores."""
    model, listed, letters = kind
    tokenizer = model.network.tokenizer
    found = []
    for length in range(1, longest + 1):
        for some in itertools.product(letters, repeat=length):
            text = "".join(some)
            z = tuple(tokenizer.encode(text, add_special_tokens=False))
            if z and listed.strings.get(z) == text:
                found.append(text)
    return found


def truths(listed):
    return {"none": listed.border, "eos": listed.end, "prefix": listed.prefix}


def test_every_end_is_what_listing_says(kind):
    model, listed, _ = kind
    texts = strings(kind, 3)
    assert len(texts) > 5, "premise"
    several = 0
    for end, truth in truths(listed).items():
        for text, found in zip(texts, log_p(model, *texts, end=end), strict=True):
            assert found == pytest.approx(math.log(truth(text)), rel=1e-10), (end, text)
            several += len(listed.segmentations(text)) > 1
    assert several > 5, "premise"


@pytest.mark.parametrize("context_tokens", [8, "all"])
def test_a_continuation_is_a_ratio_of_prefixes(kind, context_tokens):
    """Whether its context stops inside a token or not."""
    model, listed, _ = kind
    texts = strings(kind, 3)
    pairs = [
        (text[:n], text[n:])
        for text in texts
        for n in range(1, len(text))
        if text[:n] in texts
    ]
    queries = [Query(n, "text", *pair[::-1]) for n, pair in enumerate(pairs)]
    inside = 0
    for end, truth in truths(listed).items():
        scorer = exactly(model, end=end, context_tokens=context_tokens)
        for answer in scorer.score_continuations(queries):
            context, text = pairs[answer.index]
            expected = truth(context + text) / listed.prefix(context)
            value = answer.estimate.log_evidence
            assert value == pytest.approx(math.log(expected), rel=1e-10)
            assert answer.estimate.bound is Bound.EXACT
            canonical = model.network.tokenizer.encode(context + text)
            borders = {listed.strings[tuple(canonical[:n])] for n in range(9)}
            inside += context not in borders
    assert inside > 3, "premise"


def test_a_record_says_where_tokens_of_a_context_stand_for_all(kind):
    """More than are summed over are given as the canonical ones: no ratio to all."""
    model, listed, _ = kind
    [context] = [s for s in strings(kind, 3) if len(listed.segmentations(s)) > 1][-1:]
    tokens = len(model.network.tokenizer.encode(context))
    bounds = []
    for number in (tokens, tokens - 1):
        scorer = exactly(model, context_tokens=number)
        bounds.append(asking.estimate(scorer, "a", context).bound)
    assert bounds == [Bound.EXACT, Bound.NONE]


CONTEXTS = {
    "letters": ["", "a", "b", "ba", "aab", "abb", "babba", "aabbaababa" * 2],
    "spaced": ["", "a", "ab", "a ", "ab a", "ab ab a ba" * 2],
    "words": ["", "a", "ab", "abb", "abbab", "ab a", "ab abb a ba" * 2],
}


@pytest.mark.parametrize("context_tokens", [0, 2, "all"])
@pytest.mark.parametrize(
    "end", [pytest.param("none", marks=pytest.mark.nightly), "eos"]
)
@pytest.mark.parametrize("letters", KINDS)
def test_continuations_of_a_context_have_one_condition(letters, end, context_tokens):
    """Over strings of which none begins another they total at most one."""
    tokenizer, alphabet = KINDS[letters]
    tokenizer, window = tokenizer(), 36 if context_tokens == "all" else 12
    network = tiny_causal.network(tokenizer, max_length=window, seed=2, spread=6)
    model = SegmentedLM(network)
    options = {"end": end, "context_tokens": context_tokens}
    joint = changed = 0
    # All segmentations of a context of ten letters would take long.
    most = 6 if context_tokens == "all" else None
    for context in (context[:most] for context in CONTEXTS[letters]):
        short, texts = tokenizer.encode(context), []
        for some in itertools.product(alphabet, repeat=2):
            text = "".join(some)
            whole = tokenizer.encode(context + text)
            written = b"".join(model.vocabulary.write(whole, begins=True)).decode()
            if written == context + text:
                texts.append(text)
                joint += whole[: len(short)] != short
                changed += whole[:1] != short[:1]
        # Some vocabularies cannot go on with part of a word after every token.
        texts = readable(model, texts, context, options)
        assert len(texts) > 1
        found = log_p(model, *texts, context=context, **options)
        assert math.fsum(map(math.exp, found)) <= 1 + 1e-9, context
    assert joint and changed, "premise: tokens of contexts change with what follows"


def readable(model, texts, context, options):
    """Return texts that something that is given of a context goes on with."""
    read, found = exactly(model, **options)._encoding.read, []
    for text in texts:
        try:
            read(Query(0, "text", text, context))
        except ValueError as err:
            assert "context_tokens" in str(err)
        else:
            found.append(text)
    return found


@pytest.mark.parametrize(
    ("context", "context_tokens", "given", "tail"),
    [
        ("a", 0, "a", ""),
        ("ba", 0, "ba", ""),
        ("babba", 1, "b|ab", "ba"),
        ("aabba", 1, "aab", "ba"),
    ],
)
def test_what_is_given_is_what_listing_says(context, context_tokens, given, tail):
    """Tokens before the last ones stay, whatever joint tokens begin with."""
    network = tiny_causal.network(tokenizer := tiny_causal.letters())
    tokens = tokenizer.convert_tokens_to_ids(given.split("|"))
    assert tokenizer.encode(context)[: len(tokens)] == tokens, "premise"
    listed = tiny_causal.Listed(network, len(tail) + 3, given=tokens)
    options = {"context_tokens": context_tokens}
    texts = ["".join(some) for some in itertools.product("ab", repeat=2)]
    joint = [tokenizer.encode(context + text)[: len(tokens)] for text in texts]
    assert tail or joint != [tokens] * 4, "premise"
    found = log_p(SegmentedLM(network), *texts, context=context, **options)
    for text, value in zip(texts, found, strict=True):
        expected = listed.border(tail + text) / listed.prefix(tail)
        assert value == pytest.approx(math.log(expected), rel=1e-10), text


@pytest.mark.parametrize("estimator", ["canonical", "beam"])
def test_contexts_that_are_cut_are_told_of(estimator, caplog):
    network = tiny_causal.network(tiny_causal.letters(), max_length=16)
    scorer = SegmentedLM(network).scorer({"estimator": estimator}, quiet=True)
    said = []
    for length in (4, 60):
        caplog.clear()
        asking.answers(scorer, "b", context="ab" * length)
        said.append("1 of 1 contexts are cut" in caplog.text)
    assert said == [False, True]


def test_the_length_of_a_text_moves_no_window():
    network = tiny_causal.network(tiny_causal.letters(), max_length=16)
    encoding = SegmentedLM(network).scorer({"context_tokens": 2})._encoding
    read = encoding.read
    context, texts = "ab" * 20, ["b", "bb", "bbb"]
    found = [read(Query(0, "text", text, context)) for text in texts]
    assert len({one.context for one in found}) == 1
    assert [one.whole.given for one in found] == [(2,) * 11] * 3
    assert len(read(Query(0, "text", "b", "ab" * 11)).whole.given) == 9, "all of it"
    with pytest.raises(ValueError, match="window of 16"):
        read(Query(0, "text", "b" * 5, context))


def test_a_special_token_across_the_end_of_a_context_is_refused():
    """Nothing that begins a context as its letters do is followed by it."""
    tokenizer = tiny_causal.letters()
    tokenizer.add_special_tokens({"cls_token": "ab#ab"}, replace_extra_special_tokens=0)
    model = SegmentedLM(tiny_causal.network(tokenizer))
    assert tokenizer.encode("bab#aba") == [1, 7, 0], "premise"
    for context_tokens in (0, 8, "all"):
        options = {"context_tokens": context_tokens}
        with pytest.raises(ValueError, match=r"tokens \(ab#ab\) across the end"):
            log_p(model, "#aba", context="bab", **options)
        assert log_p(model, "ab#aba", context="b", **options)[0] < 0


def test_a_context_that_the_tokenizer_shortens_is_refused():
    model = SegmentedLM(tiny_causal.network(tiny_causal.words()))
    assert log_p(model, " a", context="a")[0] < 0
    for context_tokens, what in ((8, "string"), (0, "context")):
        with pytest.raises(ValueError, match=f"normalizer changes this {what}"):
            log_p(model, "  a", context="a", context_tokens=context_tokens)


def test_canonical_tokens_that_write_another_string_bound_nothing():
    model = SegmentedLM(tiny_causal.network(tiny_causal.words()))
    scorer = model.scorer({"estimator": "canonical"}, quiet=True)
    bounds = {"": "exact", "a a": "strict lower", "a  a": "none"}
    answers = asking.answers(scorer, *bounds)
    assert [answer.respaced for answer in answers] == [0, 0, 1], "no rate a byte"
    found = [answer.estimate for answer in answers]
    assert [str(each.bound) for each in found] == [*bounds.values()]
    assert (found[0].log_evidence, found[0].num_tokens) == (0.0, 0)


@pytest.mark.parametrize(
    ("estimator", "idle"),
    [
        ("canonical", {"num_samples", "seed", "context_tokens", "max_segmentations"}),
        ("exact", {"num_samples", "seed"}),
        ("beam", {"seed", "max_segmentations"}),
        ("dpf", {"max_segmentations"}),
    ],
)
def test_options_without_effect_are_named(estimator, idle):
    assert idle <= {*TokensOptions.parse({"estimator": estimator}).idle}
