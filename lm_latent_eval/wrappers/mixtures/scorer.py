r"""Scorer of a mixture: log p(answer | question), a sum over components.

.. math:: p(a \mid x) = \sum_c \pi_c(x)\, p_c(a_c \mid x_c)

Symbols: c -> a component, one variant of every factor; pi_c(x) -> its weight, which the
question may decide and no answer does; x_c, a_c -> question and answer as the component
writes them; p_c -> the model that it asks. All components are summed, and the sum is as
exact as they are; or some are drawn from pi, the same ones for all answers to a
question, and their weights p_c(a_c | x_c) lie in [0, 1].
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
"""Components that are summed for an answer; where there are more, they are drawn."""
AT_ONCE = 2048
"""Strings that models are asked for before answers are given; moves no number."""


@dataclass(frozen=True)
class ComponentRequest:
    """Request of a component to its model."""

    name: str
    """Name that random numbers are a function of, where the model draws."""
    context: str | None
    """None: for a whole text."""
    text: str


@dataclass(frozen=True)
class ComponentAnswer:
    """Answer of a model to a component."""

    log_p: float
    """Nats; ``-inf`` is a probability of zero."""
    tokens: int
    is_greedy: bool
    answer: Answer | None = None
    """The answer with its estimate; None: the number is exact."""
    missed: bool = False
    """Whether it is zero because no latent was found, which is an estimate."""

    @property
    def estimate(self) -> Estimate | None:
        """Return the estimate that the number is; None: it is exact."""
        if self.answer is None or self.answer.estimate.bound is Bound.EXACT:
            return None
        return self.answer.estimate


Ask = Callable[[Sequence[ComponentRequest]], Sequence[ComponentAnswer]]
"""A model: returns answers in the order of requests."""


@dataclass(frozen=True)
class Parts:
    """Components of an answer's probability."""

    factors: tuple[str, ...]
    names: list[tuple[str, ...]]
    """Names of each component's (or draw's) variants, one per factor."""
    log_weights: list[float]
    """Log pi_c of all components, or -log K of K draws, nats."""
    log_p: Sequence[float]
    """Log p of the answer by each component, or draw, nats."""
    drawn: bool
    exact: bool
    """Whether ``log_p`` are no estimates themselves."""


@dataclass(frozen=True)
class MixtureAnswer(Answer):
    """An answer that says which components it comes from."""

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
    """Answers of which components disagree whether they are greedy."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that numbers depend on besides the query, as JSON."""
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
        """How numbers are estimated: by draws of components, or as the models say."""
        draws, seed = self.mixture.draws, self.mixture.seed
        if draws:
            return {"estimator": "is", "num_samples": draws, "seed": seed}
        said = self.identity.values()
        names = {str(model.get("estimator", "exact")) for model in said}
        found: dict[str, Any] = {"estimator": "+".join(sorted(names))}
        for name in ("num_samples", "proposal", "temperature", "seed"):
            values = {model[name] for model in said if model.get(name) is not None}
            if len(values) == 1:
                found[name] = values.pop()
            elif name == "seed" and values:
                found[name] = "+".join(map(str, sorted(values)))
        return found

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
        """All that components differ in, in the order in which they change a text."""
        of_models = [self.mixture.of_models] if self.mixture.models else []
        return [*self.mixture.factors, *of_models]

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts, a mixture of models.

        Raises:
            MissedTextsError: At the end, if no model gives a text a probability.
            ValueError: If something else is mixed: it stands before a context, and a
                whole text has none.
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
            MissedTextsError: At the end, if no component gives an answer a probability.
            ValueError: If a question cannot be asked so; the error names it.
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
            "latent_mixture scores texts; components answer in strings of their own, "
            "which no rule here makes one of. Score targets with output_type: "
            "loglikelihood"
        )

    # -- components -------------------------------------------------------------------

    def _scored(self, queries: Sequence[Query], *, whole: bool) -> Iterator[Answer]:
        missed = Missed(queries)
        plans: list[_Plan] = []
        for query in queries:
            with naming(query):
                plans.append(self._plan(query, whole=whole))
            if sum(len(plan.asked) for plan in plans) >= AT_ONCE:
                yield from self._answers(plans, missed)
                plans = []
        yield from self._answers(plans, missed)
        missed.tell()

    def _plan(self, query: Query, *, whole: bool) -> _Plan:
        """Return the requests of a query's components."""
        factors = self.factors
        if not whole and not query.context:
            # There is nothing that anything could stand around.
            factors = [factor for factor in factors if factor.name == "model"]
        listed = [factor.variants(query.context) for factor in factors]
        number = math.prod(map(len, listed))
        draws = self.mixture.draws
        if draws is None and number > MOST_SUMMED:
            raise ValueError(
                f"there are {number} components, and {MOST_SUMMED} are the most that "
                "are summed: have some drawn (draws: 64 in the file)"
            )
        chosen: list[Component]
        if draws is None or number <= draws:
            chosen = [*itertools.product(*listed)]
            drawn = False
        else:
            chosen = self._drawn(query, factors, listed, draws)
            drawn = True
        asked: dict[Component, tuple[str, ComponentRequest]] = {}
        for component in chosen:
            if component not in asked:
                asked[component] = self._asked(query, factors, component, whole=whole)
        names = tuple(factor.name for factor in factors)
        return _Plan(query, names, chosen, drawn, asked)

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

    def _asked(
        self,
        query: Query,
        factors: Sequence[Factor],
        component: Component,
        *,
        whole: bool,
    ) -> tuple[str, ComponentRequest]:
        """Return a component's model and its request."""
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
        """Score all requests of a block by every model, and combine them."""
        wanted: dict[str, dict[ComponentRequest, None]] = {
            name: {} for name in self.models
        }
        for plan in plans:
            for model, asked in plan.asked.values():
                wanted[model][asked] = None
        found: dict[tuple[str, ComponentRequest], ComponentAnswer] = {}
        for name, ask in self.models.items():
            texts = [*wanted[name]]
            if texts:
                pairs = zip(texts, ask(texts), strict=True)
                found |= {(name, asked): answer for asked, answer in pairs}
        for plan in plans:
            with missed.aside(plan.query):
                yield self._answer(
                    plan, [found[plan.asked[component]] for component in plan.chosen]
                )

    def _answer(self, plan: _Plan, found: Sequence[ComponentAnswer]) -> MixtureAnswer:
        for component, each in zip(plan.chosen, found, strict=True):
            above = each.log_p > ROUNDING * max(each.tokens, 1)
            # An estimate may be above 1 by chance.
            if math.isnan(each.log_p) or (above and each.estimate is None):
                names = ", ".join(variant.name for variant in component)
                raise ValueError(
                    f"component {names} has a log p of {each.log_p}: a probability "
                    "above 1, or none"
                )
        parts = Parts(
            plan.factors,
            [tuple(v.name for v in component) for component in plan.chosen],
            [-math.log(len(found))] * len(found)
            if plan.drawn
            else [math.fsum(v.log_weight for v in c) for c in plan.chosen],
            array("d", [e.log_p if e.estimate else min(e.log_p, 0.0) for e in found]),
            plan.drawn,
            all(each.estimate is None and not each.missed for each in found),
        )
        greedy = {each.is_greedy for each in found}
        self.unsure_greedy += len(greedy) > 1
        known = [each.answer for each in found if each.answer is not None]
        return MixtureAnswer(
            plan.query.index,
            _estimate(parts, found),
            stream=plan.query.name,
            unspelled=max((answer.unspelled for answer in known), default=0),
            respaced=max((answer.respaced for answer in known), default=0),
            left_out=max((answer.left_out for answer in known), default=0),
            is_greedy=greedy == {True},
            parts=parts,
        )


