"""``lm_eval --model latent_mixture``: mixtures of prompts, documents, orders, models.

Whatever backend of lm-eval's registry is mixed is asked by its own ``loglikelihood``
and ``loglikelihood_rolling``, and taken at its word.
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
"""Arguments of a model that move no number."""


class LatentMixture(Backend):
    """``latent_mixture``: a mixture over prompts, documents, orders, models.

    Args:
        mixture: The file that says what is mixed (docs/mixtures.md).
        base: What ``--model`` calls the model that is asked.
        trust_retriever: Whether a function that the file names may be called.
        batch_size: For the model.
        max_batch_size: For the model.
        device: For the model.
        log_weights: Whether records beside the results keep log-weights.
        arguments: Every argument of the model.
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
            ValueError: If the file says what cannot be, a model has no probabilities,
                those of several models are of different things, or processes share
                requests.
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
        asked = read.models or [Model(str(base), 1.0, None, {})]
        loaded = {
            model.name: _Component.load(model, str(base), arguments, sizes)
            for model in asked
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
        """The models that are mixed."""
        return [component.lm for component in self._components]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation as the model was trained to read it.

        Raises:
            ValueError: If several models read it in different ways.
        """
        found: str = _only(
            lm.apply_chat_template(chat_history, add_generation_prompt)
            for lm in self.components
        )
        return found

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template itself, for the results."""
        found: str | None = _only(
            lm.chat_template(chat_template) for lm in self.components
        )
        return found

    def _about_run(self) -> dict[str, Any]:
        """Add what carries answers to the results, and write the components' file."""
        info = super()._about_run()
        found = dict(_questions())
        tables = {task: table(some) for task, some in found.items()}
        ours: dict[str, Any] = {
            task: carriers(some, tables[task]) for task, some in found.items()
        }
        unsure, self._mixture.unsure_greedy = self._mixture.unsure_greedy, 0
        if unsure:
            logger.warning(
                "of %d answers some components are greedy and some not: whether the "
                "mixture's own next tokens would write them is not known, and they "
                "count as not greedy",
                unsure,
            )
            info["latent_eval"]["greedy_not_known"] = unsure
        if (where := host()) is not None:
            for task, name in where.new_files("components", found).items():
                settings = {"task": task, **self.fingerprint}
                ours[task]["file"] = name
                write_components(where.folder / name, settings, tables[task])
        if ours:
            info["latent_eval"]["mixture"] = ours
        return info


class _Component:
    """One of the models that are mixed."""

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
            ValueError: If there is no such backend; near names are suggested.
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
            ours = ("mixture", "base", "trust_retriever", "log_weights", *SIZES)
            raise ValueError(
                f"{wrong!r} is not an argument of latent_mixture, which takes "
                f"{', '.join(ours)} and those of base={name}, nor of that"
            ) from err
        if _normalization([loaded]) is Normalization.UNNORMALISED:
            raise ValueError(
                f"model {model.name} has scores and no probabilities: nothing can be "
                "mixed with them"
            )
        return cls(loaded, name, given)

    def __call__(self, asked: Sequence[ComponentRequest]) -> list[ComponentAnswer]:
        """Ask the model."""
        found: dict[ComponentRequest, ComponentAnswer] = {}
        for some in self._calls(asked):
            whole = some[0].context is None
            requests = [
                request(
                    "loglikelihood_rolling" if whole else "loglikelihood",
                    whole_text(each.text)
                    if each.context is None
                    else (each.context, each.text),
                    {},
                    number,
                    (each.name, 0, 1),
                )
                for number, each in enumerate(some)
            ]
            with component_call():
                answers = (
                    self.lm.loglikelihood_rolling(requests)
                    if whole
                    else self.lm.loglikelihood(requests)
                )
            pairs = zip(some, answers, strict=True)
            found |= {each: self._found(each, answer) for each, answer in pairs}
        return [found[each] for each in asked]

    def _calls(
        self, asked: Sequence[ComponentRequest]
    ) -> Iterable[list[ComponentRequest]]:
        """Split requests into calls: whole texts, and what may stand beside another.

        The cache of logits of lm-eval's ``hf`` takes a text that is cut in two places
        in one call for one request; the context of one cut begins with the other's.
        """
        cached = getattr(self.lm, "logits_cache", False)
        contexts = [each.context for each in asked if each.context and cached]
        depths = _depths(contexts)
        calls: defaultdict[int, list[ComponentRequest]] = defaultdict(list)
        for each in asked:
            whole = each.context is None
            depth = -1 if whole else depths.get((each.context or "").rstrip(), 0)
            calls[depth].append(each)
        return calls.values()

    def _found(self, asked: ComponentRequest, answered: Any) -> ComponentAnswer:
        pair = answered if isinstance(answered, tuple | list) else (answered, False)
        score, is_greedy = pair[0], bool(pair[1])
        if isinstance(score, ScoredFloat):
            answer = score.answer
            return ComponentAnswer(float(score), answer.tokens, is_greedy, answer)
        if isinstance(score, MissedFloat):
            return ComponentAnswer(float(score), 1, is_greedy, missed=True)
        return ComponentAnswer(float(score), self._length(asked.text), is_greedy)

    def _length(self, text: str) -> int:
        """Count the tokens of a text, its bytes where a model does not cut it."""
        cut = getattr(self.lm, "tok_encode", None)
        return len(cut(text)) if cut else len(text.encode("utf-8", "replace"))


def _only(written: Iterable[Any]) -> Any:
    found = {*written}
    if len(found) > 1:
        raise ValueError(
            "--apply_chat_template: the models that are mixed have different chat "
            "templates, and a context is written once for all. Leave it out"
        )
    return found.pop()


def _depths(contexts: Iterable[str]) -> dict[str, int]:
    """Return how many of the others each begins with, but for white space at ends."""
    found, open_ = {}, list[str]()
    for context in sorted({"", *(context.rstrip() for context in contexts)}):
        while open_ and not context.startswith(open_[-1]):
            open_.pop()
        found[context] = len(open_)
        open_.append(context)
    return found


def _normalization(models: Sequence[LM]) -> Normalization:
    """Return what p of all texts totals: what all models say, or at most 1."""
    ours = {
        lm._scorer.normalization if isinstance(lm, Backend) else Normalization.BELOW_ONE
        for lm in models
    }
    if Normalization.UNNORMALISED in ours:
        return Normalization.UNNORMALISED
    return ours.pop() if len(ours) == 1 else Normalization.BELOW_ONE


def _identity(lm: LM, base: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a model's numbers depend on, as JSON."""
    if isinstance(lm, Backend):
        return lm.fingerprint
    known = {name: arguments[name] for name in arguments if name not in SIZES}
    network, tokenizer = getattr(lm, "model", None), getattr(lm, "tokenizer", None)
    if isinstance(network, torch.nn.Module) and tokenizer is not None:
        known.pop("pretrained", None)
        known["checkpoint"] = digest_of(network, tokenizer)  # type: ignore[arg-type]
    return {"model": base, "arguments": json.loads(json.dumps(known, default=str))}


def _event(lm: LM) -> str | None:
    """Return the event whose log p a model gives (its end rule); None: unknown.

    After the last token of a string another tokenizer may still be within one, so
    "these tokens, and then others" is not the same of both. The bytes of a string are.
    """
    said = lm.fingerprint if isinstance(lm, Backend) else {}
    end = said.get("end", "none")
    if end != "none" and said.get("estimator") != "canonical":
        return f"bytes, end={end}"
    if said.get("unk") == "spelled":
        return "spelled words"
    loaded = getattr(lm, "_loaded", lm)
    tokenizer = getattr(loaded, "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return None
    return f"tokens {tokenizer_digest(tokenizer)}"


def _same_event(loaded: Mapping[str, _Component]) -> str | None:
    """Return the event that all models score, or refuse a mixture of several."""
    events = {component.event for component in loaded.values()}
    if len(loaded) > 1 and (len(events) > 1 or None in events):
        raise ValueError(
            f"models {', '.join(loaded)} cut strings into different tokens, or do not "
            "say into which, so their probabilities are of different things: mix them "
            "as base=latent_tokens,end=prefix, whose probabilities are of bytes"
        )
    return events.pop()


def _units(event: str | None, number: int) -> str:
    """Say what models cut strings into; several have one event."""
    if number == 1 or event is None:
        return "Strings are cut into tokens as the model cuts them"
    if event.startswith("bytes"):
        return "Strings are bytes to all of the models"
    return "Strings are cut into the same tokens by all of the models"


# -- what a run found -----------------------------------------------------------------


def _questions() -> Iterator[tuple[str, list[Question]]]:
    """Yield each task of the run with its questions, those from a cache too."""
    for name, task in running_tasks().items():
        found = [
            question
            for number, instances in documents(task).items()
            if (question := _question(task, number, instances)) is not None
        ]
        if found:
            yield name, found


def _question(task: Any, number: int, instances: Sequence[Any]) -> Question | None:
    """Return a document as a question; None if it was answered otherwise."""
    # Scores without a context, which some tasks ask for besides, are no options.
    places = [n for n, i in enumerate(instances) if i.args[0] or len(i.args) == 1]
    places = places or [*range(len(instances))]
    found = [_answered(instances[n]) for n in places]
    answers = [answer for answer in found if answer is not None]
    if len(answers) < len(found):
        return None
    right = accuracies(task, instances, [[n] for n in places])
    texts = [instances[n].args[-1] for n in places]
    return Question(number, texts, answers, right if right and any(right) else None)


def _answered(instance: Any) -> MixtureAnswer | None:
    score = score_of(instance.resps[0]) if instance.resps else None
    found = score.answer if isinstance(score, ScoredFloat) else None
    return found if isinstance(found, MixtureAnswer) else None
