"""Audits of lm-eval models: any backend behind three kinds of requests."""

from __future__ import annotations

import fnmatch
import io
import logging
import math
import random
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook, CachingLM
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from lm_eval.utils import simple_parse_args_string

from lm_latent_eval.audit.outputs import counted
from lm_latent_eval.audit.session import Answered, Pair, Reply
from lm_latent_eval.audit.verdict import COUNTS, Finding, Kind, fails, holds
from lm_latent_eval.devices import FLOATS
from lm_latent_eval.estimators.estimate import Bound
from lm_latent_eval.harness.answers import MissedFloat, ScoredFloat, score_of
from lm_latent_eval.harness.backend import LM_EVAL_DEVICE, Backend
from lm_latent_eval.harness.running import RATES
from lm_latent_eval.harness.tasks import request, whole_text
from lm_latent_eval.harness.wrappers.mixture import LatentMixture

TASK = "audit"
"""The name under which requests are made."""

KINDS = {
    "kenlm": Kind.WORDS,
    "latent_cot": Kind.ANSWERS,
    "latent_mdm": Kind.ANSWERS,
    "latent_mixture": Kind.ANSWERS,  # a context moves no weight of a component
    "latent_tokens": Kind.ANSWERS,  # tokens of a context are given
}
"""Claims of scorers; others of ours are over words, and all others over tokens."""


def kind_of(model: str) -> Kind:
    """Return what a backend of this name claims."""
    is_ours = model == "latent" or model.startswith("latent_")
    return KINDS.get(model, Kind.WORDS if is_ours else Kind.TOKENS)


