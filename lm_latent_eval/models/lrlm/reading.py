r"""Draws readings of texts, and searches for the best.

Both go from border to border. At a border of a text, with or without a topic, one
chooses between the next word and the names that begin with it, in proportion to

.. math:: s \cdot v_{\text{end}}

where s is what p charges and v stands for the mass of what follows: beta itself, and
then readings come from p(z | x) exactly; or the mass of all that follows as words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_latent_eval.devices import wide_zeros
from lm_latent_eval.latent import Beam, Draws, Uniforms
from lm_latent_eval.models.kglm.ragged import expand_ranges, invert_cdf, ranked_within
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice, sunk
from lm_latent_eval.models.lrlm.state import WORD, Readings, RelationState
from lm_latent_eval.models.lrlm.topics import Topics


@dataclass(frozen=True)
class BorderChoices:
    """What can be chosen at one border by each row of a lattice, sorted by row."""

    row: Tensor
    """(N,), non-decreasing; every row has the next word as its first."""
    source: Tensor
    """``WORD``, or 1 + naming, (N,)."""
    length: Tensor
    """Words of the name; 1 for a word, (N,)."""
    topic: Tensor
    """Of which the text is then known to be, 0 for none, (N,)."""
    cost: Tensor
    """Log of what p charges, tempered, (N,)."""
    after: Tensor
    """Log of what stands for the mass of what follows, (N,)."""
    ends: Tensor
    """Where each row's options end, (num_rows,)."""

    @property
    def value(self) -> Tensor:
        """What options are chosen in proportion to, (N,) nats."""
        return (self.cost + self.after).clamp_min(FLOOR)


@dataclass(frozen=True)
class Route:
    """How a proposal goes through a lattice."""

    lattice: Lattice
    """What everything costs, tempered."""
    after: Tensor
    """What stands for the mass of what follows each border, (T + 1, num_rows)."""

    @classmethod
    def exact(cls, lattice: Lattice) -> Route:
        """Weigh by what follows."""
        return cls(lattice, lattice.backward())

    @classmethod
    def plain(cls, lattice: Lattice) -> Route:
        """Weigh by what follows, as if all of it were words."""
        rest = lattice.word.flip(1).cumsum(1).flip(1)
        rest = torch.cat([rest, rest.new_zeros(len(rest), 1)], 1)
        return cls(lattice, rest.t()[:, lattice.text].clamp_min(FLOOR))

    def options(self) -> Iterator[BorderChoices]:
        """Yield what can be chosen, border by border."""
        lattice, arcs = self.lattice, self.lattice.arcs
        num_tokens = lattice.word.shape[1]
        every = torch.arange(lattice.num_rows, device=arcs.place.device)
        borders = torch.searchsorted(
            arcs.start, torch.arange(num_tokens + 1, device=every.device)
        ).tolist()
        end = torch.minimum(arcs.end, lattice.length[arcs.text])
        for t in range(num_tokens):
            here = slice(borders[t], borders[t + 1])
            named, unknown = lattice.arc_row[here], arcs.text[here]
            row = torch.cat([every, named, unknown])
            order = row.argsort(stable=True)
            source, length = arcs.naming[here] + 1, arcs.length[here]
            after = self.after[end[here], named]
            score, topic = lattice.score[here], arcs.topic[here]

            def columns(of_words: Tensor, of_known: Tensor, of_new: Tensor) -> Tensor:
                return torch.cat([of_words, of_known, of_new])[order]  # noqa: B023

            yield BorderChoices(
                row[order],
                columns(torch.full_like(every, WORD), source, source),
                columns(torch.ones_like(every), length, length),
                columns(lattice.topic, topic, topic),
                columns(
                    lattice.word[lattice.text, t],
                    score,
                    score + lattice.log_prior[here],
                ),
                columns(self.after[t + 1], after, after),
                torch.searchsorted(row[order], every, right=True),
            )


def sample_readings(
    route: Route,
    topics: Topics,
    state: RelationState,
    uniforms: Uniforms,
    num_samples: int,
) -> Draws[Readings]:
    """Draw K readings a text, which continue those of the state."""
    lattice = route.lattice
    topic, naming, offset = state.expanded(num_samples)
    left = topics.length(naming.clamp_min(0)) - offset
    left = left.masked_fill(naming < 0, 0)
    text = torch.arange(lattice.num_texts, device=topic.device)[:, None]
    text = text.expand_as(topic)
    source = naming + 1
    log_q = wide_zeros(topic.shape, topic.device)
    path = []
    for t, options in enumerate(route.options()):
        choosing = (left == 0) & (lattice.length[:, None] > t)
        log_p, prob = _normalised(options, lattice.num_rows)
        row = lattice.row(text, topic)[choosing]
        u = uniforms(t)[..., 0][choosing]
        drawn = invert_cdf(prob, options.row, lattice.num_rows, row, u)
        log_q[choosing] += log_p[drawn]
        source = source.masked_scatter(choosing, options.source[drawn])
        left = left.masked_scatter(choosing, options.length[drawn])
        topic = topic.masked_scatter(choosing, options.topic[drawn])
        offset = offset.masked_fill(choosing, 0)
        path.append(Readings(source, offset))
        offset = offset + (source != WORD).long()
        left = (left - 1).clamp_min(0)
    return Draws(_stacked(path, topic), log_q)


