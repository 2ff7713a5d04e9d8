r"""Scorer of a mixture: log p(answer | question), a sum over components.

.. math:: p(a \mid x) = \sum_c \pi_c(x)\, p_c(a_c \mid x_c)

Symbols: c -> a component, one variant of every factor; pi_c(x) -> its weight, which may
depend on the question but not on the answer; x_c, a_c -> question and answer as
rewritten by the component; p_c -> its model. The sum over all components is as exact as
they are. Drawn components come from pi, the same ones for all answers to a question;
their weights p_c(a_c | x_c) lie in [0, 1].
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    MissedSupportError,
    probability_interval,
)
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.mixtures import log_mixture, mixture_stderr, shares
from lm_latent_eval.latent import Normalization
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.text.files import digest
from lm_latent_eval.text.words import encodable
from lm_latent_eval.uniforms import stream_key, uniforms
from lm_latent_eval.wrappers.mixtures.factors import Factor, Variant
from lm_latent_eval.wrappers.mixtures.files import Mixture

MOST_SUMMED = 4096
"""Largest number of components that are summed for an answer; more are drawn."""
AT_ONCE = 2048
"""Number of strings scored together; it affects no result."""


@dataclass(frozen=True)
class ComponentRequest:
    name: str
    """Key of the model's random numbers, if it draws."""
    context: str | None
    """Context; None for a whole text."""
    text: str


@dataclass(frozen=True)
class ComponentAnswer:
    log_p: float
    """Nats; ``-inf`` is probability zero."""
    tokens: int
    is_greedy: bool
    answer: Answer | None = None
    """Answer with its estimate; None if the number is exact."""
    missed: bool = False
    """Whether it is an estimated zero, because no latent was found."""

    @property
    def estimate(self) -> Estimate | None:
        if self.answer is None or self.answer.estimate.bound is Bound.EXACT:
            return None
        return self.answer.estimate


Ask = Callable[[Sequence[ComponentRequest]], Sequence[ComponentAnswer]]
"""A model: answers in the order of requests."""


@dataclass(frozen=True)
class Parts:
    factors: tuple[str, ...]
    names: list[tuple[str, ...]]
    """Names of each component's (or draw's) variants, one a factor."""
    log_weights: list[float]
    """Log pi_c of all components, or -log K of K draws, nats."""
    log_p: Sequence[float]
    """Log p of the answer by each component, or draw, nats."""
    drawn: bool
    exact: bool
    """Whether all ``log_p`` are exact."""


@dataclass(frozen=True)
class MixtureAnswer(Answer):
    """An answer with its components."""

    parts: Parts = field(kw_only=True)


Component = tuple[Variant, ...]


