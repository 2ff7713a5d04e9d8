"""``lm_eval --model latent_cot``: chains of thought.

Thoughts are kept beside lm-eval's results as they are drawn, so a killed run can be
continued, with or without a cache; at the end they are JSON lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.estimators import discoveries
from lm_latent_eval.files import write_text
from lm_latent_eval.harness.answers import Scored
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.harness.running import (
    accuracies,
    documents,
    host,
    run_digest,
    running_tasks,
)
from lm_latent_eval.harness.wrappers.base import Wrapper, read
from lm_latent_eval.ledger.journal import remove
from lm_latent_eval.ledger.settings import Settings, plain
from lm_latent_eval.options import positive, truth
from lm_latent_eval.wrappers.cot.drawing import WEIGHTS_AT_MOST
from lm_latent_eval.wrappers.cot.model import ThoughtScorer
from lm_latent_eval.wrappers.cot.prompts import Key, ThoughtOptions
from lm_latent_eval.wrappers.cot.server import ServedNetwork
from lm_latent_eval.wrappers.cot.thoughts import (
    Thoughts,
    journal,
    read_unfinished,
    row_of,
)

Texts = Callable[[Sequence[int]], str]
"""Function that decodes tokens."""


@dataclass(frozen=True)
class TaskDocument:
    task: str
    of_task: Any
    number: int
    instances: list[Instance]

    def answers(self, question: str) -> list[str]:
        """Answers to a question, cached ones included."""
        return [i.args[1] for i in self.instances if i.args[0] == question]

    def placed(self, thoughts: Thoughts) -> Placed:
        pairs = [instance.args for instance in self.instances]
        indices = [
            [n for n, args in enumerate(pairs) if args == (thoughts.question, answer)]
            for answer in thoughts.answers
        ]
        right = accuracies(self.of_task, self.instances, indices)
        return Placed(self.task, self.number, thoughts, right)


@dataclass(frozen=True)
class Placed:
    task: str
    document: int
    thoughts: Thoughts
    right: tuple[float, ...] | None
    """Score of each answer by the task: 1 if right, else 0; None without a choice."""


def task_documents(tasks: Mapping[str, Any]) -> dict[str, TaskDocument]:
    """Documents of this process by question name."""
    by_name: dict[str, TaskDocument] = {}
    for name, task in tasks.items():
        for n, instances in documents(task).items():
            scored = [i for i in instances if i.request_type == "loglikelihood"]
            if scored:
                by_name[f"{name}/{n}"] = TaskDocument(name, task, n, scored)
    return by_name


def all_answers(tasks: Mapping[str, Any]) -> dict[Key, list[str]]:
    """Answers to every question, cached ones included."""
    return {
        (name, question): document.answers(question)
        for name, document in task_documents(tasks).items()
        for question in {instance.args[0] for instance in document.instances}
    }


class ThoughtRecorder:
    """Collects the thoughts of a run, and writes a file a task."""

    def __init__(self, processes: Processes, texts: Texts) -> None:
        self._processes, self._texts = processes, texts
        self._run = ""
        self._known: dict[Key, Thoughts] = {}
        self._own: dict[Key, Thoughts] = {}
        self._thoughts: dict[Key, Thoughts] = {}
        self._placed: dict[tuple[str, int, str], Placed] = {}

    @contextmanager
    def following(
        self, settings: Settings
    ) -> Iterator[tuple[Callable[[Thoughts], None], Mapping[Key, Thoughts]]]:
        """Yield a function that stores thoughts, and the thoughts of an earlier run."""
        where, known = host(), self._take_up(settings)
        if where is None:
            yield self._remember, known
            return
        rank = self._processes.rank
        with where.following("thoughts", rank, settings, journal) as add:

            def keep(thoughts: Thoughts) -> None:
                self._remember(thoughts)
                add(thoughts.name.rpartition("/")[0], thoughts)

            yield keep, known

    def collect(self, settings: Settings) -> None:
        """Gather the thoughts of all processes and of an interrupted run."""
        self._take_up(settings)
        own, self._own = [*self._own.values()], {}
        by_name = task_documents(running_tasks()) if host() else {}
        placed = [
            document.placed(thoughts)
            for name, document in by_name.items()
            for thoughts in _of_document(name, document, own)
        ]
        for thoughts in self._processes.gather(own):
            self._thoughts[thoughts.name, thoughts.question] = thoughts
        for one in self._processes.gather(placed):
            self._placed[one.task, one.document, one.thoughts.question] = one

    def finish(self, settings: Settings) -> dict[str, Any]:
        """Write the thoughts.

        Returns:
            Summary for results, as JSON: counts, endings, and the file of each task; {}
            without thoughts.
        """
        every, self._thoughts = self._thoughts, {}
        placed, self._placed = self._placed, {}
        if not every:
            return {}
        drawn = [thought for t in every.values() for thought in t.drawn]
        endings = Counter(str(thought.ending) for thought in drawn)
        return {
            "questions": len(placed) or len(every),
            "drawn": len(drawn),
            "tokens": sum(len(thought.tokens) for thought in drawn),
            **{f"share_{name}": n / len(drawn) for name, n in endings.items()},
            **_decided(placed.values(), WEIGHTS_AT_MOST[settings["proposal"]]),
            "files": _write(settings, placed, self._texts),
        }

    def _remember(self, thoughts: Thoughts) -> None:
        self._own[thoughts.name, thoughts.question] = thoughts

    def _take_up(self, settings: Settings) -> Mapping[Key, Thoughts]:
        """Read the thoughts of an interrupted run of the same command."""
        run = run_digest(settings)
        if self._run != run:
            self._run, self._known, where = run, {}, host()
            left = where.unfinished("thoughts", settings) if where else []
            answers = all_answers(where.tasks) if where else {}
            for thoughts in read_unfinished(left):
                if (thoughts.name, thoughts.question) in answers:
                    self._known[thoughts.name, thoughts.question] = thoughts
            self._own.update(self._known)
        return self._known


def _of_document(
    name: str, document: TaskDocument, every: Iterable[Thoughts]
) -> list[Thoughts]:
    """Thoughts about a document's questions.

    A cache identifies a question by its strings, so documents with equal strings share
    their thoughts.
    """
    by_question: dict[str, Thoughts] = {}
    for thoughts in every:
        answers = document.answers(thoughts.question)
        if thoughts.name == name:
            by_question[thoughts.question] = thoughts
        elif answers and sorted(answers) == sorted(thoughts.answers):
            by_question.setdefault(thoughts.question, thoughts)
    return [*by_question.values()]


def _decided(questions: Iterable[Placed], most: float) -> dict[str, Any]:
    """Count the questions whose most probable answer is certain."""
    choices = [one.thoughts.choice(most) for one in questions if one.right is not None]
    decided = sum(choice.decided is not None for choice in choices)
    return {
        "questions_decided": decided,
        "questions_undecided": len(choices) - decided,
        "questions_decided_together": sum(discoveries([c.log_e for c in choices])),
        "confidence": "0.95 of each question",
    }


def _write(
    settings: Settings, placed: Mapping[tuple[str, int, str], Placed], texts: Texts
) -> dict[str, str]:
    """Write a file of JSON lines a task, a question a line; return their names."""
    where = host()
    if where is None:
        return {}
    lines: dict[str, list[str]] = {}
    for _, one in sorted(placed.items(), key=lambda pair: pair[0]):
        row = {
            "document": one.document,
            **row_of(one.thoughts),
            "right": one.right,
            "thoughts": [texts(thought.tokens) for thought in one.thoughts.drawn],
        }
        lines.setdefault(one.task, []).append(json.dumps(plain(row)) + "\n")
    files = where.new_files("thoughts", lines, ".jsonl")
    for task, name in files.items():
        write_text(where.folder / name, "".join(lines[task]))
    remove(where.unfinished("thoughts", settings))
    return files


@dataclass(frozen=True)
class Template:
    """Chat template of a tokenizer, applied as by lm-eval's loader."""

    tokenizer: PreTrainedTokenizerBase
    chat_template_args: dict[str, Any]
    apply_chat_template = HFLM.apply_chat_template
    chat_template = HFLM.chat_template


