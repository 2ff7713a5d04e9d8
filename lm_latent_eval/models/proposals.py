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
"""Name -> what builds a proposal for a model: ``(model, temperature) -> Proposal``."""


def proposal_named(
    model: LatentLM, name: str | None = None, temperature: float = 1.0
) -> Proposal:
    """Return a proposal of a model, or one that another package has for it.

    Args:
        model: A latent LM.
        name: One of the model's own, or else of another package, or
            ``package.module:Class``. None is the model's first.
        temperature: Divides the proposal's scores.

    Raises:
        ValueError: If there is no such proposal, or what another package names is none.
    """
    if name is None or name in model.proposal_names or name not in REGISTRY:
        return model.proposal(name, temperature)
    check_temperature(temperature)
    found = REGISTRY[name](model, temperature)
    if not isinstance(found, Proposal):
        raise ValueError(
            f"proposal={name}: a {type(found).__name__} is no proposal; derive it from "
            "lm_latent_eval.extend.Proposal"
        )
    return found


def chosen(name: str | None, known: Sequence[str]) -> str:
    """Return the name of a proposal; None is the first of those that a model has.

    Raises:
        ValueError: If there is none of that name.
    """
    if name is None:
        return known[0]
    if name not in known:
        raise ValueError(
            f"proposal={name!r}: this checkpoint has {', '.join(sorted(known))}"
        )
    return name


TEMPERATURES = (0.001, 1000.0)
"""The lowest and the highest. Lower ones would let the rounding of scores decide, which
they divide; at higher ones all choices are as good as equal."""


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is out of range.

    Raises:
        ValueError: If it is not between the lowest and the highest.
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

    It reads nothing, so that texts are encoded once, by the model.
    """

    name = "none"

    def encode(self, batch: TokenBatch, after: Unmoved | None = None) -> TokenBatch:
        """Return the piece as it is."""
        return batch

    def sample(self, batch: TokenBatch, uniforms: Uniforms, num_samples: int) -> Draws:
        """Draw the empty latent K times, with log q = 0."""
        zeros = wide_zeros((len(batch.length), num_samples), batch.length.device)
        return Draws(zeros.new_empty(*zeros.shape, 0).long(), zeros)

    def log_prob(self, batch: TokenBatch, latents: Tensor) -> Tensor:
        """Return log q = 0 of K empty latents, (B, K)."""
        return wide_zeros((len(batch.length), latents.shape[1]), batch.length.device)

    def beam(self, batch: TokenBatch, width: int, score: Tensor | None = None) -> Beam:
        """Return the one latent there is."""
        zeros = wide_zeros((len(batch.length), 1), batch.length.device)
        nothing, cut = zeros.new_empty(*zeros.shape, 0).long(), zeros[:, 0] < 0
        return Beam(nothing, zeros, zeros.long(), cut=cut)

    def advance(self, batch: TokenBatch, latents: Tensor) -> Unmoved:
        """Return the state after the piece, which is none."""
        return Unmoved()
