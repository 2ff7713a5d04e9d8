"""Scoring of continuations after their contexts.

The tokens of a context are given as the canonical ones, but its last ones, which are
summed over again: a text may begin inside a token. What is given follows from the
context alone, never from the text after it, so texts of which none begins another have
probabilities that total at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import encodable
from lm_latent_eval.wrappers.tokens.encoding import Encoding
from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice
from lm_latent_eval.wrappers.tokens.pieces import Continuation, Piece


class ContinuationCutter:
    """Reads texts after their contexts."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding, self._options = encoding, encoding.options
        self._window, self._prefix = encoding.window, encoding.prefix
        self._end, self._vocabulary = encoding.end, encoding.vocabulary
        self._begin = encoding.begin

    def read(self, query: Query) -> Continuation:
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
        head, short, _ = self._encoding.framed(context)
        _, long, _ = self._encoding.framed(context + text)
        border = self._border(head, short)
        tail = tuple(short[border:])
        given = self._condition((*head, *short[:border]) or (self._prefix,), tail)
        joined = (context + text).encode()
        tokens = self._after(short, long, border, joined, len(text.encode()))
        if len(given) + len(tokens) + end > self._window + 1:
            raise ValueError(
                f"{len(tokens) + end} tokens after the {len(given)} that are given do "
                f"not fit into the window of {self._window}, of which a context leaves "
                "a quarter to every text after it: give fewer context_tokens, a "
                "shorter text, or a network that reads more"
            )
        whole = self._last(given, tokens, joined, begins=border == 0)
        self._check_given(short[:border], whole, joined)
        if whole.lattice is None:
            return Continuation(plain, whole, None)
        begins = whole.lattice.begins
        rest = len(whole.lattice.target) - len(text.encode())
        written = self._encoding.restored(
            tail, whole.lattice.target[:rest], begins=begins
        )
        lattice = self._encoding.lattice(tail, written, begins=begins, overruns=True)
        before = {at: mark for at, mark in whole.lattice.fixed.items() if at < rest}
        if lattice is not None and lattice.fixed != before:
            raise self._joined(mark for mark, _ in before.values())
        return Continuation(plain, whole, Piece(given, tail, lattice) if tail else None)

    def _condition(
        self, given: tuple[int, ...], tail: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the end of a context's tokens that the window has room for.

        How long the text after them is does not matter: all texts after one context
        are conditioned on the same.
        """
        room = self._window + 1 - self._window // 4 - len(tail)
        return given[-max(1, room) :]

    def _after(
        self,
        short: Sequence[int],
        long: Sequence[int],
        border: int,
        joined: bytes,
        size: int,
    ) -> tuple[int, ...]:
        """Return the tokens of a context and its text after those that are given.

        They are the canonical ones of both together. A canonical token that begins
        inside what is given and ends after it is none of them: what it writes there is
        put as the fewest tokens that do.

        Args:
            short: Tokens of the context.
            long: Of context and text together.
            border: How many of the context are given.
            joined: Context and text.
            size: Bytes of the text.

        Raises:
            ValueError: If no tokens write that.
        """
        if long[:border] == short[:border]:
            return tuple(long[border:])
        size += sum(map(len, self._vocabulary.write(short[border:], begins=False)))
        pieces = self._vocabulary.write(long, begins=False)
        first = len(long)
        while first and len(pieces[first - 1]) <= size:
            first -= 1
            size -= len(pieces[first])
        rest = b"".join(pieces[first:])
        if size and first and long[first - 1] in self._vocabulary.special:
            raise self._joined([long[first - 1]])
        bridge = joined[len(joined) - len(rest) - size : len(joined) - len(rest)]
        try:
            between = SegmentationLattice(self._vocabulary, bridge, begins=False)
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
        table = self._vocabulary.later.pieces
        found = table[token] if token < len(table) else None
        return (found or self._vocabulary.special.get(token, b"")).decode(
            errors="replace"
        )

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

    def _border(self, head: Sequence[int], short: Sequence[int]) -> int:
        """Return how many tokens of a context are given as they are.

        Special ones are, and the first of a context that none precedes, since nothing
        says how probable that is. The text after the context has no part in it.
        """
        if self._options.context_tokens is None:
            return 0
        marks = [n + 1 for n, t in enumerate(short) if t in self._vocabulary.special]
        least = max([0 if head else 1, *marks])
        return min(len(short), max(least, len(short) - self._options.context_tokens))

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
        written = self._encoding.restored(
            tokens, text[len(text) - size :], begins=first
        )
        tokens = (*tokens, *self._end)
        overruns = self._options.end == "prefix"
        lattice = self._encoding.lattice(
            tokens, written, begins=first, overruns=overruns
        )
        return Piece(given, tokens, lattice)

    def _plain(self, context: str, text: str) -> Piece:
        """Return tokens of a context and a text, as ``--model hf`` reads them.

        White space at the end of the context is the text's there.
        """
        if not context:
            tokens = self._encoding.encode(text, False)
            same = tokens[:1] == [self._prefix]
            given, after = [self._prefix], tokens[int(same) :]
        else:
            stripped = context.rstrip()
            given = self._encoding.encode(stripped) if stripped else []
            after = self._encoding.encode(context + text)[len(given) :]
        after = [*after, *self._end]
        room = self._window + 1 - len(after)
        if room < 1:
            raise ValueError(
                f"the text has {len(after)} tokens after its context, and the network "
                f"reads {self._window}: shorten it, or take a network that reads more"
            )
        return Piece(tuple(given or [self._prefix])[-room:], tuple(after), None)
