"""KGLM's walks as steps for the engine.

Walks and what is behind them are on the host, log-probabilities where the scores are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.cuts import Cut
from lm_latent_eval.inference.steps import Choices, Drawn, Ragged, Taken
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.kglm.choices import REST, drawn_of_the_rest, listed_steps
from lm_latent_eval.models.kglm.scores import AT_ONCE
from lm_latent_eval.models.kglm.steps import Mention, Rows, Walks
from lm_latent_eval.models.kglm.walk import NextStep


def windows(history: Tensor, node: Tensor) -> Tensor:
    """Return what each token has behind it.

    Args:
        history: Nodes of the ``cutoff`` tokens before the piece, (B, K, W).
        node: Nodes of the piece, (B, K, T).

    Returns:
        For token t the nodes of t - W .. t - 1, shape (B, K, T, W), a view.
    """
    path = torch.cat([history, node], -1)
    return path.unfold(-1, history.shape[-1], 1)[..., :-1, :]


def log_prob_walks(
    walk: NextStep, history: Tensor, walks: Walks, length: Tensor
) -> Tensor:
    """Return log p(z_t | z_<t) of whole walks in nats, (B, K, T); 0 past the end."""
    places = torch.arange(walks.node.shape[-1])
    inside = places < length[:, None, None]
    return _scored(walk, walk.log_prob, history, walks, inside.expand_as(walks.node))


def _scored(
    walk: NextStep,
    score: Callable[[Rows, Tensor, Tensor], Tensor],
    history: Tensor,
    walks: Walks,
    some: Tensor,
    *,
    chunk: int = 1 << 16,
) -> Tensor:
    """Score some steps of walks, (B, K, T) bool; return nats, 0 of all others."""
    b, k, t = some.nonzero(as_tuple=True)
    behind, tokens = windows(history, walks.node), some.shape[-1]
    parts = [
        score(
            Rows(bb * tokens + tt, behind[bb, kk, tt]),
            walks.mention[bb, kk, tt],
            walks.node[bb, kk, tt],
        )
        for bb, kk, tt in zip(
            b.split(chunk), k.split(chunk), t.split(chunk), strict=True
        )
    ]
    result = walk.scores.mention.new_zeros(some.numel())
    if parts:
        (index,) = some.flatten().nonzero(as_tuple=True)
        result = result.index_copy(0, sent(index, result.device), torch.cat(parts))
    return result.view(some.shape)


def log_nodes(walk: NextStep, history: Tensor, walks: Walks) -> Tensor:
    """Return log p of the nodes that walks name, (B, K) float64 nats.

    Of all tokens at once: walks agree on most. Their types are drawn one by one.
    """
    named = (walks.mention == Mention.NEW) | (walks.mention == Mention.DERIVED)
    log_node = _scored(walk, walk.log_node, history, walks, named)
    return widened(log_node).sum(-1)


@dataclass(frozen=True)
class WalkSteps:
    """The steps of walks over a piece: a state is the window behind each, (B, K, W).

    Walks are on the host.
    """

    walk: NextStep
    """The distribution of the next step, at B T positions."""
    history: Tensor
    """Nodes of the tokens before the piece, (B, 1 or K, W)."""
    length: Tensor
    """Tokens of each text, (B,)."""
    num_steps: int
    """T."""
    _best: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The most probable NEW entities from a step on, for some steps."""
    num_columns: ClassVar[int] = 2

    def begin(self, num_histories: int | None) -> Tensor:
        """Return the windows before the piece: of K walks, or of those there are."""
        if num_histories is None:
            return self.history
        return self.history.expand(-1, num_histories, -1)

    def num_histories(self, state: Tensor) -> int:
        """Return K."""
        return state.shape[1]

    def draw(
        self, state: Tensor, t: int, uniforms: Uniforms, origin: Tensor | None
    ) -> Drawn[Tensor]:
        """Draw the steps of token t: log q is that of the types, without the nodes."""
        (text,) = (self.length > t).nonzero(as_tuple=True)
        u = uniforms(t)
        samples = u.shape[1]
        if state.shape[1] == 1:  # all continue the one there is
            state, origin = state.expand(-1, samples, -1), None
        position = (text * self.num_steps + t).repeat_interleave(samples)
        rows = Rows(position, state[text].flatten(0, 1))
        u_rows, before, others = u[text].flatten(0, 1), None, []
        if origin is not None:
            first = torch.arange(len(text), device=origin.device)[:, None] * samples
            before = (first + origin[sent(text, origin.device)]).flatten()
            others = [origin]
        drawn, others = self.walk.draw(rows, u_rows, before).fetched_with(*others)
        if origin is not None:
            (origin,) = others
            state = resampled(state, origin)
        node = self.walk.drawn_node(drawn, state[text, :, -1].flatten(), u_rows)
        columns = u.new_zeros(2, *u.shape[:2], dtype=torch.long)
        columns[0, text] = drawn.mention.view(-1, samples)
        columns[1, text] = node.view(-1, samples)
        log_q = widened(drawn.log_type.new_zeros(u.shape[:2]))
        there = sent(text, log_q.device)
        log_q[there] = widened(drawn.log_type).view(-1, samples)
        return Drawn(self._moved(state, columns[1]), tuple(columns), log_q, origin)

    def choices(self, state: Tensor, t: int, score: Tensor, cut: Cut | None) -> Ragged:
        """List steps of token t that may be among the best, or stand for the rest.

        Raises:
            ValueError: If every step is asked for by itself: there may be a million.
        """
        if cut is None:
            raise ValueError("the steps of a walk are too many to list all of them")
        going_on = (score > -torch.inf) & (self.length > t)[:, None]
        text, place = going_on.nonzero(as_tuple=True)
        listed = listed_steps(
            self.walk,
            Rows(text * self.num_steps + t, state[text, place]),
            text,
            text * cut.groups + place // (state.shape[1] // cut.groups),
            score[text, place],
            cut,
            self._new(t, cut.width),
        )
        history = (text * state.shape[1] + place)[listed.row]
        columns = listed.mention, listed.node
        rest = listed.node <= REST if cut.exhaustive else None
        shape = score.shape[0], score.shape[1]
        return Ragged(shape, history, columns, listed.log_p, many=rest)

    def take(
        self,
        state: Tensor,
        t: int,
        choices: Choices,
        origin: Tensor,
        choice: Tensor,
        uniforms: Callable[[], Tensor],
    ) -> Taken[Tensor]:
        """Go on with some steps of some walks; draw those that stand for the rest."""
        assert isinstance(choices, Ragged)
        mention, node = choices.decided(choice)
        log_f, (text, place) = None, (node <= REST).nonzero(as_tuple=True)
        if len(text):
            log_best, entity = self._new(t, 0)
            drawn, log_q = drawn_of_the_rest(
                self.walk,
                text * self.num_steps + t,
                REST - node[text, place],
                (log_best[text], entity[text]),
                uniforms()[text, place],
            )
            log_f = widened(torch.zeros(node.shape))
            node[text, place], log_f[text, place] = drawn, -log_q
        return Taken(
            self._moved(resampled(state, origin), node), (mention, node), log_f
        )

    def _new(self, t: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the most probable NEW entities of token t: log p and entity, (B, n).

        They are fetched of several tokens at once, which a device is waited for.
        """
        if t not in self._best:
            batch, num_entities = len(self.length), self.walk.graph.num_entities
            size = max(1, batch * min(width, num_entities))
            ends = min(self.num_steps, t + max(1, AT_ONCE // size))
            text = torch.arange(batch) * self.num_steps
            here = torch.arange(t, ends)[:, None] + text
            table = fetched(*self.walk.new.top(here.flatten(), width))
            log_best, entity = (part.unflatten(0, here.shape) for part in table)
            self._best.clear()
            self._best.update(enumerate(zip(log_best, entity, strict=True), t))
        return self._best[t]

    @staticmethod
    def _moved(state: Tensor, node: Tensor) -> Tensor:
        """Put nodes behind the next token, (B, K, W), (B, K) -> (B, K, W)."""
        return torch.cat([state[..., 1:], node[..., None]], -1)


def resampled(state: Tensor, origin: Tensor) -> Tensor:
    """Return the windows of some walks, (B, K, W), (B, K') -> (B, K', W)."""
    return state.gather(1, origin[..., None].expand(-1, -1, state.shape[2]))
