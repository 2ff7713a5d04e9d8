"""Numbers do not depend on how requests are batched, ordered, cut or repeated.

In float64, to 1e-9: rounding may differ with the shape of a batch, draws may not (a
draw flips where a rounding difference straddles its random number: about once in 1e12
decisions). In float32 flips are rare too: see the last test.
"""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.inference import importance, particles
from lm_latent_eval.scoring import evaluation
from tests.tiny_checkpoint import conditional, generation, rolling

TEXTS = (
    "Ada saw the fox",
    "the fox. " * 9,
    "",
    "Bo",
    "a zebra saw Ada. the fox saw Bo. " * 2,
    "the the the saw",
    "Ada saw the fox",
)
PAIRS = (
    ("Ada saw", " the fox"),
    ("Ada saw", " Bo. the fox saw Ada"),
    ("", "the fox"),
    ("the fox. " * 5, "Ada saw Bo"),
    ("the fo", "x"),
    ("Bo", ""),
)
SETTINGS = (
    {"num_samples": 6, "proposal": "peeking", "temperature": 1.3},
    {"num_samples": 6, "estimator": "auto"},
    {"num_samples": 6, "estimator": "beam"},
    {"num_samples": 6, "target_stderr": 0.3, "max_samples": 40},
)
DAILY = SETTINGS[0]
NIGHTLY = [
    each if each is DAILY else pytest.param(each, marks=pytest.mark.nightly)
    for each in SETTINGS
]
"""What moves no number for one estimator in the same way as for the others."""


def errors(estimate):
    """Those of an estimate that are known."""
    return [e for e in (estimate.stderr, estimate.draws_stderr) if e is not None]


def everything(lm: LatentKGLM) -> list[object]:
    """Answers of every kind, as plain numbers and strings."""
    whole = lm.loglikelihood_rolling(rolling(*TEXTS))
    parts = lm.loglikelihood(conditional(*PAIRS))
    numbers = [
        x for a in whole for x in (*a.estimate.log_weights, a, *errors(a.estimate))
    ]
    numbers += [x for a, _ in parts for x in (a, *errors(a.estimate))]
    greedy = lm.generate_until(generation(*TEXTS, max_gen_toks=3))
    drawn = lm.generate_until(generation(*TEXTS, max_gen_toks=3, do_sample=True))
    return [
        pytest.approx([float(x) for x in numbers], rel=1e-9, abs=1e-9),
        [is_greedy for _, is_greedy in parts],
        [a.estimate.num_samples for a in whole],
        [a.estimate.stderr is None for a in whole],
        greedy,
        drawn,
    ]


def same(a: list[object], b: list[object]) -> bool:
    """Compare two of ``everything``; numbers to 1e-9."""
    return a[0].expected == b[0] and a[1:] == b[1:]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batch_size_moves_no_number(backend, settings):
    alone = everything(backend(batch_size=1, **settings))
    for size in (4, "auto"):
        assert same(alone, everything(backend(batch_size=size, **settings)))


@pytest.mark.parametrize("settings", NIGHTLY, ids=str)
def test_memory_moves_no_number(backend, settings, monkeypatch):
    """A few latent decisions, or scores, at a time instead of millions."""
    plenty = everything(backend(**settings))
    for module in (importance, evaluation):
        monkeypatch.setattr(module, "DECISIONS", 32)
    monkeypatch.setattr(importance, "ROWS", 5)
    monkeypatch.setattr(evaluation, "TABLE", 256)
    assert same(plenty, everything(backend(**settings)))


@pytest.mark.parametrize(
    ("estimator", "proposal"), [("is", "peeking"), ("beam", "prior")]
)
def test_pieces_move_no_number(backend, monkeypatch, estimator, proposal):
    """Proposals that do not read ahead: where a long text is cut does not matter."""
    settings = {"estimator": estimator, "num_samples": 6, "proposal": proposal}
    whole = everything(backend(**settings))
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", 5)
    assert same(whole, everything(backend(**settings)))


def test_a_piece_reads_to_its_own_end_in_any_company(backend, monkeypatch):
    """A proposal that reads ahead does so within its piece: never more in a batch."""
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", 5)
    alone = everything(backend(num_samples=6, proposal="smoothing", batch_size=1))
    together = everything(backend(num_samples=6, proposal="smoothing", batch_size=64))
    assert same(alone, together)


@pytest.mark.parametrize("settings", NIGHTLY, ids=str)
def test_order_and_company_move_no_number(backend, settings):
    lm = backend(**settings)
    asked, pairs = rolling(*TEXTS), conditional(*PAIRS)
    whole, parts = lm.loglikelihood_rolling(asked), lm.loglikelihood(pairs)
    backwards = lm.loglikelihood_rolling(asked[::-1])[::-1]
    assert backwards == pytest.approx(whole, rel=1e-9)
    some = lm.loglikelihood_rolling(asked[1::2])
    assert some == pytest.approx(whole[1::2], rel=1e-9)
    for number in (0, 4):
        (alone,) = lm.loglikelihood_rolling([asked[number]])
        assert alone == pytest.approx(whole[number], rel=1e-9)
        assert alone.answer.stream == whole[number].answer.stream
    for part, again in zip(parts, lm.loglikelihood(pairs[::-1])[::-1], strict=True):
        assert again == (pytest.approx(part[0], rel=1e-9), part[1])
    contexts = generation(*TEXTS, max_gen_toks=4, do_sample=True)
    texts = lm.generate_until(contexts)
    assert lm.generate_until(contexts[::-1])[::-1] == texts
    assert lm.generate_until(contexts[2:4]) == texts[2:4]