@dataclass
class MixtureScorer(TextScorer):
    """A ``TextScorer`` over models that score strings."""

    mixture: Mixture
    models: Mapping[str, Ask]
    """Models by name; a single one has any name."""
    identity: dict[str, Any]
    """Settings that the models' numbers depend on, as JSON."""
    facts: dict[str, Any]
    """Description of the models for results."""
    normalization: Normalization = Normalization.BELOW_ONE
    unsure_greedy: int = field(default=0, init=False)
    """Number of answers that only some components would write greedily."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that numbers depend on besides the query, as JSON."""
        return {
            "model": "mixture",
            "checkpoint": digest(str(sorted(self.identity.items()))),
            "mixture": self.mixture.digest,
            "models": self.identity,
            "mass": str(self.normalization),
            **self._estimated,
        }

    @property
    def _estimated(self) -> dict[str, Any]:
        """Estimator settings: draws of components, or those of the models."""
        draws, seed = self.mixture.draws, self.mixture.seed
        if draws:
            return {"estimator": "is", "num_samples": draws, "seed": seed}
        models = self.identity.values()
        names = {str(model.get("estimator", "exact")) for model in models}
        settings: dict[str, Any] = {"estimator": "+".join(sorted(names))}
        for name in ("num_samples", "proposal", "temperature", "seed"):
            values = {model[name] for model in models if model.get(name) is not None}
            if len(values) == 1:
                settings[name] = values.pop()
            elif name == "seed" and values:
                settings[name] = "+".join(map(str, sorted(values)))
        return settings

    @property
    def about(self) -> dict[str, Any]:
        """Description of model and numbers for results, as JSON."""
        names = [factor.name for factor in self.factors]
        draws = self.mixture.draws
        summed = (
            f"{draws} components drawn for a question, or all where there are no more"
            if draws
            else "all components summed"
        )
        return {
            "checkpoint_digest": self.fingerprint["checkpoint"],
            "latent_eval": {
                **self._estimated,
                "how": f"a mixture over {', '.join(names)}, {summed}",
                "checks": False,
                "mass": str(self.normalization),
                "mixture_digest": self.mixture.digest,
                **self.facts,
            },
        }

    @property
    def factors(self) -> list[Factor]:
        """Factors including models, in the order in which they rewrite a text."""
        of_models = [self.mixture.of_models] if self.mixture.models else []
        return [*self.mixture.factors, *of_models]

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts, by a mixture of models.

        Raises:
            MissedTextsError: At the end, if all models give a text probability zero.
            ValueError: If other factors are mixed, which need a context.
        """
        if self.mixture.factors:
            names = ", ".join(factor.name for factor in self.mixture.factors)
            raise ValueError(
                f"a whole text has no context that {names} could change: "
                "tasks of perplexities take mixtures of models alone"
            )
        return self._scored(queries, whole=True)

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of answers given their questions.

        Raises:
            MissedTextsError: At the end, if all components give an answer probability
                zero.
            ValueError: If a component cannot rewrite a question; the error names it.
        """
        return self._scored(queries, whole=False)

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Refuse generation.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "latent_mixture scores texts and generates none, since each component "
            "would write a string of its own. Score targets with output_type: "
            "loglikelihood"
        )

    # -- components -------------------------------------------------------------------

    def _scored(self, queries: Sequence[Query], *, whole: bool) -> Iterator[Answer]:
        missed = Missed(queries)
        plans: list[_Plan] = []
        for query in queries:
            with naming(query):
                plans.append(self._plan(query, whole=whole))
            if sum(len(plan.requests) for plan in plans) >= AT_ONCE:
                yield from self._answers(plans, missed)
                plans = []
        yield from self._answers(plans, missed)
        missed.tell()

    def _plan(self, query: Query, *, whole: bool) -> _Plan:
        factors = self.factors
        if not whole and not query.context:
            # Only models apply without a context.
            factors = [factor for factor in factors if factor.name == "model"]
        listed = [factor.variants(query.context) for factor in factors]
        num_components = math.prod(map(len, listed))
        draws = self.mixture.draws
        if draws is None and num_components > MOST_SUMMED:
            raise ValueError(
                f"there are {num_components} components, and {MOST_SUMMED} are the "
                "most that are summed: have some drawn (draws: 64 in the file)"
            )
        drawn = draws is not None and num_components > draws
        chosen: list[Component]
        if draws is not None and drawn:
            chosen = self._drawn(query, factors, listed, draws)
        else:
            chosen = [*itertools.product(*listed)]
        requests = {
            component: self._request(query, factors, component, whole=whole)
            for component in dict.fromkeys(chosen)
        }
        names = tuple(factor.name for factor in factors)
        return _Plan(query, names, chosen, drawn, requests)

    def _drawn(
        self,
        query: Query,
        factors: Sequence[Factor],
        listed: Sequence[Sequence[Variant]],
        draws: int,
    ) -> list[Component]:
        """Draw components, the same for all answers to a question."""
        columns = []
        for factor, variants in zip(factors, listed, strict=True):
            identity = f"{query.name}\0{query.context}\0{factor.name}"
            key = stream_key(self.mixture.seed, identity)
            uniform = uniforms(key, (0,), draws)[:, 0]
            columns.append([_chosen(variants, float(u)) for u in uniform])
        return [*zip(*columns, strict=True)]

    def _request(
        self,
        query: Query,
        factors: Sequence[Factor],
        component: Component,
        *,
        whole: bool,
    ) -> tuple[str, ComponentRequest]:
        context, text, model = query.context, query.text, next(iter(self.models))
        for factor, variant in zip(factors, component, strict=True):
            context, text = variant.rewrite(context, text)
            if factor.name == "model":
                model = variant.name
        names = "\0".join(variant.name for variant in component)
        name = f"{query.name}/{digest(names)}"
        context, text = encodable(context), encodable(text)
        return model, ComponentRequest(name, None if whole else context, text)

    def _answers(self, plans: Sequence[_Plan], missed: Missed) -> Iterator[Answer]:
        every = (pair for plan in plans for pair in plan.requests.values())
        by_model: defaultdict[str, list[ComponentRequest]] = defaultdict(list)
        for name, request in dict.fromkeys(every):
            by_model[name].append(request)
        answers: dict[tuple[str, ComponentRequest], ComponentAnswer] = {}
        for name, requests in by_model.items():
            pairs = zip(requests, self.models[name](requests), strict=True)
            answers |= {(name, request): answer for request, answer in pairs}
        for plan in plans:
            with missed.aside(plan.query):
                yield self._answer(
                    plan, [answers[plan.requests[c]] for c in plan.chosen]
                )

    def _answer(self, plan: _Plan, answers: Sequence[ComponentAnswer]) -> MixtureAnswer:
        for component, each in zip(plan.chosen, answers, strict=True):
            above = each.log_p > ROUNDING * max(each.tokens, 1)
            # An estimate may be above 1 by chance.
            if math.isnan(each.log_p) or (above and each.estimate is None):
                names = ", ".join(variant.name for variant in component)
                raise ValueError(
                    f"component {names} has a log p of {each.log_p}: a probability "
                    "above 1, or none"
                )
        summed = [math.fsum(v.log_weight for v in c) for c in plan.chosen]
        parts = Parts(
            plan.factors,
            [tuple(v.name for v in component) for component in plan.chosen],
            [-math.log(len(answers))] * len(answers) if plan.drawn else summed,
            array("d", [e.log_p if e.estimate else min(e.log_p, 0.0) for e in answers]),
            plan.drawn,
            all(each.estimate is None and not each.missed for each in answers),
        )
        greedy = {each.is_greedy for each in answers}
        self.unsure_greedy += len(greedy) > 1
        inner = [each.answer for each in answers if each.answer is not None]
        return MixtureAnswer(
            plan.query.index,
            _estimate(parts, answers),
            stream=plan.query.name,
            unspelled=max((answer.unspelled for answer in inner), default=0),
            respaced=max((answer.respaced for answer in inner), default=0),
            left_out=max((answer.left_out for answer in inner), default=0),
            is_greedy=greedy == {True},
            parts=parts,
        )


