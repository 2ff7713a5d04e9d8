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
by Newton's method, and then there are fresh ones. The round with the largest evidence
is kept if, on draws that chose nothing, its evidence is larger than before by more than
twice the standard error of that difference over texts.

Source: Bornschein and Bengio (2015), section 2.3; Le et al. (2019). There is no sleep
phase: p's own texts are unlike those that are scored where p is poor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.particles import PIECE
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.training.options import Budget

Strengths = Mapping[str, float]

STEPS = 3
"""Of Newton's method, a round; curvatures are differences of gradients."""
NEARBY = 1e-2
LONGEST_STEP = 3.0
CLOSE = 1e-3
"""Nats a text by which a step has to be better."""
INERTIA = 1e-3
"""Nats a text that it costs to move a strength by one: without reason, none moves."""


@dataclass(frozen=True)
class Worth:
    """What a proposal is worth on some texts, from one set of draws of each."""

    log_evidence: float
    """log p-hat of all texts, nats; below log p on average."""
    effective_samples: float
    """Mean over texts."""


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
    """On draws of their own, as is ``after``."""
    after: Worth
    gain_stderr: float
    """Of the evidence that the best round gained, over texts."""
    chosen: int
    """Which round is kept; 0: there is no better one."""
    num_texts: int
    num_tokens: int

    @property
    def strengths(self) -> Strengths:
        """The best."""
        return self.curve[self.chosen].strengths


def fit(
    model: Any,
    name: str,
    texts: Sequence[TokenBatch],
    ranges: Mapping[str, tuple[float, float]],
    budget: Budget,
) -> Fit:
    """Fit the strengths of a proposal.

    Args:
        model: Its proposals have strengths; none of its weights changes.
        name: The proposal's.
        texts: Batches of texts, of which the first ``PIECE`` words are read.
        ranges: Name -> lowest and highest strength.
        budget: How much to spend.

    Raises:
        ValueError: If a text is one that p or the proposal cannot have written.
    """
    with torch.no_grad():
        read = [Read.of(model, name, batch.piece(0, PIECE)) for batch in texts]
    strengths = {n: float(value) for n, value in model.strengths(name).items()}
    curve = []
    for number in range(budget.rounds + 1):
        drawn = [
            each.draw(strengths, budget, f"round {number}/{n}")
            for n, each in enumerate(read)
        ]
        found = [estimate for each in drawn for estimate in each.estimates]
        curve.append(Round(strengths, _worth(found)))
        if number < budget.rounds:
            strengths = _nearest(read, drawn, strengths, ranges)
    best = max(range(len(curve)), key=lambda n: curve[n].worth.log_evidence)
    before, after = (
        [
            estimate
            for n, each in enumerate(read)
            for estimate in each.draw(
                curve[which].strengths, budget, f"check/{n}"
            ).estimates
        ]
        for which in (0, best)
    )
    pairs = zip(before, after, strict=True)
    gains = [b.log_evidence - a.log_evidence for a, b in pairs]
    error = math.sqrt(len(gains)) * stdev(gains) if len(gains) > 1 else 0.0
    chosen = best if math.fsum(gains) > 2 * error else 0
    return Fit(
        tuple(curve),
        _worth(before),
        _worth(after),
        error,
        chosen,
        len(gains),
        sum(e.num_tokens for e in before),
    )


@dataclass(frozen=True)
class Drawn:
    """Latents that stand for p(z | x) of a batch."""

    latents: list[Any]
    """Of each proposal that was drawn from."""
    weights: list[Tensor]
    """Of each, (B, K); together they add up to 1 a text."""
    estimates: list[Estimate]
    """Of each text, from the draws of the proposal that is fitted alone."""


