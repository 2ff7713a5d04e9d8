"""Base class of our lm-eval backends: requests in, ``ScoredFloat`` answers out.

``disable_tqdm`` is taken as ``--model hf`` takes it, and moves nothing: the first
process shows progress.

The arithmetic is in ``inference`` and ``estimators``. All that is known of a model here
is that it answers queries (``scoring.interface.TextScorer``).
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

# Before anything else of lm-eval: importing a backend first must not leave the registry
# half filled.
import lm_eval.models  # noqa: F401
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook
from lm_eval.utils import simple_parse_args_string

import lm_latent_eval
from lm_latent_eval.harness.answers import (
    GuardedHook,
    MissedFloat,
    Scored,
    ScoredFloat,
    of_whole_text,
)
from lm_latent_eval.harness.contrastive import DISTORTION
from lm_latent_eval.harness.processes import Processes, Request, share
from lm_latent_eval.harness.records import Recorder
from lm_latent_eval.harness.running import (
    drop_errors_of_errors,
    end,
    error_of,
    is_component,
    lacking,
    missed,
    refuse_byte_rates,
    running_tasks,
    stock_rates,
    unsaid,
)
from lm_latent_eval.harness.summary import summary_of
from lm_latent_eval.latent import Normalization
from lm_latent_eval.options import truth
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.scoring.answer import Answer, MissedTextsError, noting_progress
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.interface import TextScorer
from lm_latent_eval.scoring.records import WITHOUT_NUMBER
from lm_latent_eval.scoring.texts import Query, naming

logger = logging.getLogger(__name__)

KEPT = "requests were answered; with --use_cache, the same command goes on from there"
"""Note to an interruption: what is kept."""
SAMPLED = "requests were answered; no cache keeps what do_sample draws"

UNFINISHED = {"loglikelihood_rolling": "texts", "loglikelihood": "continuations"}
"""Names of the partial records of a run, by the kind of requests."""
LM_EVAL_DEVICE = "cuda:0"
"""Device that ``lm_eval`` passes on without ``--device``, GPU or not."""
LM_EVAL_BATCH_SIZE = 1
"""Batch size that it passes on without ``--batch_size``."""


class Backend(LM):
    """Answers lm-eval's requests by a scorer of strings."""

    model_name: ClassVar[str | None] = None
    """The only model that it takes; None: any."""
    default_checkpoint: ClassVar[Path | None] = None
    """The one that is embedded."""
    shares_requests: ClassVar[bool] = True
    """Whether processes share requests out anew, by length."""

    def __init__(
        self,
        scorer: TextScorer,
        processes: Processes,
        device: torch.device,
        *,
        log_weights: bool | str = False,
    ) -> None:
        """Take a scorer.

        Args:
            scorer: A model under one choice of settings.
            processes: Processes that share the requests.
            device: Device of this process's tensors.
            log_weights: Whether records beside the results keep log-weights.

        Raises:
            ValueError: If ``log_weights`` is neither true nor false.
        """
        super().__init__()
        self._scorer, self._processes, self._device = scorer, processes, device
        self._rank, self._world_size = processes.rank, processes.world_size
        self.reported: list[Answer] = []
        """Answers of the run, of all processes, without their log-weights."""
        self._unreported: list[Answer] = []
        self._missed: dict[str, list[MissedFloat]] = {}
        self._lacking: list[tuple[str, str, int]] = []
        weights = truth("log_weights", log_weights)
        estimator = str(scorer.fingerprint.get("estimator"))
        if weights and estimator in ESTIMATORS and not ESTIMATORS[estimator].seeded:
            logger.warning("log_weights: no effect, estimator=%s has none", estimator)
        self._recorder = Recorder(processes, weights=weights)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Open a model as lm-eval asks for it, see ``create_from_arg_obj``."""
        return cls.create_from_arg_obj(
            simple_parse_args_string(arg_string), additional_config
        )

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Self:
        """Open a model as lm-eval asks for it.

        Args:
            arg_dict: ``--model_args``, which go before other arguments.
            additional_config: Those: ``--batch_size``, ``--device`` and the like. Where
                nobody has given a batch size, lm-eval gives the whole number 1 (what is
                given at the command line is text). No number depends on it, and 1 is
                the slowest, so it is as many as memory allows then.
        """
        others = {k: v for k, v in (additional_config or {}).items() if v is not None}
        if others.get("batch_size") == LM_EVAL_BATCH_SIZE:
            del others["batch_size"]
        return cls(**{**others, **arg_dict})

    @property
    def _alias(self) -> str:
        return f"latent_{self.model_name}" if self.model_name else "latent"

    def _named(self, pretrained: object) -> str:
        """Return the directory or repository, the embedded one where none is given.

        A name of digits comes as a number.
        """
        named = self.default_checkpoint if pretrained is None else pretrained
        if named is None:
            raise ValueError(
                f"{self._alias} has no embedded model: give "
                "--model_args pretrained=DIRECTORY"
            )
        return str(named)

    # -- lm-eval's interface ----------------------------------------------------------

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[Scored | tuple[Scored, bool]]:
        """Return log p-hat of whole texts, their ends included, in nats.

        In pairs where lm-eval asks in pairs (``of_whole_text``). An unnormalised model
        has none, and answers only tasks that compare its scores of a text with those of
        distorted copies.

        Raises:
            ValueError: If another task asks such a model.
        """
        if self._scorer.normalization is Normalization.UNNORMALISED:
            for instance in requests:
                if DISTORTION not in (instance.doc or {}):
                    raise ValueError(
                        f"{self._alias} scores sentences without normalising, so "
                        f"{instance.task_name or 'a request'} would read its scores as "
                        "log-probabilities, of which it has none: no perplexity, no "
                        "rate. Use the contrastive_entropy tasks"
                    )
        score = self._scorer.score_texts
        answers = self._answers(requests, "loglikelihood_rolling", score)
        return [
            of_whole_text(request.args, scored)
            for request, scored in zip(requests, answers, strict=True)
        ]

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[Scored, bool]]:
        """Return log p-hat of continuations in nats, and whether they are greedy.

        Greedy are those that are the argmax of the estimated next-token marginals.
        """
        score = self._scorer.score_continuations
        return [
            (scored, isinstance(scored, ScoredFloat) and bool(scored.answer.is_greedy))
            for scored in self._answers(requests, "loglikelihood", score)
        ]

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Continue contexts until a stop string, greedily or by sampling.

        Raises:
            ValueError: If a cache would give one sample for several that are asked for.
        """
        queries = []
        for index, name, instance in _identified(requests):
            context, options = instance.args
            query = Query(index, name, "", context)
            with naming(query):
                queries.append((query, GenerationOptions.parse(options)))
        if self.cache_hook.dbdict is not None:
            _refuse_shared_samples(requests, [options for _, options in queries])
        texts: dict[int, str] = {}
        cached = not any(instance.args[1].get("do_sample") for instance in requests)
        with noting_progress(texts, requests, KEPT if cached else SAMPLED):
            for i, text in self._scorer.generate(queries):
                texts[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return [texts[i] for i in range(len(requests))]

    def _answers(
        self,
        requests: list[Instance],
        kind: str,
        score: Callable[[Sequence[Query]], Iterator[Answer]],
    ) -> list[Scored]:
        """Answer requests of a kind, and take answers into the run's diagnostics.

        In several processes all of them answer together. A cache is a process's own and
        knows the answers to its share of lm-eval's, so with one each process keeps to
        that: those whose cache knows all never call.

        Raises:
            MissedTextsError: If a text has no number, and nobody evaluates tasks who
                would be told so at the end.
        """
        every = [
            Request(
                Query(index, name, instance.args[-1], "".join(instance.args[:-1])),
                instance.args,
                kind == "loglikelihood_rolling",
                instance.task_name,
                instance.doc_id,
                instance.idx,
            )
            for index, name, instance in _identified(requests)
        ]
        own = self.cache_hook.dbdict is not None or not self.shares_requests
        processes = Processes() if own else self._processes
        firsts = self._firsts(requests)
        needed = [request for n, request in enumerate(every) if firsts[n] == n]
        answers: dict[int, Scored] = {}
        parcels: list[tuple[int, tuple[Request, Scored]]] = []

        def take(request: Request, scored: Scored) -> None:
            answers[request.query.index] = scored
            self._store(kind, request, scored)

        def send(request: Request, scored: Scored) -> None:
            parcels.append((request.owner, (request, scored)))

        file = take if processes.world_size == 1 else send
        with (
            noting_progress(answers, requests, KEPT),
            self._recorder.following(self.fingerprint, UNFINISHED[kind]) as keep,
        ):
            mine = share(needed, processes)
            try:
                for answer in score(
                    [replace(one.query, index=n) for n, one in enumerate(mine)]
                ):
                    scored = mine[answer.index].answered(answer)
                    keep(mine[answer.index], scored)
                    file(mine[answer.index], scored)
            except MissedTextsError as err:
                for n, name in err.names.items():
                    file(mine[n], MissedFloat(name, err.why))
            for request, received in processes.delivered(parcels):
                take(request, received)
        self._unreported += [
            scored.answer.without_weights()
            for scored in (answers[request.query.index] for request in needed)
            if isinstance(scored, ScoredFloat)
        ]
        if self.world_size == 1:
            self._report()
        ordered = [answers[first] for first in firsts]
        lost = [scored for scored in ordered if isinstance(scored, MissedFloat)]
        if lost and not running_tasks() and not is_component():
            raise error_of(lost, len(ordered))
        return ordered

    def _store(self, kind: str, request: Request, scored: Scored) -> None:
        """Put an answer into lm-eval's cache, if there is one."""
        if isinstance(scored, MissedFloat):
            return
        _refuse_left_out(request, scored)
        greedy = scored.answer.is_greedy
        result = (
            of_whole_text(request.arguments, scored)
            if greedy is None
            else (scored, greedy)
        )
        self.cache_hook.add_partial(kind, request.arguments, result)

    def _firsts(self, requests: list[Instance]) -> list[int]:
        """Return the index at which each request stands first.

        That is its own index, but for padding: lm-eval repeats the last request until
        all processes have equally many. A cache knows a request by its strings alone,
        so with one those of equal strings have one answer from the first run on.
        """
        cached = self.cache_hook.dbdict is not None
        seen: defaultdict[Any, list[int]] = defaultdict(list)
        firsts = []
        for index, instance in enumerate(requests):
            same = seen[instance.args if cached else id(instance)]
            same.append(index)
            firsts.append(same[(len(same) - 1) % (instance.repeats or 1)])
        return firsts

    def _report(self) -> None:
        self.reported += self._processes.gather(self._unreported)
        self._unreported = []

    def get_model_info(self) -> dict[str, Any]:
        """Return settings and diagnostics for the results' ``config``.

        lm-eval asks once, when all is answered: then records are complete.

        Raises:
            MissedTextsError: If a text has no number; the others are kept and shown.
        """
        if self.world_size == 1:
            self._collect()
        drop_errors_of_errors()
        info = self._about_run()
        if self._lacking:
            refuse_byte_rates(self._lacking)
        self.reported = []  # the same model may be evaluated again
        if self._missed:
            end(info, self._missed)
        return info

    def _collect(self) -> None:
        """Gather the answers of all processes, each of which calls this."""
        self._recorder.collect()
        self._missed = {}  # instances keep their answers: all are found each time
        for task, score in self._processes.gather([*missed()]):
            self._missed.setdefault(task, []).append(score)
        self._lacking = self._processes.gather([*lacking()])

    def _about_run(self) -> dict[str, Any]:
        """Return what ``get_model_info`` says, and write the records."""
        about = self._scorer.about
        names = {
            task: sorted({score.name for score in scores})
            for task, scores in self._missed.items()
        }
        summary = summary_of(self.reported)
        if tied := summary.get("questions_tied"):
            logger.warning(
                "%d of %d questions tie: rounding alone chooses the answer that acc "
                "counts above. `lm-latent-eval recompute` shares them",
                tied,
                summary["questions"],
            )
        return {
            "latent_eval_version": lm_latent_eval.__version__,
            **about,
            "latent_eval": {
                **about.get("latent_eval", {}),
                **summary,
                **({WITHOUT_NUMBER: names} if names else {}),
                "records": self._recorder.finish(self.fingerprint, names),
                **({"asked": unsaid()} if unsaid() else {}),
            },
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse a cache whose numbers other settings made."""
        super().set_cache_hook(GuardedHook(cache_hook, self.fingerprint))

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that a cached number depends on, as JSON."""
        fingerprint = self._scorer.fingerprint
        return {
            **fingerprint,
            "model": f"latent_{fingerprint['model']}",
            "lm_latent_eval": lm_latent_eval.__version__,
        }

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Refuse: words have no template.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"--apply_chat_template: {self._alias} is a model of plain texts, in which "
            "nobody takes turns, and has no chat template. Leave it out; "
            "latent_tokens, latent_cot and latent_mdm take that of their network"
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Refuse one that is asked for: lm-eval asks before it loads any text."""
        return self.apply_chat_template([]) if chat_template else ""

    @property
    def tokenizer_name(self) -> str:
        """Name of this model in keys of request caches."""
        return f"{self.fingerprint['model']}-{self.fingerprint['checkpoint']}"

    # -- data parallelism -------------------------------------------------------------

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._processes.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        return self._processes.gather_object(obj, dst)

    def barrier(self) -> None:
        """Wait for every process; all of them pass here after every kind of request.

        So here diagnostics are gathered. ``loglikelihood`` is not called where a cache
        answers every request, and ``get_model_info`` on one process alone.
        """
        # lm-eval repeats requests to pad a process's share: scorers of its 0.5 would
        # take the answers of copies for those of more options.
        for task in running_tasks().values():
            for instance in task.instances:
                del instance.resps[instance.repeats or 1 :]
        self._report()
        self._collect()
        self._processes.barrier()


def _refuse_shared_samples(
    requests: Sequence[Instance], options: Sequence[GenerationOptions]
) -> None:
    """Refuse samples for equal strings: a cache has one answer to all of them.

    lm-eval neither keeps nor looks up what ``do_sample`` draws. Padding repeats a
    request, and is no other.
    """
    sampled = {
        id(instance): instance
        for instance, how in zip(requests, options, strict=True)
        if how.temperature and not instance.args[1].get("do_sample")
    }
    different = {
        json.dumps(instance.args, sort_keys=True, default=str)
        for instance in sampled.values()
    }
    repeated = any((instance.repeats or 1) > 1 for instance in sampled.values())
    if repeated or len(different) < len(sampled):
        raise ValueError(
            "--use_cache has one answer to requests of equal strings, so samples of "
            "them would be one sample when the command is repeated: set do_sample: "
            "true in generation_kwargs, which lm_eval does not cache, or leave "
            "--use_cache out"
        )


def _refuse_left_out(request: Request, scored: ScoredFloat) -> None:
    """Raise if lm-eval would divide by words that the model left out of a text."""
    rates = stock_rates(running_tasks().get(request.task_name or ""))
    if scored.answer.left_out and rates:
        raise ValueError(
            f"{request.query.name}: the model does not know {scored.answer.left_out} "
            f"words of this text and leaves them out, and {', '.join(rates)} of "
            f"{request.task_name} would divide by them all the same. Score the texts "
            "with the task latent_topic_perplexity, per known word"
        )


def _identified(requests: list[Instance]) -> Iterator[tuple[int, str, Instance]]:
    """Number and name each request by its task and document: its draws are its own.

    The options of one document share a name, and with it the draws of their context.
    A request that is to be repeated, or that no task made, is counted. Copies beyond
    that, which pad the share of a process, draw the same: caches keep the last answer.
    """
    seen: Counter[int] = Counter()
    for index, instance in enumerate(requests):
        if instance.task_name is None or instance.doc_id is None:
            name = f"request/{index}"
        else:
            name = f"{instance.task_name}/{instance.doc_id}"
        if repeat := seen[id(instance)] % (instance.repeats or 1):
            name += f"/repeat {repeat}"
        seen[id(instance)] += 1
        yield index, name, instance
