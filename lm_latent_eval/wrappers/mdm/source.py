"""Network and tokenizer of a masked diffusion model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import torch
from transformers import (
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.networks.causal import without_adapter
from lm_latent_eval.networks.masked import BlockCausal, Logits, scores_of
from lm_latent_eval.networks.network import Network, text_ends
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.base import framed, windows
from lm_latent_eval.wrappers.mdm.targets import TargetTokens

SHIFTS = {
    "LLaDAModelLM": 0,
    "MDLM": 0,
    "DreamModel": 1,
    "BD3LM": 0,
    "SDARForCausalLM": 0,
    "SDARMoeForCausalLM": 0,
    "LLaDA2MoeModelLM": 0,
}
"""Architecture of published checkpoints -> ``Source.shift``, by their authors'
programs: github.com/ML-GSAI/LLaDA (generate.py), github.com/kuleshov-group/mdlm
(diffusion.py) and bd3lms (models/dit.py), github.com/DreamLM/Dream (eval/eval.py),
github.com/JetAstra/SDAR (generate.py). The key is not ``model_type``, which other
networks share."""
MASKS_ITSELF = ("BD3LM",)
"""Architectures that mask their attention over blocks themselves."""
STORES_ASKED = ("SDARForCausalLM", "SDARMoeForCausalLM")
"""Architectures that cache keys and values on request (``store_kv``)."""
BLOCK_CAUSAL = (*MASKS_ITSELF, *STORES_ASKED, "LLaDA2MoeModelLM")
"""Architectures whose attention is causal over blocks."""
BLOCK_LENGTHS = ("block_size", "block_length")
"""Configuration entries for the length of a block."""
UNIFORM = ("diffusion_gemma", "udlm")
"""Types of models that replace tokens by others instead of masking them."""


@dataclass(frozen=True)
class Source:
    """A function from tokens to scores, with its tokenizer and their facts.

    Attributes:
        logits: The function.
        tokenizer: Its tokenizer.
        name: Directory or repository.
        digest: Digest of all that its numbers depend on.
        max_length: Largest number of tokens read at once.
        device: Device of the tokens.
        mask: The mask token; None if neither tokenizer nor configuration has one.
        shift: 1 if the scores of a position are those of the token after it; None if
            unknown.
        start: First token of texts whose first position has no scores otherwise.
        about: Description for results, as JSON.
    """

    logits: Logits
    tokenizer: PreTrainedTokenizerBase
    name: str
    digest: str
    max_length: int
    device: torch.device
    mask: int | None
    shift: int | None
    start: int | None
    about: dict[str, Any]
    computed_in: str | None = None
    """Floating type, if known."""
    mixed_precision: torch.dtype | None = None
    """Floating type of mixed precision; None: the network's own."""
    attention: str = "bidirectional"
    """``bidirectional`` or ``block_causal``."""
    block_length: int | None = None
    """Number of tokens of a block, if the configuration has it."""
    model: PreTrainedModel | None = None
    """The network, if there is one, to be read block by block."""

    @property
    def ends(self) -> list[int]:
        """Tokens that end a text, by the network or the tokenizer."""
        return text_ends(getattr(self.model, "generation_config", None), self.tokenizer)

    def reading(self, attention: str, block_length: int | None) -> Logits:
        """Function that reads the network with an attention.

        Raises:
            ValueError: If the network masks its attention itself, over other blocks.
        """
        if attention == "bidirectional" or block_length is None or self.model is None:
            return self.logits
        names = _architectures(self.model.config)
        if not {*names}.isdisjoint(MASKS_ITSELF):
            if self.block_length not in (None, block_length):
                raise ValueError(
                    f"block_length={block_length}: {self.name} masks its attention "
                    f"over blocks of {self.block_length}, and was trained so"
                )
            return self.logits
        stores = not {*names}.isdisjoint(STORES_ASKED)
        more = {"store_kv": True} if stores else {}
        return BlockCausal(self.model, block_length, self.mixed_precision, stores, more)

    @classmethod
    def of(cls, network: Network) -> Self:
        """Take a loaded network.

        Raises:
            ValueError: If the network reads a time.
        """
        model, tokenizer = without_adapter(network.model), network.tokenizer
        config = model.config
        refuse_uniform(config, network.name)
        causal = not {*_architectures(config)}.isdisjoint(BLOCK_CAUSAL)
        lengths = (getattr(config, name, None) for name in BLOCK_LENGTHS)
        mask = tokenizer.mask_token_id
        shift = getattr(config, "logit_shift", None)
        if shift is None and type(config) in AutoModelForMaskedLM._model_mapping:
            shift = 0  # what transformers means by a masked LM
        if shift is None:
            names = _architectures(config)
            shift = next((SHIFTS[name] for name in names if name in SHIFTS), None)
        return cls(
            scores_of(model, network.mixed_precision),
            tokenizer,
            network.name,
            network.digest,
            network.max_length,
            network.device,
            getattr(config, "mask_token_id", None) if mask is None else mask,
            shift,
            network.prefix_token,
            network.about,
            str(network.computed_in),
            network.mixed_precision,
            "block_causal" if causal else "bidirectional",
            next((n for n in lengths if isinstance(n, int)), None),
            model,
        )


