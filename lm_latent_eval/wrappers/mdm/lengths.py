r"""How many tokens a text has: what a model given its length leaves to be paid.

    p(L) = (n_L + r(L)) / (N + 1)

from N training texts of which n_L have L tokens, and a geometric r whose mean is theirs
and one: so every length is possible, and the probabilities of all lengths total one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lm_latent_eval.durable import write_text
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.digests import digest

FILE = "lengths.json"


@dataclass(frozen=True)
class Lengths:
    """A distribution over numbers of tokens.

    Example:
        >>> lengths = Lengths.train([2, 2, 3])
        >>> round(lengths.log_p(2), 4), round(lengths.log_p(7), 4)
        (-0.6271, -4.6892)
        >>> import math
        >>> round(math.fsum(math.exp(lengths.log_p(n)) for n in range(2000)), 9)
        1.0
    """

    counts: Mapping[int, int]
    """Number of tokens -> training texts."""
    num_texts: int = field(init=False)
    mean: float = field(init=False)

    def __post_init__(self) -> None:
        """Add up, and refuse what are no counts.

        Raises:
            ValueError: If there is no text, or a length or a count is negative.
        """
        total = sum(self.counts.values())
        if total < 1 or min(self.counts) < 0 or min(self.counts.values()) < 0:
            raise ValueError("expected counts of texts by their number of tokens")
        mean = sum(n * count for n, count in self.counts.items()) / total
        object.__setattr__(self, "num_texts", total)
        object.__setattr__(self, "mean", mean)

    @classmethod
    def train(cls, lengths: Iterable[int]) -> Lengths:
        """Count the lengths of training texts."""
        return cls(dict(sorted(Counter(lengths).items())))

    @classmethod
    def load(cls, directory: Path) -> Lengths | None:
        """Read the file of a directory; None if there is none.

        Raises:
            ValueError: If it is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            read = strict_json.read(path)
            return cls({int(length): int(count) for length, count in read.items()})
        except (ValueError, TypeError, AttributeError) as err:
            raise ValueError(f"{path} holds no lengths of texts ({err})") from err

    def save(self, directory: Path) -> None:
        """Write the file."""
        write_text(directory / FILE, json.dumps(dict(self.counts)) + "\n")

    def log_p(self, length: int) -> float:
        """Return log p of a number of tokens, nats."""
        stop = 1 / (2 + self.mean)
        log_rest = math.log(stop) + length * math.log1p(-stop)
        count = self.counts.get(length, 0)
        log_share = math.log(count + math.exp(log_rest)) if count else log_rest
        return log_share - math.log(self.num_texts + 1)

    @property
    def digest(self) -> str:
        """What tells it from others."""
        return digest(json.dumps(dict(self.counts)))
