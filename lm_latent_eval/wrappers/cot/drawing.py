"""Thoughts drawn token by token, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from lm_latent_eval.devices import MemoryLimit, sent_uniforms
from lm_latent_eval.networks.causal import Reading
from lm_latent_eval.uniforms import stream_key, uniforms
from lm_latent_eval.wrappers.cot.prompts import Ending, Marks
from lm_latent_eval.wrappers.cot.thoughts import Thought

PRIOR_SHARE = 0.5
"""Share of hinted draws that are the model's own."""
WEIGHTS_AT_MOST = {"prior": 1.0, "hinted": 1 / PRIOR_SHARE}
"""What no weight is above, by proposal: p(answer | question, z) is at most 1, and of a
mixture p(z | question) / q(z) at most the inverse of the prior's share."""
FIRST, GROWTH = 4, 4
"""Thoughts about a question before anyone looks, and the part of them that is drawn
before the next look."""


@dataclass(frozen=True)
class Draw:
    """A thought that is to be drawn."""

    place: int
    """Whose it is: the caller's number."""
    key: int
    """Of the question's random numbers."""
    sample: int
    prompt: tuple[int, ...]


def key_of(seed: int, name: str) -> int:
    """Return the key of a question's random numbers."""
    return stream_key(seed, f"thoughts/{name}")


def components(key: int, num_samples: int, num_hints: int) -> list[int]:
    r"""Choose which prompt each of K thoughts is drawn from, independently.

    .. math:: q(z) = \alpha\, p(z \mid x)
        + \frac{1 - \alpha}{M} \sum_{m=1}^{M} p(z \mid \mathrm{hint}_m)

    Args:
        key: Of the question's random numbers.
        num_samples: K.
        num_hints: M.

    Returns:
        0 for the question itself, m for the m-th hint.
    """
    if not num_hints:
        return [0] * num_samples
    beyond = (uniforms(key, (0, 0), num_samples)[:, 1] - PRIOR_SHARE) / (
        1 - PRIOR_SHARE
    )
    return [int(u * num_hints) + 1 if u >= 0 else 0 for u in beyond.tolist()]


def log_shares(num_hints: int) -> Tensor:
    """Return log-shares of the mixture's components, nats, shape ``(1 + M,)``."""
    if not num_hints:
        return torch.zeros(1, dtype=torch.float64)
    hints = [(1 - PRIOR_SHARE) / num_hints] * num_hints
    return torch.tensor([PRIOR_SHARE, *hints], dtype=torch.float64).log()


def looks(num_samples: int) -> Iterator[int]:
    """Yield the numbers of thoughts after which a question may be decided, up to K.

    Example:
        >>> list(looks(32)), list(looks(3))
        ([4, 8, 12, 16, 20, 25, 31, 32], [3])
    """
    number = FIRST
    while number < num_samples:
        yield number
        number += max(FIRST, number // GROWTH)
    yield num_samples


def draw(
    draws: Sequence[Draw],
    begin: Callable[[Tensor], Reading],
    marks: Marks,
    *,
    most_tokens: int,
    most_rows: int,
    memory: MemoryLimit,
    refusal: Callable[[Draw], ValueError],
) -> Iterator[tuple[int, int, Thought]]:
    """Draw thoughts: a function of key, sample and prompt alone, not of the batch.

    Args:
        draws: What is to be drawn.
        begin: Reads prompts, shape ``(R, P)``.
        marks: What ends a thought.
        most_tokens: The most that one has.
        most_rows: Thoughts that are written at once.
        memory: How much was found to fit.
        refusal: What to raise of a thought that does not fit by itself.

    Yields:
        Place, sample and thought of each, in any order.
    """

    def work(batch: Sequence[Draw]) -> list[tuple[int, int, Thought]]:
        return list(_written(batch, begin, marks, most_tokens))

    def size(draw: Draw) -> int:
        return len(draw.prompt) + most_tokens

    by_length = sorted(draws, key=lambda draw: (len(draw.prompt), draw.prompt))
    for _, group in groupby(by_length, key=lambda draw: len(draw.prompt)):
        alike = list(group)
        for _, written in memory.in_batches(alike, most_rows, work, size, refusal):
            yield from written


def _written(
    batch: Sequence[Draw],
    begin: Callable[[Tensor], Reading],
    marks: Marks,
    most_tokens: int,
) -> Iterator[tuple[int, int, Thought]]:
    """Write the thoughts of a batch; those that have ended leave it."""
    prompts = list(dict.fromkeys(draw.prompt for draw in batch))
    reading = begin(torch.tensor(prompts))
    device = reading.log_p.device
    reading.keep(torch.tensor([prompts.index(d.prompt) for d in batch], device=device))
    written: list[list[int]] = [[] for _ in batch]
    alive = list(range(len(batch)))
    for step in range(most_tokens):
        chosen = _inverse_cdf(reading.log_p, _uniforms([batch[i] for i in alive], step))
        going: list[int] = []
        for row, (i, token) in enumerate(zip(alive, chosen.tolist(), strict=True)):
            written[i].append(token)
            ending = marks.ending(written[i])
            if ending is None and step < most_tokens - 1:
                going.append(row)
                continue
            ended = Thought(tuple(written[i]), ending or Ending.TRUNCATED)
            yield batch[i].place, batch[i].sample, ended
        if not going:
            return
        kept = None
        if len(going) < len(alive):
            kept = torch.tensor(going, device=device)
            chosen, alive = chosen[kept], [alive[row] for row in going]
        reading.read(chosen[:, None], kept)


def _uniforms(rows: Sequence[Draw], step: int) -> Tensor:
    """Return one uniform number a row, shape ``(R,)``."""
    most = {row.key: 0 for row in rows}
    for row in rows:
        most[row.key] = max(most[row.key], row.sample + 1)
    drawn = {key: uniforms(key, (0, step), count) for key, count in most.items()}
    return torch.tensor([drawn[row.key][row.sample, 0] for row in rows])


def _inverse_cdf(log_p: Tensor, uniform: Tensor) -> Tensor:
    """Choose a token a row, shape ``(R,)``."""
    total = log_p.exp().cumsum(-1)
    threshold = sent_uniforms(uniform, total.device)[:, None] * total[:, -1:]
    chosen = torch.searchsorted(total, threshold, right=True)[:, 0]
    return chosen.clamp(max=total.shape[-1] - 1)  # where rounding reaches the total
