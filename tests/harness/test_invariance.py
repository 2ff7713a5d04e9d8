"""Numbers do not depend on how requests are batched, ordered, cut or repeated.

In float64, to 1e-9: rounding may differ with the shape of a batch, draws may not (a
draw flips where a rounding difference straddles its random number: about once in 1e12
decisions).
"""

from __future__ import annotations

import pytest

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
    {"num_samples": 6, "proposal": "smoothing"},
    {"num_samples": 6, "estimator": "auto"},
    {"num_samples": 6, "estimator": "beam", "proposal": "prior"},
    {"num_samples": 6, "target_stderr": 0.3, "max_samples": 40},
)
NIGHTLY = pytest.mark.nightly


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


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS[:2],
        *(pytest.param(s, marks=pytest.mark.nightly) for s in SETTINGS[2:]),
    ],
    ids=str,
)
def test_batches_memory_and_pieces_move_no_number(backend, settings, monkeypatch):
    """A few latent decisions, or scores, at a time instead of millions.

    Where a long text is cut moves numbers of the one proposal that reads ahead to the
    end of its piece.
    """
    alone = everything(backend(batch_size=1, **settings))
    assert same(alone, everything(backend(batch_size=4, **settings)))
    for module in (importance, evaluation):
        monkeypatch.setattr(module, "DECISIONS", 32)
    monkeypatch.setattr(importance, "ROWS", 5)
    monkeypatch.setattr(evaluation, "TABLE", 256)
    assert same(alone, everything(backend(**settings)))
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", 5)
    pieces = everything(backend(batch_size=64, **settings))
    assert same(pieces, everything(backend(batch_size=1, **settings)))
    assert same(alone, pieces) == (settings.get("proposal") != "smoothing")


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
    lm, text = backend(num_samples=30), "Ada saw the fox"
    copies = lm.loglikelihood_rolling(rolling(*[text] * 4))
    # The same document of another task, another seed, a repeated request.
    (elsewhere,) = lm.loglikelihood_rolling(rolling(text, task="other"))
    (reseeded,) = backend(num_samples=30, seed=1).loglikelihood_rolling(rolling(text))
    (request,) = rolling(text)
    request.repeats = 2
    same, repeated = lm.loglikelihood_rolling([request] * 2)
    assert same == pytest.approx(copies[0], rel=1e-9)
    assert same.answer.stream == copies[0].answer.stream
    drawn = (*copies, elsewhere, reseeded, repeated)
    assert len({a.answer.stream for a in drawn}) == 7
    assert len({tuple(a.estimate.log_weights) for a in drawn}) == 7
    # Of what pads a process lm-eval's cache keeps the last answer, results the first.
    first, padding = lm.loglikelihood_rolling(rolling(text) * 2)
    assert padding == pytest.approx(first, rel=1e-12)
    assert padding.answer.stream == first.answer.stream
    (unnamed,) = rolling(text)
    unnamed.task_name = None
    assert len(lm.loglikelihood_rolling([unnamed] * 2)) == 2


def test_a_pilot_only_chooses_how_many(backend):
    """Its draws are not those of the number, which are those of a run without pilot."""
    how = {"estimator": "mixed", "max_samples": 5000}
    numbers = []
    for target in (0.4, 0.2, 0.05, 0.0001):
        lm = backend(num_samples=64, target_stderr=target, **how)
        (chosen,) = lm.loglikelihood_rolling(rolling("Ada saw the fox"))
        numbers.append(chosen.estimate.num_samples)
        assert chosen.estimate.bound == "stochastic lower"
        assert chosen.estimate.draws_stderr < max(2 * target, 0.02)
        (plain,) = backend(num_samples=numbers[-1], **how).loglikelihood_rolling(
            rolling("Ada saw the fox")
        )
        expected = pytest.approx(plain.estimate.log_weights)
        assert chosen.estimate.log_weights == expected
    assert numbers == sorted(numbers) and 64 < numbers[2] < numbers[3] == 5000