@pytest.mark.parametrize("decisions", [1 << 21, 40])
def test_more_samples_begin_with_the_same(backend, monkeypatch, decisions):
    """The second number of decisions makes several rounds of a few samples each."""
    monkeypatch.setattr(importance, "DECISIONS", decisions)
    answers = {
        k: backend(num_samples=k).loglikelihood_rolling(rolling(*TEXTS))
        for k in (1, 7, 20)
    }
    for few, many in ((1, 7), (7, 20)):
        for a, b in zip(answers[few], answers[many], strict=True):
            expected = b.estimate.log_weights[:few]
            assert a.estimate.log_weights == pytest.approx(expected, rel=1e-9)
            # Of one word, p and what q reads are all there is: weights are equal.
            if b.estimate.num_tokens > 1:
                assert len(set(b.estimate.log_weights)) > 1, "premise"


def test_copies_of_a_text_draw_their_own(backend):
    lm = backend(num_samples=30)
    copies = lm.loglikelihood_rolling(rolling(*["Ada saw the fox"] * 4))
    assert len({tuple(a.estimate.log_weights) for a in copies}) == 4
    assert len({a.answer.stream for a in copies}) == 4

    # The same document of another task, another seed, a repeated request.
    (elsewhere,) = lm.loglikelihood_rolling(rolling("Ada saw the fox", task="other"))
    (reseeded,) = backend(num_samples=30, seed=1).loglikelihood_rolling(
        rolling("Ada saw the fox")
    )
    (request,) = rolling("Ada saw the fox")
    request.repeats = 2
    repeated = lm.loglikelihood_rolling([request] * 2)
    expected = copies[0].estimate.log_weights
    assert repeated[0].estimate.log_weights == pytest.approx(expected, rel=1e-9)
    streams = {a.answer.stream for a in (*copies, elsewhere, reseeded, *repeated)}
    assert len(streams) == 7
    drawn = (*copies, elsewhere, reseeded, repeated[1])
    assert len({tuple(a.estimate.log_weights) for a in drawn}) == 7


def test_a_copy_that_pads_a_process_draws_the_same(backend):
    """lm-eval's cache keeps the answer of the last copy; the results, of the first."""
    lm = backend(num_samples=30)
    first, padding = lm.loglikelihood_rolling(rolling("Ada saw the fox") * 2)
    assert padding == pytest.approx(first, rel=1e-12)
    assert padding.answer.stream == first.answer.stream
    (unnamed,) = rolling("Ada saw the fox")
    unnamed.task_name = None
    assert len(lm.loglikelihood_rolling([unnamed] * 2)) == 2


# -- target_stderr -------------------------------------------------------------------


def test_the_pilot_only_chooses_how_many(backend):
    """Its draws are not those of the number, which are those of a run without pilot."""
    how = {"estimator": "mixed", "max_samples": 5000}
    lm = backend(num_samples=64, target_stderr=0.05, **how)
    (chosen,) = lm.loglikelihood_rolling(rolling("Ada saw the fox"))
    number = chosen.estimate.num_samples
    assert number > 64, "premise"
    assert chosen.estimate.bound == "stochastic lower"
    assert chosen.estimate.draws_stderr < 0.1
    plain = backend(num_samples=number, **how).loglikelihood_rolling(
        rolling("Ada saw the fox")
    )
    assert chosen.estimate.log_weights == pytest.approx(plain[0].estimate.log_weights)


def test_a_smaller_target_asks_for_more(backend):
    texts = rolling("Ada saw the fox", "Bo", "the fox saw Bo.")
    numbers = []
    for target in (0.4, 0.2, 0.05, 0.0001):
        lm = backend(num_samples=64, target_stderr=target, max_samples=1000)
        answers = lm.loglikelihood_rolling(texts)
        numbers.append([a.estimate.num_samples for a in answers])
    for text in zip(*numbers, strict=True):
        assert list(text) == sorted(text)
    assert numbers[0][0] < numbers[1][0] < numbers[2][0]
    assert max(numbers[-1]) == 1000, "max_samples is the most"


# -- float32 -------------------------------------------------------------------------


def test_in_float32_a_draw_seldom_flips(tiny):
    """Weights of draws that did not flip agree to 1e-4 nats; few draws flip."""
    texts = rolling(*TEXTS, *TEXTS)
    one, many = (
        LatentKGLM(
            pretrained=tiny,
            estimator="is",
            num_samples=200,
            dtype="float32",
            batch_size=size,
        )
        for size in (1, "auto")
    )
    a, b = (
        torch.tensor(
            [x.estimate.log_weights for x in lm.loglikelihood_rolling(texts)],
            dtype=torch.float64,
        )
        for lm in (one, many)
    )
    flipped = (a - b).abs() > 1e-4
    assert flipped.double().mean() < 0.01
