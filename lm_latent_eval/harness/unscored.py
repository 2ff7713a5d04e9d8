"""Error raised at the end of a run that left texts unscored.

Where a backend raises, lm-eval writes nothing: neither results nor the sample log of
the texts that were scored. So such texts are answered by ``MissedFloat``, and the error
comes last. lm-eval asks for the model's description when all is counted; what it would
write and print after that is written and printed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from lm_eval.loggers.utils import add_env_info
from lm_eval.utils import make_table

from lm_latent_eval.harness.answers import MissedFloat
from lm_latent_eval.harness.running import evaluation, running_tasks
from lm_latent_eval.scoring.answer import MissedTextsError

SAID = ("model", "model_args", "batch_size", "device", "use_cache", "limit")
"""What results say of a run, as lm-eval's function names it."""


def missed() -> Iterator[tuple[str, MissedFloat]]:
    """Yield task and answer of every text of this process that has no number."""
    for name, task in running_tasks().items():
        for instance in task.instances:
            for answer in instance.resps:
                score = answer[0] if isinstance(answer, tuple) else answer
                if isinstance(score, MissedFloat):
                    yield name, score


def end(info: dict[str, Any], found: Mapping[str, list[MissedFloat]]) -> NoReturn:
    """Write and print what lm-eval would, and raise.

    Args:
        info: What the model says of itself and its numbers.
        found: Task -> what is in place of numbers, in one task at least.

    Raises:
        MissedTextsError: Always; it names the texts.
    """
    running = evaluation()
    results = dict(running["results"])
    samples = results.pop("samples", {})
    _refuse(results, {task: len(scores) for task, scores in found.items()})
    results["config"] = {name: running.get(name) for name in SAID} | info
    results["date"] = running.get("start_date")
    add_env_info(results)
    if (tracker := running.get("evaluation_tracker")) is not None:
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, logged in samples.items():
            tracker.save_results_samples(task_name=task, samples=logged)
    print(make_table(results))
    if "groups" in results:
        print(make_table(results, "groups"))
    every = [score for scores in found.values() for score in scores]
    documents = (number["effective"] for number in results["n-samples"].values())
    raise error_of(every, sum(documents))


def _refuse(results: dict[str, Any], number: Mapping[str, int]) -> None:
    """Put words in place of the numbers that lm-eval made of such answers.

    Those of its groups, too. Ours say themselves how many texts they are of.

    Args:
        results: As ``evaluate`` returns them.
        number: Task -> how many of its answers are none.
    """

    def lacking(name: str) -> int:
        parts = results.get("group_subtasks", {}).get(name) or ()
        return number.get(name, 0) + sum(map(lacking, parts))

    for kind in ("results", "groups"):
        for name, values in results.get(kind, {}).items():
            if lost := lacking(name):
                for metric, value in values.items():
                    if "," in metric and isinstance(value, float):
                        error = "_stderr," in metric
                        values[metric] = (
                            "N/A"
                            if error
                            else f"refused: {lost} texts without a number"
                        )


def error_of(found: list[MissedFloat], of: int) -> MissedTextsError:
    """Return the error that names the texts."""
    names = dict(enumerate(dict.fromkeys(score.name for score in found)))
    return MissedTextsError(names, found[0].why, of)
