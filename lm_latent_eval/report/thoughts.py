"""Diagnostics of ``latent_cot`` runs, from their files of thoughts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.estimators import (
    AccuracyPoint,
    Choice,
    Margin,
    accuracy_curve,
    discoveries,
    effective_sample_size,
    log_evidence,
    log_mean_gap,
    probability_interval,
    stderr,
)
from lm_latent_eval.files import beside
from lm_latent_eval.ledger.journal import refuse_old
from lm_latent_eval.report.results import newest
from lm_latent_eval.report.tabular import Cell, Interval, Table, one_line, rendered
from lm_latent_eval.scoring.records import UNFINISHED
from lm_latent_eval.text import strict_json
from lm_latent_eval.wrappers.cot.drawing import WEIGHTS_AT_MOST, looks
from lm_latent_eval.wrappers.cot.prompts import Ending
from lm_latent_eval.wrappers.cot.thoughts import (
    Kept,
    ThoughtFile,
    read_thoughts,
    read_unfinished,
)

ENDINGS = {
    "natural": "p(answer | question) totals less than 1: a thought that is not closed "
    "answers nothing.",
    "forced": "Those that did not close were closed by force: p is another model than "
    "the one that closes its own thoughts.",
}


_HOW = (
    *("model", "checkpoint", "num_samples"),
    *("proposal", "close", "max_think_tokens", "model_temperature", "seed"),
)
"""Settings that are shown."""


def thought_files(path: Path) -> list[ThoughtFile]:
    """Read the thoughts of a run, finished or not, one file a task.

    Args:
        path: The folder of ``--output_path``, or one of the files.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it holds no thoughts.
    """
    found = _thought_files(path)
    for file in found:
        if missing := [name for name in _HOW if name not in file.settings]:
            raise ValueError(f"{path} does not say the {missing[0]} of its thoughts")
        close = file.settings["close"]
        if not isinstance(close, str) or close not in ENDINGS:
            raise ValueError(f"{path}: close is {close!a:.40}")
        if (proposal := str(file.settings["proposal"])) not in WEIGHTS_AT_MOST:
            raise ValueError(f"{path}: proposal is {proposal!a:.40}")
    return found


def _thought_files(path: Path) -> list[ThoughtFile]:
    if not path.is_dir():
        refuse_old([path])
        unfinished = path.name.endswith(UNFINISHED)
        return read_unfinished([path]) if unfinished else [read_thoughts(path)]
    if (results := newest(path)) is None:
        refuse_old(path.rglob("thoughts_*"))
        if found := read_unfinished(sorted(path.rglob(f"thoughts_*{UNFINISHED}"))):
            return found
        raise FileNotFoundError(
            f"{path} has no results: run lm_eval with --output_path {path}"
        )
    try:
        ours = strict_json.read(results)["config"].get("latent_eval", {})
        names = ours.get("thoughts", {}).get("files", {}).values()
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"{results} holds no results of lm_eval ({err!r})") from err
    if not names:
        raise ValueError(
            f"{results} names no thoughts: it is of no run of latent_cot, or of one "
            "whose answers all came from a cache; then name the thoughts_*.parquet of "
            "the run that drew them"
        )
    return [read_thoughts(beside(results, name)) for name in names]


@dataclass(frozen=True)
class ChoiceQuestions:
    """The questions of a task that have a right answer among several."""

    questions: Sequence[Kept]
    choices: Sequence[Choice]
    """Choice of each question, and whether it is certain."""
    left_out: int
    """Questions none of whose thoughts has an answer after it: they have no choice."""

    @classmethod
    def of(cls, kept: ThoughtFile) -> ChoiceQuestions:
        """Take those questions of a file."""
        every = [q for q in kept.questions if q.right is not None]
        found = [q for q in every if (q.thoughts.log_weights > -torch.inf).any()]
        choices = [q.thoughts.choice(most_of(kept)) for q in found]
        return cls(found, choices, len(every) - len(found))

    @property
    def sizes(self) -> list[int]:
        """Return the numbers of thoughts."""
        return [len(q.thoughts.drawn) for q in self.questions]

    def scores(self, decided_by: int | None = None) -> list[float]:
        """Return what the choices score.

        Args:
            decided_by: Of those that are certain after so many thoughts; None: of all,
                by what is most probable in the end.
        """
        return [
            (question.right or ())[choice.best]
            for question, choice in zip(self.questions, self.choices, strict=True)
            if decided_by is None
            or (choice.decided is not None and choice.decided <= decided_by)
        ]

    def curve(self) -> list[AccuracyPoint]:
        """Return accuracies by number of thoughts."""
        return accuracy_curve(
            [q.thoughts.log_weights for q in self.questions],
            [q.thoughts.log_ratios for q in self.questions],
            [torch.tensor(q.right, dtype=torch.float64) for q in self.questions],
        )

    def by_right(self, right: bool) -> Iterator[tuple[Kept, int]]:
        """Yield question and place of every right answer, or of every wrong one."""
        for question in self.questions:
            for place, score in enumerate(question.right or ()):
                if (score > 0) == right:
                    yield question, place


def most_of(kept: ThoughtFile) -> float:
    """Return the upper bound of the weights of a file's thoughts."""
    return WEIGHTS_AT_MOST[str(kept.settings["proposal"])]