def log_prob_readings(route: Route, state: RelationState, readings: Readings) -> Tensor:
    """Return log q of given readings in nats, (B, K) float64."""
    lattice = route.lattice
    samples = readings.source.shape[1]
    topic, _, _ = state.expanded(samples)
    text = torch.arange(lattice.num_texts, device=topic.device)[:, None]
    text = text.expand_as(topic)
    log_q = wide_zeros(topic.shape, topic.device)
    for t, options in enumerate(route.options()):
        source = readings.source[:, :, t]
        choosing = (readings.offset[:, :, t] == 0) & (lattice.length[:, None] > t)
        log_p, _ = _normalised(options, lattice.num_rows)
        row = lattice.row(text, topic)[choosing]
        many = int(options.source.max()) + 1
        key = options.row * many + options.source
        order = key.argsort(stable=True)
        wanted = row * many + source[choosing].clamp_max(many - 1)
        place = torch.searchsorted(key[order], wanted).clamp_max(len(key) - 1)
        place = order[place]
        found = (key[place] == wanted) & (source[choosing] < many)
        log_q[choosing] += log_p[place].masked_fill(~found, -torch.inf)
        known = torch.where(found, options.topic[place], topic[choosing])
        topic = topic.masked_scatter(choosing, known)
    return log_q


def beam_readings(
    route: Route,
    topics: Topics,
    agrees: Tensor,
    state: RelationState,
    width: int,
    score: Tensor | None = None,
) -> Beam[Readings]:
    """Find up to ``width`` distinct readings of high p, continuing those so far.

    They are ranked by what p charges them so far times what stands for the rest.

    Args:
        route: The lattice, and what stands for the rest.
        topics: The namings.
        agrees: Whether the open name of each reading so far goes on as the text does,
            (B, K').
        state: Where they stand.
        width: How many to keep.
        score: Log of what p charged them, (B, K'); None: nothing so far.
    """
    lattice = route.lattice
    topic, naming, offset = state.expanded(state.topic.shape[1])
    cost = wide_zeros(topic.shape, topic.device) if score is None else score
    cost = cost.masked_fill(~agrees, -torch.inf)
    left = topics.length(naming.clamp_min(0)) - offset
    left = left.masked_fill(naming < 0, 0)
    source, origin = naming + 1, torch.arange(topic.shape[1], device=topic.device)
    origin = origin.expand_as(topic)
    path: list[Readings] = []
    for t, options in enumerate(route.options()):
        every = (cost > -torch.inf).nonzero()
        text, place = every[:, 0], every[:, 1]
        old = _Column(text, place)
        choosing = (old(left) == 0) & (lattice.length[text] > t)
        row = lattice.row(text, old(topic))
        start = torch.cat([options.ends.new_zeros(1), options.ends[:-1]])
        new, parent = expand_ranges(
            start[row].masked_fill(~choosing, 0),
            options.ends[row].masked_fill(~choosing, 1),
        )
        chosen = choosing[parent]

        def grown(of_option: Tensor, of_old: Tensor) -> Tensor:
            return torch.where(chosen, of_option, of_old)  # noqa: B023

        costs = old(cost)[parent]
        costs = costs + options.cost[new].masked_fill(~chosen, 0.0)
        lefts = grown(options.length[new], old(left)[parent])
        tops = grown(options.topic[new], old(topic)[parent])
        end = torch.minimum(t + lefts.clamp_min(1), lattice.length[text[parent]])
        follows = route.after[end, lattice.row(text[parent], tops)]
        possible = sunk(costs).isfinite()
        order, rank = ranked_within(
            text[parent], (costs + follows).masked_fill(~possible, -torch.inf)
        )
        kept = order[(rank < width) & possible[order]]
        rank = rank[(rank < width) & possible[order]]
        into, size = text[parent][kept], (lattice.num_texts, _widest(rank))
        from_ = parent[kept]

        def put(values: Tensor, nothing: float = 0) -> Tensor:
            table = values.new_full(size, nothing)  # noqa: B023
            return table.index_put((into, rank), values)  # noqa: B023

        cost = put(costs[kept], -torch.inf)
        before = put(place[from_])
        sources = put(grown(options.source[new], old(source)[parent])[kept])
        offsets = put(grown(torch.zeros_like(new), old(offset)[parent])[kept])
        topic, origin = put(tops[kept]), origin.gather(1, before)
        path = [Readings(*(c.gather(1, before) for c in p)) for p in path]
        path.append(Readings(sources, offsets))
        source, offset = sources, offsets + (sources != WORD).long()
        left = (put(lefts[kept]) - 1).clamp_min(0)
    return Beam(_stacked(path, topic), cost, origin)


def _normalised(options: BorderChoices, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of options, and probabilities, (N,) each."""
    value = options.value
    peak = value.new_full((num_rows,), FLOOR).scatter_reduce(
        0, options.row, value, "amax"
    )
    prob = (value - peak[options.row]).exp()
    total = prob.new_zeros(num_rows).index_add(0, options.row, prob)
    log_p = value - peak[options.row] - total.log()[options.row]
    return log_p, log_p.exp()


@dataclass(frozen=True)
class _Column:
    """Picks what is used of a table (B, K)."""

    text: Tensor
    place: Tensor

    def __call__(self, table: Tensor) -> Tensor:
        """Return the values, (number used,)."""
        return table[self.text, self.place]


def _widest(rank: Tensor) -> int:
    return int(rank.max()) + 1 if len(rank) else 1


def _stacked(path: list[Readings], like: Tensor) -> Readings:
    if not path:
        nothing = like.new_zeros(*like.shape, 0)
        return Readings(nothing, nothing)
    source, offset = zip(*path, strict=True)
    return Readings(torch.stack(source, -1), torch.stack(offset, -1))
