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
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent, wide_zeros, widened
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
    """The states of each text: no mention, then nodes that its words suggest.

    On the host.
    """

    node: Tensor
    """(B, 1 + C), the first 0."""
    used: Tensor
    """Whether there is one, (B, 1 + C)."""

    @classmethod
    def of(cls, batch: TokenBatch, graph: KnowledgeGraph) -> Candidates:
        """Find the nodes with an alias that begins with a word of the text."""
        targets, length = batch.on_host
        num_tokens = targets.shape[1]
        inside = torch.arange(num_tokens) < length[:, None]
        text = targets.masked_fill(~inside, -1)
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
    """Log-probabilities of a batch under the S states of its texts, float64 nats.

    The states are those of ``Candidates`` and, last, a mention of any other node.
    """

    word: Tensor
    """log p(x_t | s), (B, T, S); ``-inf`` of states that a text does not have."""
    new: Tensor
    """log p_new(s), (B, T, S); ``-inf`` of no mention."""
    derived: Tensor
    """log 1/C of candidates, (B, S); ``-inf`` of other states."""
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
    costs = _costs(walk, batch, words, states)
    log_psi, log_beta = _backward(costs, batch.length)
    tilt, expected = (
        _relative(value.to(walk.scores.mention), walk, states)
        for value in (log_psi, log_beta)
    )
    return replace(walk, tilt=tilt, expected=expected)


def _costs(
    walk: Walk, batch: TokenBatch, words: WordScorer, states: Candidates
) -> Costs:
    shape = (*batch.targets.shape, states.node.shape[1])
    position, device = torch.arange(batch.targets.numel()), batch.targets.device
    places = position.view(*shape[:2], 1).expand(shape)
    node, used = (x[:, None].expand(shape) for x in (states.node, states.used))
    inside = torch.arange(shape[1]) < batch.on_host[1][:, None]
    some = (inside[..., None] & used).flatten().nonzero()[:, 0]
    word = wide_zeros(shape, device).masked_fill(sent(~used, device), -torch.inf)
    paid = widened(words(places.flatten()[some], node.flatten()[some]))
    word = word.flatten().index_copy(0, sent(some, device), paid).view(shape)

    log_new, entity = walk.new.top(position, OTHERS)
    typical = walk.graph.node_of_entity[fetched(entity)[0]]
    paid = words(position[:, None].expand_as(typical).flatten(), typical.flatten())
    paid = widened(paid.view_as(typical)) + widened(log_new).log_softmax(-1)
    other_word = paid.logsumexp(-1).view(shape[:2])

    entity = walk.graph.entity(node)
    own = (walk.graph.node_of_entity[entity] == node) & (node != NO_ENTITY)
    new = widened(walk.new.log_prob(places.flatten(), entity.flatten()).view(shape))
    new = new.masked_fill(sent(~own, device), -torch.inf)
    other_new = (1 - new.exp().sum(-1)).clamp_min(0.0).log()

    candidate = widened(sent(F.pad(states.used[:, 1:], (1, 1)), device))
    derived = candidate / candidate.sum(-1, keepdim=True).clamp_min(1)
    scores = widened(walk.scores.mention).view(*shape[:2], len(Mention))
    none_to_continue = scores.clone()
    none_to_continue[..., Mention.CONTINUE] = -torch.inf
    return Costs(
        torch.cat([word, other_word[..., None]], -1),
        torch.cat([new, other_new[..., None]], -1),
        derived.log(),
        scores.log_softmax(-1),
        none_to_continue.log_softmax(-1),
    )


def _backward(costs: Costs, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return log psi_t and log beta_t, (B, T, S) each."""
    first, after = (x[..., : Mention.CONTINUE] for x in (costs.first, costs.mention))
    psi, beta = torch.empty_like(costs.word), torch.empty_like(costs.word)
    ahead = torch.zeros_like(costs.derived)
    for t in reversed(range(psi.shape[1])):
        psi[:, t] = here = costs.word[:, t] + ahead
        new = (costs.new[:, t] + here).logsumexp(-1)
        derived = (costs.derived + here).logsumexp(-1)
        begun = torch.stack([here[:, 0], new, derived], -1)
        after_none = (first[:, t] + begun).logsumexp(-1)
        after_any = (after[:, t] + begun).logsumexp(-1)
        go_on = costs.mention[:, t, Mention.CONTINUE, None] + here
        going_on = torch.logaddexp(go_on, after_any[:, None])
        going_on[:, 0] = after_none
        beta[:, t] = ahead = torch.where((length > t)[:, None], going_on, ahead)
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
    position = torch.arange(num_positions)[:, None]
    (listed,) = (candidate != NO_ENTITY).flatten().nonzero(as_tuple=True)
    key, order = (position * num_nodes + candidate).flatten()[listed].sort()
    end = key.new_tensor([num_positions * num_nodes])
    known = value[:, :-1].flatten()[sent(listed[order], value.device)]
    return Tilt(
        torch.cat([key, end]),
        torch.cat([known, value.new_zeros(1)]),
        value[:, -1],
        num_nodes,
        continues=True,
    )