@dataclass(frozen=True)
class _Plan:
    """Requests of a query's components."""

    query: Query
    factors: tuple[str, ...]
    chosen: Sequence[Component]
    """All components, or one a draw."""
    drawn: bool
    asked: Mapping[Component, tuple[str, ComponentRequest]]
    """Model and strings of every distinct one."""


def _chosen(variants: Sequence[Variant], uniform: float) -> Variant:
    """Return the variant that a uniform number stands for."""
    if not isinstance(variants, list):  # equally probable ones, too many to list
        return variants[int(uniform * len(variants))]
    ends = [*itertools.accumulate(math.exp(v.log_weight) for v in variants)]
    place = min(bisect_right(ends, uniform * ends[-1]), len(variants) - 1)
    drawn: Variant = variants[place]
    return drawn


def _error(
    part: Sequence[float],
    found: Sequence[ComponentAnswer],
    of: Callable[[Estimate], float],
) -> float:
    """Return the error of a mixture by those of its components.

    A component that is drawn again has one answer, and errs alike.
    """
    answers: dict[int, ComponentAnswer] = {}
    share: defaultdict[int, float] = defaultdict(float)
    for each, own in zip(found, part, strict=True):
        answers[id(each)] = each
        share[id(each)] += own
    errors = [0.0 if e.estimate is None else of(e.estimate) for e in answers.values()]
    return mixture_stderr([*share.values()], errors)


def _estimate(parts: Parts, found: Sequence[ComponentAnswer]) -> Estimate:
    """Put the numbers of components together."""
    log_weights = parts.log_weights
    total = log_mixture(log_weights, parts.log_p)
    if total == -math.inf:
        raise MissedSupportError(
            f"none of {len(found)} components gives this text a probability"
        )
    tokens = max(each.tokens for each in found)
    inner = [each.estimate for each in found if each.estimate is not None]
    missed = any(each.missed for each in found)
    part = shares(log_weights, parts.log_p)
    within = math.inf if missed else _error(part, found, lambda e: e.draws_stderr)
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
    known = not (missed or raised) and all(e.stderr is not None for e in inner)
    return Estimate(
        log_evidence=total,
        stderr=_error(part, found, lambda e: e.stderr or 0.0) if known else None,
        draws_stderr=within,
        effective_sample_size=None,
        pareto_k=None,
        num_samples=max((each.num_samples for each in inner), default=1),
        num_tokens=tokens,
        bound=bound,
        estimator="+".join(sorted({each.estimator for each in inner})) or "missed",
    )
