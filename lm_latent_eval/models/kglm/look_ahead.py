r"""What p itself will pay for the text ahead, under every choice that a name suggests.

A hidden Markov model stands in for p. Its states s are "no mention", a mention of one
of the candidates n of the text (nodes with an alias that begins with a word of it) and
a mention of any other node:

.. math::
    \psi_t(s) &= p(x_t \mid s, x_{<t}) \, \beta_{t+1}(s), \qquad \beta_{T+1} = 1 \\
    \beta_t(s) &= p(\mathrm{NONE}) \, \psi_t(\emptyset)
        + [s \ne \emptyset] \, p(\mathrm{CONTINUE}) \, \psi_t(s) \\
        &\quad + p(\mathrm{NEW}) \sum_n p_{\mathrm{new}}(n) \, \psi_t(n)
        + p(\mathrm{DERIVED}) \, \frac{1}{C} \sum_{n = 1}^{C} \psi_t(n)

The words' and the mention types' probabilities are p's own; only the entity that a
DERIVED mention names, which depends on the walk so far, is taken to be any of the C
candidates alike. So the sums are exact for that chain, and for p a guess: it is a
proposal's to be corrected by weights.

Tilted by log psi, p's conditional of z_t knows what every choice will save or cost in
words to come. Nothing is learned. Source: the optimal proposals of twisted particle
filters, of which this is one step of approximation (Guarniero, Johansen and Lee, 2017,
section 3; Pitt and Shephard, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lm_latent_eval.models.kglm.graph import NO_ENTITY, KnowledgeGraph
from lm_latent_eval.models.kglm.matching import Tilt
from lm_latent_eval.models.kglm.ragged import ranked_within
from lm_latent_eval.models.kglm.walk import Mention, Walk
from lm_latent_eval.text.batch import TokenBatch

MOST_PAIRS = 1 << 18
"""Words times candidates of a text. Where there would be more, the candidates with an
alias that stands in it in whole come first, and long ones before short ones."""
OTHERS = 8
"""Nodes that stand for all others at a position: the most probable NEW entities."""
FURTHEST = 20.0
"""Nats. A choice that will cost more than this over the best one is tilted as if it
cost just this, so q is never far below p's own conditional."""


class WordScorer(Protocol):
    """p's words."""

    def __call__(self, position: Tensor, node: Tensor) -> Tensor:
        """Return log p(x_t | node, x_<t) of positions and nodes, nats, elementwise."""
        ...


