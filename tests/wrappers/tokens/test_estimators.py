"""What is found or drawn of segmentations, against all of them.

Also of networks that give some tokens a probability of zero.
"""

from __future__ import annotations

import math
from functools import cache, wraps

import pytest
import torch
from tokenizers import processors

from lm_latent_eval.estimators import Bound, MissedSupportError
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.wrappers.tokens.edges import BEFORE, Stretch
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.means import weights_are_of
from tests.wrappers import asking

TEXTS = ("aabab", "baaabb", "abbaab")
TOKENS_READ = {1: 2804, 3: 8326}
"""Of so many texts, K = 26: tokens that the network is given with blocks."""
TEXT = TEXTS[0]
TOKENS = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aab": 4, tiny_causal.END: 5}


@pytest.fixture(scope="module")
def model():
    return SegmentedLM(tiny_causal.network(tiny_causal.letters()))


@pytest.fixture(scope="module", params=["none", "prefix", "eos"])
def end(request):
    return request.param


def answers(model, texts=TEXTS, batch_size=None, **options):
    scorer = model.scorer(options, batch_size=batch_size, quiet=True)
    return asking.answers(scorer, *texts)


@cache
def never(*pieces, tokenizer=None):
    """Return a model whose network never says some tokens."""
    model = SegmentedLM(tiny_causal.network(tokenizer or tiny_causal.letters()))
    banned, forward = [TOKENS[piece] for piece in pieces], model.network.model.forward

    @wraps(forward)
    def masked(input_ids, **more):
        found = forward(input_ids, **more)
        found.logits[..., banned] = -torch.inf
        return found

    model.network.model.forward = masked
    return model


@cache
def listed_by(model, longest):
    """List the sequences that may be a text: each token has a letter or more.

    Five times as many for a letter more, so that texts are short.
    """
    return tiny_causal.Listed(model.network, longest)


@cache
def exact(model, end="none", texts=TEXTS):
    """Log p of texts under a meaning of their ends; none has a token of probability 0.

    A list of all sequences, whose probabilities the network says itself.
    """
    listed = listed_by(model, max(map(len, texts)))
    p = {"none": listed.border, "prefix": listed.prefix, "eos": listed.end}[end]
    return [math.log(p(text)) for text in texts]


@pytest.mark.parametrize(
    ("estimator", "banned"),
    [
        ("is", ()),
        ("is", ("aab",)),
        ("dpf", ()),
        ("dpf", ("aab",)),
    ],
)
def test_estimates_are_unbiased(estimator, banned):
    """Of passes, many runs of few."""
    model = never(*banned)
    few, times = (10_000, 1) if estimator == "is" else (10, 300)
    end = "none" if banned else "prefix"
    how = {"estimator": estimator, "num_samples": few, "end": end}
    runs = [a.estimate for a in answers(model, [TEXT] * times, batch_size=2000, **how)]
    [truth] = exact(model, end, (TEXT,))
    log_p = [run.log_evidence for run in runs] if times > 1 else runs[0].log_weights
    weights_are_of(truth, log_p, 0.06)


@pytest.mark.parametrize("estimator", ["dpf", "is", "beam"])
def test_no_estimate_lies_below_the_canonical_segmentation(model, estimator):
    how = {"estimator": estimator, "num_samples": 2, "end": "eos"}
    found = answers(model, [*TEXTS] * 20, **how)
    assert all(a.estimate.log_evidence >= a.canonical - 1e-12 for a in found)
    assert any(a.estimate.log_evidence > a.canonical + 1e-6 for a in found), "premise"


def test_a_beam_is_a_bound_and_exact_once_it_holds_all(model, end):
    truth = exact(model, end)
    for width in (1, 2, 5, 1000):
        found = answers(model, end=end, estimator="beam", num_samples=width)
        for answer, log_p in zip(found, truth, strict=True):
            estimate = answer.estimate
            assert answer.canonical - 1e-12 <= estimate.log_evidence <= log_p + 1e-12
            if width == 1000:
                assert estimate.bound is Bound.EXACT
                assert estimate.log_evidence == pytest.approx(log_p, abs=1e-12)
            elif width < 5:
                assert estimate.bound is Bound.STRICT_LOWER
                assert estimate.log_evidence < log_p - 1e-6


@pytest.mark.parametrize("spread", [1.5, 8.0])
def test_errors_of_passes_hold(spread):
    """Of texts that have thousands of segmentations, most off the canonical one."""
    letters = tiny_causal.letters()
    model = SegmentedLM(tiny_causal.network(letters, spread=spread))
    texts = ("aababbaabbabab", "babbaababaabba", "aabaabbbaababa")
    truth = [a.estimate.log_evidence for a in answers(model, texts, estimator="exact")]
    runs = [a.estimate for a in answers(model, texts * 30, num_samples=26)]
    gaps = [run.log_evidence - truth[n % 3] for n, run in enumerate(runs)]
    errors = [(abs(g), r.stderr) for g, r in zip(gaps, runs, strict=True) if r.stderr]
    assert len(errors) >= 0.75 * len(runs) and max(gaps) > 1e-4, "premise"
    refuted = sum(gap > 2.45 * error for gap, error in errors)  # t, 6 degrees
    assert refuted <= 0.05 * len(errors) + 3 * math.sqrt(0.05 * 0.95 * len(errors))


