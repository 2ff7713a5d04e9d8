"""How a masked diffusion model is scored, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from lm_latent_eval.arguments import at_least_0, one_of, positive, whole
from lm_latent_eval.options import OptionTable, choice, option, optional
from lm_latent_eval.wrappers.mdm.orders import RULES

ESTIMATORS = ("elbo", "is", "exact", "path")
HOW = {
    "elbo": "a bound of log-likelihoods by random masks, seed {seed}",
    "is": "importance sampling of orders from the {proposal} proposal, seed {seed}",
    "exact": "all orders are summed: nothing is drawn",
    "path": "tokens are revealed by {order}, one order a text: log-likelihoods are "
    "exact for that model",
}
"""What each does, for ``explain``."""
_IDLE = {
    "elbo": ("proposal", "temperature"),
    "is": (),
    "exact": ("proposal", "temperature", "num_samples"),
    "path": ("proposal", "temperature", "num_samples"),
}
"""Estimator -> options that move no likelihood by it."""


@dataclass(frozen=True)
class MDMOptions(OptionTable):
    """How likelihoods are estimated and texts are written.

    Attributes:
        estimator: ``elbo`` (a bound, by random masks), ``is`` (importance sampling of
            orders), ``exact`` (all orders, of short targets) or ``path`` (one order,
            which follows from what is revealed: another model).
        num_samples: Passes of ``elbo``, orders of ``is``.
        proposal: What ``is`` draws orders from: ``uniform`` or ``adapted``.
        temperature: Of the adapted proposal; above 1 flattens it.
        order: What is surest, and so revealed next, in ``path``, for ``is_greedy`` and
            in generation: ``confidence``, ``entropy``, ``margin`` or
            ``left_to_right``.
        ends: ``counted`` (p(number of tokens) is paid, where the checkpoint knows it)
            or ``conditioned`` (every text is given its number of tokens).
        mask_token: The token that masks, by name or number.
        logit_shift: 1 if the scores of a place are those of the token after it.
        seed: Of all random numbers.
        block_length: Tokens that generation finishes before those after them.
        steps: Of generation.
        remasking: What generation keeps masked: ``surest`` reveals by ``order``,
            ``random`` any.
        guidance: Strength of classifier-free guidance, in generation alone.
    """

    estimator: str = choice("elbo", ESTIMATORS)
    num_samples: int = option(128, partial(whole, least=1))
    proposal: str = choice("uniform", ("uniform", "adapted"))
    temperature: float = option(1.0, positive)
    order: str = choice("confidence", list(RULES))
    ends: str | None = choice(
        None, ("counted", "conditioned"), unset="`counted` where it can be"
    )
    mask_token: str | None = option(
        None,
        optional(lambda name, value: str(value)),
        unset="what tokenizer or configuration say",
    )
    logit_shift: int | None = option(
        None,
        optional(lambda name, value: int(one_of(name, str(value), "01"))),
        unset="what the configuration says",
    )
    seed: int = option(0, partial(whole, least=0))
    block_length: int = option(32, partial(whole, least=1))
    steps: int | None = option(
        None, optional(partial(whole, least=1)), unset="one a token"
    )
    remasking: str = choice("surest", ("surest", "random"))
    guidance: float = option(0.0, at_least_0)

    @property
    def idle(self) -> tuple[str, ...]:
        """Options that move no number by this estimator, but the seed of generation."""
        if self.estimator == "is" and self.proposal == "uniform":
            return ("temperature",)
        return _IDLE[self.estimator]

    @property
    def chosen(self) -> dict[str, Any]:
        """All that a number depends on, as JSON."""
        return {n: value for n, value in asdict(self).items() if n not in self.idle}