class LatentCoT(Wrapper):
    """``latent_cot``: a causal language model whose latents are its thoughts.

    Answers are scored as log p(answer | question), summed over what is thought before
    them (``wrappers.cot.model``); options are those of ``ThoughtOptions``.

    Args:
        base_url: URL of a server that has loaded the network, up to and with ``/v1``:
            it draws and scores thoughts, and ``pretrained`` names the tokenizer.
        request_timeout: Largest time of one request to it, in seconds.
        enable_thinking: Argument of the chat template.
        chat_template_args: Further arguments of the chat template.
        arguments: Options of thoughts, and every other argument of ``--model hf``.
    """

    model_name = "cot"
    mixes_precision: ClassVar = {"is": ("float16",)}
    # Thoughts are kept beside the process that asks, and all questions have as many.
    shares_requests = False

    def __init__(
        self,
        *args: Any,
        base_url: str | None = None,
        request_timeout: float | str = 600.0,
        enable_thinking: bool | str | None = None,
        chat_template_args: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        given = read({"chat_template_args": chat_template_args})["chat_template_args"]
        given = dict(given or {})
        if enable_thinking is not None:  # hf would refuse likelihoods with it
            given["enable_thinking"] = enable_thinking
        if "enable_thinking" in given:
            given["enable_thinking"] = truth(
                "enable_thinking", given["enable_thinking"]
            )
        if given.get("enable_thinking") is False:
            raise ValueError(
                "enable_thinking=False: latent_cot scores answers after thoughts; "
                "without them use --model hf"
            )
        names = ThoughtOptions.names()
        ThoughtOptions.parse({n: arguments[n] for n in names if n in arguments})
        self._base_url = base_url
        self._timeout = positive("request_timeout", request_timeout)
        super().__init__(*args, chat_template_args=given, **arguments)
        self._thoughts = ThoughtRecorder(self._processes, self._loaded.tokenizer.decode)

    def _network(
        self, pretrained: str, device: str, arguments: Mapping[str, Any]
    ) -> Any:
        if self._base_url is None:
            return super()._network(pretrained, device, arguments)
        used = ("chat_template_args", "max_length", "trust_remote_code")
        if idle := [name for name in arguments if name not in used]:
            raise ValueError(
                f"{', '.join(idle)}: with base_url the server has loaded the network; "
                "tell the server, and leave it out here"
            )
        network = ServedNetwork.open(
            self._base_url,
            pretrained,
            timeout=self._timeout,
            max_length=arguments.get("max_length"),
        )
        self._loaded = Template(network.tokenizer, arguments["chat_template_args"])
        return network

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[Scored, bool]]:
        """Log p-hat of answers in nats, and whether they are greedy.

        Hints show all answers of a task's question, cached ones included.
        """
        scorer = cast(ThoughtScorer, self._scorer)
        scorer.shown = all_answers(running_tasks())
        with self._thoughts.following(self.fingerprint) as (scorer.keep, scorer.known):
            return super().loglikelihood(requests)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation by the network's chat template.

        Raises:
            ValueError: If the template does not begin the model's turn.
        """
        written = super().apply_chat_template(chat_history, add_generation_prompt)
        if add_generation_prompt and chat_history:
            plain = self._loaded.tokenizer.apply_chat_template(
                chat_history, tokenize=False, **self._loaded.chat_template_args
            )
            if plain == written:
                raise ValueError(
                    "the chat template writes no generation prompt, so thoughts would "
                    "go on with the user's turn: leave --apply_chat_template out, or "
                    "give the model a template that heeds add_generation_prompt"
                )
        return written

    def _about_run(self) -> dict[str, Any]:
        info = super()._about_run()
        if self.world_size == 1:
            self._thoughts.collect(self.fingerprint)
        if thoughts := self._thoughts.finish(self.fingerprint):
            network = cast(ThoughtScorer, self._scorer).network
            if isinstance(network, ServedNetwork) and network.honesty.num_tokens:
                thoughts["draws_checked"] = network.honesty.num_tokens
                thoughts["noticed"] = network.honesty.noticed
            info["latent_eval"]["thoughts"] = thoughts
        return info

    def _report(self) -> None:
        super()._report()
        self._thoughts.collect(self.fingerprint)
