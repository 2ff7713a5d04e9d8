"""Scoring of whole texts, cut into windows.

A text longer than the network's window is cut where its canonical tokens fill a window,
as lm-eval cuts it; no segmentation crosses these borders, and what lies before one is
given as its canonical tokens.
"""

from __future__ import annotations

from lm_latent_eval.text.words import encodable
from lm_latent_eval.wrappers.base import windows
from lm_latent_eval.wrappers.tokens.encoding import Encoding
from lm_latent_eval.wrappers.tokens.pieces import Piece


class WholeTextCutter:
    """Cuts whole texts into pieces."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding, self._options = encoding, encoding.options
        self._window, self._prefix = encoding.window, encoding.prefix
        self._end, self._vocabulary = encoding.end, encoding.vocabulary

    def cut(self, text: str) -> list[Piece]:
        """Cut a text where its canonical tokens fill a window.

        Raises:
            ValueError: If there is nothing to score, or the tokenizer does not restore
                the text.
        """
        text = encodable(text)
        before, inner, after = self._encoding.framed(text)
        if self._options.end == "prefix":
            after = []
        elif after[-1:] != [*self._end]:
            after = [*after, *self._end]
        if not (text or after or self._options.estimator == "canonical"):
            raise ValueError("the text is empty: only end=eos has something to score")
        written = self._encoding.restored(inner, text.encode(), begins=True)
        everything = [*before, *inner, *after]
        first, last = len(before), len(before) + len(inner)
        pieces = []
        size = self._window
        for begin, start, stop in windows(len(everything), size, size, size + 1):
            given = tuple(everything[begin:start]) or (self._prefix,)
            leading = max(0, min(stop, first) - start)
            inside = everything[start + leading : stop]
            middle = written[max(start - first, 0) : max(min(stop, last) - first, 0)]
            lattice = self._encoding.lattice(
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
        _, inner, _ = self._encoding.framed(text := encodable(text))
        written = self._vocabulary.write(inner, begins=True)
        return b"".join(written) == text.encode()
