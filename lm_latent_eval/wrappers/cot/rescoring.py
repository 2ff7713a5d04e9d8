"""Other answers to the questions of a run, after the thoughts that it drew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lm_latent_eval.file_names import regular
from lm_latent_eval.plain_json import parse
from lm_latent_eval.wrappers.cot.files import Kept, ThoughtFile
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from lm_latent_eval.wrappers.cot.options import ThoughtOptions


def read_answers(path: Path) -> dict[int, list[str]]:
    """Read answers from JSON lines, ``{"document": 0, "answers": [" yes", " no"]}``.

    Raises:
        ValueError: If a line is something else.
    """
    found = {}
    for place, line in enumerate(
        regular(path).read_text("utf-8").splitlines(), start=1
    ):
        try:
            row = parse(line)
            document, answers = row["document"], row["answers"]
        except (ValueError, KeyError, TypeError) as err:
            raise _no_answers(path, place) from err
        if type(document) is not int or not isinstance(answers, list):
            raise _no_answers(path, place)
        found[document] = [str(answer) for answer in answers]
    return found


def _no_answers(path: Path, place: int) -> ValueError:
    return ValueError(
        f'{path}, line {place}: expected {{"document": 0, "answers": [" yes", " no"]}}'
    )


def rescore(
    model: ThinkingLM,
    kept: ThoughtFile,
    answers: Mapping[int, Sequence[str]],
    *,
    max_batch_size: int | str | None = None,
) -> list[Kept]:
    """Score other answers from kept thoughts: nothing is drawn.

    Args:
        model: The one that drew them.
        kept: What ``files.read`` has read.
        answers: Document -> strings, white space before them included.
        max_batch_size: Sequences that the network reads at once.

    Returns:
        The questions that answers are given for, with those in place of the run's.

    Raises:
        ValueError: If another model drew the thoughts, a document is not among them, or
            an answer is empty or too long.
    """
    drawn_by = kept.settings["checkpoint"]
    if drawn_by != model.network.digest:
        raise ValueError(
            f"{model.network.name} (digest {model.network.digest}) did not draw these "
            f"thoughts: a model with digest {drawn_by} did; give that one"
        )
    questions = {question.document: question for question in kept.questions}
    if unknown := sorted(answers.keys() - questions.keys()):
        raise ValueError(
            f"there are no thoughts about document {unknown[0]}: leave its answers out"
        )
    scorer = model.scorer(
        {name: kept.settings[name] for name in ThoughtOptions.names()},
        max_batch_size=max_batch_size,
    )
    return [
        replace(
            questions[document],
            thoughts=scorer.answer(questions[document].thoughts, given),
            right=None,
        )
        for document, given in answers.items()
    ]
