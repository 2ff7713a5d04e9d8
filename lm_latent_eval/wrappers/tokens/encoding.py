"""Encoding of strings as tokens, and decoding of tokens to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.base import framed
from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


class Encoding:
    """A tokenizer, under one choice of options."""

    def __init__(
        self, network: Network, vocabulary: ByteVocabulary, options: TokensOptions
    ) -> None:
        """Take a network's tokenizer.

        Raises:
            ValueError: If nothing can come before a text.
        """
        self._tokenizer: Any = network.tokenizer
        self.vocabulary, self.options = vocabulary, options
        self.window, self._adds_special = network.max_length, network.adds_special
        if network.prefix_token is None:
            raise ValueError(
                "the tokenizer has neither a start nor an end token, so nothing says "
                "how probable the first token of a text is: give prefix_token_id"
            )
        self.prefix = network.prefix_token
        """What the first token of a text follows."""
        self.begin = str(self._tokenizer.decode([self.prefix]))
        """The same as a string."""
        self.end: tuple[int, ...] = ()
        """Tokens that are scored after every text."""
        if options.end == "eos":
            if self._tokenizer.eos_token_id is None:
                raise ValueError(
                    "end=eos: the tokenizer has no end token; use end=none"
                )
            self.end = (self._tokenizer.eos_token_id,)

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Return canonical tokens, those that the tokenizer adds included."""
        adds = self._adds_special if special is None else special
        if special is None and self.begin and text.startswith(self.begin):
            adds = False
        more = {} if adds is None else {"add_special_tokens": adds}
        found: list[int] = self._tokenizer.encode(text, **more)
        return found

    @property
    def starts_twice(self) -> bool:
        """Whether a text's start token, which a text follows anyhow, is scored."""
        return self.encode("")[:1] == [self.prefix]

    def framed(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens of a text, and those that are put before and after it."""
        tokens, inner = self.encode(text), self.encode(text, False)
        if not inner:
            return tokens, [], []
        if (around := framed(tokens, inner)) is None:
            return [], tokens, []
        before, after = around
        return before, inner, after

    def given(self, context: str, most: int) -> tuple[int, ...]:
        """Return the tokens of a context that is gone on with.

        Args:
            context: The context; of a long one its end.
            most: Tokens that the window is to have left.

        Raises:
            ValueError: If so many leave nothing for the context.
        """
        room = self.window - most
        if room < 1:
            raise ValueError(
                f"max_gen_toks={most} leaves nothing of the window of {self.window} "
                "for a context"
            )
        return tuple(self.encode(context) or [self.prefix])[-room:]

    def lattice(
        self,
        tokens: Sequence[int],
        written: Sequence[bytes],
        *,
        begins: bool,
        overruns: bool,
    ) -> SegmentationLattice | None:
        """Return all ways to write what tokens write, and then the other tokens."""
        if self.options.estimator == "canonical":
            return None
        fixed, place = {}, 0
        for token, piece in zip(tokens, written, strict=False):
            if token in self.vocabulary.special:
                fixed[place] = (token, place + len(piece))
            place += len(piece)
        end = tuple(tokens[len(written) :])
        return SegmentationLattice(
            self.vocabulary, b"".join(written), begins, overruns, end, fixed
        )

    def restored(
        self, tokens: Sequence[int], text: bytes, *, begins: bool
    ) -> list[bytes]:
        """Return what each token writes.

        Raises:
            ValueError: If together they do not write the text.
        """
        pieces = self.vocabulary.write(tokens, begins=begins)
        written = b"".join(pieces)
        if written == text or self.options.estimator == "canonical":
            return pieces
        pairs = enumerate(zip(written, text, strict=False))
        least = min(len(written), len(text))
        place = next((n for n, (a, b) in pairs if a != b), least)
        around = slice(max(0, place - 10), place + 20)
        here = text[around].decode(errors="replace")
        if self._tokenizer.unk_token_id in tokens:
            raise ValueError(
                f"the tokenizer has no tokens for a part of {here!r}: what it reads as "
                "unknown has no probability as a string"
            )
        now = written[around].decode(errors="replace")
        raise ValueError(
            f"the tokenizer does not restore {here!r} but writes {now!r}: its "
            "normalizer changes this string, so its tokens do not stand for it"
        )
