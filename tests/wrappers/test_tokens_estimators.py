"""What is found and drawn of segmentations, against all of them."""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest

from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.wrappers.tokens import search
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal

TEXTS = ("aabab", "baabaab", "abbaabab")
PROPOSALS = [("ahead", 1.0), ("lm", 1.0), ("lm", 2.0), ("lattice", 1.0)]


@pytest.fixture(scope="module")
def model():
    return SegmentedLM(tiny_causal.network(tiny_causal.letters()))


@pytest.fixture(scope="module", params=["none", "prefix", "eos"])
def end(request):
    return request.param


def answers(model, texts=TEXTS, contexts=None, batch_size=None, **options):
    scorer = model.scorer(options, batch_size=batch_size, quiet=True)
    contexts = contexts or [""] * len(texts)
    queries = [
        Query(n, f"text/{n}", text, context)
        for n, (text, context) in enumerate(zip(texts, contexts, strict=True))
    ]
    ask = scorer.score_continuations if any(contexts) else scorer.score_texts
    return sorted(ask(queries), key=lambda answer: answer.index)


def exact(model, end, texts=TEXTS):
    return [
        answer.estimate.log_evidence
        for answer in answers(model, texts, end=end, estimator="exact")
    ]


@pytest.mark.parametrize(("proposal", "temperature"), PROPOSALS)
def test_a_proposal_is_a_distribution_over_all_of_them(
    model, end, proposal, temperature
):
    scorer = model.scorer(
        {
            "estimator": "exact",
            "proposal": proposal,
            "temperature": temperature,
            "end": end,
        },
        quiet=True,
    )
    pieces = [scorer._whole_texts.cut(text)[0] for text in TEXTS]
    for one in scorer._walks(pieces, TEXTS, scorer._walker.scores(pieces)):
        assert len(one.found) == one.stretch.lattice.num_segmentations > 5
        total = math.fsum(math.exp(spot.log_q) for spot in one.found)
        assert total == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("proposal", "temperature"), PROPOSALS)
@pytest.mark.parametrize("estimator", ["is", "smc", "mixed"])
def test_estimates_are_unbiased(model, estimator, proposal, temperature):
    """Of filters and of draws beside a small beam, many runs of few."""
    [text, end] = TEXTS[0], "prefix"
    few = {"is": 10_000, "smc": 10, "mixed": 4}[estimator]
    runs = answers(
        model,
        [text] * (1 if estimator == "is" else 300),
        end=end,
        estimator=estimator,
        proposal=proposal,
        temperature=temperature,
        num_samples=few,
        batch_size=2000,
    )
    [truth] = exact(model, end, [text])
    log_p = (
        runs[0].estimate.log_weights
        if estimator == "is"
        else [run.estimate.log_evidence for run in runs]
    )
    ratio = np.exp(np.array(log_p) - truth)
    stderr = ratio.std(ddof=1) / math.sqrt(len(ratio))
    assert 0 < stderr < 0.06, "premise: precise enough to notice an error"
    assert abs(ratio.mean() - 1) < 5 * stderr


def test_a_beam_is_a_bound_and_exact_once_it_holds_all(model, end):
    truth = exact(model, end)
    for width in (1, 2, 5, 1000):
        for answer, log_p in zip(
            answers(model, end=end, estimator="beam", num_samples=width),
            truth,
            strict=True,
        ):
            estimate = answer.estimate
            assert answer.canonical - 1e-12 <= estimate.log_evidence <= log_p + 1e-12
            if width == 1000:
                assert estimate.bound is Bound.EXACT
                assert estimate.log_evidence == pytest.approx(log_p, abs=1e-12)
            elif width < 5:
                assert estimate.bound is Bound.STRICT_LOWER
                assert estimate.log_evidence < log_p - 1e-6


def test_mixed_is_never_below_the_canonical_segmentation(model, end):
    for seed in range(5):
        for answer in answers(model, end=end, num_samples=4, seed=seed):
            assert answer.canonical <= answer.estimate.log_evidence
    for answer, log_p in zip(
        answers(model, end=end, num_samples=2000), exact(model, end), strict=True
    ):
        assert answer.estimate.bound is Bound.EXACT
        assert answer.estimate.log_evidence == pytest.approx(log_p, abs=1e-12)