def curve_table(kept: ThoughtFile) -> Table:
    """Return accuracies by number of thoughts, their bands and those of votes.

    Where thoughts were drawn until questions were decided: how many are, by number.

    Raises:
        ValueError: If no question has a right answer among several.
    """
    choices = ChoiceQuestions.of(kept)
    if not choices.questions:
        raise ValueError(
            f"{kept.settings['task']} has no questions with a right answer among "
            "several: there is no accuracy"
        )
    if kept.settings.get("until") == "decided":
        return _decided_table(choices)
    rows: list[list[Cell]] = [
        [
            point.num_samples,
            Interval(point.accuracy, *point.band),
            point.stderr,
            point.voted,
            point.voted_stderr,
        ]
        for point in choices.curve()
    ]
    head = ["thoughts", "accuracy (95 % of runs)", "± questions", "by votes"]
    return Table([*head, "± questions, votes"], rows)


def _decided_table(choices: ChoiceQuestions) -> Table:
    total, rows = len(choices.questions), list[list[Cell]]()
    for number in looks(max(choices.sizes)):
        scores = choices.scores(decided_by=number)
        accuracy = statistics.fmean(scores) if scores else None
        rows.append([number, len(scores), total - len(scores), accuracy])
    return Table(["thoughts", "decided", "undecided", "accuracy of the decided"], rows)


def text(kept: ThoughtFile) -> str:
    """Return the diagnostics of a task for a terminal."""
    lines = [*map(one_line, _drawn(kept))]  # names in them come from a file
    choices = ChoiceQuestions.of(kept)
    if choices.left_out:
        lines += [f"  left out, as no thought has an answer: {choices.left_out:,}"]
    if choices.questions:
        if kept.settings.get("until") != "decided":
            lines += _chosen(choices)
        lines += [*_certain(choices), "", rendered(curve_table(kept), "text")]
    return "\n".join(lines)


def estimates(questions: Sequence[Kept], most: float) -> Table:
    """Return log p-hat of every answer of some questions, nats.

    Args:
        questions: With their thoughts.
        most: What no weight is above.
    """
    head = ["document", "answer", "log p", "at least", "at most"]
    head += ["± as draws tell", "effective thoughts"]
    rows: list[list[Cell]] = []
    for question in questions:
        log_w = question.thoughts.log_weights
        ends = probability_interval(log_w, most)
        spread = stderr(log_w), effective_sample_size(log_w)
        found = (log_evidence(log_w), *ends, *spread)
        columns = (column.tolist() for column in found)
        rows += [
            [question.document, answer, *numbers]
            for answer, *numbers in zip(
                question.thoughts.answers, *columns, strict=True
            )
        ]
    return Table(head, rows)


