"""Texts and continuations as canonical tokens, with all of their segmentations.

A text longer than the network's window is cut where its canonical tokens fill a
window, as lm-eval cuts it; no segmentation crosses these borders, and what lies before
one is given as its canonical tokens.

A short context is summed over as the text is. Of a longer one the last tokens are,
since a text may begin inside a token, and those before are given as the canonical
ones. The given tokens depend on the context alone, so texts of which none begins
another have probabilities that total at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import is_normalized

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.base import framed, windows
from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


@dataclass(frozen=True)
class Piece:
    """A string after given tokens, and its canonical segmentation."""

    given: tuple[int, ...]
    tokens: tuple[int, ...]
    """Canonical tokens, those of the end included."""
    lattice: SegmentationLattice | None
    """All segmentations; None if only the canonical one is scored."""
    leading: int = 0
    """Number of given tokens that are scored too: special ones that the tokenizer puts
    before a text."""
    borders: tuple[int, ...] = ()
    """Tokens of which one follows, as white space and ends follow a whole word; empty:
    any may."""
    restores: bool = True
    """Whether the tokens of the whole text write it."""

    @property
    def scored(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Given tokens, and scored tokens after them."""
        border = len(self.given) - self.leading
        return self.given[:border], self.given[border:] + self.tokens

    @property
    def summed(self) -> SegmentationLattice:
        """All of its segmentations.

        Raises:
            ValueError: If there is no lattice.
        """
        if self.lattice is None:
            raise ValueError("a canonical segmentation is not summed over")
        return self.lattice


@dataclass(frozen=True)
class Continuation:
    """A text after a context."""

    plain: Piece
    """Text after all of the context, as ``--model hf`` reads them."""
    whole: Piece | None
    """End of the context and the text; None if not summed over."""
    context: Piece | None
    """End of the context alone, as a prefix; None if empty."""
    given_tokens: bool = False
    """Whether the canonical tokens of the context replace all ways to write it."""
    lost: int = 0
    """Number of tokens at the beginning of the context that are cut off."""

    @property
    def pieces(self) -> list[Piece]:
        return [p for p in (self.plain, self.whole, self.context) if p is not None]


