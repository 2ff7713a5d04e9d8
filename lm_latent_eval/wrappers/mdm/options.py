"""Options of ``latent_mdm``, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from lm_latent_eval.options import (
    OptionTable,
    at_least_0,
    choice,
    one_of,
    option,
    optional,
    whole,
)
from lm_latent_eval.wrappers.mdm.unmasking import (
    ANY_ORDER,
    LOW_CONFIDENCE,
    NAMES,
    Unmasking,
)

ESTIMATORS = ("elbo", "is", "exact", "auto")
HOW = {
    "elbo": "a bound of log-likelihoods by random masks, seed {seed}",
    "is": "importance sampling of orders, seed {seed}",
    "exact": "all orders are summed: nothing is drawn",
    "auto": "all orders of blocks that take at most {num_samples} passes are summed; "
    "of others, importance sampling of {num_samples} orders, seed {seed}",
    "path": "one order, which follows from what is revealed: log-likelihoods are exact "
    "for that model",
    "llada": "what LLaDA's program computes, {num_samples} masked texts, seed {seed}: "
    "not log p, and no bound of it",
}
"""Description of each estimator, for ``explain``."""
BLOCK_WRITTEN = 32
"""Default length of a block in generation."""


def _probability(name: str, value: Any) -> float:
    probability = at_least_0(name, value)
    if not 0 < probability < 1:
        raise ValueError(f"{name}={value!r}: expected a number between 0 and 1")
    return probability


@dataclass(frozen=True)
class MDMOptions(OptionTable):
    """How likelihoods are estimated and texts are written.

    Attributes:
        block_length: Tokens of a block. Blocks are decoded from left to right, and each
            length is another model.
        unmasking: Which places of a block are revealed next: ``any_order`` (uniformly
            at random), ``confidence`` (the surest), ``entropy``, ``margin``,
            ``left_to_right``, or ``low_confidence`` (LLaDA's remasking).
        tokens_per_step: Places that a step reveals.
        threshold: Probability above which a step reveals more, by ``confidence`` or
            ``low_confidence``.
        attention: ``bidirectional`` (later blocks are read as masks) or
            ``block_causal`` (they are not read).
        estimator: ``elbo`` (a bound, by random masks), ``is`` (importance sampling of
            orders), ``exact`` (all orders) or ``auto`` (``exact`` where that takes at
            most ``num_samples`` passes a block, else ``is``).
        num_samples: Passes of ``elbo``, orders of ``is``.
        convention: ``llada`` computes what LLaDA's program does, which is not log p.
        mask_token: The token that masks, by name or number.
        logit_shift: 1 if the scores of a place are those of the token after it.
        seed: Of all random numbers.
    """

    block_length: int | None = option(
        None,
        optional(partial(whole, least=1)),
        unset="what the configuration says of networks that are causal over blocks, "
        "else the whole text; 32 in generation",
    )
    unmasking: str | None = choice(
        None,
        NAMES,
        unset="`any_order` in likelihoods, `low_confidence` in generation",
    )
    tokens_per_step: int = option(1, partial(whole, least=1))
    threshold: float | None = option(None, optional(_probability), unset="none")
    attention: str | None = choice(
        None,
        ("bidirectional", "block_causal"),
        unset="what the architecture has, `bidirectional` of unknown ones",
    )
    estimator: str | None = choice(
        None, ESTIMATORS, unset="`elbo` of whole texts in any order, else `auto`"
    )
    num_samples: int = option(128, partial(whole, least=1))
    convention: str | None = choice(None, ("llada",), unset="none")
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

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other.

        Raises:
            ValueError: Naming one option and the remedy.
        """
        process = self.process
        whole_texts = process.is_plain and self.block_length is None
        if self.convention and not (whole_texts and self.estimator is None):
            raise ValueError(
                f"convention={self.convention} is one program's loop over whole texts "
                "in any order: leave out estimator, block_length, unmasking and "
                "tokens_per_step"
            )
        if self.estimator == "elbo" and not process.is_plain:
            raise ValueError(
                "estimator=elbo bounds orders of single tokens, not "
                f"unmasking={process}: use estimator=auto"
            )

    @property
    def process(self) -> Unmasking:
        """Rule of unmasking in likelihoods."""
        rule = self.unmasking or ANY_ORDER
        return Unmasking(rule, self.tokens_per_step, self.threshold)

    @property
    def writing(self) -> Unmasking:
        """Rule of unmasking in generation."""
        rule = self.unmasking or LOW_CONFIDENCE
        return Unmasking(rule, self.tokens_per_step, self.threshold)

    def chosen_for(self, attention: str, block_length: int | None) -> MDMOptions:
        """Fill in the network's defaults.

        Args:
            attention: Attention of the network.
            block_length: Block length that it was trained for, if known.

        Raises:
            ValueError: If attention is causal over blocks of unknown length.
        """
        attention = self.attention or attention
        if attention == "bidirectional":
            block_length = None
        length = self.block_length or block_length
        if attention == "block_causal" and length is None:
            raise ValueError(
                "attention=block_causal: nothing says how many tokens a block has: "
                "give block_length, as the network was trained"
            )
        plain = self.process.is_plain and length is None
        estimator = self.estimator or ("elbo" if plain else "auto")
        return replace(
            self,
            attention=attention,
            block_length=length,
            estimator=None if self.convention else estimator,
        )

    def estimator_of(self, length: int) -> str:
        if self.process.follows:
            return "path"
        if self.estimator != "auto":
            return self.estimator or "elbo"
        return "exact" if 2**length - 1 <= self.num_samples else "is"

    @property
    def name(self) -> str:
        if self.convention:
            return self.convention
        return "path" if self.process.follows else str(self.estimator)

    @property
    def description(self) -> str:
        length = self.block_length
        blocks = "the whole text at once" if length is None else f"blocks of {length}"
        read = {"block_causal": "later blocks not read"}.get(
            str(self.attention), "later blocks read as masks"
        )
        where = blocks if length is None else f"{blocks} from the left, {read}"
        return f"{where}; {self.process}"

    @property
    def idle(self) -> tuple[str, ...]:
        if self.name == "path":
            return ("estimator", "num_samples")
        return ("num_samples",) if self.name == "exact" else ()

    @property
    def chosen(self) -> dict[str, Any]:
        """All that a number depends on, as JSON."""
        kept = {n: value for n, value in asdict(self).items() if n not in self.idle}
        rules = {"unmasking": self.process.rule, "writing": str(self.writing)}
        return {**kept, **rules, "estimator": self.name}
