"""Real-valued latents: the laws hold, notice what is wrong, and nothing lists them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from lm_latent_eval.devices import widened
from lm_latent_eval.inference import BeamMarginalization
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams, standard_normals
from lm_latent_eval.latent import offers
from lm_latent_eval.models.real_latents import (
    NormalProposal,
    RealStep,
    RealStepLM,
    RealStepProposal,
)
from lm_latent_eval.testing import Case, LawError, laws
from lm_latent_eval.text.batch import TokenBatch
from tests.simulated_device import SIMULATED, simulated_device
from tests.tiny_steps import TinyConfig

WORDS = (1, 4, 5)
CELLS, WIDTH = 17, 0.8


class Drift(RealStepLM):
    """Two numbers that drift, and words that depend on them."""

    config_class = TinyConfig
    base_model_prefix = "drift"
    main_input_name = "inputs"
    num_reals = 2

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(5)
        size = 2, config.vocab_size
        self.words = nn.Parameter(0.7 * torch.randn(size, generator=generator))
        self.post_init()

    def log_words(self, read: Any, state: tuple[Tensor, ...], z: Tensor) -> Tensor:
        never = torch.tensor([0, 2], device=z.device)
        scores = z @ widened(self.words)
        return scores.index_fill(-1, never, -torch.inf).log_softmax(-1)

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Tensor:
        return batch.targets

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        return (
            widened(torch.zeros_like(batch.length))[:, None, None].expand(-1, 1, 2),
        )

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> RealStep:
        prior = Normal(0.6 * state[0], 1.0, validate_args=False)
        ahead = widened(self.words).T[read[:, None, t]]
        return RealStep(prior, Normal(prior.loc + 0.4 * ahead, 1.1))

    def log_word(
        self, read: Tensor, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> Tensor:
        word = read[:, None, t, None].expand(*z.shape[:2], 1)
        return self.log_words(read, state, z).gather(-1, word)[..., 0]

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], z: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        return (z,)


def case() -> Case:
    """Texts of two tokens, whose four numbers are summed over a grid."""
    axis = WIDTH * (torch.arange(CELLS, dtype=torch.float64) - CELLS // 2)

    def every_cell(text: list[int]) -> Tensor:
        cells = torch.cartesian_prod(*[axis] * (2 * len(text)))
        return cells.view(1, -1, len(text), 2)

    return Case(
        Drift(TinyConfig()).double().eval().requires_grad_(False),
        every_cell,
        words=WORDS,
        proposals=Drift.proposal_names,
        length=2,
        log_cell=lambda text: 2 * len(text) * math.log(WIDTH),
        quadrature=2e-3,
    )


@pytest.mark.parametrize("which", [str(law) for law in laws(case(), SIMULATED)])
def test_it_keeps_the_law(which):
    [law] = [law for law in laws(case(), SIMULATED) if str(law) == which]
    with simulated_device() if which.startswith("device_") else nullcontext():
        law()


def test_laws_hold_on_a_device_without_float64():
    with simulated_device(float64=False):
        for law in laws(replace(case().on(SIMULATED), proposals=("adapted",))):
            law()


@pytest.mark.parametrize(
    ("kind", "method", "law"),
    [
        (Drift, "log_joint", "total_is_that_of_its_normalization"),
        (Drift, "next_token", "predictions_are_ratios_of_prefixes"),
        (RealStepProposal, "log_prob", "total_is_one_and_covers_the_model-adapted"),
    ],
)
def test_a_density_that_is_off_is_noticed(kind, method, law, monkeypatch):
    right = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *given: right(*given) + 0.2)
    [broken] = [each for each in laws(case()) if str(each) == law]
    with pytest.raises(LawError):
        broken()


def test_nothing_lists_them():
    tiny, method = case(), BeamMarginalization(4)
    assert not offers(tiny.proposal(), "beam")
    with pytest.raises(ValueError, match=r"'adapted' has no beam.*Use is or smc"):
        tiny.log_weights(method, tiny.proposal(), [[4, 5]])


def test_too_many_numbers_a_step_are_refused(monkeypatch):
    monkeypatch.setattr(Drift, "num_reals", 4)
    tiny = case()
    with pytest.raises(ValueError, match="num_reals=4: a step has at most 3"):
        tiny.proposal().sample(tiny.model.encode(tiny.batch([[4]])), Streams([0], 2), 2)


def test_numbers_of_a_text_take_as_many_steps_as_they_need():
    """Seven numbers take three steps, and leave the last of each step's four alone."""
    z = standard_normals(Streams([0], 20_000), 7, "cpu")[0]
    limit = 5 / math.sqrt(len(z))
    assert z.mean(0).abs().max() < limit
    covariance = z.T.cov()
    assert (covariance - torch.eye(7)).abs().max() < 2 * limit
    u = torch.stack([Streams([0], 20_000)(step) for step in range(3)], -2)[0]
    used = torch.special.ndtri(u[..., :3]).flatten(1)[:, :7]
    torch.testing.assert_close(z, used, rtol=0, atol=0)


def test_draws_of_a_normal_proposal_have_its_density():
    loc, scale = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 3.0]])
    q = NormalProposal("q", lambda batch: Normal(loc, scale), 4.0)
    encoded = q.encode(TokenBatch.collate([[4]], first=2))
    draws = q.sample(encoded, Streams([0], 20_000), 20_000)
    spread = draws.latents[0].std(0) / (2 * scale[0])  # variances times temperature
    torch.testing.assert_close(spread, torch.ones(2).double(), rtol=0, atol=0.03)
    density = Normal(loc, 2 * scale).log_prob(draws.latents).sum(-1)
    torch.testing.assert_close(draws.log_q, density, rtol=0, atol=1e-5)


def test_real_numbers_are_told_apart_by_their_bits():
    z = [[0.5, 1.0], [0.5, 1.0], [0.5, math.nextafter(1.0, 2.0)]]
    z = torch.tensor([z], dtype=torch.float64)
    first, same, other = fingerprint(z)[0].tolist()
    assert first == same != other