class Encoding:
    """A tokenizer with options, which cuts texts into pieces."""

    def __init__(
        self, network: Network, vocabulary: ByteVocabulary, options: TokensOptions
    ) -> None:
        """Take a network's tokenizer.

        Raises:
            ValueError: If no token can stand before a text.
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
        """Token before the first one of a text."""
        self.begin = str(self._tokenizer.decode([self.prefix]))
        """``prefix`` as a string."""
        self.end: tuple[int, ...] = ()
        """Tokens that are scored after every text."""
        if options.end == "eos":
            if self._tokenizer.eos_token_id is None:
                raise ValueError(
                    "end=eos: the tokenizer has no end token; use end=none"
                )
            self.end = (self._tokenizer.eos_token_id,)
        self._around = self.encode("")

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Canonical tokens, those that the tokenizer adds included."""
        adds = self._adds_special if special is None else special
        if special is None and self.begin and text.startswith(self.begin):
            adds = False
        more = {} if adds is None else {"add_special_tokens": adds}
        tokens: list[int] = self._tokenizer.encode(text, **more)
        return tokens

    @property
    def starts_twice(self) -> bool:
        """Whether the start token of a text, which follows ``prefix``, is scored."""
        return self._around[:1] == [self.prefix]

    def framed(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """Tokens before, of, and after a text."""
        tokens = self.encode(text)
        inner = self.encode(text, False) if self._around else tokens
        if not inner:
            return tokens, [], []
        if (around := framed(tokens, inner)) is None:
            return [], tokens, []
        before, after = around
        return before, inner, after

    def lattice(
        self,
        tokens: Sequence[int],
        written: Sequence[bytes],
        *,
        begins: bool,
        overruns: bool,
        borders: tuple[int, ...] = (),
    ) -> SegmentationLattice | None:
        """Lattice of the string in ``written``, followed by the other tokens."""
        if self.options.estimator == "canonical":
            return None
        fixed, start = {}, 0
        for token, piece in zip(tokens, written, strict=False):
            if token in self.vocabulary.special:
                fixed[start] = (token, start + len(piece))
            start += len(piece)
        end = tuple(tokens[len(written) :])
        return SegmentationLattice(
            self.vocabulary, b"".join(written), begins, overruns, borders, end, fixed
        )

    def restored(
        self, tokens: Sequence[int], text: bytes, *, begins: bool
    ) -> list[bytes]:
        """Bytes of each token.

        Raises:
            ValueError: If together they do not write the text.
        """
        pieces = self.vocabulary.write(tokens, begins=begins)
        written = b"".join(pieces)
        if written == text or self.options.estimator == "canonical":
            return pieces
        pairs = enumerate(zip(written, text, strict=False))
        least = min(len(written), len(text))
        position = next((n for n, (a, b) in pairs if a != b), least)
        around = slice(max(0, position - 10), position + 20)
        here = text[around].decode(errors="replace")
        if self._tokenizer.unk_token_id in tokens:
            raise ValueError(
                f"the tokenizer has no tokens for a part of {here!r}: what it reads as "
                "unknown has no probability as a string"
            )
        now = written[around].decode(errors="replace")
        # Forms of one character (NFC, NFD) look the same.
        same_form = is_normalized("NFC", here) == is_normalized("NFC", now)
        shown = repr if same_form else ascii
        raise ValueError(
            f"the tokenizer does not restore {shown(here)} but writes {shown(now)}: "
            "its normalizer changes this string, so its tokens do not stand for it"
        )

    # -- whole texts ------------------------------------------------------------------

    def cut(self, text: str) -> list[Piece]:
        """Cut a text where its canonical tokens fill a window.

        Raises:
            ValueError: If the text is empty, or the tokenizer does not restore it.
        """
        before, inner, after = self.framed(text)
        if self.options.end == "prefix":
            after = []
        elif after[-1:] != [*self.end]:
            after = [*after, *self.end]
        if not (text or after or self.options.estimator == "canonical"):
            raise ValueError("the text is empty: only end=eos has something to score")
        written = self.restored(inner, text.encode(), begins=True)
        restores = b"".join(written) == text.encode()
        everything = [*before, *inner, *after]
        first, last = len(before), len(before) + len(inner)
        pieces = []
        size = self.window
        for begin, start, stop in windows(len(everything), size, size, size + 1):
            given = tuple(everything[begin:start]) or (self.prefix,)
            leading = max(0, min(stop, first) - start)
            inside = everything[start + leading : stop]
            middle = written[max(start - first, 0) : max(min(stop, last) - first, 0)]
            lattice = self.lattice(
                inside,
                middle,
                begins=start <= first,
                overruns=self.options.end == "prefix" and stop == len(everything),
            )
            given = (*given, *everything[start : start + leading])
            tokens = tuple(inside)
            piece = Piece(given, tokens, lattice, leading, restores=restores)
            pieces.append(piece)
        return pieces

    def beginning(self, text: str, borders: tuple[int, ...]) -> Piece:
        """All of a text so far, which goes on with one of some tokens; none: anyhow.

        Raises:
            ValueError: If the tokenizer does not restore it.
        """
        before, inner, _ = self.framed(text)
        written = self.restored(inner, text.encode(), begins=True)
        lattice = self.lattice(
            inner, written, begins=True, overruns=not borders, borders=borders
        )
        return Piece((self.prefix, *before), tuple(inner), lattice, borders=borders)

    # -- continuations ----------------------------------------------------------------

    def read(self, query: Query) -> Continuation:
        """Read a text after its context.

        Raises:
            ValueError: If the tokenizer does not restore the end of the context or the
                text, or they are longer than the window.
        """
        context, text = query.context, query.text
        plain, lost = self._plain(context, text)
        if self.options.estimator == "canonical" or not (text or self.end):
            return Continuation(plain, None, None, lost=lost)
        end = len(self.end)
        if not context:
            tokens = plain.tokens[: len(plain.tokens) - end]
            given = plain.given if plain.given[-1] == self.prefix else ()
            target = text.encode()
            if self.begin and text.startswith(self.begin):
                target = target.removeprefix(self.begin.encode())
            whole = self._last(given, tokens, target, begins=True)
            return Continuation(plain, whole, None)
        head, short, _ = self.framed(context)
        _, long, _ = self.framed(context + text)
        border = self._border(head, short)
        tail = tuple(short[border:])
        # However long the text is, as all texts after a context have one condition.
        room = self.window + 1 - self.window // 4 - len(tail)
        given = ((*head, *short[:border]) or (self.prefix,))[-max(1, room) :]
        joined = (context + text).encode()
        tokens = self._after(short, long, border, joined, len(text.encode()))
        if len(given) + len(tokens) + end > self.window + 1:
            raise ValueError(
                f"{len(tokens) + end} tokens after the {len(given)} that are given do "
                f"not fit into the window of {self.window}, of which a context leaves "
                "a quarter to every text after it: give fewer context_tokens, a "
                "shorter text, or a network that reads more"
            )
        whole = self._last(given, tokens, joined, begins=border == 0)
        self._check_given(short[:border], whole, joined)
        begins, target = whole.summed.begins, whole.summed.target
        rest = len(target) - len(text.encode())
        written = self.restored(tail, target[:rest], begins=begins)
        lattice = self.lattice(tail, written, begins=begins, overruns=True)
        before = {at: mark for at, mark in whole.summed.fixed.items() if at < rest}
        if lattice is not None and lattice.fixed != before:
            raise self._joined(mark for mark, _ in before.values())
        end_of_context = Piece(given, tail, lattice) if tail else None
        marks = self.vocabulary.special.keys()
        lost = max(0, len(head) + border - len(given))
        given_tokens = lost > 0 or not {*short[:border]} <= marks
        return Continuation(plain, whole, end_of_context, given_tokens, lost)

    def _after(
        self,
        short: Sequence[int],
        long: Sequence[int],
        border: int,
        joined: bytes,
        size: int,
    ) -> tuple[int, ...]:
        """Tokens of a context and its text after the given ones.

        They are the canonical ones of both together. A canonical token that begins
        inside what is given and ends after it is replaced by the fewest tokens that
        write its part outside. ``border`` tokens of the context are given, and the text
        has ``size`` bytes.
        """
        if long[:border] == short[:border]:
            return tuple(long[border:])
        size += sum(map(len, self.vocabulary.write(short[border:], begins=False)))
        pieces = self.vocabulary.write(long, begins=False)
        first = len(long)
        while first and len(pieces[first - 1]) <= size:
            first -= 1
            size -= len(pieces[first])
        rest = b"".join(pieces[first:])
        if size and first and long[first - 1] in self.vocabulary.special:
            raise self._joined([long[first - 1]])
        bridge = joined[len(joined) - len(rest) - size : len(joined) - len(rest)]
        try:
            between = SegmentationLattice(self.vocabulary, bridge, begins=False)
        except ValueError as err:
            raise ValueError(
                f"after the token {self._written(short[border - 1])!r}, which ends "
                f"what is given of the context, {err}: give more context_tokens, or "
                "context_tokens=all"
            ) from err
        return (*between.fewest_tokens, *long[first:])

    def _joined(self, marks: Iterable[int]) -> ValueError:
        names = ", ".join(sorted({self._written(mark) for mark in marks}))
        return ValueError(
            f"the tokenizer reads special tokens ({names}) across the end of the "
            "context, which has no probability of beginning one: put them wholly into "
            "the context or into the text"
        )

    def _written(self, token: int) -> str:
        table = self.vocabulary.later.pieces
        piece = table[token] if token < len(table) else None
        piece = piece or self.vocabulary.special.get(token, b"")
        return piece.decode(errors="replace")

    def _check_given(self, tokens: Sequence[int], last: Piece, joined: bytes) -> None:
        """Refuse a context that the tokenizer shortens to another string.

        Contexts with special tokens are not checked: some tokenizers begin anew after
        one.
        """
        if (
            not tokens
            or last.lattice is None
            or {*tokens} & self.vocabulary.special.keys()
        ):
            return
        written = b"".join(self.vocabulary.write(tokens, begins=True))
        before = joined[: len(joined) - len(last.lattice.target)]
        if len(written) != len(before):
            raise ValueError(
                f"the tokenizer writes {written.decode(errors='replace')!r} for "
                f"{before.decode(errors='replace')!r}: its normalizer changes this "
                "context, so its tokens do not stand for it"
            )

    def _border(self, head: Sequence[int], short: Sequence[int]) -> int:
        """Number of given tokens of a context.

        They are special tokens and, of a context longer than ``context_tokens``, all
        before the last ones, at least the first one that none precedes, as in ``--model
        hf``. The text after the context has no influence.
        """
        if (most := self.options.context_tokens) is None:
            return 0
        marks = [n + 1 for n, t in enumerate(short) if t in self.vocabulary.special]
        least = max([0 if head or len(short) <= most else 1, *marks])
        return min(len(short), max(least, len(short) - most))

    def _last(
        self,
        given: tuple[int, ...],
        tokens: Sequence[int],
        text: bytes,
        *,
        begins: bool,
    ) -> Piece:
        """Piece of the last tokens of a text, or of all if it begins so."""
        # Some tokenizers begin anew after a special token.
        for first in (begins, True):
            written = self.vocabulary.write(tokens, begins=first)
            size = len(text) if begins else sum(map(len, written))
            if b"".join(written) == text[len(text) - size :]:
                break
        written = self.restored(tokens, text[len(text) - size :], begins=first)
        tokens = (*tokens, *self.end)
        overruns = self.options.end == "prefix"
        lattice = self.lattice(tokens, written, begins=first, overruns=overruns)
        return Piece(given, tokens, lattice)

    def _plain(self, context: str, text: str) -> tuple[Piece, int]:
        """Tokens of a context and a text, as ``--model hf`` reads them.

        And the number of the context's tokens that are cut off. White space at the end
        of the context belongs to the text here.
        """
        if not context:
            tokens = self.encode(text, False)
            same = tokens[:1] == [self.prefix]
            given, after = [self.prefix], tokens[int(same) :]
        else:
            given = self.encode(context.rstrip())
            after = self.encode(context + text)[len(given) :]
        after = [*after, *self.end]
        room = self.window + 1 - len(after)
        if room < 1:
            raise ValueError(
                f"the text has {len(after)} tokens after its context, and the network "
                f"reads {self.window}: shorten it, or take a network that reads more"
            )
        given = given or [self.prefix]
        piece = Piece(tuple(given[-room:]), tuple(after), None)
        return piece, max(0, len(given) - room)
