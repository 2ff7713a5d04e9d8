"""Models that contradict themselves are refused on the first texts of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import consistency
from lm_latent_eval.inference.beam import BeamMarginalization, Exact
from lm_latent_eval.inference.consistency import BrokenModelError
from lm_latent_eval.inference.smc import ParticleFilter
from lm_latent_eval.latent import Beam, Draws, LatentLM, Proposal
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.models.stepwise import ModelProposal
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import WordTokenizer
from tests.test_laws import TINY_MODELS
from tests.tiny_steps import TinyHMM, log_p, scored, tiny

TEXT = [4, 5, 1, 4]
BATCH = TokenBatch.collate([TEXT, TEXT[:2]], first=2)


def check(
    model: Any, proposal: Any = None, batch: Any = BATCH, *, searches: bool = True
) -> None:
    proposal = proposal or model.proposal()
    consistency.check(model, proposal, batch, dtype=torch.float64, searches=searches)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_our_own_models_pass(name):
    case = TINY_MODELS[name].case()
    for name in case.proposals:
        proposal = case.proposal(name)
        check(case.model, proposal, case.batch(case.readable(proposal)[3:5]))


class OneColumn(TinyHMM):
    def log_joint(self, encoded: Any, latents: Tensor) -> Tensor:
        return super().log_joint(encoded, latents)[:, :1]


class Whole(TinyHMM):
    def log_joint(self, encoded: Any, latents: Tensor) -> Tensor:
        return super().log_joint(encoded, latents).long()


class NotANumber(TinyHMM):
    def log_joint(self, encoded: Any, latents: Tensor) -> Tensor:
        return super().log_joint(encoded, latents) * torch.nan


class ReadsTheFuture(TinyHMM):
    """Weighs a word by the word after it, where that is there to see."""

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Tensor:
        read = super().read(batch, recurrent)
        coming = batch.targets.roll(-1, 1)
        coming[:, -1] = 0
        return read + 0.3 * coming[..., None]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OneColumn, r"OneColumn.log_joint gives .* of shape \(2, 1\)"),
        (Whole, "Whole.log_joint gives .* as torch.int64; expected float64 nats"),
        (NotANumber, "NotANumber.log_joint gives .* = NaN"),
        (ReadsTheFuture, "ReadsTheFuture.log_joint gives a text read token by token"),
    ],
)
def test_a_model_that_is_wrong(kind, message):
    with pytest.raises(BrokenModelError, match=message):
        check(tiny(kind=kind))


@dataclass(frozen=True)
class Wrong(ModelProposal):
    """A proposal whose latents, drawn or found, or log q are changed."""

    drawn: Callable[[Tensor], Tensor] = Tensor.clone
    found: Callable[[Tensor], Tensor] = Tensor.clone
    sample_more: float = 0.0
    """Nats more than log q that its draws say."""
    log_prob_more: float = 0.0

    def sample(self, encoded: Any, uniforms: Any, num_samples: int) -> Draws:
        draws = super().sample(encoded, uniforms, num_samples)
        log_q = draws.log_q + self.sample_more
        return replace(draws, latents=self.drawn(draws.latents), log_q=log_q)

    def log_prob(self, encoded: Any, latents: Tensor) -> Tensor:
        return super().log_prob(encoded, latents.long()) + self.log_prob_more

    def beam(self, encoded: Any, width: int, score: Any = None) -> Beam:
        beam = super().beam(encoded, width, score)
        return replace(beam, latents=self.found(beam.latents))


def first_twice(latents: Tensor) -> Tensor:
    return torch.cat([latents[:, :1], latents[:, :1], latents[:, 2:]], 1)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sample_more": -0.24}, "Wrong.sample says log q of its draws, .*0.24 nats"),
        ({"drawn": Tensor.double}, "Wrong.beam gives latents of other types than samp"),
        (
            {"drawn": lambda latents: latents.repeat(1, 2, 1)},
            r"Wrong.sample gives latents of shape \(2, 8, 3\)",
        ),
        ({"sample_more": 0.5, "log_prob_more": 0.5}, r"Wrong.log_prob totals"),
        ({"found": first_twice}, "Wrong.beam finds 1 of 27 latents of a prefix more"),
    ],
)
def test_a_proposal_that_is_wrong(how, message):
    model = tiny()
    with pytest.raises(BrokenModelError, match=message):
        check(model, Wrong(model, "adapted", 1.0, **how))


def with_dead_ends() -> TinyHMM:
    """A likely state that is never left, and never writes word 5."""
    model = tiny()
    model.transitions[-1, 1] = 5.0
    model.transitions[1, [0, 2]] = model.emissions[1, 5] = -torch.inf
    return model


@pytest.mark.parametrize("proposal", ["adapted", "prior"])
@pytest.mark.parametrize("texts", [[[4, 5], [4, 4, 4]], [[4, 4, 4], [4, 5]]])
def test_latents_of_probability_zero_are_no_mistake(texts, proposal):
    """q draws them, and a beam that ranks by p lists none; half of q is one, though."""
    model, batch = with_dead_ends(), TokenBatch.collate(texts, first=2)
    own = model.proposal(proposal)
    beam = own.beam(own.encode(batch.piece(0, 2)), 9)
    log_q = own.log_prob(own.encode(batch.piece(0, 2)), beam.latents)
    total = log_q.masked_fill(beam.score.isneginf(), -torch.inf).logsumexp(-1).exp()
    assert proposal == "prior" or total.min() < 0.9, "premise"
    check(model, own, batch)
    half = dict.fromkeys(("sample_more", "log_prob_more"), -math.log(2))
    with pytest.raises(BrokenModelError, match=r"totals .* and p\(x, z\) is 0 for"):
        check(model, Wrong(model, proposal, 1.0, **half), batch)


def test_a_search_is_an_exact_number_if_it_holds_every_latent(monkeypatch):
    """What a model of another package gets that names ``exact`` as its estimator."""
    model, method = tiny(), Exact()
    [row] = method.log_weights(scored(model, [TEXT]))
    found = method.estimate(row, len(TEXT))
    assert found.bound is Bound.EXACT
    assert found.log_evidence == pytest.approx(log_p(model, TEXT), abs=1e-12)
    every = "lm_latent_eval.inference.beam._EVERY"
    monkeypatch.setattr(every, BeamMarginalization(1))
    [row] = method.log_weights(scored(model, [TEXT]))
    found = method.estimate(row, len(TEXT))
    assert found.bound is Bound.STRICT_LOWER
    assert found.stderr is None
    assert found.log_evidence < log_p(model, TEXT) - 0.1, "premise: it is far off"
    case = TINY_MODELS["lstm"].case()
    [row] = case.log_weights(method, case.proposal(), [[4, 1]])
    assert method.estimate(row, 2).bound is Bound.EXACT, "without latents it is"


class SumsWrongly(TinyHMM):
    """Offers a sum over its latents, of which it forgets the first state."""

    forgets = True

    @property
    def summation(self) -> Any:
        return NoLatents()

    def log_joint(self, encoded: Any, latents: Tensor) -> Tensor:
        if latents.shape[-1]:
            return super().log_joint(encoded, latents)
        rows = zip(encoded.batch.targets, encoded.batch.length, strict=True)
        total = [log_p(self, ids[:n].tolist()) for ids, n in rows]
        lost = math.log(0.9) if self.forgets else 0.0
        return torch.tensor(total).double()[:, None] + lost


class SumsRightly(SumsWrongly):
    forgets = False


def test_a_sum_is_held_against_a_list():
    right, texts = tiny(kind=SumsRightly), [TEXT, TEXT[:2]]
    found = Exact().estimate(Exact().log_weights(scored(right, texts))[0], len(TEXT))
    assert found.bound is Bound.EXACT
    assert found.log_evidence == pytest.approx(log_p(right, TEXT))
    with pytest.raises(BrokenModelError, match="summation sums to another"):
        Exact().log_weights(scored(tiny(kind=SumsWrongly), texts))


def scorer(kind: type[TinyHMM]) -> Scorer:
    words = WordTokenizer.train(["a b"], min_count=1)
    checkpoint = Checkpoint("tiny", tiny(kind=kind), words, Path())
    options = ScoringOptions(unk="closed", num_samples=20)
    return Scorer(checkpoint, options, quiet=True)


def test_a_model_of_others_is_checked_on_its_first_texts():
    """Through the scorer that every command uses; and asked for whole texts alone."""
    texts = [Query(0, "text/0", "a b")]
    assert list(scorer(TinyHMM).score_texts(texts))
    with pytest.raises(BrokenModelError, match=r"OneColumn\.log_joint"):
        list(scorer(OneColumn).score_texts(texts))


class Mute(TinyHMM):
    next_token = LatentLM.next_token  # as if it were not there


class Stuck(TinyHMM):
    advance = None


def test_a_model_that_predicts_no_word_still_goes_on():
    query = Query(0, "text/0", " b", context="a")
    [one], [other] = (scorer(k).score_continuations([query]) for k in (TinyHMM, Mute))
    assert other.estimate == one.estimate and other.is_greedy is False
    with pytest.raises(ValueError, match=r"Mute has no next_token\("):
        list(scorer(Mute).generate([(query, GenerationOptions.parse({}))]))
    check(tiny(kind=Stuck))


def test_a_model_that_cannot_stop_reads_whole_texts():
    query = Query(0, "text/0", "a b " * 150)
    [one], [other] = (scorer(k).score_texts([query]) for k in (TinyHMM, Stuck))
    found, expected = (each.estimate.log_evidence for each in (other, one))
    assert found == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match=r"smc: Stuck has no advance\("):
        ParticleFilter(10).log_weights(scored(tiny(kind=Stuck), [TEXT]))


def test_a_search_without_a_beam_is_refused():
    class OnlyDraws(Proposal):
        """All of a proposal but its beam."""

        name, right = "draws", tiny().proposal()

        def encode(self, batch, after=None):
            return self.right.encode(batch, after)

        def sample(self, encoded, uniforms, num_samples):
            return self.right.sample(encoded, uniforms, num_samples)

        def log_prob(self, encoded, latents):
            return self.right.log_prob(encoded, latents)

    with pytest.raises(BrokenModelError, match=r"OnlyDraws\.beam is missing"):
        check(tiny(), OnlyDraws())
    check(tiny(), OnlyDraws(), searches=False)