@dataclass(frozen=True)
class Read:
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
    def of(cls, model: Any, name: str, batch: TokenBatch) -> Read:
        """Read a batch."""
        first = model.proposal()
        other = None if first.name == name else first.encode(batch)
        q = model.proposal(name).read(batch)
        return cls(model, name, batch, model.encode(batch), q, other)

    def proposal(self, strengths: Mapping[str, float | Tensor]) -> Any:
        """Return the proposal with some strengths."""
        return self.model.proposal(self.name, strengths=strengths)

    @torch.no_grad()
    def draw(self, strengths: Strengths, budget: Budget, purpose: str) -> Drawn:
        """Draw latents from the proposal, and from the first one."""
        keys = [
            stream_key(budget.seed, f"fitting/{purpose}/{n}")
            for n in range(len(self.batch.length))
        ]
        streams = Streams(keys, budget.num_samples, device=self.batch.inputs.device)
        mine = self.proposal(strengths)
        sources = [(mine, mine.weighed(self.q))]
        if self.other is not None:
            sources.append((self.model.proposal(), self.other))
        draws = [
            proposal.sample(encoded, streams, budget.num_samples)
            for proposal, encoded in sources
        ]
        log_p = [self.model.log_joint(self.p, d.latents).double() for d in draws]
        log_w = [
            p
            - torch.stack(
                [
                    draw.log_q if i == j else proposal.log_prob(encoded, draw.latents)
                    for j, (proposal, encoded) in enumerate(sources)
                ]
            ).logsumexp(0)
            for i, (p, draw) in enumerate(zip(log_p, draws, strict=True))
        ]
        weight = torch.cat(log_w, 1).softmax(-1).nan_to_num(0.0)
        return Drawn(
            [draw.latents for draw in draws],
            list(weight.split(budget.num_samples, 1)),
            [
                Estimate.from_log_weights(row, num_tokens=size)
                for row, size in zip(
                    (log_p[0] - draws[0].log_q).cpu(),
                    self.batch.length.tolist(),
                    strict=True,
                )
            ],
        )

    def divergences(self, drawn: Drawn, strengths: Mapping[str, Tensor]) -> Tensor:
        """Return -sum of w log q a text, (B,): KL(p || q) but for a constant."""
        proposal = self.proposal(strengths)
        encoded = proposal.weighed(self.q)
        return -sum(  # type: ignore[no-any-return]
            (w * proposal.log_prob(encoded, z).masked_fill(w == 0, 0.0)).sum(-1)
            for z, w in zip(drawn.latents, drawn.weights, strict=True)
        )


def _nearest(
    read: Sequence[Read],
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
        total.backward()  # type: ignore[no-untyped-call]
        result = float(total.detach())
        for each, draws in zip(read, drawn, strict=True):
            named = dict(zip(strengths, value.unbind(), strict=True))
            loss = each.divergences(draws, named).sum() / num_texts
            loss.backward()  # type: ignore[no-untyped-call]
            result += float(loss.detach())
        return result, torch.zeros_like(begin) if value.grad is None else value.grad

    value, (total, gradient) = begin, slope(begin)
    for _ in range(STEPS):
        nearby = value + NEARBY * torch.eye(len(value), dtype=torch.float64)
        rows = [(slope(each)[1] - gradient) / NEARBY for each in nearby]
        curvature = torch.stack(rows)
        step = -_inverse(curvature + curvature.T) @ gradient * 2
        tried = value + step / max(1.0, float(step.abs().max()) / LONGEST_STEP)
        tried = torch.minimum(torch.maximum(tried, low), high)
        there = slope(tried)
        if not there[0] < total - CLOSE:
            break
        value, (total, gradient) = tried, there
    return dict(zip(strengths, value.tolist(), strict=True))


def _inverse(curvature: Tensor) -> Tensor:
    """Invert a symmetric matrix, whose eigenvalues are at least those of INERTIA."""
    bend, direction = torch.linalg.eigh(curvature)
    return direction @ torch.diag(1 / bend.clamp_min(2 * INERTIA)) @ direction.T


def _worth(estimates: Sequence[Estimate]) -> Worth:
    return Worth(
        math.fsum(e.log_evidence for e in estimates),
        fmean(e.effective_sample_size or 0.0 for e in estimates),
    )
