"""Perturbation of sequences: swap, delete, insert or substitute, one edit at a time.

    x_0 = x      x_s = perturb(x_{s-1})

One perturbation swaps two tokens, deletes, inserts or substitutes one, each kind with
the same probability among those that can be done; its places and tokens are uniform. It
always gives another sequence: swapped tokens differ, and so does a substitute. The end
of a sequence stays where it is.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and table 3.
Departures: none known; whether their substitutes can be the same token is not said.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lm_latent_eval.uniforms import stream_key, uniforms

Edit = Callable[[list[int], float, float, float], None]
"""Changes tokens in place, by three numbers in (0, 1)."""


@dataclass(frozen=True)
class Perturbation:
    """What happens to sequences of a language.

    Attributes:
        alphabet: Sigma, the tokens that are inserted, in ascending order; neither begin
            nor end.
        end_id: What sequences end with.
        max_length: The most tokens of a sequence, its end included.

    Example:
        >>> perturbation = Perturbation([2, 3, 4], end_id=1, max_length=5)
        >>> perturbation.steps([2, 3, 4, 1], 4, seed=0, index=9)
        [[2, 3, 4, 1], [3, 2, 3, 4, 1], [4, 2, 3, 4, 1], [4, 3, 4, 1], [4, 4, 1]]
    """

    alphabet: Sequence[int]
    end_id: int
    max_length: int

    def __post_init__(self) -> None:
        """Check the alphabet.

        Raises:
            ValueError: If it has fewer than two tokens, the end among them, or is in
                another order.
        """
        distinct = sorted(set(self.alphabet) - {self.end_id})
        if len(distinct) < 2 or distinct != list(self.alphabet):
            raise ValueError(
                "perturbations need at least two distinct tokens in ascending order, "
                f"without the end, {self.end_id}; got {list(self.alphabet)[:10]}"
            )

    def steps(
        self, ids: Sequence[int], num_edits: int, *, seed: int, index: int
    ) -> list[list[int]]:
        """Return a sequence after 0, 1, .. ``num_edits`` perturbations.

        A function of its arguments alone; more edits change nothing about the first.

        Args:
            ids: The sequence, with its end or cut.
            num_edits: How often it is perturbed.
            seed: The user's seed.
            index: Its number in the corpus.
        """
        ended = ids[-1] == self.end_id
        tail = [self.end_id] if ended else []
        words = list(ids[:-1]) if ended else list(ids)
        # A beginning of no tokens is no event, so that a cut sequence keeps one.
        fewest, most = (0, self.max_length - 1) if ended else (1, self.max_length)
        numbers = uniforms(stream_key(seed, f"edits/{index}"), (0,), num_edits)
        found = [[*words, *tail]]
        for kind, place, other, token in numbers.tolist():
            possible = self._possible(words, fewest, most)
            possible[int(kind * len(possible))](words, place, other, token)
            found.append([*words, *tail])
        return found

    def _possible(self, words: list[int], fewest: int, most: int) -> list[Edit]:
        """Return the kinds of perturbation that change these words."""
        edits: list[Edit] = []
        if len(set(words)) > 1:
            edits.append(_swap)
        if len(words) > fewest:
            edits.append(_delete)
        if len(words) < most:
            edits.append(self._insert)
        if words:
            edits.append(self._substitute)
        return edits

    def _insert(self, words: list[int], place: float, _: float, token: float) -> None:
        chosen = self.alphabet[int(token * len(self.alphabet))]
        words.insert(int(place * (len(words) + 1)), chosen)

    def _substitute(
        self, words: list[int], place: float, _: float, token: float
    ) -> None:
        i = int(place * len(words))
        words[i] = self._other(words[i], token)

    def _other(self, word: int, token: float) -> int:
        """Return a token of the alphabet that is not this one."""
        own = bisect_left(self.alphabet, word)
        if own == len(self.alphabet) or self.alphabet[own] != word:
            return self.alphabet[int(token * len(self.alphabet))]
        number = int(token * (len(self.alphabet) - 1))
        return self.alphabet[number + (number >= own)]


def _swap(words: list[int], place: float, other: float, _: float) -> None:
    i = int(place * len(words))
    different = [j for j, word in enumerate(words) if word != words[i]]
    j = different[int(other * len(different))]
    words[i], words[j] = words[j], words[i]


def _delete(words: list[int], place: float, _: float, __: float) -> None:
    del words[int(place * len(words))]