@pytest.mark.parametrize("number", [1, 3])
def test_what_texts_ask_of_the_network(number):
    """Two passes of canonical tokens, short contexts, then a call for a block of four.

    Counted, never timed. When it gets cheaper, lower ``TOKENS_READ``.
    """
    model = SegmentedLM(tiny_causal.network(tiny_causal.letters(), positions=256))
    texts = ["b" * n + "abbaabab" * 25 for n in range(number)]
    encode = model.network.tokenizer.encode
    assert {Stretch((), None, (*encode(t),), (), 0).block for t in texts} == {4}
    with asking.watched(model.network.model) as shapes:
        answers(model, texts, num_samples=26, batch_size=128)
    begin = shapes.index((1, 1))
    before, walk = shapes[:begin], shapes[begin + 1 :]
    whole = (number, max(len(encode(text)) for text in texts))
    assert before[:2] == [whole, whole]
    assert all(tokens <= BEFORE + 2 for _, tokens in before[2:])
    assert sum(rows for rows, _ in before[2:]) < max(map(len, texts)), "each once"
    assert {tokens for _, tokens in walk[:-1]} == {4}
    assert len(walk) <= max(map(len, texts)) / 4 + 1
    # A tenth more is let pass: which histories begin alike follows from rounding.
    read = sum(rows * tokens for rows, tokens in walk)
    assert read <= 1.1 * TOKENS_READ[number]


@pytest.mark.parametrize("estimator", ["dpf", "is"])
def test_a_network_that_forgets_is_summed_without_error(end, estimator):
    """The look-ahead is then log p of the rest, and all weights are p(x)."""
    model = SegmentedLM(tiny_causal.network(tiny_causal.letters(), positions=256))
    with torch.no_grad():
        model.network.model.transformer.ln_f.weight.zero_()
    texts = ["aabab", "abbaabab" * 15]
    found = answers(model, texts, estimator=estimator, num_samples=13, end=end)
    truth = [a.estimate for a in answers(model, texts[:1], estimator="exact", end=end)]
    assert found[0].estimate.log_evidence == pytest.approx(truth[0].log_evidence)
    for answer in found:
        estimate = answer.estimate
        assert estimate.bound is not Bound.EXACT, "premise: most are dropped"
        assert estimate.log_evidence > answer.canonical + 0.1, "premise"
        expected = [estimate.log_evidence] * len(estimate.log_weights)
        assert estimate.log_weights == pytest.approx(expected, abs=1e-9)


# -- tokens of probability zero -------------------------------------------------------


@pytest.mark.parametrize("banned", [("ab",), ("aab", "ab"), ("aab",), ("ba", "a")])
@pytest.mark.parametrize("estimator", ["dpf", "exact", "beam"])
def test_all_that_is_possible_is_found(banned, estimator):
    model = never(*banned)
    [answer] = answers(model, [TEXT], estimator=estimator, num_samples=100)
    assert answer.estimate.bound is Bound.EXACT
    [truth] = exact(model, texts=(TEXT,))
    assert answer.estimate.log_evidence == pytest.approx(truth)


@pytest.mark.parametrize("estimator", ["canonical", "dpf", "exact", "beam", "is"])
def test_a_string_that_is_never_written_is_named(estimator):
    """And the other one is scored; so where the tokenizer puts a token before it."""
    options = {"estimator": estimator, "num_samples": 10}
    scorer = never("a", "ab", "ba", "aab").scorer(options, quiet=True)  # b is left
    for context in ("", "bb"):
        queries = asking.queries("bab", "bb", context=context)
        score = scorer.score_continuations if context else scorer.score_texts
        found = []
        told = r"text/0.*probability of zero.*1 of 2 texts are scored"
        with pytest.raises(MissedTextsError, match=told):
            found.extend(answer.index for answer in score(queries))
        assert found == [1]
    tokenizer, mark = tiny_causal.letters(), tiny_causal.END
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{mark} $A", special_tokens=[(mark, TOKENS[mark])]
    )
    [answer] = answers(never(tokenizer=tokenizer), [TEXT], **options)
    assert math.isfinite(answer.estimate.log_evidence), "premise: it is scored"
    with pytest.raises(MissedSupportError, match=r"text/0.*probability of zero"):
        answers(never(mark, tokenizer=tokenizer), [TEXT], **options)
