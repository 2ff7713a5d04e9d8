"""Writes texts by unmasking, a block after the other.

After a context stand as many masks as there are tokens to write. Steps reveal them, a
block of places before the next: at each step every mask is predicted, and of those of
the block the surest, or random ones, are kept and the others masked again.

Source: Nie et al. (2025), "Large language diffusion models" (LLaDA), and
github.com/ML-GSAI/LLaDA, generate.py: semi-autoregressive remasking, by the probability
of the token that was drawn, and unsupervised classifier-free guidance.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import sent, sent_uniforms, widened
from lm_latent_eval.inference.streams import LANES, stream_key
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.texts import Query, named, naming
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.orders import RULES
from lm_latent_eval.wrappers.mdm.texts import TokenCutter

logger = logging.getLogger(__name__)

Asked = tuple[Query, GenerationOptions, list[int]]
"""What is to be written, and the tokens before it."""


class Writer:
    """Writes after contexts; those of one length together."""

    def __init__(
        self, denoiser: MaskedReader, cut: TokenCutter, options: MDMOptions
    ) -> None:
        """Take a model and how it writes."""
        self.denoiser, self.cut, self.options = denoiser, cut, options
        self.end = cut.tokenizer.eos_token_id

    def write(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of each context.

        More than the network has room for is not written: then the last tokens of a
        context take half of the room at most, and what is written the rest.
        """

        def shape(asked: Asked) -> tuple[int, int]:
            return len(asked[2]), asked[1].max_tokens

        self._say_shortened([how.max_tokens for _, how in queries])
        asked = [self._fitted(query, how) for query, how in queries]
        for (before, after), same in groupby(sorted(asked, key=shape), key=shape):
            together = list(same)
            size = self.denoiser.size(before + after + len(self.cut.after))
            for first in range(0, len(together), size):
                yield from self._batch(together[first : first + size], after)

    def _fitted(self, query: Query, how: GenerationOptions) -> Asked:
        room = self.cut.room
        with naming(query):
            if how.max_tokens < room:
                return query, how, self.cut.context(query.context, how.max_tokens)
            context = self.cut.context(query.context, room - room // 2)
            written = room - (len(context) - len(self.cut.before))
            return query, replace(how, max_tokens=written), context

    def _say_shortened(self, numbers: Sequence[int]) -> None:
        room = self.cut.room
        if long := sum(number >= room for number in numbers):
            logger.warning(
                "max_gen_toks=%d: the network has room for %d tokens, a context's "
                "among them, so %d continuations end where it does, after %d tokens or "
                "more (--gen_kwargs max_gen_toks=N chooses how many)",
                max(numbers),
                room,
                long,
                room - room // 2,
            )

    def _batch(self, asked: Sequence[Asked], length: int) -> Iterator[tuple[int, str]]:
        """Write B texts of equally many tokens after contexts of one length."""
        given = torch.tensor([before for *_, before in asked], dtype=torch.long)
        start = given.shape[1]
        hidden = torch.full((len(asked), length), self.denoiser.mask)
        after = torch.tensor(self.cut.after, dtype=torch.long).expand(len(asked), -1)
        tokens = torch.cat([given, hidden, after], dim=1)
        size = len(asked), tokens.shape[1]

        def named_row(row: int, err: ValueError) -> ValueError:
            return named(asked[row][0], err)

        step = 0
        done: dict[int, str] = {}
        for first, last, steps in self._blocks(length):
            block = slice(start + first, start + last)
            for count in _shares(last - first, steps):
                reveal = partial(self._reveal, tokens, block, count, start, asked, step)
                for _ in self.denoiser.in_batches(*size, reveal, named_row):
                    pass
                step += 1
            for row, (query, how, _) in enumerate(asked):
                if query.index not in done:
                    ids = tokens[row, start : start + last].tolist()
                    text, ended = self._text(asked[row][2], ids, how)
                    if ended or last == length:
                        done[query.index] = text
                        yield query.index, text
            if len(done) == len(asked):
                return

    def _blocks(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield where each block begins and ends, and its share of the steps."""
        size = min(self.options.block_length, length)
        borders = [*range(0, length, size), length]
        steps = min(self.options.steps or length, length)
        for first, last in pairwise(borders):
            yield first, last, max(1, steps * last // length - steps * first // length)

    def _reveal(
        self,
        tokens: Tensor,
        block: slice,
        count: int,
        start: int,
        asked: Sequence[Asked],
        step: int,
        rows: slice = slice(None),
    ) -> None:
        """Reveal so many tokens of a block in some of the texts."""
        tokens, asked = tokens[rows], asked[rows]
        places = torch.zeros_like(tokens, dtype=torch.bool)
        places[:, block] = tokens[:, block] == self.denoiser.mask
        log_p = self._log_probs(tokens, places, start)
        number = int(places[0].sum())
        chance = np.stack([self._chance(query, step, number) for query, *_ in asked])
        u = torch.from_numpy(chance).reshape(-1, 2)
        temperature = torch.tensor(
            [how.temperature for _, how, _ in asked], dtype=torch.float64
        ).repeat_interleave(number)
        words = _drawn(log_p, temperature, u[:, 0])
        if self.options.remasking == "random":
            sure = u[:, 1]
        elif self.options.order == "confidence":  # in the token that was drawn
            sure = log_p.cpu().gather(-1, words[:, None])[:, 0].double()
        else:
            sure = RULES[self.options.order](log_p).cpu().double()
        words, sure = (each.reshape(len(asked), number) for each in (words, sure))
        kept = sure.topk(count, dim=-1).indices
        where = places.nonzero()[:, 1].reshape(len(asked), number)
        tokens.scatter_(1, where.gather(1, kept), words.gather(1, kept))

    def _log_probs(self, tokens: Tensor, places: Tensor, start: int) -> Tensor:
        r"""Predict what stands at some places, guided away from a hidden context.

        .. math:: \log p \propto (1 + w) \log p(x_i \mid c) - w \log p(x_i)
        """
        weight = self.options.guidance
        if not weight:
            return self.denoiser.log_probs(tokens, places)
        with torch.inference_mode():
            where = places.to(self.denoiser.device)
            given = self.denoiser.scores(tokens)[where]
            hidden = tokens.clone()
            hidden[:, len(self.cut.before) : start] = self.denoiser.mask
            free = self.denoiser.scores(hidden)[where]
            return self.denoiser.normalised((1 + weight) * given - weight * free)

    def _chance(self, query: Query, step: int, number: int) -> np.ndarray:
        """Return two random numbers a place, for its token and for keeping it."""
        key = stream_key(self.options.seed, f"write\0{query.name}")
        blocks = uniforms(key, (0, step), -(-2 * number // LANES))
        return blocks.reshape(-1)[: 2 * number]

    def _text(
        self, before: list[int], ids: list[int], how: GenerationOptions
    ) -> tuple[str, bool]:
        """Return what is written so far up to its end, and whether it has one."""
        ended = self.end in ids
        if ended:
            ids = ids[: ids.index(self.end)]
        context = self.cut.decode(before[len(self.cut.before) :])
        text = self.cut.decode([*before[len(self.cut.before) :], *ids])[len(context) :]
        cuts = [text.find(stop) for stop in how.until]
        found = [cut for cut in cuts if cut >= 0]
        return text[: min(found, default=len(text))], ended or bool(found)


def _shares(number: int, steps: int) -> list[int]:
    """Share places out among steps, as evenly as can be, none without one.

    Example:
        >>> _shares(7, 3)
        [3, 2, 2]
    """
    steps = min(steps, number)
    return [number // steps + (n < number % steps) for n in range(steps)]


def _drawn(rows: Tensor, temperature: Tensor, u: Tensor) -> Tensor:
    """Draw a token of each row, (M, V) nats; the most probable at temperature 0."""
    best = rows.argmax(-1).cpu()
    warm = temperature > 0
    if warm.any():
        heat = sent(temperature[warm, None], rows.device)
        mass = (widened(rows[warm.to(rows.device)]) / heat).softmax(-1).cumsum(-1)
        threshold = sent_uniforms(u[warm, None].contiguous(), rows.device)
        found = torch.searchsorted(mass / mass[:, -1:], threshold, right=True)
        best[warm] = found[:, 0].cpu()
    return best
