"""Strings cut into targets: what is to be predicted, and what is given for it.

A text that is longer than the network's places is cut into windows. The first is as
long as there are places. Each after it predicts at most half as many tokens, and is
given as many of the tokens before them as there is room for. So every token is
predicted once, and all but those of the first window have at least half of the places
before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import encodable
from lm_latent_eval.wrappers.base import framed, windows
from lm_latent_eval.wrappers.mdm.predictions import TargetTokens


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
        border = sum(end <= len(query.context) for end in ends)
        if not query.text:
            border = len(ids)
        if (length := len(ids) - border) > self.room:
            raise ValueError(
                f"the target has {length} tokens, and the network has room for "
                f"{self.room} at once: shorten it, or score it as a whole text "
                "(rolling), which is read in windows"
            )
        spans = [(max(0, len(ids) - self.room), border, len(ids))]
        return self._cut(query, ids, [span for span in spans if span[2] > span[1]])

    def context(self, text: str, room: int) -> list[int]:
        """Return the tokens before what is to be written, the last ones if too many."""
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
        text = encodable(text)
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
        """Say where tokens end by what those up to each spell.

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
    """Return what stands before and after every text."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    found = framed(tokenizer.encode("a", add_special_tokens=True), plain)
    if found is None:
        raise ValueError(
            "the tokenizer changes a text where it puts its marks around it"
        )
    return tuple(found[0]), tuple(found[1])
