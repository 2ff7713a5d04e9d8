"""Proposals by name, a model's own or another package's, and that of no latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.latent import Beam, Draws, LatentLM, Proposal, Uniforms
from lm_latent_eval.registry import Registry
from lm_latent_eval.text.batch import TokenBatch

REGISTRY = Registry("lm_latent_eval.proposals", "proposal", {})
"""Name -> function of another package that builds a proposal: ``(model, temperature) ->
Proposal``."""


def proposal_named(
    model: LatentLM, name: str | None = None, temperature: float = 1.0
) -> Proposal:
    """Build a proposal of a model, or of another package for it.

    Args:
        model: A latent LM.
        name: A name of the model's own, of another package, or
            ``package.module:Class``. None is the model's first.
        temperature: Divides the proposal's scores.

    Raises:
        ValueError: If the name is unknown, or another package's class is no proposal.
    """
    if name is None or name in model.proposal_names or name not in REGISTRY:
        return model.proposal(name, temperature)
    check_temperature(temperature)
    built = REGISTRY[name](model, temperature)
    if not isinstance(built, Proposal):
        raise ValueError(
            f"proposal={name}: a {type(built).__name__} is no proposal; derive it from "
            "lm_latent_eval.extend.Proposal"
        )
    return built


def chosen(name: str | None, names: Sequence[str]) -> str:
    """Name of a proposal; None is the first of those that a model has.

    Raises:
        ValueError: If the name is unknown.
    """
    if name is None:
        return names[0]
    if name not in names:
        raise ValueError(
            f"proposal={name!r}: this checkpoint has {', '.join(sorted(names))}"
        )
    return name


TEMPERATURES = (0.001, 1000.0)
"""Bounds of temperatures. Below, rounding of scores would decide; above, all choices
are about equal."""


def check_temperature(temperature: float) -> None:
    """Refuse a temperature out of range.

    Raises:
        ValueError: If it is outside ``TEMPERATURES``.
    """
    lowest, highest = TEMPERATURES
    if not lowest <= temperature <= highest:
        raise ValueError(
            f"temperature={temperature}: expected a positive number from {lowest:g} "
            f"to {highest:g}; low ones concentrate the proposal, high ones flatten it"
        )


@dataclass(frozen=True)
class Unmoved:
    """State of a proposal that reads nothing."""

    def select(self, index: Tensor) -> Unmoved:
        return self

    def resample(self, index: Tensor) -> Unmoved:
        return self


@dataclass(frozen=True)
class NoLatents(Proposal):
    """q of the empty latent, which is 1: for models without latents, and for sums.

    It reads nothing, so texts are encoded once, by the model.
    """

    name = "none"

    def encode(self, batch: TokenBatch, after: Unmoved | None = None) -> TokenBatch:
        return batch

    def sample(self, batch: TokenBatch, uniforms: Uniforms, num_samples: int) -> Draws:
        zeros = wide_zeros((len(batch.length), num_samples), batch.length.device)
        return Draws(zeros.new_empty(*zeros.shape, 0).long(), zeros)

    def log_prob(self, batch: TokenBatch, latents: Tensor) -> Tensor:
        """Log q = 0 of K empty latents, (B, K)."""
        return wide_zeros((len(batch.length), latents.shape[1]), batch.length.device)

    def beam(self, batch: TokenBatch, width: int, score: Tensor | None = None) -> Beam:
        zeros = wide_zeros((len(batch.length), 1), batch.length.device)
        nothing, cut = zeros.new_empty(*zeros.shape, 0).long(), zeros[:, 0] < 0
        return Beam(nothing, zeros, zeros.long(), cut=cut)

    def advance(self, batch: TokenBatch, latents: Tensor) -> Unmoved:
        return Unmoved()
