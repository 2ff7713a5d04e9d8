"""Strings after given tokens, with all of their segmentations."""

from __future__ import annotations

from dataclasses import dataclass

from lm_latent_eval.wrappers.tokens.lattice import SegmentationLattice


@dataclass(frozen=True)
class Piece:
    """A string after given tokens, and its canonical segmentation."""

    given: tuple[int, ...]
    tokens: tuple[int, ...]
    """Canonical, those of the end included."""
    lattice: SegmentationLattice | None
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
    def summed(self) -> SegmentationLattice:
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
