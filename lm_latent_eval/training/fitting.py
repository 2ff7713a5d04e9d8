r"""Fits the few strengths of a proposal to what p says of texts, not to annotation.

Importance sampling needs about exp(KL(p(z|x) || q)) draws, no fewer and not many more
(Chatterjee and Diaconis, 2018), so the strengths phi that are looked for are

.. math::
    \phi = \arg\min_\phi \sum_x \mathrm{KL}\big(p(z \mid x) \,\|\, q_\phi(z \mid x)\big)
    = \arg\max_\phi \sum_x \sum_k \bar w_k(x) \log q_\phi(z_k \mid x)

with draws z_k of text x that stand for p(z | x) by their weights: the wake phase of
reweighted wake-sleep. The draws are those of the proposal itself and those of the
model's first one, weighed as the mixture that they come from, so that a proposal which
misses what p pays for is shown it by the other,

.. math:: \bar w_k \propto p(x, z_k) \Big/ \sum_i q_i(z_k \mid x).

phi is few numbers, and log q nearly concave in them: a round minimises for given draws
by Newton's method, and then there are fresh ones. The last round is kept if it is
nearer to p than the first, on draws of both that fitted neither, by more than twice the
standard error of that difference over texts.

Texts that were drawn from p are texts like others here. The sleep phase would take the
one z that each was drawn with; the weighted draws stand for all z that p(z | x) allows.

Source: Bornschein and Bengio (2015), section 2.3; Le et al. (2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lm_latent_eval.devices import widened
from lm_latent_eval.estimators import effective_sample_size, log_evidence
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.training.options import FitBudget

Strengths = Mapping[str, float]

STEPS = 3
"""Of Newton's method, a round; curvatures are differences of gradients."""
NEARBY = 1e-2
LONGEST_STEP = 3.0
SHORTER = (1.0, 0.5, 0.25, 0.125)
"""Parts of a step that are tried, one after the other."""
CLOSE = 1e-3
"""Nats a text by which a step has to be better."""
INERTIA = 1e-3
"""Nats a text that it costs to move a strength by one: without reason, none moves."""


@dataclass(frozen=True)
class Worth:
    """What a proposal is worth on some texts, from one set of draws of each."""

    log_evidence: float
    """log p-hat of the texts, nats; below log p on average."""
    effective_samples: float
    """Mean over texts."""
    missed: int
    """Texts for which no latent that was drawn is possible; not in the evidence."""


@dataclass(frozen=True)
class Round:
    """Strengths, and what they are worth on the draws of one round."""

    strengths: Strengths
    worth: Worth


@dataclass(frozen=True)
class Fit:
    """What came out."""

    curve: tuple[Round, ...]
    """Round after round, the first with the strengths that there were."""
    before: Worth
    """The first round, on draws that fitted nothing; as is ``after`` the last."""
    after: Worth
    gain: float
    """Nats a text by which the last round's q is nearer to p(z|x), on those draws."""
    stderr: float
    """Of the gain, over texts."""
    num_texts: int
    num_tokens: int

    @property
    def better(self) -> bool:
        """Whether the last round is to be kept."""
        return self.gain > CLOSE + 2 * self.stderr

    @property
    def strengths(self) -> Strengths:
        """What is to be kept."""
        return self.curve[-1 if self.better else 0].strengths


def fit(
    model: Any,
    name: str,
    texts: Sequence[TokenBatch],
    ranges: Mapping[str, tuple[float, float]],
    budget: FitBudget,
) -> Fit:
    """Fit the strengths of a proposal.

    Args:
        model: Its proposals have strengths; none of its weights changes.
        name: The proposal's.
        texts: Batches of texts, of which the first ``PIECE`` words are read.
        ranges: Name -> lowest and highest strength.
        budget: How much to spend.
    """
    with torch.no_grad():
        read = [ReadBatch.of(model, name, batch.piece(0, PIECE)) for batch in texts]
    strengths = {n: float(value) for n, value in model.strengths(name).items()}
    curve = []
    rounds = range(budget.rounds + 1)
    for number in tqdm(rounds, f"fit {name}", unit="round", leave=False, disable=None):
        drawn = [
            each.draw([strengths], budget, f"round {number}/{n}")
            for n, each in enumerate(read)
        ]
        curve.append(Round(strengths, _worth(drawn, 0)))
        if number < budget.rounds:
            strengths = _nearest(read, drawn, strengths, ranges)
    ends = [curve[0].strengths, curve[-1].strengths]
    drawn = [each.draw(ends, budget, f"check/{n}") for n, each in enumerate(read)]
    gains = [
        gain
        for each, draws in zip(read, drawn, strict=True)
        for gain in each.gains(draws, *ends)
    ]
    return Fit(
        tuple(curve),
        before=_worth(drawn, 0),
        after=_worth(drawn, 1),
        gain=fmean(gains),
        stderr=stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0,
        num_texts=len(gains),
        num_tokens=sum(int(each.batch.length.sum()) for each in read),
    )


@dataclass(frozen=True)
class Drawn:
    """Latents that stand for p(z | x) of a batch."""

    latents: list[Any]
    """Of each proposal that was drawn from."""
    weights: list[Tensor]
    """Of each, (B, K); together they add up to 1 a text."""
    log_w: list[Tensor]
    """log p - log q of the draws of each proposal by itself, (B, K)."""