def seed_everything(seed: int) -> None:
    """Seed global generators as ``lm_eval --seed`` does: some backends draw there."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence a backend's warnings and progress bars."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@dataclass
class Model:
    """A model of lm-eval with the arguments that it was opened with."""

    lm: LM
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    """Model arguments, of ``--model_args``; None: it cannot be opened anew."""
    others: Mapping[str, Any] | None = None
    """``batch_size``, ``device`` and the like."""

    @classmethod
    def open(
        cls, name: str, arguments: str | Mapping[str, Any], **others: Any
    ) -> Model:
        """Open a model as ``lm_eval --model`` does.

        Raises:
            ValueError: If lm-eval knows no such model.
        """
        read: Mapping[str, Any] = (
            simple_parse_args_string(arguments)
            if isinstance(arguments, str)
            else arguments
        )
        given = {key: value for key, value in others.items() if value is not None}
        if "device" not in {*read, *given}:
            # As lm_eval says it: without a GPU, models take it as no device named.
            given["device"] = LM_EVAL_DEVICE
        made = get_model(name).create_from_arg_obj(dict(read), given)
        return cls(made, name, read, given)

    @property
    def precision(self) -> str | None:
        """The coarsest floating type that it computes in; None: it does not show."""
        shown = {str(each).removeprefix("torch.") for each in _types(self.lm)}
        floats = [name for name in FLOATS if name in shown]
        return max(floats, key=lambda name: torch.finfo(FLOATS[name]).eps, default=None)

    @property
    def window(self) -> int | None:
        """The tokens that a backend of tokens reads at once; None: it does not say."""
        length = getattr(self.lm, "max_length", None)
        encodes = callable(getattr(self.lm, "tok_encode", None))
        own = isinstance(self.lm, Backend)
        return int(length) if isinstance(length, int) and encodes and not own else None

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text."""
        return len(self.lm.tok_encode(text))

    def reopened(self, **changes: str) -> Model:
        """Open it anew with other arguments.

        Raises:
            ValueError: If the arguments that it was opened with are unknown.
        """
        if self.arguments is None:
            raise ValueError("the arguments that it was opened with are unknown")
        others = dict(self.others or {})
        arguments = dict(self.arguments)
        for key, value in changes.items():
            # Where it is an argument of the model, that goes before lm-eval's own.
            (others if key == "batch_size" else arguments)[key] = value
            if key == "batch_size":
                arguments.pop(key, None)
        return Model.open(self.name, arguments, **others)

    @contextmanager
    def cached(self) -> Iterator[Model]:
        """Put a new cache of lm-eval before the model."""
        with tempfile.TemporaryDirectory(prefix="audit-") as folder:
            lm = CachingLM(self.lm, str(Path(folder) / "cache.db"))
            try:
                yield Model(lm)
            finally:
                lm.dbdict.close()
                self.lm.set_cache_hook(CacheHook(None))

    def score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Answer ``loglikelihood`` requests.

        Requests after one context are one document: their draws are shared.
        """
        instances = [
            _instance("loglikelihood", pair, pair[0], n) for n, pair in enumerate(pairs)
        ]
        return [
            _reply(score, bool(greedy))
            for score, greedy in self.lm.loglikelihood(instances)
        ]

    def score_texts(self, texts: Sequence[str]) -> list[Reply]:
        """Answer ``loglikelihood_rolling`` requests."""
        instances = [
            _instance("loglikelihood_rolling", whole_text(text), text, 0)
            for text in texts
        ]
        answers = self.lm.loglikelihood_rolling(instances)
        return [_reply(score_of(answer), False) for answer in answers]

    def write(self, contexts: Sequence[str], *, tokens: int, sample: bool) -> list[str]:
        """Answer ``generate_until`` requests."""
        how: dict[str, Any] = {"until": [], "max_gen_toks": tokens, "do_sample": sample}
        if sample:  # libraries that leave out rare tokens by default are told not to
            how |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        instances = [
            _instance("generate_until", (context, dict(how)), str(n), 0)
            for n, context in enumerate(contexts)
        ]
        return [str(text) for text in self.lm.generate_until(instances)]


def _types(lm: Any) -> Iterator[Any]:
    """Yield the types that a backend shows of its networks: of torch, or their names.

    Those of a model of ours, of a module of torch that its scores are of, and of vLLM's
    engine are known; types of weights that are only stored are left to the caller.
    """
    if isinstance(lm, LatentMixture):
        for component in lm.components:
            yield from _types(component)
    elif isinstance(lm, Backend):
        fingerprint = lm.fingerprint
        yield fingerprint.get("computed_in") or fingerprint.get("dtype")
    else:
        yield from (
            getattr(lm, f"{of}_dtype", None) for of in ("mixed_precision", "softmax")
        )
        network = getattr(lm, "model", None)
        if isinstance(network, torch.nn.Module):
            yield from (weights.dtype for weights in network.parameters())
        elif (engine := getattr(network, "llm_engine", None)) is not None:
            yield engine.model_config.dtype


def _instance(
    kind: str, arguments: tuple[Any, ...], document: str, index: int
) -> Instance:
    """Make a request whose document is always the same: draws belong to documents."""
    doc_id = zlib.crc32(f"{kind} {document}".encode())
    return request(kind, arguments, {}, index, (TASK, doc_id, 1))


def _reply(score: Any, is_greedy: bool) -> Reply:
    if isinstance(score, MissedFloat):
        return Reply(math.nan, refused=score.why)
    counts, stderr, lower = {}, None, False
    if isinstance(score, ScoredFloat):
        answer = score.answer
        counts = {"bytes": answer.bytes, "words": answer.words}
        drawn = answer.estimate.draws_stderr
        if drawn or answer.estimate.bound not in (Bound.EXACT, Bound.UNNORMALISED):
            error = answer.estimate.stderr
            stderr = math.inf if error is None else error  # not known
            lower = answer.estimate.bound is Bound.STRICT_LOWER
    else:  # backends of others may say so, too
        stderr = getattr(score, "stderr", None)
        counts = {
            unit: count
            for unit in ("bytes", "words")
            if (count := getattr(score, f"num_{unit}", None)) is not None
        }
    counts = {unit: count for unit, count in counts.items() if count}
    return Reply(float(score), is_greedy, stderr, counts, is_lower_bound=lower)


# -- tasks ----------------------------------------------------------------------------


def tasks_of(include_path: str | None, names: Sequence[str]) -> TaskManager:
    """Index lm-eval's tasks, and those of a folder.

    Raises:
        ValueError: If a name is none of them, nor a file.
    """
    manager = TaskManager(include_path=include_path)
    for name in names:
        matches = fnmatch.filter(manager.all_tasks, name.partition("@")[0])
        if not (matches or Path(name).exists()):
            raise ValueError(
                f"--tasks {name}: lm-eval knows no such task"
                + (f", nor does {include_path}" if include_path else "")
                + "; `lm_eval ls tasks` lists its own, --include_path adds a folder"
            )
    return manager


@dataclass(frozen=True)
class Run:
    """Requests of tasks and their results."""

    texts: tuple[str, ...]
    requests: int
    findings: tuple[Finding, ...]
    answered: tuple[Answered, ...]


def run_tasks(
    model: Model, names: Sequence[str], manager: TaskManager, limit: int
) -> Run:
    """Evaluate the first documents of tasks, and count what their rates divide by."""
    results = lm_eval.simple_evaluate(
        model=model.lm,
        tasks=list(names),
        task_manager=manager,
        limit=limit,
        bootstrap_iters=0,
        log_samples=True,
    )
    texts: dict[str, None] = {}
    requests = 0
    findings: list[Finding] = []
    answered: list[Answered] = []
    for task, logged in results["samples"].items():
        for sample in logged:
            requests += len(sample["arguments"])
            parts = [part for part in sample["arguments"][0] if isinstance(part, str)]
            if (text := "".join(parts)).strip():
                texts[text] = None
            answered += _answered(sample)
        findings += _denominators(task, results["results"][task], logged)
    return Run(tuple(texts), requests, tuple(findings), tuple(answered))


def _answered(sample: Mapping[str, Any]) -> Iterator[Answered]:
    """Yield the requests of a document whose answers are scores."""
    for arguments, responses in zip(sample["arguments"], sample["resps"], strict=False):
        if not all(isinstance(part, str) for part in arguments):
            continue  # what is written
        response = _first(responses)
        pair = ("", *arguments)[-2:]
        if isinstance(response, tuple) and arguments[0] != "":
            yield Answered(False, pair, _reply(response[0], bool(response[1])))
        elif not isinstance(response, tuple) or len(arguments) == 1:
            yield Answered(True, pair, _reply(score_of(response), False))


def _denominators(
    task: str, metrics: Mapping[str, Any], logged: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Compare what results have divided by with what their texts have."""
    rates = {
        name: value
        for key, value in metrics.items()
        if (name := key.partition(",")[0]) in RATES and isinstance(value, float)
    }
    if not rates:
        return
    texts = [str(sample["arguments"][0][-1]) for sample in logged]
    total = math.fsum(score_of(_first(sample["resps"])) for sample in logged)
    documents = [
        {value for value in sample["doc"].values() if isinstance(value, str)}
        for sample in logged
    ]
    for name, value in rates.items():
        unit = RATES[name]
        nats = value * math.log(2) if name == "bits_per_byte" else math.log(value)
        if nats in (0, math.inf):  # texts that are certain, or ruled out
            continue
        divided = -total / nats
        counted = sum(_number(text, unit) for text in texts)
        raw = sum(
            max((_number(t, unit) for t in strings), default=0) for strings in documents
        )
        near = [n for n in (counted, raw) if math.isclose(n, divided, rel_tol=1e-6)]
        if not near and unit == "words":  # lm-eval counts the empty word at an end
            loose = [sum(len(re.split(r"\s+", t)) for t in texts)]
            loose += [
                sum(
                    max(len(re.split(r"\s+", t)) for t in strings)
                    for strings in documents
                )
            ]
            near = [n for n in loose if math.isclose(n, divided, rel_tol=1e-6)]
        if not near:
            yield fails(
                COUNTS,
                f"{name} of {task} divides by {divided:.6g} {unit}; its texts have "
                f"{counted}",
                task=task,
                metric=name,
                divided_by=divided,
                counted=counted,
            )
            return
        whose = "" if near[0] == counted else ", of documents and not of what is scored"
        yield holds(COUNTS, f"{name} of {task}: {near[0]} {unit}{whose}")


def _first(responses: Any) -> Any:
    """Return the one response of a sample, however deep lists of filters put it."""
    while isinstance(responses, list):
        responses = responses[0]
    return responses


def _number(text: str, unit: str) -> int:
    return counted(text)[unit]
