"""Strings as token sequences: the canonical ones, as ``--model hf`` reads them.

A text longer than the network's window is cut where its canonical tokens fill a window,
as lm-eval cuts it; no segmentation crosses these borders, and what lies before one is
given as its canonical tokens. So are the tokens of a context but its last ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import encodable
from lm_latent_eval.wrappers.network import Network
from lm_latent_eval.wrappers.tokens.lattice import Lattice
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class Piece:
    """A string after given tokens, and its canonical segmentation."""

    given: tuple[int, ...]
    tokens: tuple[int, ...]
    """Canonical, those of the end included."""
    lattice: Lattice | None
    """All of them; None where the canonical one is all that is asked for."""
    leading: int = 0
    """How many of the given tokens are scored as well: special ones that the tokenizer
    puts before a text."""

    @property
    def scored(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is given, and every token that is scored after it."""
        border = len(self.given) - self.leading
        return self.given[:border], self.given[border:] + self.tokens

    @property
    def summed(self) -> Lattice:
        """All of its segmentations.

        Raises:
            ValueError: If nobody has asked for them.
        """
        if self.lattice is None:
            raise ValueError("a canonical segmentation is not summed over")
        return self.lattice


@dataclass(frozen=True)
class Continuation:
    """A text after a context."""

    plain: Piece
    """The text after all of the context, as ``--model hf`` reads them."""
    whole: Piece | None
    """The end of the context and the text; None where they are not summed over."""
    context: Piece | None
    """The end of the context by itself, as a prefix; None if there is nothing of it."""

    @property
    def pieces(self) -> list[Piece]:
        """All that there is."""
        return [p for p in (self.plain, self.whole, self.context) if p is not None]