@dataclass(frozen=True)
class ReadBatch:
    """A batch with all that no strength changes."""

    model: Any
    name: str
    batch: TokenBatch
    p: Any
    """As p encodes it."""
    q: Any
    """As the proposal that is fitted reads it."""
    other: Any | None
    """As the model's first proposal encodes it, if that is another."""

    @classmethod
    def of(cls, model: Any, name: str, batch: TokenBatch) -> ReadBatch:
        """Read a batch."""
        first = model.proposal()
        other = None if first.name == name else first.encode(batch)
        q = model.proposal(name).read(batch)
        return cls(model, name, batch, model.encode(batch), q, other)

    def proposal(self, strengths: Mapping[str, float | Tensor]) -> Any:
        """Return the proposal with some strengths."""
        return self.model.proposal(self.name, strengths=strengths)

    @torch.no_grad()
    def draw(
        self, strengths: Sequence[Strengths], budget: FitBudget, purpose: str
    ) -> Drawn:
        """Draw from the proposal with each of the strengths, and from the first one."""
        keys = [
            stream_key(budget.seed, f"fitting/{purpose}/{n}")
            for n in range(len(self.batch.length))
        ]
        streams = Streams(keys, budget.num_samples)
        mine = [self.proposal(each) for each in strengths]
        sources = [(proposal, proposal.weighed(self.q)) for proposal in mine]
        if self.other is not None:
            sources.append((self.model.proposal(), self.other))
        draws = [
            proposal.sample(encoded, streams, budget.num_samples)
            for proposal, encoded in sources
        ]
        log_p = [widened(self.model.log_joint(self.p, d.latents)) for d in draws]
        mixed = []
        for i, draw in enumerate(draws):
            log_q = [
                draw.log_q if i == j else proposal.log_prob(encoded, draw.latents)
                for j, (proposal, encoded) in enumerate(sources)
            ]
            mixed.append(log_p[i] - torch.stack(log_q).logsumexp(0))
        weight = torch.cat(mixed, 1).softmax(-1).nan_to_num(0.0)
        return Drawn(
            [draw.latents for draw in draws],
            list(weight.split(budget.num_samples, 1)),
            [p - draw.log_q for p, draw in zip(log_p, draws, strict=True)],
        )

    def divergences(
        self, drawn: Drawn, strengths: Mapping[str, Tensor | float]
    ) -> Tensor:
        """Return -sum of w log q a text, (B,): KL(p || q) but for a constant."""
        proposal = self.proposal(strengths)
        encoded = proposal.weighed(self.q)
        parts = [
            (w * proposal.log_prob(encoded, z).masked_fill(w == 0, 0.0)).sum(-1)
            for z, w in zip(drawn.latents, drawn.weights, strict=True)
        ]
        return -torch.stack(parts).sum(0)

    @torch.no_grad()
    def gains(self, drawn: Drawn, old: Strengths, new: Strengths) -> list[float]:
        """Return by how many nats the new q is nearer to p, text by text."""
        gain = self.divergences(drawn, old) - self.divergences(drawn, new)
        return [float(each) for each in gain]


def _nearest(
    read: Sequence[ReadBatch],
    drawn: Sequence[Drawn],
    strengths: Strengths,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, float]:
    """Return the strengths whose q is nearest to the weighted draws."""
    low, high = torch.tensor([ranges[n] for n in strengths], dtype=torch.float64).T
    num_texts = sum(len(each.batch.length) for each in read)
    begin = torch.tensor([*strengths.values()], dtype=torch.float64)

    def slope(value: Tensor) -> tuple[float, Tensor]:
        """Return the mean divergence of the texts, and its gradient."""
        value = value.clone().requires_grad_()
        total = INERTIA * (value - begin).square().sum()
        total.backward()
        result = float(total.detach())
        for each, draws in zip(read, drawn, strict=True):
            named = dict(zip(strengths, value.unbind(), strict=True))
            loss = each.divergences(draws, named).sum() / num_texts
            loss.backward()
            result += float(loss.detach())
        return result, torch.zeros_like(begin) if value.grad is None else value.grad

    value, (total, gradient) = begin, slope(begin)
    for _ in range(STEPS):
        nearby = value + NEARBY * torch.eye(len(value), dtype=torch.float64)
        curvature = torch.stack([slope(v)[1] - gradient for v in nearby]) / NEARBY
        # What is at the end of its range and would go on stays there.
        free = ((value > low) | (gradient < 0)) & ((value < high) | (gradient > 0))
        some = ((curvature + curvature.T) / 2)[free][:, free]
        step = torch.zeros_like(value)
        step[free] = -_inverse(some) @ gradient[free]
        step = step / max(1.0, float(step.abs().max()) / LONGEST_STEP)
        for shorter in SHORTER:
            tried = torch.clamp(value + shorter * step, low, high)
            there = slope(tried)
            if there[0] < total - CLOSE:
                value, (total, gradient) = tried, there
                break
        else:
            break
    return dict(zip(strengths, value.tolist(), strict=True))


def _inverse(curvature: Tensor) -> Tensor:
    """Invert a symmetric matrix, whose eigenvalues are at least those of INERTIA."""
    bend, direction = torch.linalg.eigh(curvature)
    stretch = torch.diag(1 / bend.clamp_min(2 * INERTIA))
    inverse: Tensor = direction @ stretch @ direction.T
    return inverse


def _worth(drawn: Sequence[Drawn], source: int) -> Worth:
    """Say what one of the proposals that were drawn from is worth."""
    log_w = torch.cat([each.log_w[source] for each in drawn])
    found = (log_w > -torch.inf).any(-1)
    sizes = effective_sample_size(log_w[found])
    return Worth(
        float(log_evidence(log_w[found]).sum()),
        float(sizes.sum()) / max(1, len(sizes)),
        int((~found).sum()),
    )
