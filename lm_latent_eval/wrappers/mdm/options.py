"""How a masked diffusion model is scored, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Self

from lm_latent_eval.arguments import at_least_0, one_of, positive, whole
from lm_latent_eval.wrappers.mdm.orders import RULES

ESTIMATORS = ("elbo", "is", "exact", "path")
_IDLE = {
    "elbo": ("proposal", "temperature"),
    "is": (),
    "exact": ("proposal", "temperature", "num_samples"),
    "path": ("proposal", "temperature", "num_samples"),
}
"""Estimator -> options that move no likelihood by it."""


@dataclass(frozen=True)
class MDMOptions:
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
            or ``conditioned`` (every text is given its number of tokens); None is the
            first where it can be.
        mask_token: The token that masks, by name or number; None is what tokenizer or
            configuration say.
        logit_shift: 1 if the scores of a place are those of the token after it; None
            is what the configuration says.
        seed: Of all random numbers.
        block_length: Tokens that generation finishes before those after them.
        steps: Of generation; None is one a token.
        remasking: What generation keeps masked: ``surest`` reveals by ``order``,
            ``random`` any.
        guidance: Strength of classifier-free guidance, in generation alone.
    """

    estimator: str = "elbo"
    num_samples: int = 128
    proposal: str = "uniform"
    temperature: float = 1.0
    order: str = "confidence"
    ends: str | None = None
    mask_token: str | None = None
    logit_shift: int | None = None
    seed: int = 0
    block_length: int = 32
    steps: int | None = None
    remasking: str = "surest"
    guidance: float = 0.0

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Check and convert arguments as they come from a command line.

        Raises:
            ValueError: If there is no such argument, or a value is not one that it can
                have.
        """
        for name in arguments:
            one_of("argument", name, NAMES)
        return cls(**{name: _READ[name](name, arg) for name, arg in arguments.items()})

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


NAMES = tuple(field.name for field in fields(MDMOptions))


def _optional(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value in (None, "") else read(name, value)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "estimator": partial(one_of, names=ESTIMATORS),
    "num_samples": partial(whole, least=1),
    "proposal": partial(one_of, names=("uniform", "adapted")),
    "temperature": positive,
    "order": partial(one_of, names=list(RULES)),
    "ends": _optional(partial(one_of, names=("counted", "conditioned"))),
    "mask_token": _optional(lambda name, value: str(value)),
    "logit_shift": _optional(lambda name, value: int(one_of(name, str(value), "01"))),
    "seed": partial(whole, least=0),
    "block_length": partial(whole, least=1),
    "steps": _optional(partial(whole, least=1)),
    "remasking": partial(one_of, names=("surest", "random")),
    "guidance": at_least_0,
}