@pytest.mark.parametrize("estimator", ["canonical", "is", "smc", "beam", "mixed"])
def test_batches_and_order_move_no_number(model, estimator):
    texts, contexts = ["ab", "ba", "aab", "b"], ["aab", "aab", "ba", ""]
    options = {"estimator": estimator, "num_samples": 10}
    found = answers(model, texts, contexts, **options)
    for batch_size in (1, 3, "auto"):
        again = answers(model, texts, contexts, batch_size=batch_size, **options)
        for one, other in zip(found, again, strict=True):
            assert one.estimate.log_evidence == pytest.approx(
                other.estimate.log_evidence, rel=1e-10
            )
            assert one.is_greedy == other.is_greedy
    scorer = model.scorer(options, quiet=True)
    alone = [
        next(iter(scorer.score_continuations([Query(0, f"text/{n}", t, c)])))
        for n, (t, c) in enumerate(zip(texts, contexts, strict=True))
    ]
    assert [a.estimate.log_evidence for a in alone] == pytest.approx(
        [a.estimate.log_evidence for a in found], rel=1e-10
    )


def test_samples_are_nested(model):
    few, many = (
        answers(model, estimator="is", num_samples=k)[2].estimate.log_weights
        for k in (10, 40)
    )
    assert many[:10] == pytest.approx(few, rel=1e-12)


def test_what_begins_alike_is_read_once(model, monkeypatch):
    """Draws and beam of one text, and options of one question, share their rows."""
    read = []
    forward = model.network.model.forward

    def counted(input_ids, **more):
        read.append(len(input_ids))
        return forward(input_ids, **more)

    scorer = model.scorer(
        {"estimator": "is", "num_samples": 500}, batch_size=1000, quiet=True
    )
    [piece] = scorer._whole_texts.cut("ababab")
    scores = scorer._walker.scores([piece])
    monkeypatch.setattr(model.network.model, "forward", counted)
    scorer._walks([piece], ["one"], scores)
    assert sum(read) <= piece.lattice.num_prefixes
    once = sum(read)
    scorer._walks([piece, piece], ["one", "one"], scores)
    assert sum(read) == 2 * once


def test_a_step_is_as_many_calls_for_more_of_everything(model):
    """One pass of the network a token, and no call a piece, a draw or a text."""
    counted = {}
    for number, samples in ((1, 4), (6, 40)):
        scorer = model.scorer({"num_samples": samples}, batch_size=1000, quiet=True)
        pieces = [scorer._whole_texts.cut("abaabbaab")[0]] * number
        names = [str(n) for n in range(number)]
        scores = scorer._walker.scores(pieces)
        plan = scorer._estimator.plan
        calls = Counter()

        def note(frame, event, _, calls=calls):
            if event == "call" and frame.f_code.co_filename == search.__file__:
                calls[frame.f_code.co_name] += 1

        sys.setprofile(note)
        try:
            found = scorer._walker.walk(pieces, names, scores, plan)
        finally:
            sys.setprofile(None)
        assert all(len(one.draws) == samples // 2 for one in found)
        steps = calls["step"]
        assert steps == calls["_go_on"] + 1 <= len("abaabbaab")
        counted[number] = {
            name: calls[name] / steps for name in ("step", "_draw", "_picked", "_given")
        }
    assert counted[1] == counted[6], "a step"


def test_a_unigram_tokenizer_proposes_by_its_own_model():
    model = SegmentedLM(tiny_causal.network(tiny_causal.unigram()))
    scores = dict(tiny_causal.UNIGRAM)
    names = model.network.tokenizer.convert_ids_to_tokens
    options = {"estimator": "exact", "proposal": "lattice", "temperature": 2}
    scorer = model.scorer(options, quiet=True)
    [piece] = scorer._whole_texts.cut("aabab")
    [one] = scorer._walks([piece], ["one"], scorer._walker.scores([piece]))
    found = []
    for spot in one.found:
        tokens, path = [], spot.path
        while path is not None:
            path, token, _ = path
            tokens.append(token)
        found.append((spot.log_q, sum(scores[name] for name in names(tokens)) / 2))
    total = math.log(math.fsum(math.exp(score) for _, score in found))
    assert len(found) > 3
    for log_q, score in found:
        assert log_q == pytest.approx(score - total, rel=1e-10)