@dataclass(frozen=True)
class _Plan:
    """Requests of a query's components: model and strings of each distinct one."""

    query: Query
    factors: tuple[str, ...]
    chosen: Sequence[Component]
    """All components, or one a draw."""
    drawn: bool
    requests: Mapping[Component, tuple[str, ComponentRequest]]


def _chosen(variants: Sequence[Variant], uniform: float) -> Variant:
    if not isinstance(variants, list):  # equally probable ones, too many to list
        return variants[int(uniform * len(variants))]
    ends = [*itertools.accumulate(math.exp(v.log_weight) for v in variants)]
    index = min(bisect_right(ends, uniform * ends[-1]), len(variants) - 1)
    drawn: Variant = variants[index]
    return drawn


def _error(
    part: Sequence[float],
    answers: Sequence[ComponentAnswer],
    of: Callable[[Estimate], float],
) -> float:
    """Error of a mixture by those of its components.

    A component that is drawn twice has one answer and one error.
    """
    distinct: dict[int, ComponentAnswer] = {}
    share: defaultdict[int, float] = defaultdict(float)
    for each, own in zip(answers, part, strict=True):
        distinct[id(each)] = each
        share[id(each)] += own
    errors = [0.0 if e.estimate is None else of(e.estimate) for e in distinct.values()]
    return mixture_stderr([*share.values()], errors)


def _estimate(parts: Parts, answers: Sequence[ComponentAnswer]) -> Estimate:
    log_weights = parts.log_weights
    total = log_mixture(log_weights, parts.log_p)
    if total == -math.inf:
        raise MissedSupportError(
            f"none of {len(answers)} components gives this text a probability"
        )
    tokens = max(each.tokens for each in answers)
    inner = [each.estimate for each in answers if each.estimate is not None]
    missed = any(each.missed for each in answers)
    part = shares(log_weights, parts.log_p)
    within = math.inf if missed else _error(part, answers, lambda e: e.draws_stderr)
    bounds = [e.bound for e in inner] + [Bound.STOCHASTIC_LOWER] * missed
    bound = Bound.weakest(bounds) if bounds else Bound.EXACT
    # The log of a sum is convex: noise in averages of logarithms raises its mean.
    raised = bound is Bound.ESTIMATED_LOWER and len(part) > 1
    if raised:
        bound = Bound.NONE
    if parts.drawn:
        log_w = torch.tensor([*parts.log_p], dtype=torch.float64)
        estimate = Estimate.from_log_weights(
            log_w,
            num_tokens=tokens,
            bound=Bound.weakest([bound, Bound.STOCHASTIC_LOWER]),
        )
        spread = math.hypot(estimate.draws_stderr, within)
        if not parts.exact:
            return replace(estimate, draws_stderr=spread)
        # Weights are probabilities: none is above 1.
        at_least, at_most = (end.item() for end in probability_interval(log_w))
        return replace(estimate, at_least=at_least, at_most=at_most)
    if bound is Bound.EXACT:
        return Estimate.exact(total, num_tokens=tokens)
    has_error = not (missed or raised) and all(e.stderr is not None for e in inner)
    return Estimate(
        log_evidence=total,
        stderr=_error(part, answers, lambda e: e.stderr or 0.0) if has_error else None,
        draws_stderr=within,
        effective_sample_size=None,
        pareto_k=None,
        num_samples=max((each.num_samples for each in inner), default=1),
        num_tokens=tokens,
        bound=bound,
        estimator="+".join(sorted({each.estimator for each in inner})) or "missed",
    )
