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
"""Architecture of published checkpoints -> ``Source.shift``, as their authors' programs
have it: github.com/ML-GSAI/LLaDA (generate.py), github.com/kuleshov-group/mdlm
(diffusion.py) and bd3lms (models/dit.py), github.com/DreamLM/Dream (eval/eval.py),
github.com/JetAstra/SDAR (generate.py). Not by ``model_type``: others have taken those
names for networks that are not shifted."""
MASKS_ITSELF = ("BD3LM",)
"""Architectures that mask their attention over blocks themselves."""
STORES_ASKED = ("SDARForCausalLM", "SDARMoeForCausalLM")
"""Architectures that keep keys and values where they are asked to (``store_kv``)."""
BLOCK_CAUSAL = (*MASKS_ITSELF, *STORES_ASKED, "LLaDA2MoeModelLM")
"""Architectures whose attention is causal over blocks."""
BLOCK_LENGTHS = ("block_size", "block_length")
"""Entries of configurations for the tokens of a block."""
UNIFORM = ("diffusion_gemma", "udlm")
"""Types of models that replace tokens by others instead of masking them."""


@dataclass(frozen=True)
class Source:
    """A function from tokens to scores, with its tokenizer and their facts.

    Attributes:
        logits: The function.
        tokenizer: Whose tokens they are.
        name: What it was loaded by.
        digest: What its numbers depend on.
        max_length: Tokens that it reads at once.
        device: Where tokens go.
        mask: The token that masks; None if neither tokenizer nor configuration say.
        shift: 1 if the scores of a place are those of the token after it; None if
            nothing says.
        start: What texts begin with where the first place has no scores otherwise.
        about: What results say of it, as JSON.
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
    """The floating type, where it is known."""
    mixed_precision: torch.dtype | None = None
    """Floating type of mixed precision; None: the network's own."""
    attention: str = "bidirectional"
    """Or ``block_causal``."""
    block_length: int | None = None
    """Tokens of a block, if the configuration says."""
    model: PreTrainedModel | None = None
    """The network, if there is one, to be read block by block."""

    @property
    def ends(self) -> list[int]:
        """The tokens that end a text, by the network or the tokenizer."""
        return text_ends(getattr(self.model, "generation_config", None), self.tokenizer)

    def reading(self, attention: str, block_length: int | None) -> Logits:
        """Return the function by which a network of that attention is read.

        Raises:
            ValueError: If it masks its attention itself, over other blocks.
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
        asked = not {*names}.isdisjoint(STORES_ASKED)
        store = {"store_kv": True} if asked else {}
        return BlockCausal(self.model, block_length, self.mixed_precision, asked, store)

    @classmethod
    def of(cls, network: Network) -> Self:
        """Take a loaded network.

        Raises:
            ValueError: If the network looks at a time.
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
    """Refuse a network that replaces tokens by any others (uniform-state diffusion).

    Raises:
        ValueError: If it says it is one; the error says what does not exist.
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
    """A query as targets."""

    query: Query
    targets: list[TargetTokens]
    """None, of a string without characters."""
    num_tokens: int
    """To be predicted, of all targets."""
    unknown: int
    """Tokens among them that stand for any string that the tokenizer does not know."""
    lossy: bool
    """Whether the tokens of the query's strings are those of others as well."""
    lost: int = 0
    """Tokens at the beginning of its context that the network has no room for."""


class TokenCutter:
    """Cuts queries by a tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask: int,
        max_length: int,
        start: int | None = None,
    ) -> None:
        """Find what the tokenizer puts around every text.

        Args:
            tokenizer: Of the network.
            mask: The token that masks.
            max_length: Tokens that the network reads at once.
            start: What texts begin with where the tokenizer puts nothing before them.

        Raises:
            ValueError: If that leaves no room.
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
        """Cut a text that nothing is given for, into windows."""
        ids, _ = self._tokens(query.text)
        half = max(1, self.room // 2)
        spans = [*windows(len(ids), self.room, half, self.room)]
        return self._cut(query, ids, spans)

    def continuation(self, query: Query) -> Cut:
        """Cut a text after its context, as much of which is given as there is room for.

        A token across the border belongs to the continuation.

        Raises:
            ValueError: If the continuation is longer than the network's places.
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
        """Return the tokens of a context, the last ones if there are too many."""
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
        """Write tokens as a string."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _tokens(self, text: str) -> tuple[list[int], list[int]]:
        """Return tokens, and where each ends in the text."""
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
        """Return where tokens end, by decoding every prefix.

        A part of a character is spelled as a mark of its own, and ends where that does.
        """
        for n in range(1, len(ids)):
            spelled = self.decode(ids[:n])
            stem = spelled.rstrip("\ufffd")
            yield len(stem) + (stem != spelled)
        yield from [length] * bool(ids)


def _frame(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that the tokenizer puts before and after every text."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    found = framed(tokenizer.encode("a", add_special_tokens=True), plain)
    if found is None:
        raise ValueError(
            "the tokenizer changes a text where it puts its marks around it"
        )
    return tuple(found[0]), tuple(found[1])