def how_thought(ours: dict[str, Any]) -> str:
    """Describe how a run's thoughts were drawn.

    Args:
        ours: What is under ``latent_eval``, ``thoughts`` among it.
    """
    thoughts = ours["thoughts"]
    shares = ", ".join(
        f"{thoughts.get(f'share_{ending}', 0):.1%} {ending}" for ending in Ending
    )
    words = (
        f"Latents are thoughts: {thoughts['drawn']:,} about {thoughts['questions']:,} "
        f"questions, shared by the answers of each; {shares}. {ENDINGS[ours['close']]}"
    )
    if number := thoughts.get("questions_decided", 0) + (
        undecided := thoughts.get("questions_undecided", 0)
    ):
        words += (
            f" The most probable answer is certain (95 %, each by itself) of "
            f"{number - undecided:,} of {number:,} questions; {undecided:,} are "
            "undecided."
        )
    if ours["model_temperature"] != 1:
        words += f" p is the model's at temperature {ours['model_temperature']:g}."
    return words


def _drawn(kept: ThoughtFile) -> Iterator[str]:
    settings: dict[str, Any] = kept.settings
    thoughts = [thought for q in kept.questions for thought in q.thoughts.drawn]
    number = len(thoughts)
    yield (
        f"{settings['task']}: {len(kept.questions):,} questions, "
        f"{_number_of_thoughts(kept)}, {settings['model']}"
        + (", not finished" if not kept.finished else "")
    )
    how = " ".join(f"{name}={settings[name]}" for name in _HOW[3:])
    yield f"  checkpoint {settings['checkpoint']} {how}"
    shares = ", ".join(
        f"{sum(t.ending is ending for t in thoughts) / number:.1%} {ending}"
        for ending in Ending
    )
    mean = sum(len(thought.tokens) for thought in thoughts) / number
    yield f"  thoughts: {shares}; {mean:.1f} tokens on average"
    yield f"  {ENDINGS[settings['close']]}"


def _number_of_thoughts(kept: ThoughtFile) -> str:
    if kept.settings.get("until") != "decided":
        return f"{kept.settings['num_samples']} thoughts each"
    sizes = [len(question.thoughts.drawn) for question in kept.questions]
    return (
        f"{statistics.fmean(sizes):.1f} thoughts each (median "
        f"{statistics.median(sizes):g}, most {kept.settings['num_samples']})"
    )


def _certain(choices: ChoiceQuestions) -> Iterator[str]:
    total = len(choices.questions)
    certain = [choice.decided is not None for choice in choices.choices]
    together = sum(discoveries([choice.log_e for choice in choices.choices]))
    yield (
        f"  accuracy: {statistics.fmean(choices.scores()):.1%} of {total:,} questions"
    )
    if decided := choices.scores(decided_by=max(choices.sizes)):
        yield (
            f"  decided, each at 95 %: {sum(certain):,} of {total:,} questions "
            f"({sum(certain) / total:.1%}), accuracy {statistics.fmean(decided):.1%}; "
            f"undecided: {total - sum(certain):,}"
        )
    else:
        yield f"  decided, each at 95 %: none of {total:,} questions"
    yield (
        f"  decided together (e-BH, at most 5 % of them wrong on average): {together:,}"
    )


def _chosen(choices: ChoiceQuestions) -> Iterator[str]:
    gaps = [
        log_mean_gap(q.thoughts.log_p_answers, q.thoughts.log_ratios)[place].item()
        for q, place in choices.by_right(True)
    ]
    if gaps:
        yield (
            "  log of the mean less mean of the log, right answers: median "
            f"{statistics.median(gaps):.3f} nats, largest {max(gaps):.3f}"
        )
    for name, right in (("right", True), ("wrong", False)):
        sizes = [
            effective_sample_size(q.thoughts.log_weights[place]).item()
            for q, place in choices.by_right(right)
        ]
        if sizes:
            yield (
                f"  effective thoughts, {name} answers: median "
                f"{statistics.median(sizes):.1f}, fewest {min(sizes):.1f}"
            )
    margins = [Margin.of(q.thoughts.log_weights) for q in choices.questions]
    unsure = sum(not margin.is_sure for margin in margins)
    yield (
        f"  within Monte Carlo error: {unsure:,} of "
        f"{len(choices.questions):,} questions, whose two best answers are less than "
        "1.96 errors apart"
    )
