"""Random sequences: Poisson lengths and uniform tokens.

    l ~ Poisson(lambda), x_1 .. x_l uniform over Sigma, then the end

Source: LeBrun, Sordoni and O'Donnell (2022), appendix A.1.4; lambda = 10 is theirs.
Departures: lengths that a maximum does not leave room for are not drawn.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import islice

from lm_latent_eval.distortion.languages.language import cumulative, endless_uniforms
from lm_latent_eval.uniforms import stream_key

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

    Args:
        alphabet: Sigma; neither begin nor end.
        end_id: What it ends with.
        max_length: The most tokens, the end included.
        seed: The user's seed.
        index: The number of the sequence.
        mean_length: lambda, of the tokens without the end.

    Raises:
        ValueError: If the alphabet is empty, or a number is out of range.
    """
    if not alphabet or not 0 < mean_length < math.inf or max_length < 1:
        raise ValueError(
            "random sequences need an alphabet, a mean length above 0 and room for "
            f"the end; got {len(alphabet)} tokens, {mean_length} and {max_length}"
        )
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