def refuse_uniform(config: PretrainedConfig, name: str) -> None:
    """Refuse a network of uniform-state diffusion.

    Raises:
        ValueError: If it replaces tokens by any others.
    """
    graph = getattr(config, "graph", None)  # SEDD
    kind = graph.get("type") if isinstance(graph, dict) else None
    description = (config.model_type, kind, getattr(config, "diffusion", None))
    if description[0] in UNIFORM or "uniform" in description[1:]:
        raise ValueError(
            f"{name} is a uniform-state diffusion model ({config.model_type}): it "
            "replaces tokens by any others and may replace them again, so no token is "
            "ever known to be final, and neither orders of unmasking nor p(x | order) "
            "exist. p(x) is a sum over all texts at all noise levels; its bound takes "
            "the noise schedule of training, which the configuration does not hold"
        )


def _architectures(config: PretrainedConfig) -> list[str]:
    return getattr(config, "architectures", None) or []


@dataclass(frozen=True)
class Cut:
    query: Query
    targets: list[TargetTokens]
    """Targets; empty for an empty string."""
    num_tokens: int
    """Number of tokens to be predicted, of all targets."""
    unknown: int
    """Number of unknown tokens among them."""
    lossy: bool
    """Whether other strings have the same tokens."""
    lost: int = 0
    """Number of tokens at the beginning of its context that are cut off."""


class TokenCutter:
    """Cuts queries by a tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask: int,
        max_length: int,
        start: int | None = None,
    ) -> None:
        """Find the tokens that the tokenizer puts around every text.

        Args:
            tokenizer: Tokenizer of the network.
            mask: The mask token.
            max_length: Largest number of tokens read at once.
            start: First token of texts, if the tokenizer adds none.

        Raises:
            ValueError: If they leave no room.
        """
        self.tokenizer, self.mask = tokenizer, mask
        self.before, self.after = _frame(tokenizer)
        if start is not None and not self.before:
            self.before = (start,)
        self.room = max_length - len(self.before) - len(self.after)
        if self.room < 2:
            raise ValueError(
                f"max_length={max_length}: no room for a text between "
                f"{len(self.before)} tokens before it and {len(self.after)} after it"
            )

    def whole(self, query: Query) -> Cut:
        """Cut a text without context into windows."""
        ids, _ = self._tokens(query.text)
        half = max(1, self.room // 2)
        spans = [*windows(len(ids), self.room, half, self.room)]
        return self._cut(query, ids, spans)

    def continuation(self, query: Query) -> Cut:
        """Cut a text after its context, whose beginning is cut off if necessary.

        A token across the border belongs to the continuation.

        Raises:
            ValueError: If the continuation is too long for the network.
        """
        ids, ends = self._tokens(query.context + query.text)
        border = sum(end <= len(query.context) for end in ends) if query.context else 0
        if not query.text:
            border = len(ids)
        if (length := len(ids) - border) > self.room:
            raise ValueError(
                f"the target has {length} tokens, and the network has room for "
                f"{self.room} at once: shorten it, or score it as a whole text "
                "(rolling), which is read in windows"
            )
        lost = max(0, len(ids) - self.room)
        spans = [(lost, border, len(ids))] if len(ids) > border else []
        return replace(self._cut(query, ids, spans), lost=lost)

    def context(self, text: str, room: int) -> list[int]:
        """Tokens of a context, the last ones if there are too many."""
        ids, _ = self._tokens(text)
        return [*self.before, *ids[max(0, len(ids) - (self.room - room)) :]]

    def _cut(
        self, query: Query, ids: Sequence[int], spans: Sequence[tuple[int, int, int]]
    ) -> Cut:
        text = query.context + query.text
        if query.text and not spans:
            raise ValueError(
                "an empty target: the tokenizer has no token for this text"
            )
        targets = [
            TargetTokens((*self.before, *ids[a:b]), tuple(ids[b:c]), self.after)
            for a, b, c in spans
        ]
        tokens = [token for target in targets for token in target.tokens]
        if self.mask in tokens:
            raise ValueError(
                "the text has the token that masks, which has no probability"
            )
        return Cut(
            query,
            targets,
            len(tokens),
            sum(token == self.tokenizer.unk_token_id for token in tokens),
            self.decode(ids) != text,
        )

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _tokens(self, text: str) -> tuple[list[int], list[int]]:
        if self.tokenizer.is_fast:
            cut = self.tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True
            )
            # Tokens that share a character end in order.
            ends = accumulate((end for _, end in cut["offset_mapping"]), max)
            return list(cut["input_ids"]), list(ends)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids, list(self._ends(ids, len(text)))

    def _ends(self, ids: list[int], length: int) -> Iterator[int]:
        """Ends of tokens, by decoding every prefix.

        A part of a character ends with the character.
        """
        for n in range(1, len(ids)):
            spelled = self.decode(ids[:n])
            stem = spelled.rstrip("\ufffd")
            yield len(stem) + (stem != spelled)
        yield from [length] * bool(ids)


def _frame(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens that the tokenizer puts before and after every text."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    frame = framed(tokenizer.encode("a", add_special_tokens=True), plain)
    if frame is None:
        raise ValueError(
            "the tokenizer changes a text where it puts its marks around it"
        )
    return tuple(frame[0]), tuple(frame[1])
