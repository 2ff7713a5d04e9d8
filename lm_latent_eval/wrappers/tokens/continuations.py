"""Texts after their contexts.

The tokens of a context are given as the canonical ones, but its last ones, which are
summed over again: a text may begin inside a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import encodable
from lm_latent_eval.wrappers.tokens.encoding import Encoding
from lm_latent_eval.wrappers.tokens.pieces import Continuation, Piece


class ContinuationCutter:
    """Reads texts after their contexts."""

    def __init__(self, encoding: Encoding) -> None:
        """Take a tokenizer."""
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
        written = self._encoding.restored(
            short[border:], whole.lattice.target[:rest], begins=begins
        )
        tail = tuple(short[border:])
        lattice = self._encoding.lattice(tail, written, begins=begins, overruns=True)
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


__all__ = ["ContinuationCutter"]
