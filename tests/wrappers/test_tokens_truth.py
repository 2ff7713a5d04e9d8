"""Probabilities of strings, against every token sequence that decodes to them."""

from __future__ import annotations

import itertools
import math

import pytest

from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.wrappers.tokens.modeling import SegmentedLM
from tests import tiny_causal

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


def log_p(model, *texts, contexts=None, **options):
    scorer = model.scorer({"estimator": "exact", **options}, quiet=True)
    if contexts is None:
        queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
        return [a.estimate.log_evidence for a in scorer.score_texts(queries)]
    pairs = enumerate(zip(texts, contexts, strict=True))
    queries = [Query(n, "text", text, context) for n, (text, context) in pairs]
    return [a.estimate.log_evidence for a in scorer.score_continuations(queries)]


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


def test_every_end_is_what_listing_says(kind):
    model, listed, _ = kind
    texts = strings(kind, 3)
    assert len(texts) > 5, "premise"
    several = 0
    for end, truth in (
        ("none", listed.border),
        ("eos", listed.end),
        ("prefix", listed.prefix),
    ):
        for text, found in zip(texts, log_p(model, *texts, end=end), strict=True):
            assert found == pytest.approx(math.log(truth(text)), rel=1e-10), (end, text)
            several += len(listed.segmentations(text)) > 1
    assert several > 5, "premise"


def test_a_prefix_ends_or_goes_on_or_is_lost(kind):
    """prefix(s) = end(s) + sum over bytes b of prefix(s b) + lost(s)."""
    model, listed, letters = kind
    whole = {"": 0.0}
    texts = strings(kind, 3)
    whole |= zip(texts, log_p(model, *texts, end="prefix"), strict=True)
    ends = {"": math.log(listed.end(""))}
    ends |= zip(texts, log_p(model, *texts, end="eos"), strict=True)
    checked = 0
    for text in whole:
        following = [text + letter for letter in letters]
        if all(more in whole for more in following):
            total = math.fsum(math.exp(whole[more]) for more in following)
            total += math.exp(ends[text]) + listed.lost(text)
            assert math.exp(whole[text]) == pytest.approx(total, rel=1e-10), text
            checked += 1
    if letters != "ab# ":  # of words, some strings are not restored
        assert checked == sum(len(letters) ** n for n in range(3))


def test_ends_total_at_most_one(kind):
    model, listed, _ = kind
    texts = strings(kind, 3)
    ends = math.fsum(map(math.exp, log_p(model, *texts, end="eos")))
    assert 0.1 < ends + listed.end("") < 1


def test_a_continuation_is_a_ratio_of_prefixes(kind):
    """Whether its context stops inside a token or not."""
    model, listed, _ = kind
    texts = strings(kind, 3)
    pairs = [
        (text[:n], text[n:])
        for text in texts
        for n in range(1, len(text))
        if text[:n] in texts
    ]
    inside = 0
    for end, truth in (
        ("none", listed.border),
        ("eos", listed.end),
        ("prefix", listed.prefix),
    ):
        found = log_p(
            model,
            *[text for _, text in pairs],
            contexts=[context for context, _ in pairs],
            end=end,
            context_tokens="all",
        )
        for (context, text), value in zip(pairs, found, strict=True):
            expected = truth(context + text) / listed.prefix(context)
            assert value == pytest.approx(math.log(expected), rel=1e-10)
            canonical = model.network.tokenizer.encode(context + text)
            borders = {listed.strings[tuple(canonical[:n])] for n in range(9)}
            inside += context not in borders
    assert inside > 3, "premise"


def test_a_context_that_the_tokenizer_shortens_is_refused():
    model = SegmentedLM(tiny_causal.network(tiny_causal.words()))
    scorer = model.scorer({"estimator": "exact"}, quiet=True)
    [answer] = scorer.score_continuations([Query(0, "one space", " a", "a")])
    assert str(answer.estimate.bound) == "exact"
    with pytest.raises(ValueError, match=r"normalizer changes this context"):
        [*scorer.score_continuations([Query(0, "two spaces", "  a", "a")])]


def test_canonical_tokens_that_write_another_string_bound_nothing():
    model = SegmentedLM(tiny_causal.network(tiny_causal.words()))
    scorer = model.scorer({"estimator": "canonical"}, quiet=True)
    bounds = {"a a": "strict lower", "a  a": "none"}
    queries = [Query(n, text, text) for n, text in enumerate(bounds)]
    found = {a.index: str(a.estimate.bound) for a in scorer.score_texts(queries)}
    assert [found[n] for n in range(2)] == [*bounds.values()]


def test_odd_strings_under_canonical_end_no_run():
    model = SegmentedLM(tiny_causal.network(tiny_causal.spaced()))
    scorer = model.scorer({"estimator": "canonical"}, quiet=True)
    queries = [Query(n, str(n), text) for n, text in enumerate(["", "a b", "\ud800"])]
    found = {a.index: a.estimate for a in scorer.score_texts(queries)}
    assert found.keys() == {0, 1, 2}
    assert (found[0].log_evidence, found[0].num_tokens) == (0.0, 0)
    assert str(found[0].bound) == "exact"
