"""Latent language models as lm-eval models: ``lm_eval --model latent_kglm``.

Requests come in, ``ScoredFloat`` answers go out; the arithmetic is in ``inference`` and
``estimators``. A new model joins with a class of two lines here, one entry point in
``pyproject.toml`` and its line in ``models.MODELS``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

# Before anything else of lm-eval: importing a backend first must not leave the registry
# half filled.
import lm_eval.models  # noqa: F401
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook

import lm_latent_eval
from lm_latent_eval.arguments import truth
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.harness.answers import ScoredFloat, digest
from lm_latent_eval.harness.cache import GuardedHook
from lm_latent_eval.harness.contrastive import DISTORTION
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.harness.records import Keep, Recorder
from lm_latent_eval.latent import Mass, SentenceModel
from lm_latent_eval.models.checkpoint import load
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.options import (
    ScoringOptions,
    parse_device,
    parse_dtype,
)
from lm_latent_eval.scoring.records import described
from lm_latent_eval.scoring.scorer import Answer, Scorer, telling
from lm_latent_eval.scoring.summary import Summary
from lm_latent_eval.scoring.texts import Query, naming

logger = logging.getLogger(__name__)

UNITS = {
    Mass.UNNORMALISED: "nats, up to one unknown constant a text",
    Mass.BY_LENGTH: "nats; sentence ends are not modelled and not counted",
}
"""What a log-likelihood is where it is not that of a whole text, its end included."""

KEPT = "requests were answered; with --use_cache, the same command goes on from there"
"""What an interrupted run has."""


LM_EVAL_DEVICE = "cuda:0"
"""What ``lm_eval`` passes on without ``--device``, whether there is a GPU or not."""


class LatentLMBackend(LM):
    """Scores strings with a latent language model.

    Args:
        pretrained: Checkpoint directory or hub repository; None is the embedded
            demonstration model, where there is one.
        proposal: One that the checkpoint has (KGLM: ``adapted``, ``smoothing``,
            ``peeking``, ``nonpeeking``, ``prior``); None is the model's own choice.
        estimator: ``is`` (importance sampling), ``beam`` (beam marginalization),
            ``smc`` (particle filters), or ``exact`` for a model without latents.
        num_samples: K, samples a text, or the width of the beam; with
            ``target_stderr`` the size of the pilot.
        temperature: Divides the proposal's scores; above 1 flattens it.
        seed: Of all random numbers.
        unk: ``spelled``, ``penalized`` or ``closed``; None is the first of them that
            the checkpoint has what it takes for.
        target_stderr: Choose K a text, from a pilot, for this Monte Carlo standard
            error of its log-likelihood in nats; the number comes from fresh draws.
        max_samples: The most that ``target_stderr`` may choose.
        log_weights: Whether records beside the results keep log-weights.
        batch_size: Texts scored together, or ``auto``. Moves no number.
        max_batch_size: The most that ``auto`` takes.
        device: Where to compute.
        dtype: ``float32``, ``float64`` or ``auto`` (as in the checkpoint).
    """

    model_name: ClassVar[str]
    default_checkpoint: ClassVar[Path | None] = None

    def __init__(
        self,
        pretrained: str | None = None,
        proposal: str | None = None,
        estimator: str | None = None,
        num_samples: int | str = 100,
        temperature: float | str = 1.0,
        seed: int | str = 0,
        unk: str | None = None,
        target_stderr: float | str | None = None,
        max_samples: int | str = 100_000,
        log_weights: bool | str = False,
        batch_size: int | str | None = "auto",
        max_batch_size: int | str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = "auto",
        **unknown: Any,
    ) -> None:
        """Check the arguments and load the checkpoint."""
        super().__init__()
        # --trust_remote_code is about data sets, but lm-eval tells models as well.
        unknown.pop("trust_remote_code", None)
        if unknown:
            raise ValueError(
                f"{next(iter(unknown))!r} is not an argument of "
                f"latent_{self.model_name}; expected pretrained, proposal, estimator, "
                "num_samples, temperature, seed, unk, target_stderr, max_samples, "
                "log_weights, dtype"
            )
        options = ScoringOptions.parse(
            estimator=estimator,
            num_samples=num_samples,
            proposal=proposal,
            temperature=temperature,
            seed=seed,
            unk=unk,
            target_stderr=target_stderr,
            max_samples=max_samples,
        )
        self._processes = Processes.start()
        # lm_eval asks for its default where nobody has asked for a device.
        asked = None if device == LM_EVAL_DEVICE else device
        self._device = self._processes.device or parse_device(asked)
        self.checkpoint = load(
            str(pretrained or self._embedded()),  # a name of digits comes as a number
            expected=self.model_name,
            dtype=parse_dtype(dtype),
            device=self._device,
        )
        self.summary = Summary()
        self._unreported: list[Answer] = []
        self._scorer = Scorer(
            self.checkpoint,
            options,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            quiet=self.rank != 0,
        )
        self.options = self._scorer.options
        self._recorder = Recorder(
            self._processes,
            pilots=self.options.num_samples if self.options.target_stderr else 0,
            weights=truth("log_weights", log_weights),
        )

    def _embedded(self) -> Path:
        if self.default_checkpoint is None:
            raise ValueError(
                f"latent_{self.model_name} has no embedded model: give "
                "--model_args pretrained=DIRECTORY"
            )
        return self.default_checkpoint

    # -- lm-eval's interface ----------------------------------------------------------

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[ScoredFloat]:
        """Return log p-hat of whole texts, their ends included, in nats.

        An unnormalised model has none, and answers only tasks that compare its scores
        of a text with those of distorted copies.

        Raises:
            ValueError: If another task asks such a model.
        """
        if self.checkpoint.model.mass is Mass.UNNORMALISED:
            for instance in requests:
                self._refuse_unnormalised(instance)
        queries = [
            Query(number, name, *instance.args)
            for number, name, instance in _identified(requests)
        ]
        answers: dict[int, ScoredFloat] = {}
        with telling(answers, requests, KEPT), self._keeping("texts") as keep:
            for answer in self._scorer.score_texts(queries):
                arguments = requests[answer.index].args
                scored = ScoredFloat(answer, digest("".join(arguments)))
                answers[answer.index] = scored
                keep(requests[answer.index], scored)
                self.cache_hook.add_partial("loglikelihood_rolling", arguments, scored)
        self._warn_of_bytes(answers)
        return self._finished(requests, answers)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[ScoredFloat, bool]]:
        """Return log p-hat of continuations in nats, and whether they are greedy.

        Greedy are those that are the argmax of the estimated next-token marginals.
        """
        if self.options.target_stderr is not None:
            logger.warning(
                "target_stderr is for whole texts: continuations take num_samples=%d",
                self.options.num_samples,
            )
        queries = []
        for number, name, instance in _identified(requests):
            context, continuation = instance.args
            queries.append(Query(number, name, continuation, context))
        answers: dict[int, ScoredFloat] = {}
        with telling(answers, requests, KEPT), self._keeping("continuations") as keep:
            for answer in self._scorer.score_continuations(queries):
                arguments = requests[answer.index].args
                scored = ScoredFloat(answer, digest("".join(arguments)))
                answers[answer.index] = scored
                keep(requests[answer.index], scored)
                self.cache_hook.add_partial(
                    "loglikelihood", arguments, (scored, answer.is_greedy)
                )
        finished = self._finished(requests, answers)
        return [(scored, scored.answer.is_greedy) for scored in finished]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Continue contexts until a stop string, greedily or by sampling."""
        queries = []
        for number, name, instance in _identified(requests):
            context, options = instance.args
            query = Query(number, name, "", context)
            with naming(query):
                queries.append((query, GenerationOptions.parse(options)))
        texts: dict[int, str] = {}
        with telling(texts, requests, KEPT):
            for i, text in self._scorer.generate(queries):
                texts[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return [texts[i] for i in range(len(requests))]

    def _refuse_unnormalised(self, request: Instance) -> None:
        if DISTORTION not in (request.doc or {}):
            raise ValueError(
                f"latent_{self.model_name} scores sentences without normalising, so "
                f"{request.task_name or 'a request'} would read its scores as "
                "log-probabilities, of which it has none: no perplexity, no rate. Use "
                "the contrastive_entropy tasks"
            )

    def _finished(
        self, requests: list[Instance], answers: dict[int, ScoredFloat]
    ) -> list[ScoredFloat]:
        ordered = [answers[i] for i in range(len(requests))]
        self._unreported += [
            replace(scored.answer, estimate=replace(scored.estimate, log_weights=()))
            for scored, asked in zip(ordered, _asked(requests), strict=True)
            if asked
        ]
        if self.world_size == 1:
            self._report()
        return ordered

    def _warn_of_bytes(self, answers: dict[int, ScoredFloat]) -> None:
        """Tell tasks of others, whose metrics cannot refuse, from strings scored."""
        unspelled = sum(scored.answer.unspelled for scored in answers.values())
        respaced = sum(scored.answer.respaced for scored in answers.values())
        if unspelled or respaced:
            logger.warning(
                "unk=%s charged %d unknown words as a class and %d unusual gaps not at "
                "all: bits per byte and byte perplexities of these texts mean nothing",
                self.options.unk,
                unspelled,
                respaced,
            )

    def _keeping(self, kind: str) -> AbstractContextManager[Keep]:
        return self._recorder.following(self._settings, kind)

    def _report(self) -> None:
        self.summary.add(self._processes.gather(self._unreported))
        self._unreported = []

    def get_model_info(self) -> dict[str, Any]:
        """Say what the numbers are: this goes into the results' ``config``.

        lm-eval asks once, when all is answered: then records are complete.
        """
        model = self.checkpoint.model
        if self.world_size == 1:
            self._recorder.collect()
        return {
            "latent_eval_version": lm_latent_eval.__version__,
            "checkpoint_digest": self.checkpoint.digest,
            "model_num_parameters": sum(p.numel() for p in model.parameters()),
            "model_dtype": str(model.dtype),
            # lm-eval's own "device" is what it was told, not what was used.
            "model_device": str(model.device),
            "latent_eval": {
                **asdict(self.options),
                "mass": str(model.mass),
                "scored_as": "sentences"
                if isinstance(model, SentenceModel)
                else "documents",
                "vocabulary": f"{model.config.vocab_size} words to utter, "
                f"{model.config.num_words - model.config.vocab_size} more to copy",
                "units": UNITS.get(
                    model.mass, "nats; sentence ends counted in rolling log-likelihoods"
                ),
                **self.summary.as_dict(),
                "records": self._recorder.finish(self._settings),
            },
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse a cache whose numbers other settings made."""
        super().set_cache_hook(GuardedHook(cache_hook, self.fingerprint))

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that a cached number depends on, as JSON."""
        return {
            "model": f"latent_{self.model_name}",
            "lm_latent_eval": lm_latent_eval.__version__,
            "checkpoint": self.checkpoint.digest,
            "dtype": str(self.checkpoint.model.dtype),
            **asdict(self.options),
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """What a record says of its numbers."""
        return {**self.fingerprint, **described(self.checkpoint)}

    @property
    def tokenizer_name(self) -> str:
        """What tells this model's requests from others' in request caches."""
        return f"latent_{self.model_name}-{self.checkpoint.digest}"

    # -- data parallelism -------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Index of this process."""
        return self._processes.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._processes.world_size

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate a tensor over the processes."""
        return self._processes.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """Collect an object of every process on one."""
        return self._processes.gather_object(obj, dst)

    def barrier(self) -> None:
        """Wait for every process; all of them pass here after every kind of request.

        So here diagnostics are gathered. ``loglikelihood`` is not called where a cache
        answers every request, and ``get_model_info`` on one process alone.
        """
        self._report()
        self._recorder.collect()
        self._processes.barrier()


def _identified(requests: list[Instance]) -> Iterator[tuple[int, str, Instance]]:
    """Number and name each request by its task and document: its draws are its own.

    The options of one document share a name, and with it the draws of their context.
    A request that is to be repeated, or that no task made, is counted. Copies beyond
    that, which pad the share of a process, draw the same: caches keep the last answer.
    """
    seen: Counter[int] = Counter()
    for number, instance in enumerate(requests):
        if instance.task_name is None or instance.doc_id is None:
            name = f"request/{number}"
        else:
            name = f"{instance.task_name}/{instance.doc_id}"
        if repeat := seen[id(instance)] % (instance.repeats or 1):
            name += f"/repeat {repeat}"
        seen[id(instance)] += 1
        yield number, name, instance


def _asked(requests: list[Instance]) -> Iterator[bool]:
    """Tell requests from the padding of a process whose share is smaller.

    lm-eval repeats the last request until all processes have equally many.
    """
    seen: Counter[int] = Counter()
    for instance in requests:
        seen[id(instance)] += 1
        yield seen[id(instance)] <= (instance.repeats or 1)


class LatentKGLM(LatentLMBackend):
    """``latent_kglm``: a knowledge graph language model."""

    model_name = "kglm"
    default_checkpoint = CHECKPOINT


class LatentEntityNLM(LatentLMBackend):
    """``latent_entitynlm``: a language model that remembers entities."""

    model_name = "entitynlm"


class LatentLSTM(LatentLMBackend):
    """``latent_lstm``: the plain LSTM twin, whose log-likelihoods are exact."""

    model_name = "lstm"


class LatentRNN(LatentLMBackend):
    """``latent_rnn``: a simple recurrent network, whose log-likelihoods are exact."""

    model_name = "rnn"


class LatentRNNG(LatentLMBackend):
    """``latent_rnng``: a recurrent neural network grammar; documents are sentences."""

    model_name = "rnng"


class LatentSRNN(LatentLMBackend):
    """``latent_srnn``: a sentence-level RNN, whose scores are not normalised."""

    model_name = "srnn"


__all__ = [
    "LatentEntityNLM",
    "LatentKGLM",
    "LatentLMBackend",
    "LatentLSTM",
    "LatentRNN",
    "LatentRNNG",
    "LatentSRNN",
]