class Strings:
    """Cuts strings into pieces."""

    def __init__(
        self, network: Network, vocabulary: Vocabulary, options: TokensOptions
    ) -> None:
        """Take a network's tokenizer.

        Raises:
            ValueError: If nothing can come before a text.
        """
        self._tokenizer: Any = network.tokenizer
        self._vocabulary, self._options = vocabulary, options
        self._window, self._adds_special = network.max_length, network.adds_special
        if network.prefix_token is None:
            raise ValueError(
                "the tokenizer has neither a start nor an end token, so nothing says "
                "how probable the first token of a text is: give prefix_token_id"
            )
        self._prefix = network.prefix_token
        self._begin = str(self._tokenizer.decode([self._prefix]))
        self._end: tuple[int, ...] = ()
        if options.end == "eos":
            if self._tokenizer.eos_token_id is None:
                raise ValueError("end=eos: the tokenizer has no end token")
            self._end = (self._tokenizer.eos_token_id,)

    def whole(self, text: str) -> list[Piece]:
        """Cut a text where its canonical tokens fill a window.

        Raises:
            ValueError: If there is nothing to score, or the tokenizer does not restore
                the text.
        """
        text = encodable(text)
        before, inner, after = self._framed(text)
        if self._options.end == "prefix":
            after = []
        elif after[-1:] != [*self._end]:
            after = [*after, *self._end]
        if not (text or after or self._options.estimator == "canonical"):
            raise ValueError("the text is empty: only end=eos has something to score")
        written = self._restored(inner, text.encode(), begins=True)
        everything = [*before, *inner, *after]
        first, last = len(before), len(before) + len(inner)
        pieces = []
        for given, start, stop in self._windows(everything):
            leading = max(0, min(stop, first) - start)
            inside = everything[start + leading : stop]
            middle = written[max(start - first, 0) : max(min(stop, last) - first, 0)]
            lattice = self._lattice(
                inside,
                middle,
                begins=start <= first,
                overruns=self._options.end == "prefix" and stop == len(everything),
            )
            given = (*given, *everything[start : start + leading])
            pieces.append(Piece(given, tuple(inside), lattice, leading))
        return pieces

    def restores(self, text: str) -> bool:
        """Whether the canonical tokens of a text write it."""
        _, inner, _ = self._framed(text := encodable(text))
        written = self._vocabulary.write(inner, begins=True)
        return b"".join(written) == text.encode()

    def _windows(
        self, tokens: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield what is given in a window, and where what it predicts starts and stops.

        The last window is given as much as fits.
        """
        for start in range(0, len(tokens), self._window):
            stop = min(start + self._window, len(tokens))
            given = tokens[stop - self._window - 1 : start] if start else [self._prefix]
            yield tuple(given), start, stop

    def continuation(self, query: Query) -> Continuation:
        """Read a text after its context.

        Raises:
            ValueError: If the tokenizer does not restore the end of the context or the
                text, or they are longer than the window.
        """
        context, text = encodable(query.context), encodable(query.text)
        plain = self._plain(context, text)
        if self._options.estimator == "canonical" or not (text or self._end):
            return Continuation(plain, None, None)
        end = len(self._end)
        if not context:
            tokens = plain.tokens[: len(plain.tokens) - end]
            given = plain.given if plain.given[-1] == self._prefix else ()
            target = text.encode()
            if self._begin and text.startswith(self._begin):
                target = target.removeprefix(self._begin.encode())
            whole = self._last(given, tokens, target, begins=True)
            return Continuation(plain, whole, None)
        head, short, _ = self._framed(context)
        _, long, _ = self._framed(context + text)
        border = self._border(head, short, long)
        begins = border == 0
        joined = (context + text).encode()
        room = self._window + 1 - (len(long) - border) - end
        if room < 1:
            raise ValueError(
                f"{len(long) - border} tokens after the context's borders do not fit "
                f"into the window of {self._window}: give fewer context_tokens"
            )
        given = ((*head, *long[:border]) or (self._prefix,))[-room:]
        whole = self._last(given, long[border:], joined, begins=begins)
        self._check_given(long[:border], whole, joined)
        if not short[border:] or whole.lattice is None:
            return Continuation(plain, whole, None)
        rest = len(context.encode()) - len(joined) + len(whole.lattice.target)
        begins = whole.lattice.begins
        written = self._restored(
            short[border:], whole.lattice.target[:rest], begins=begins
        )
        tail = tuple(short[border:])
        lattice = self._lattice(tail, written, begins=begins, overruns=True)
        return Continuation(plain, whole, Piece(given, tail, lattice))

    def _check_given(self, tokens: Sequence[int], last: Piece, joined: bytes) -> None:
        """Refuse a context that the tokenizer shortens: its text is another string.

        After special tokens some tokenizers begin anew, which this cannot tell.
        """
        if (
            not tokens
            or last.lattice is None
            or {*tokens} & self._vocabulary.special.keys()
        ):
            return
        written = b"".join(self._vocabulary.write(tokens, begins=True))
        before = joined[: len(joined) - len(last.lattice.target)]
        if len(written) != len(before):
            raise ValueError(
                f"the tokenizer writes {written.decode(errors='replace')!r} for "
                f"{before.decode(errors='replace')!r}: its normalizer changes this "
                "context, so its tokens do not stand for it"
            )

    def given(self, context: str, most: int) -> tuple[int, ...]:
        """Return the tokens of a context that is gone on with.

        Args:
            context: The context; of a long one its end.
            most: Tokens that the window is to have left.

        Raises:
            ValueError: If so many leave nothing for the context.
        """
        room = self._window - most
        if room < 1:
            raise ValueError(
                f"max_gen_toks={most} leaves nothing of the window of {self._window} "
                "for a context"
            )
        return tuple(self._encode(context) or [self._prefix])[-room:]

    def _border(
        self, head: Sequence[int], short: Sequence[int], long: Sequence[int]
    ) -> int:
        """Return how many tokens of a context are given as they are.

        Special ones are, and the first of a context that none precedes, since nothing
        says how probable that is.
        """
        pairs = enumerate(zip(short, long, strict=False))
        shared = next((n for n, (a, b) in pairs if a != b), min(len(short), len(long)))
        if self._options.context_tokens is None:
            return 0
        marks = [n + 1 for n in range(shared) if short[n] in self._vocabulary.special]
        least = max([0 if head else 1, *marks])
        return min(shared, max(least, len(short) - self._options.context_tokens))

    def _last(
        self,
        given: tuple[int, ...],
        tokens: Sequence[int],
        text: bytes,
        *,
        begins: bool,
    ) -> Piece:
        """Return the piece of the last tokens of a text, or of all if it begins so."""
        # Some tokenizers begin anew after a special token.
        for first in (begins, True):
            written = self._vocabulary.write(tokens, begins=first)
            size = len(text) if begins else sum(map(len, written))
            if b"".join(written) == text[len(text) - size :]:
                break
        written = self._restored(tokens, text[len(text) - size :], begins=first)
        tokens = (*tokens, *self._end)
        overruns = self._options.end == "prefix"
        lattice = self._lattice(tokens, written, begins=first, overruns=overruns)
        return Piece(given, tokens, lattice)

    def _lattice(
        self,
        tokens: Sequence[int],
        written: Sequence[bytes],
        *,
        begins: bool,
        overruns: bool,
    ) -> Lattice | None:
        """Return all ways to write what tokens write, and then the other tokens."""
        if self._options.estimator == "canonical":
            return None
        fixed, place = {}, 0
        for token, piece in zip(tokens, written, strict=False):
            if token in self._vocabulary.special:
                fixed[place] = (token, place + len(piece))
            place += len(piece)
        end = tuple(tokens[len(written) :])
        return Lattice(
            self._vocabulary, b"".join(written), begins, overruns, end, fixed
        )

    def _plain(self, context: str, text: str) -> Piece:
        """Return tokens of a context and a text, as ``--model hf`` reads them.

        White space at the end of the context is the text's there.
        """
        if not context:
            tokens = self._encode(text, False)
            same = tokens[:1] == [self._prefix]
            given, after = [self._prefix], tokens[int(same) :]
        else:
            stripped = context.rstrip()
            given = self._encode(stripped) if stripped else []
            after = self._encode(context + text)[len(given) :]
        after = [*after, *self._end]
        room = self._window + 1 - len(after)
        if room < 1:
            raise ValueError(
                f"the text has {len(after)} tokens after its context, and the network "
                f"reads {self._window}: shorten it, or take a network that reads more"
            )
        return Piece(tuple(given or [self._prefix])[-room:], tuple(after), None)

    def _encode(self, text: str, special: bool | None = None) -> list[int]:
        """Return canonical tokens, those that the tokenizer adds included."""
        adds = self._adds_special if special is None else special
        if special is None and self._begin and text.startswith(self._begin):
            adds = False
        more = {} if adds is None else {"add_special_tokens": adds}
        found: list[int] = self._tokenizer.encode(text, **more)
        return found

    def _framed(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Return the tokens of a text, and those that are put before and after it."""
        tokens, inner = self._encode(text), self._encode(text, False)
        if not inner:
            return tokens, [], []
        for first in range(len(tokens) - len(inner) + 1):
            after = first + len(inner)
            if tokens[first:after] == inner:
                return tokens[:first], inner, tokens[after:]
        return [], tokens, []

    def _restored(
        self, tokens: Sequence[int], text: bytes, *, begins: bool
    ) -> list[bytes]:
        """Return what each token writes.

        Raises:
            ValueError: If together they do not write the text.
        """
        pieces = self._vocabulary.write(tokens, begins=begins)
        written = b"".join(pieces)
        if written == text or self._options.estimator == "canonical":
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


__all__ = ["Continuation", "Piece", "Strings"]
