"""Sequences that a language did not draw: perturbed ones and random ones.

Perturbations, one edit at a time:

    x_0 = x      x_s = perturb(x_{s-1})

One perturbation swaps two tokens, deletes, inserts or substitutes one, each kind with
the same probability among those that can be done; its places and tokens are uniform. It
always gives another sequence: swapped tokens differ, and so does a substitute. The end
of a sequence stays where it is.

Source: LeBrun, Sordoni and O'Donnell (2022), section 4.4 and table 3.
Departures: none known; whether their substitutes can be the same token is not said.

Random sequences:

    l ~ Poisson(lambda), x_1 .. x_l uniform over Sigma, then the end

Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.4; lambda = 10 is theirs.
Departures: lengths that a maximum does not leave room for are not drawn.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.language import (
    Language,
    Sample,
    cumulative,
    endless_uniforms,
)
from lm_latent_eval.options import whole
from lm_latent_eval.uniforms import stream_key, uniforms


@dataclass(frozen=True)
class Perturbation:
    """Random edits of the sequences of a language.

    Attributes:
        alphabet: Sigma, the tokens that are inserted, in ascending order; neither begin
            nor end.
        end_id: Last token of sequences.
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
        if self.max_length < 2:
            raise ValueError(
                f"max_length={self.max_length}: perturbations need at least 2, a token "
                "and the end"
            )
        if len(self.alphabet) < 2:
            raise ValueError(
                "perturbations need a language of at least two tokens; it has "
                f"{len(self.alphabet)}"
            )

    def steps(
        self, ids: Sequence[int], num_edits: int, *, seed: int, index: int
    ) -> list[list[int]]:
        """Return a sequence after 0, 1, .. ``num_edits`` perturbations.

        A function of its arguments alone; more edits change nothing about the first.
        The sequence has its end or is cut, and has an index in its corpus.
        """
        ended = ids[-1] == self.end_id
        tail = [self.end_id] if ended else []
        words = list(ids[:-1]) if ended else list(ids)
        # A beginning of no tokens is no event, so that a cut sequence keeps one.
        fewest, most = (0, self.max_length - 1) if ended else (1, self.max_length)
        numbers = uniforms(stream_key(seed, f"edits/{index}"), (0,), num_edits)
        sequences = [[*words, *tail]]
        for kind, place, other, token in numbers.tolist():
            possible = {
                "swap": len({*words}) > 1,
                "delete": len(words) > fewest,
                "insert": len(words) < most,
                "substitute": bool(words),
            }
            kinds = [name for name, can_be in possible.items() if can_be]
            self._edit(words, kinds[int(kind * len(kinds))], place, other, token)
            sequences.append([*words, *tail])
        return sequences

    def _edit(
        self, words: list[int], kind: str, place: float, other: float, token: float
    ) -> None:
        i = int(place * len(words))
        match kind:
            case "swap":
                different = [j for j, word in enumerate(words) if word != words[i]]
                j = different[int(other * len(different))]
                words[i], words[j] = words[j], words[i]
            case "delete":
                del words[i]
            case "insert":
                chosen = self.alphabet[int(token * len(self.alphabet))]
                words.insert(int(place * (len(words) + 1)), chosen)
            case "substitute":
                words[i] = self._other(words[i], token)

    def _other(self, word: int, token: float) -> int:
        own = bisect_left(self.alphabet, word)
        if own == len(self.alphabet) or self.alphabet[own] != word:
            return self.alphabet[int(token * len(self.alphabet))]
        index = int(token * (len(self.alphabet) - 1))
        return self.alphabet[index + (index >= own)]


MEAN_LENGTH = 10.0


def random_sequence(
    alphabet: Sequence[int],
    end_id: int,
    *,
    max_length: int,
    seed: int,
    index: int,
    mean_length: float = MEAN_LENGTH,
) -> list[int]:
    """Draw a sequence; a function of its arguments alone.

    The maximum length counts the end, the mean (lambda) does not; the alphabet (Sigma)
    has neither begin nor end.
    """
    numbers = endless_uniforms(stream_key(seed, f"random/{index}"))
    length = bisect_right(_poisson(mean_length, max_length), next(numbers))
    words = [alphabet[int(u * len(alphabet))] for u in islice(numbers, length)]
    return [*words, end_id]


@cache
def _poisson(mean: float, count: int) -> list[float]:
    """Return the distribution function over 0 .. count - 1, truncated there."""
    logs = [k * math.log(mean) - math.lgamma(k + 1) for k in range(count)]
    largest = max(logs)
    return cumulative([math.exp(log - largest) for log in logs])


LANGUAGE, PERTURBED, RANDOM = "language", "perturbed", "random"
"""Kinds of sequences: as the language drew them, or altered."""


@dataclass(frozen=True)
class Altered:
    """Perturbed and random sequences, with their log-probabilities under a language.

    Attributes:
        corpus: Sequences that are perturbed; names the tokens and the maximum length.
        language: Language that the corpus was drawn from.
        perturb: Perturbations: there is each sequence after 1, 2, .. so many edits.
        random: Whether there are as many random sequences.
        seed: Seed of the edits and of the random sequences.
    """

    corpus: Corpus
    language: Language
    perturb: int = 0
    random: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        whole("perturb", self.perturb, 0)

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Kinds of sequences, each with its number of edits."""
        edited = [(PERTURBED, edits + 1) for edits in range(self.perturb)]
        return edited + [(RANDOM, 0)] * self.random

    def read(self, kind: str, edits: int, indices: range) -> Sample:
        """Return the sequences of one kind that come from these numbers."""
        corpus, how = self.corpus, {"seed": self.seed}
        end_id, most = corpus.end_id, corpus.max_length
        if kind == RANDOM:
            sequences = [
                random_sequence(
                    self._alphabet, end_id, max_length=most, index=index, **how
                )
                for index in indices
            ]
        else:
            edit = Perturbation(self._alphabet, end_id, most)
            drawn = zip(indices, corpus.read(indices).sequences, strict=True)
            sequences = [edit.steps(ids, edits, index=i, **how)[-1] for i, ids in drawn]
        return Sample(sequences, self.language.log_p(sequences))

    @cached_property
    def _alphabet(self) -> list[int]:
        return self.corpus.alphabet()
