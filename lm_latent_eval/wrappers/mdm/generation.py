"""Generation by unmasking, a block after the other.

A context is followed by as many masks as there are tokens to write. Steps reveal them,
one block after the other, by a rule of ``unmasking.py``: at each step every mask of the
block is predicted and a token drawn for it, some are kept and the others masked again.
So generation at temperature 1 follows the distribution that is scored.

Source: Nie et al. (2025), "Large language diffusion models" (LLaDA), and
github.com/ML-GSAI/LLaDA, generate.py: semi-autoregressive remasking, by the probability
of the token that was drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import sent, sent_uniforms, widened
from lm_latent_eval.inference.streams import LANES, invert_cdf, stream_key
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.texts import Query, named, naming
from lm_latent_eval.uniforms import uniforms
from lm_latent_eval.wrappers.mdm.options import BLOCK_WRITTEN, MDMOptions
from lm_latent_eval.wrappers.mdm.source import TokenCutter
from lm_latent_eval.wrappers.mdm.targets import Blocks
from lm_latent_eval.wrappers.mdm.unmasking import ANY_ORDER

logger = logging.getLogger(__name__)

Request = tuple[Query, GenerationOptions, list[int]]
"""Request of a continuation, and the tokens before it."""


class Writer:
    """Generates continuations of contexts, batched by length."""

    def __init__(
        self,
        denoiser: MaskedReader,
        cut: TokenCutter,
        options: MDMOptions,
        blocks: Blocks,
        ends: Collection[int],
    ) -> None:
        self.denoiser, self.cut, self.options = denoiser, cut, options
        self.unmasking, self.ends = options.writing, ends
        self.blocks = replace(blocks, length=blocks.length or BLOCK_WRITTEN)

    def write(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of each context.

        If there is no room for both, the last tokens of the context take at most half
        of it, and the continuation the rest.
        """

        def shape(requests: Request) -> tuple[int, int]:
            return len(requests[2]), requests[1].max_tokens

        self._say_shortened([how.max_tokens for _, how in queries])
        requests = [self._fitted(query, how) for query, how in queries]
        for (before, after), same in groupby(sorted(requests, key=shape), key=shape):
            together = list(same)
            size = self.denoiser.size(before + after + len(self.cut.after))
            for first in range(0, len(together), size):
                yield from self._batch(together[first : first + size], after)

    def _fitted(self, query: Query, how: GenerationOptions) -> Request:
        room = self.cut.room
        with naming(query):
            if how.max_tokens < room:
                return query, how, self.cut.context(query.context, how.max_tokens)
            context = self.cut.context(query.context, room - room // 2)
            written = room - (len(context) - len(self.cut.before))
            return query, replace(how, max_tokens=written), context

    def _say_shortened(self, lengths: Sequence[int]) -> None:
        room = self.cut.room
        if long := sum(length >= room for length in lengths):
            logger.warning(
                "max_gen_toks=%d: the network has room for %d tokens, a context's "
                "among them, so %d continuations end where it does, after %d tokens or "
                "more (--gen_kwargs max_gen_toks=N chooses how many)",
                max(lengths),
                room,
                long,
                room - room // 2,
            )

    def _batch(
        self, requests: Sequence[Request], length: int
    ) -> Iterator[tuple[int, str]]:
        given = torch.tensor([before for *_, before in requests], dtype=torch.long)
        start = given.shape[1]
        hidden = torch.full((len(requests), length), self.denoiser.mask)
        after = torch.tensor(self.cut.after, dtype=torch.long).expand(len(requests), -1)
        tokens = torch.cat([given, hidden, after], dim=1)
        done: dict[int, str] = {}
        for first, last in self.blocks.spans(start, length):
            # A block takes at most as many steps as positions, so numbers of steps
            # differ between blocks and other texts' steps have no effect.
            step = first
            block = slice(start + first, start + last)
            while len(rows := self._unfinished(tokens, block)):
                self._reveal(tokens, rows, block, requests, step)
                step += 1
            for row, (query, how, _) in enumerate(requests):
                if query.index not in done:
                    ids = tokens[row, start : start + last].tolist()
                    text, ended = self._text(requests[row][2], ids, how)
                    if ended or last == length:
                        done[query.index] = text
                        yield query.index, text
            if len(done) == len(requests):
                return

    def _unfinished(self, tokens: Tensor, block: slice) -> Tensor:
        return (tokens[:, block] == self.denoiser.mask).any(-1).nonzero()[:, 0]

    def _reveal(
        self,
        tokens: Tensor,
        rows: Tensor,
        block: slice,
        requests: Sequence[Request],
        step: int,
    ) -> None:
        def named_row(row: int, err: ValueError) -> ValueError:
            return named(requests[int(rows[row])][0], err)

        def reveal(part: slice) -> None:
            index = rows[part]
            of = [requests[row] for row in index.tolist()]
            tokens[index] = self._revealed(tokens[index], block, of, step)

        for _ in self.denoiser.in_batches(
            len(rows), tokens.shape[1], reveal, named_row
        ):
            pass

    def _revealed(
        self,
        tokens: Tensor,
        block: slice,
        requests: Sequence[Request],
        step: int,
    ) -> Tensor:
        masked = torch.zeros_like(tokens, dtype=torch.bool)
        hidden = masked[:, block] = tokens[:, block] == self.denoiser.mask
        log_p = self._log_probs(tokens, masked, block)
        width = hidden.shape[1]
        chance = np.stack([self._chance(query, step, width) for query, *_ in requests])
        u = torch.from_numpy(chance).reshape(len(requests), width, 2)[hidden]
        temperature = torch.tensor(
            [how.temperature for _, how, _ in requests], dtype=torch.float64
        ).repeat_interleave(hidden.sum(1))
        words = _words(log_p, temperature, u[:, 0])
        if self.unmasking.rule == ANY_ORDER:
            sure = u[:, 1]
        elif self.unmasking.draws:
            sure = log_p.cpu().gather(-1, words[:, None])[:, 0].double()
        else:
            sure = self.unmasking.certainty(log_p).cpu().double()
        table = torch.zeros(hidden.shape, dtype=torch.float64)
        table[hidden] = sure
        kept = torch.zeros_like(masked)
        kept[:, block] = self.unmasking.surest(table, hidden)
        written = tokens.clone()
        written[masked] = words
        return torch.where(kept, written, tokens)

    def _log_probs(self, tokens: Tensor, mask: Tensor, block: slice) -> Tensor:
        if self.blocks.causal:  # what comes later is not read
            tokens, mask = tokens[:, : block.stop], mask[:, : block.stop]
        first_read = self.blocks.first_read(block.start)
        return self.denoiser.log_probs(tokens, mask, first_read)

    def _chance(self, query: Query, step: int, width: int) -> np.ndarray:
        """Two random numbers a position: for its token and for keeping it."""
        key = stream_key(self.options.seed, f"write\0{query.name}")
        blocks = uniforms(key, (0, step), -(-2 * width // LANES))
        return blocks.reshape(-1)[: 2 * width]

    def _text(
        self, before: list[int], ids: list[int], how: GenerationOptions
    ) -> tuple[str, bool]:
        length = next((n for n, i in enumerate(ids) if i in self.ends), len(ids))
        ended = length < len(ids)
        ids = ids[:length]
        context = self.cut.decode(before[len(self.cut.before) :])
        text = self.cut.decode([*before[len(self.cut.before) :], *ids])[len(context) :]
        text, stopped = how.stopped(text)
        return text, ended or stopped


def _words(rows: Tensor, temperature: Tensor, u: Tensor) -> Tensor:
    """Draw a token of each row, (M, V) nats; the most probable at temperature 0."""
    best = rows.argmax(-1).cpu()
    warm = temperature > 0
    if warm.any():
        heat = sent(temperature[warm, None], rows.device)
        p = (widened(rows[warm.to(rows.device)]) / heat).softmax(-1)
        best[warm] = invert_cdf(p, sent_uniforms(u[warm], rows.device)).cpu()
    return best