@dataclass(frozen=True)
class Candidates:
    """The states of each text: no mention, then nodes that its words suggest."""

    node: Tensor
    """(B, 1 + C), the first 0."""
    used: Tensor
    """Whether there is one, (B, 1 + C)."""

    @classmethod
    def of(cls, batch: TokenBatch, graph: KnowledgeGraph) -> Candidates:
        """Find the nodes with an alias that begins with a word of the text."""
        num_tokens = batch.targets.shape[1]
        text = batch.targets.masked_fill(~batch.inside, -1)
        words, node, position = graph.aliases_that_begin(text.flatten())
        key, which = torch.unique(
            position // num_tokens * graph.num_nodes + node, return_inverse=True
        )
        best = torch.zeros_like(key).scatter_reduce(
            0, which, _matches(words, text, position), "amax"
        )
        order, place = ranked_within(key // graph.num_nodes, best)
        kept = place < MOST_PAIRS // max(1, num_tokens)
        key, place = key[order][kept], place[kept]
        owner, column = key // graph.num_nodes, place + 1
        size = int(column.max()) + 1 if len(column) else 1
        nodes = key.new_zeros(len(text), size)
        nodes[owner, column] = key % graph.num_nodes
        used = nodes != NO_ENTITY
        used[:, 0] = True
        return cls(nodes, used)


def _matches(words: Tensor, text: Tensor, position: Tensor) -> Tensor:
    """Count the words of each alias that stand there, and more if all of them do."""
    longest = words.shape[1]
    beyond = text.new_full((len(text), longest), -1)
    ahead = torch.cat([text, beyond], 1).unfold(1, longest, 1)
    ahead = ahead[:, : text.shape[1]].flatten(0, 1)[position]
    standing = ((words == ahead) & (words != 0)).long().cumprod(-1).sum(-1)
    return standing + longest * (standing == (words != 0).sum(-1))


@dataclass(frozen=True)
class Costs:
    """Log-probabilities of a batch under the states of its texts, float64 nats."""

    word: Tensor
    """log p(x_t | s), (B, T, 1 + C)."""
    other_word: Tensor
    """The same under any other node, (B, T)."""
    new: Tensor
    """log p_new(n), (B, T, 1 + C); ``-inf`` where n may not be introduced."""
    mention: Tensor
    """Mention types after a mention, (B, T, 4)."""
    first: Tensor
    """Mention types after none, where nothing can be continued, (B, T, 4)."""


def look_ahead(walk: Walk, batch: TokenBatch, words: WordScorer) -> Walk:
    """Tilt p's walk by what its words will cost.

    Args:
        walk: The distribution of p's next step, without a tilt, over possible choices.
        batch: B texts of T tokens, all of which are read.
        words: p's words.

    Returns:
        The walk with its tilt, and what is ``expected`` of the rest of the text.
    """
    states = Candidates.of(batch, walk.graph)
    log_psi, log_beta = _backward(_costs(walk, batch, words, states), batch, states)
    tilt, expected = (
        _relative(value.to(walk.scores.mention), walk, states)
        for value in (log_psi, log_beta)
    )
    return replace(walk, tilt=tilt, expected=expected)


def _costs(
    walk: Walk, batch: TokenBatch, words: WordScorer, states: Candidates
) -> Costs:
    shape = (*batch.targets.shape, states.node.shape[1])
    position = torch.arange(batch.targets.numel(), device=batch.targets.device)
    places = position.view(*shape[:2], 1).expand(shape)
    node = states.node[:, None].expand(shape)
    some = batch.inside[..., None] & states.used[:, None]
    word = torch.zeros(shape, dtype=torch.float64, device=node.device)
    word[some] = words(places[some], node[some]).double()

    log_new, entity = walk.new.top(position, OTHERS)
    typical = walk.graph.node_of_entity[entity]
    paid = words(position[:, None].expand_as(typical).flatten(), typical.flatten())
    paid = paid.view_as(typical).double() + log_new.double().log_softmax(-1)

    entity = walk.graph.entity(node)
    own = (walk.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
    new = walk.new.log_prob(places.flatten(), entity.flatten()).view(shape).double()
    scores = walk.scores.mention.double().view(*shape[:2], len(Mention))
    none_to_continue = scores.clone()
    none_to_continue[..., Mention.CONTINUE] = -torch.inf
    return Costs(
        word,
        paid.logsumexp(-1).view(shape[:2]),
        new.masked_fill(~own, -torch.inf),
        scores.log_softmax(-1),
        none_to_continue.log_softmax(-1),
    )


def _backward(
    costs: Costs, batch: TokenBatch, states: Candidates
) -> tuple[Tensor, Tensor]:
    """Return log psi_t and log beta_t, (B, T, 1 + C + 1), the last of other nodes."""
    rest = 1 - costs.new.exp().sum(-1, keepdim=True)
    # How a mention begins: NEW of each state, and DERIVED of each candidate.
    log_new = torch.cat([costs.new, rest.clamp_min(0.0).log()], -1)
    others = states.used.new_zeros(len(states.used), 1)
    candidate = torch.cat([states.used, others], -1)
    candidate[:, 0] = False
    derived = candidate.double() / candidate.sum(-1, keepdim=True).clamp_min(1)
    unused = torch.cat([~states.used, others], -1)
    word = torch.cat([costs.word, costs.other_word[..., None]], -1)
    psi, beta = torch.zeros_like(word), torch.zeros_like(word)
    ahead = word.new_zeros(len(word), word.shape[-1])
    for t in reversed(range(word.shape[1])):
        paid = (word[:, t] + ahead).masked_fill(unused, -torch.inf)
        begun = {
            Mention.NONE: paid[:, 0],
            Mention.NEW: (log_new[:, t] + paid).logsumexp(-1),
            Mention.DERIVED: (derived.log() + paid).logsumexp(-1),
        }
        beginning = torch.stack(list(begun.values()), -1)
        types = list(begun)
        after_none = (costs.first[:, t, types] + beginning).logsumexp(-1)
        after_any = (costs.mention[:, t, types] + beginning).logsumexp(-1)
        go_on = costs.mention[:, t, Mention.CONTINUE, None] + paid
        going_on = torch.logaddexp(go_on, after_any[:, None])
        going_on[:, 0] = after_none
        ahead = torch.where((batch.length > t)[:, None], going_on, ahead)
        psi[:, t], beta[:, t] = paid, ahead
    return psi, beta


def _relative(value: Tensor, walk: Walk, states: Candidates) -> Tilt:
    """Compare states with "no mention", the hopeless ones as far as ``FURTHEST``."""
    best = value.amax(-1, keepdim=True)
    value = (value - best.masked_fill(best.isneginf(), 0.0)).clamp_min(-FURTHEST)
    value = (value[..., 1:] - value[..., :1]).flatten(0, 1)
    num_positions, num_nodes = len(value), walk.graph.num_nodes
    candidate = states.node[:, 1:].repeat_interleave(
        num_positions // len(states.node), 0
    )
    position = torch.arange(num_positions, device=value.device)[:, None]
    listed = candidate != NO_ENTITY
    key, order = (position * num_nodes + candidate)[listed].sort()
    end = key.new_tensor([num_positions * num_nodes])
    return Tilt(
        torch.cat([key, end]),
        torch.cat([value[:, :-1][listed][order], value.new_zeros(1)]),
        value[:, -1],
        num_nodes,
        continues=True,
    )
