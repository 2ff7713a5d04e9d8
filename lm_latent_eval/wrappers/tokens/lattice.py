"""The lattice of segmentations of a string.

A node is a number of bytes that are written; an edge is a token that writes the next
ones. A path ends where all is written; of a prefix also with a token that writes the
rest and something after it, which makes the probability of a prefix that of all texts
that begin with it, each counted once:

    prefix(s) = end(s) + sum_b prefix(s b) + lost(s)

where end(s) is followed by the end token, b is a byte, and lost(s) is what the network
gives, after a segmentation of s, to tokens that cannot enter one.

Source: Vieira et al. (2024) for prefixes ("covering" tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary

BEGIN = -1
"""The node before the first token of a text, which may write nothing."""
OVERRUN = -1
"""In the place of a token: any that overruns the string."""


@dataclass(frozen=True)
class SegmentationLattice:
    """All segmentations of a string.

    Raises:
        ValueError: If there is none.
    """

    vocabulary: ByteVocabulary = field(compare=False, repr=False)
    target: bytes
    begins: bool = True
    """Whether a text begins here, rather than going on after other tokens."""
    overruns: bool = False
    """Whether the last token may write more than the string: it is a prefix."""
    end: tuple[int, ...] = ()
    """Tokens that follow the string: that of the end, or none."""
    fixed: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False)
    """Where a special token is read in the string -> that token, and where it ends."""

    def __post_init__(self) -> None:
        if self.start not in self.fewest:
            far = max(self._reached)
            raise ValueError(
                f"no sequence of tokens writes byte {max(far, 0)} of "
                f"{self.target[:60]!r}: the vocabulary has nothing for it"
            )

    @property
    def start(self) -> int:
        return BEGIN if self.begins else 0

    @property
    def final(self) -> int:
        """The node of the end."""
        return len(self.target) + len(self.end)

    def ends(self, node: int) -> bool:
        """Whether all is written at a node."""
        return max(node, 0) == self.final

    @cached_property
    def _reached(self) -> dict[int, list[tuple[int, int]]]:
        """Every node that paths reach, in order -> tokens and nodes after it."""
        found: dict[int, list[tuple[int, int]]] = {}
        waiting = {self.start}
        while waiting:
            node = min(waiting)
            waiting.remove(node)
            found[node] = self._from(node)
            waiting |= {after for _, after in found[node]} - found.keys()
        return found

    def _from(self, node: int) -> list[tuple[int, int]]:
        place, size = max(node, 0), len(self.target)
        if place >= size and node != BEGIN:
            past = node - size
            return [(self.end[past], node + 1)] if past < len(self.end) else []
        if place in self.fixed:
            return [self.fixed[place]]
        stop = min((mark for mark in self.fixed if mark > place), default=size)
        table = self.vocabulary.first if node == BEGIN else self.vocabulary.later
        return [*table.within(self.target, place, stop)] + (
            # Nothing is a text as well.
            [(self.end[0], 1)] if node == BEGIN and not size and self.end else []
        )

    def overrun(self, node: int) -> list[int]:
        """Return tokens that write what is left at a node and more, if any may."""
        place = max(node, 0)
        if not self.overruns or place >= len(self.target):
            return []
        if any(mark >= place for mark in self.fixed):
            return []
        table = self.vocabulary.first if node == BEGIN else self.vocabulary.later
        return table.beyond(self.target[place:])

    @cached_property
    def fewest(self) -> dict[int, int]:
        """Node -> the fewest tokens by which a path from there ends."""
        found: dict[int, int] = {}
        for node in reversed(self._reached):
            after = [found[j] for _, j in self._reached[node] if j in found]
            if self.ends(node):
                found[node] = 0
            elif self.overrun(node):
                found[node] = 1
            elif after:
                found[node] = 1 + min(after)
        return found

    def onward(self, node: int) -> list[tuple[int, int]]:
        """Return tokens and nodes by which paths that end go on from a node."""
        return [(t, j) for t, j in self._reached.get(node, ()) if j in self.fewest]

    @cached_property
    def longest(self) -> int:
        """The most tokens of a path."""
        found: dict[int, int] = {}
        for node in sorted(self.fewest, reverse=True):
            after = [1 + found[j] for _, j in self.onward(node)]
            found[node] = max([*after, int(bool(self.overrun(node)))])
        return found[self.start]

    @cached_property
    def num_prefixes(self) -> int:
        """How many beginnings they have that a network reads, each counted once."""
        ways = dict.fromkeys(self.fewest, 0)
        ways[self.start] = 1
        for node in sorted(self.fewest):
            for _, after in self.onward(node):
                ways[after] += ways[node]
        return sum(ways.values()) - ways.get(self.final, 0) * (self.final > 0)

    @cached_property
    def fewest_tokens(self) -> tuple[int, ...]:
        """A path of the fewest tokens; of a string that is no prefix."""
        found, node = [], self.start
        while not self.ends(node):
            token, node = min(self.onward(node), key=lambda edge: self.fewest[edge[1]])
            found.append(token)
        return tuple(found)

    def nodes(self, tokens: Sequence[int]) -> list[int]:
        """Return the node after each token of a path.

        Raises:
            ValueError: If it is no path.
        """
        found, node = [], self.start
        for token in tokens:
            after = dict(self.onward(node))
            if token not in after:
                raise ValueError(f"{[*tokens]} is no segmentation of {self.target!r}")
            node = after[token]
            found.append(node)
        return found
