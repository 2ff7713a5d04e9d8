r"""Look-ahead to what entities that a walk has mentioned are worth as parents.

What the chain of ``mention_chain`` expects of the text ahead depends on the last
mention of a walk alone. An entity stays a candidate parent for some tokens after its
mention, and a walk that introduces it early pays for what it saves much later. So a
search adds, to what is expected of a walk that has mentioned the entities E, the
probability of the text with these parents, over what it is by the chain,

.. math::
    \sum_u \log \Bigl( o_u + \sum_c m_u(c)
        \frac{\sum_e \rho_u(e) \, w_u(e) \, v_u(e)}{\sum_e \rho_u(e) \, w_u(e)} \Bigr)

with o, m, w and v as ``Derivable`` has them, and rho = 1 of the entities in E that are
still remembered at u and of the last mention c, of others how probable their mention
between now and u is. Entities that stand for each other are so counted once. Tokens at
which parents are used are taken to be independent; that is a guess, and weights
correct it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

MOST_ROWS = 1 << 14
"""Mentions that are weighed at once."""

LEAST = 1e-12
"""Probabilities are taken to be no less where their logarithm is."""

LITTLE = 0.05
"""Nats. Tokens that no parents can change by more are not looked at."""


class Derivable(NamedTuple):
    """What a DERIVED mention is worth at tokens of a text, by who its parents are."""

    otherwise: Tensor
    """o, if nothing is derived, or after a less likely last mention, (B, T)."""
    mass: Tensor
    """m, the probability that something is derived after each of L last mentions, over
    what that is worth, (B, T, L)."""
    last: Tensor
    """c, the states that these are, (B, T, L)."""
    weight: Tensor
    """w, (B, T, S)."""
    paid: Tensor
    """v, (B, T, S)."""
    unknown: Tensor
    """What parents from before the piece pay and weigh, (B, T, 2)."""
    best: Tensor
    """The largest v of any parent, (B, T)."""

    @property
    def at_most(self) -> Tensor:
        """Return the probability with the best of parents, at least ``LEAST``."""
        return (self.otherwise + self.mass.sum(-1) * self.best).clamp_min(LEAST)

    def ahead(self, t: int, most: int) -> tuple[Tensor, Derivable]:
        """Return those of the next ``most`` tokens from t on that parents may change.

        Returns:
            How far from t they are, (B, J), and their values. Texts with fewer than J
            have others, of which nothing is derived.
        """
        near = Derivable(*(part[:, t : t + most] for part in self))
        change = near.at_most.log() - near.otherwise.clamp_min(LEAST).log()
        some = change > LITTLE
        number = int(some.sum(1).max()) if some.shape[1] else 0
        distance = some.byte().argsort(dim=1, descending=True, stable=True)[:, :number]
        chosen = Derivable(*(tokens_of(part, distance) for part in near))
        return distance, chosen.only(some.gather(1, distance))

    def only(self, some: Tensor) -> Derivable:
        """Return these, but that nothing is derived at other than some tokens."""
        otherwise = self.otherwise.masked_fill(~some, 1.0)
        mass = self.mass.masked_fill(~some[..., None], 0.0)
        return self._replace(otherwise=otherwise, mass=mass)


def tokens_of(value: Tensor, token: Tensor) -> Tensor:
    """Return the values of some tokens, (B, T, ...) and (B, J) -> (B, J, ...)."""
    text = torch.arange(len(token))[:, None]
    return value[text, token]


class Shares(NamedTuple):
    """What parents pay, times what they weigh, and what they weigh: (..., 2, J) each.

    Tokens come last, where many are added up at once.
    """

    every: Tensor
    """All but last mentions, (R, 2, J)."""
    last: Tensor
    """What each last mention adds, (R, L, 2, J); 0 of those that are in ``every``."""


class TokensAhead(NamedTuple):
    """J tokens of each of B texts at which it matters who the parents are."""

    distance: Tensor
    """From the next token, (B, J)."""
    tokens: Derivable
    share: Tensor
    """What states pay and weigh, beyond what is expected, as parents, (B, S, 2, J)."""
    expected: Shares
    """By mentions that may be, without those of a walk, (B, ...)."""

    @classmethod
    def of(cls, distance: Tensor, tokens: Derivable, absent: Tensor) -> TokensAhead:
        """Expect what is mentioned if not ``absent``, a probability, (B, J, S)."""
        share = torch.stack([tokens.weight * tokens.paid, tokens.weight], 1).mT
        more = absent.mT[:, None] * share
        every = (share - more).sum(2) + tokens.unknown.mT
        last = tokens.last.mT[:, None].expand(-1, 2, -1, -1)
        expected = Shares(every, more.gather(2, last).transpose(1, 2))
        return cls(distance, tokens, more.transpose(1, 2).contiguous(), expected)

    def log_prob(
        self, text: Tensor, parents: Shares, state: Tensor | None = None
    ) -> Tensor:
        """Return log p of tokens with some parents, relative, (..., J) nats.

        Args:
            text: Whose tokens, (...).
            parents: Of each.
            state: One that is in ``every``, and adds nothing as a last mention, (...).
        """
        value = _paid(parents.every.unsqueeze(-3) + parents.last)
        if state is not None:
            mine = self.is_last(text, state)
            value = torch.where(mine, _paid(parents.every).unsqueeze(-2), value)
        derived = sum((self.tokens.mass.mT[text] * value).unbind(-2))
        return (self.tokens.otherwise[text] + derived).clamp_min(LEAST).log()

    def is_last(self, text: Tensor, state: Tensor) -> Tensor:
        """Tell which of the last mentions are of some states, (..., L, J)."""
        return self.tokens.last.mT[text] == state[..., None, None]


def _paid(share: Tensor) -> Tensor:
    """Return what is paid over what is weighed, (..., 2, J) -> (..., J)."""
    paid, weight = share.unbind(-2)
    return paid / weight.clamp_min(torch.finfo(weight.dtype).tiny)


@dataclass(frozen=True)
class Gains:
    """What R walks gain as their entities are parents of the text after a token.

    On the host.
    """

    total: Tensor
    """By the entities that they remember, nats, (R,)."""
    most: Tensor
    """The most that one mention may add, nats, (R,)."""
    text: Tensor
    """Of each walk, (R,)."""
    parents: Shares
    log_prob: Tensor
    """Of the tokens ahead, relative, nats, (R, J)."""
    key: Tensor
    """row * N + node of the remembered entities, increasing, (M,)."""
    share: Tensor
    """What each pays and weighs more than expected, (M, 2, J)."""
    worth: ParentGains | None
    """None: nothing is known of walks, and they gain nothing."""
    ahead: TokensAhead | None

    @classmethod
    def nothing(cls, rows: int) -> Gains:
        """Return those of walks of which nothing is known."""
        zero, none = torch.zeros(rows), torch.zeros(0)
        parents = Shares(none, none)
        return cls(zero, zero, none, parents, none, none, none, None, None)

    def mentioned(self, row: Tensor, node: Tensor) -> Tensor:
        """Return what mentions of nodes by some walks add, elementwise, (n,) nats.

        An entity that is remembered already stays for longer.
        """
        added = self.total.new_zeros(len(row))
        if self.worth is None:
            return added
        state = self.worth.states(self.text[row], node)
        (some,) = state.nonzero(as_tuple=True)
        columns = (x[some].split(MOST_ROWS) for x in (row, node, state))
        for place, *part in zip(some.split(MOST_ROWS), *columns, strict=True):
            added[place] = self._mentioned(*part)
        return added

    def _mentioned(self, row: Tensor, node: Tensor, state: Tensor) -> Tensor:
        """Return what ``mentioned`` does, of nodes that are states of their texts."""
        assert self.worth is not None
        assert self.ahead is not None
        text = self.text[row]
        more = self.ahead.share[text, state]
        if len(self.key):
            wanted = row * self.worth.num_nodes + node
            place = torch.searchsorted(self.key, wanted).clamp_max(len(self.key) - 1)
            known = self.key[place] == wanted
            more = more - self.share[place] * known[:, None, None]
        every, last = (part[row] for part in self.parents)
        log_prob = self.ahead.log_prob(text, Shares(every + more, last), state)
        return (log_prob - self.log_prob[row]).sum(-1)


@dataclass(frozen=True)
class ParentGains:
    """What entities are worth as parents of the text ahead, in B texts, on the host."""

    log_absent: Tensor
    """Log p that no mention of a state begins before a token, (B, T + 1, S)."""
    tokens: Derivable
    key: Tensor
    """b N + node of the states, increasing, (B S,)."""
    state: Tensor
    """The state of each, (B S,)."""
    cutoff: int
    """W, how many tokens an entity stays a candidate."""
    num_nodes: int
    """N."""
    _ahead: dict[int, tuple[TokensAhead, TokensAhead]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        log_absent: Tensor,
        tokens: Derivable,
        nodes: Tensor,
        cutoff: int,
        num_nodes: int,
    ) -> ParentGains:
        """Build them for the nodes of S states, (B, S), 0 of those that are no node."""
        text = torch.arange(len(nodes))[:, None]
        key, order = (text * num_nodes + nodes).flatten().sort(stable=True)
        state = order % nodes.shape[1]
        return cls(log_absent, tokens, key, state, cutoff, num_nodes)

    def after(self, t: int, text: Tensor, window: Tensor, last: Tensor) -> Gains:
        """Return what walks gain after token t.

        Args:
            t: A token.
            text: Of R walks, (R,).
            window: The nodes of the W tokens before t, (R, W).
            last: Where each of them stands last, (R, W) bool.
        """
        row, stays = last.nonzero(as_tuple=True)
        key, order = (row * self.num_nodes + window[row, stays]).sort()
        row, stays, node = row[order], stays[order], key % self.num_nodes
        ahead, owner = self.ahead(t + 1)[0], text[row]
        state = self.states(owner, node)
        remembered = ahead.distance[owner] < stays[:, None]
        share = ahead.share[owner, state] * remembered[:, None]
        every, latest = (part[text] for part in ahead.expected)
        every = every.index_add(0, row, share)
        mine = ahead.is_last(owner, state) & remembered[:, None]
        pair, place, token = mine.nonzero(as_tuple=True)
        latest[row[pair], place, :, token] = 0.0
        parents = Shares(every, latest)
        log_prob = ahead.log_prob(text, parents)
        total = log_prob.sum(-1)
        most = ahead.tokens.at_most.log().sum(-1)[text] - total
        return Gains(total, most, text, parents, log_prob, key, share, self, ahead)

    def expected_after(self, t: int) -> Tensor:
        """Return what a mention of each state at t adds to a walk, (B, S) nats.

        What the walk has mentioned is as probable as the chain takes it to be. Of the
        first state, which is no mention, it is 0.
        """
        _walks, ahead = self.ahead(t + 1)
        every, last = (part[:, None] for part in ahead.expected)
        text = torch.arange(len(every))[:, None]
        state = torch.arange(ahead.share.shape[1])
        by_chain = ahead.log_prob(text, Shares(every, last))
        log_prob = ahead.log_prob(text, Shares(every + ahead.share, last), state)
        gain = (log_prob - by_chain).sum(-1)
        return gain.index_fill(1, text.new_tensor([0]), 0.0)

    def ahead(self, t: int) -> tuple[TokensAhead, TokensAhead]:
        """Return the tokens from t on that parents of now may change.

        Returns:
            As walks see them, of which it is known what they have mentioned before t,
            and as it is expected of all walks.
        """
        if t not in self._ahead:
            self._ahead.clear()
            distance, tokens = self.tokens.ahead(t, self.cutoff)
            token = distance + t
            until = tokens_of(self.log_absent, token)
            before = tokens_of(self.log_absent, (token - self.cutoff).clamp_min(0))
            since = self.log_absent[:, t, None]
            self._ahead[t] = (
                TokensAhead.of(distance, tokens, (until - since).exp()),
                TokensAhead.of(distance, tokens, (until - before).exp()),
            )
        return self._ahead[t]

    def states(self, text: Tensor, node: Tensor) -> Tensor:
        """Return the states of nodes; the first, which gains nothing, of others."""
        wanted = text * self.num_nodes + node
        place = torch.searchsorted(self.key, wanted).clamp_max(len(self.key) - 1)
        return torch.where(self.key[place] == wanted, self.state[place], 0)
