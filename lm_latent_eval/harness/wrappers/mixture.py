"""``lm_eval --model latent_mixture``: mixtures of prompts, documents, orders, models.

Mixed backends are asked by their ``loglikelihood`` and ``loglikelihood_rolling``.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model, model_registry

from lm_latent_eval.harness.answers import MissedFloat, ScoredFloat, score_of
from lm_latent_eval.harness.backend import Backend
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.harness.running import (
    accuracies,
    component_call,
    documents,
    host,
    running_tasks,
)
from lm_latent_eval.harness.tasks import request, whole_text
from lm_latent_eval.latent import Normalization
from lm_latent_eval.networks.network import digest_of, tokenizer_digest
from lm_latent_eval.options import one_of, truth
from lm_latent_eval.wrappers.mixtures import files
from lm_latent_eval.wrappers.mixtures.carriers import (
    Question,
    carriers,
    table,
    write_components,
)
from lm_latent_eval.wrappers.mixtures.files import Model
from lm_latent_eval.wrappers.mixtures.scorer import (
    ComponentAnswer,
    ComponentRequest,
    MixtureAnswer,
    MixtureScorer,
)

logger = logging.getLogger(__name__)

NAME = "latent_mixture"

SIZES = ("batch_size", "max_batch_size", "device")
"""Arguments of a model that affect no result."""


class LatentMixture(Backend):
    """``latent_mixture``: a mixture over prompts, documents, orders, models.

    Args:
        mixture: Path of the mixture file (docs/mixtures.md).
        base: Backend of the model, as in ``--model``.
        trust_retriever: Whether a function that the file names may be called.
        batch_size: Batch size of the model.
        max_batch_size: Largest batch size of the model.
        device: Device of the model.
        log_weights: Whether records beside the results keep log-weights.
        arguments: Further arguments of the model.
    """

    model_name = "mixture"

    def __init__(
        self,
        mixture: str | None = None,
        base: str = "hf",
        trust_retriever: bool | str = False,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        device: str | torch.device | None = None,
        log_weights: bool | str = False,
        **arguments: Any,
    ) -> None:
        """Read the file and load the models.

        Raises:
            ValueError: If the file is malformed, a model is unnormalised, models score
                different events, or several processes share requests.
        """
        if mixture is None:
            near = difflib.get_close_matches("mixture", arguments, n=1)
            hint = f" ({near[0]} is not an argument of it)" if near else ""
            raise ValueError(
                "latent_mixture needs --model_args mixture=FILE, which says what is "
                f"mixed (docs/mixtures.md){hint}"
            )
        processes = Processes.start()
        if processes.world_size > 1:
            raise ValueError(
                "latent_mixture runs in one process, whose model may use several GPUs "
                "(parallelize=True for hf, tensor_parallel_size for vllm)"
            )
        trusted = truth("trust_retriever", trust_retriever)
        read = files.read(Path(str(mixture)), trust_retriever=trusted)
        sizes = dict(zip(SIZES, (batch_size, max_batch_size, device), strict=True))
        loaded = {
            model.name: _Component.load(model, str(base), arguments, sizes)
            for model in read.models or [Model(str(base), 1.0, None, {})]
        }
        event = _same_event(loaded)
        self._components = [*loaded.values()]
        self._mixture = MixtureScorer(
            read,
            loaded,
            {name: component.identity for name, component in loaded.items()},
            {
                "base": sorted({component.base for component in self._components}),
                "vocabulary": _units(event, len(loaded)),
            },
            normalization=_normalization(self.components),
        )
        weights = truth("log_weights", log_weights)
        if weights and not read.draws:
            logger.warning(
                "log_weights: no effect, components that are summed have none"
            )
            weights = False
        super().__init__(
            self._mixture, processes, torch.device("cpu"), log_weights=weights
        )

    @property
    def components(self) -> list[LM]:
        return [component.lm for component in self._components]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation by the models' chat template.

        Raises:
            ValueError: If models have different templates.
        """
        return str(
            _only(
                lm.apply_chat_template(chat_history, add_generation_prompt)
                for lm in self.components
            )
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        template: str | None = _only(
            lm.chat_template(chat_template) for lm in self.components
        )
        return template

    def _about_run(self) -> dict[str, Any]:
        """Add shares of components to the results, and write the components' file."""
        info = super()._about_run()
        questions = dict(_questions())
        tables = {task: table(each) for task, each in questions.items()}
        mixtures: dict[str, Any] = {
            task: carriers(each, tables[task]) for task, each in questions.items()
        }
        unsure, self._mixture.unsure_greedy = self._mixture.unsure_greedy, 0
        if unsure:
            logger.warning(
                "components disagree whether %d answers are greedy: they count as not "
                "greedy",
                unsure,
            )
            info["latent_eval"]["greedy_not_known"] = unsure
        if (where := host()) is not None:
            for task, name in where.new_files("components", questions).items():
                settings = {"task": task, **self.fingerprint}
                mixtures[task]["file"] = name
                write_components(where.folder / name, settings, tables[task])
        if mixtures:
            info["latent_eval"]["mixture"] = mixtures
        return info


class _Component:
    def __init__(self, lm: LM, base: str, arguments: Mapping[str, Any]) -> None:
        self.lm, self.base = lm, base
        self.event = _event(lm)
        self.identity = _identity(lm, base, arguments)

    @classmethod
    def load(
        cls,
        model: Model,
        base: str,
        arguments: Mapping[str, Any],
        sizes: Mapping[str, Any],
    ) -> _Component:
        """Load a model by lm-eval's registry.

        Raises:
            ValueError: If the backend is unknown; near names are suggested.
        """
        name = one_of("base", model.base or base, model_registry)
        if name == NAME:
            raise ValueError(
                f"model {model.name} is a mixture itself: list its parts in this file"
            )
        given = {**arguments, **model.arguments}
        try:
            loaded: LM = get_model(name).create_from_arg_obj(given, dict(sizes))
        except TypeError as err:  # as transformers and others tell wrong arguments
            wrong = next((word for word in given if f"'{word}'" in str(err)), None)
            if wrong is None or "unexpected keyword" not in str(err):
                raise
            own = ("mixture", "base", "trust_retriever", "log_weights", *SIZES)
            raise ValueError(
                f"{wrong!r} is not an argument of latent_mixture, which takes "
                f"{', '.join(own)} and those of base={name}, nor of that"
            ) from err
        if _normalization([loaded]) is Normalization.UNNORMALISED:
            raise ValueError(
                f"model {model.name} has scores and no probabilities: nothing can be "
                "mixed with them"
            )
        return cls(loaded, name, given)

    def __call__(self, requests: Sequence[ComponentRequest]) -> list[ComponentAnswer]:
        answers: dict[ComponentRequest, ComponentAnswer] = {}
        for part in self._calls(requests):
            kind = "loglikelihood"
            if part[0].context is None:
                kind = "loglikelihood_rolling"
            instances = [
                request(
                    kind,
                    whole_text(each.text)
                    if each.context is None
                    else (each.context, each.text),
                    {},
                    index,
                    (each.name, 0, 1),
                )
                for index, each in enumerate(part)
            ]
            with component_call():
                scores = getattr(self.lm, kind)(instances)
            pairs = zip(part, scores, strict=True)
            answers |= {each: self._answer(each, score) for each, score in pairs}
        return [answers[each] for each in requests]

    def _calls(
        self, requests: Sequence[ComponentRequest]
    ) -> Iterable[list[ComponentRequest]]:
        """Split requests into calls: whole texts, and groups of independent contexts.

        The cache of logits of lm-eval's ``hf`` confuses two requests of one call whose
        joined context and answer are equal; the context of one begins with the other's.
        """
        cached = getattr(self.lm, "logits_cache", False)
        contexts = [each.context for each in requests if each.context and cached]
        depths = _depths(contexts)
        calls: defaultdict[int, list[ComponentRequest]] = defaultdict(list)
        for each in requests:
            whole = each.context is None
            depth = -1 if whole else depths.get((each.context or "").rstrip(), 0)
            calls[depth].append(each)
        return calls.values()

    def _answer(self, request: ComponentRequest, result: Any) -> ComponentAnswer:
        pair = result if isinstance(result, tuple | list) else (result, False)
        score, is_greedy = pair[0], bool(pair[1])
        if isinstance(score, ScoredFloat):
            answer = score.answer
            return ComponentAnswer(float(score), answer.tokens, is_greedy, answer)
        if isinstance(score, MissedFloat):
            return ComponentAnswer(float(score), 1, is_greedy, missed=True)
        cut = getattr(self.lm, "tok_encode", None)
        units = cut(request.text) if cut else request.text.encode("utf-8", "replace")
        return ComponentAnswer(float(score), len(units), is_greedy)


def _only(written: Iterable[Any]) -> Any:
    distinct = {*written}
    if len(distinct) > 1:
        raise ValueError(
            "--apply_chat_template: the models that are mixed have different chat "
            "templates, and a context is written once for all. Leave it out"
        )
    return distinct.pop()


def _depths(contexts: Iterable[str]) -> dict[str, int]:
    """Number of the contexts that each begins with, without white space at ends."""
    depths, open_ = {}, list[str]()
    for context in sorted({"", *(context.rstrip() for context in contexts)}):
        while open_ and not context.startswith(open_[-1]):
            open_.pop()
        depths[context] = len(open_)
        open_.append(context)
    return depths


def _normalization(models: Sequence[LM]) -> Normalization:
    """Total of p over all texts: that of all models, or at most 1."""
    totals = {
        lm._scorer.normalization if isinstance(lm, Backend) else Normalization.BELOW_ONE
        for lm in models
    }
    if Normalization.UNNORMALISED in totals:
        return Normalization.UNNORMALISED
    return totals.pop() if len(totals) == 1 else Normalization.BELOW_ONE


def _identity(lm: LM, base: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All that a model's numbers depend on, as JSON."""
    if isinstance(lm, Backend):
        return lm.fingerprint
    own = {name: arguments[name] for name in arguments if name not in SIZES}
    network, tokenizer = getattr(lm, "model", None), getattr(lm, "tokenizer", None)
    if isinstance(network, torch.nn.Module) and tokenizer is not None:
        own.pop("pretrained", None)
        own["checkpoint"] = digest_of(network, tokenizer)  # type: ignore[arg-type]
    return {"model": base, "arguments": json.loads(json.dumps(own, default=str))}


def _event(lm: LM) -> str | None:
    """Event whose log p a model gives; None: unknown.

    "These tokens, and then others" differs between tokenizers, since a string may end
    within a token of one. "These bytes" does not.
    """
    settings = lm.fingerprint if isinstance(lm, Backend) else {}
    end = settings.get("end", "none")
    if end != "none" and settings.get("estimator") != "canonical":
        return f"bytes, end={end}"
    if settings.get("unk") == "spelled":
        return "spelled words"
    loaded = getattr(lm, "_loaded", lm)
    tokenizer = getattr(loaded, "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return None
    return f"tokens {tokenizer_digest(tokenizer)}"


def _same_event(loaded: Mapping[str, _Component]) -> str | None:
    """Event that all models score; a mixture of several is refused."""
    events = {component.event for component in loaded.values()}
    if len(loaded) > 1 and (len(events) > 1 or None in events):
        raise ValueError(
            f"models {', '.join(loaded)} cut strings into different tokens, or do not "
            "say into which, so their probabilities are of different things: mix them "
            "as base=latent_tokens,end=prefix, whose probabilities are of bytes"
        )
    return events.pop()


def _units(event: str | None, num_models: int) -> str:
    """Units of strings, for results."""
    if num_models == 1 or event is None:
        return "Strings are cut into tokens as the model cuts them"
    if event.startswith("bytes"):
        return "Strings are bytes to all of the models"
    return "Strings are cut into the same tokens by all of the models"


# -- questions of a run ---------------------------------------------------------------


def _questions() -> Iterator[tuple[str, list[Question]]]:
    """Yield each task of the run with its questions, those from a cache too."""
    for name, task in running_tasks().items():
        questions = [
            question
            for index, instances in documents(task).items()
            if (question := _question(task, index, instances)) is not None
        ]
        if questions:
            yield name, questions


def _question(task: Any, document: int, instances: Sequence[Any]) -> Question | None:
    """Question of a document; None if it was not answered by a mixture."""
    # Requests without a context, which some tasks add, are no options.
    options = [n for n, i in enumerate(instances) if i.args[0] or len(i.args) == 1]
    options = options or [*range(len(instances))]
    answers = []
    for n in options:
        score = score_of(instances[n].resps[0]) if instances[n].resps else None
        answer = score.answer if isinstance(score, ScoredFloat) else None
        if not isinstance(answer, MixtureAnswer):
            return None
        answers.append(answer)
    right = accuracies(task, instances, [[n] for n in options])
    texts = [instances[n].args[-1] for n in options]
    return Question(document, texts, answers, right if right and any(right) else None)
