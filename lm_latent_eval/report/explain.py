"""Explanation of a run's numbers in plain words, with advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lm_latent_eval.estimators import Bound
from lm_latent_eval.estimators.choices import ROUNDING
from lm_latent_eval.estimators.importance import WORTH_LESS, enough_samples
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.models import MODELS, WRAPPERS, model_class
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.report.numbers import NO_WEIGHTS, numbers
from lm_latent_eval.report.results import newest, read_records
from lm_latent_eval.report.runs import is_of_others, read_together
from lm_latent_eval.report.tables import (
    error,
    frame,
    one_line,
    rendered,
    shown,
    with_error,
)
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring.answer import NAMED
from lm_latent_eval.scoring.files import is_there
from lm_latent_eval.scoring.metrics import CERTIFIED, METRICS, UNKNOWN
from lm_latent_eval.scoring.records import WITHOUT_NUMBER
from lm_latent_eval.text.files import read_text
from lm_latent_eval.values import parse
from lm_latent_eval.wrappers.cot.prompts import Ending
from lm_latent_eval.wrappers.mixtures.carriers import LISTED

_OF_CORPUS = {n: m.description for n, m in METRICS.items() if m.description}
MEANING = {
    **{name: text for name, text in _OF_CORPUS.items() if "token" in name},
    **_OF_CORPUS,
    "completion_perplexity": "Exp of the negative log-likelihood a word of second "
    "halves, given the first ones: log p-hat of documents less that of their first "
    "halves. A difference of estimates bounds nothing.",
    "completion_perplexity_draws_error": "How far other draws of the latents would "
    "lead on these very texts, as the draws tell it.",
    "completed_tokens": "Words of second halves.",
    "acc": "Share of questions whose right answer has the largest estimated "
    "likelihood.",
    "questions_tied": "Questions whose best options differ by rounding alone; each "
    "counts as if every one of them were chosen equally often.",
}

BOUNDS = {
    Bound.EXACT: " It is exact: nothing is drawn.",
    Bound.STRICT_LOWER: " An upper bound of the true perplexity: more samples lower "
    "it, as a rule.",
    Bound.STOCHASTIC_LOWER: " An upper bound of the true perplexity on average: more "
    "samples lower it.",
    Bound.ESTIMATED_LOWER: " An estimate of an upper bound of the true perplexity: "
    "more samples make it surer, not lower.",
}
"""Explanation of a token perplexity, by the bound of log p-hat."""
ASKED_FOR = ("token_perplexity_at_least",)
"""Metrics that are left out unless they were requested."""
NOT_DRAWN = {
    "token_perplexity_draws_error": "Nothing is drawn.",
    "corpus_token_perplexity": "The same, as nothing is drawn.",
    "certified_token_perplexity": "The same, as nothing is drawn: it is certain.",
}
"""Explanation of some metrics where latents are not drawn."""


LEFT_OUT = "known words"
UNKNOWN_WORDS = {
    "spelled": "Unknown words are spelled and white space is charged: strings are "
    "scored, and rates per word and byte compare with those of any model.",
    "penalized": "Unknown words cost p(unknown) / number of unknown types, white space "
    "nothing: perplexities compare only within one vocabulary.",
    "closed": "Unknown words cost p(unknown) as one class, white space nothing: "
    "perplexities compare only within one vocabulary.",
    LEFT_OUT: "Unknown words are left out, and white space: perplexities are of known "
    "words and compare only within one vocabulary.",
}
"""Explanation of unknown words, by policy; of topic models, by what tokens are."""

ROUNDED = {"torch.float16": "up to 0.01", "torch.bfloat16": "0.02 to 0.3"}
"""Nats by which 16 bits moved a text, root mean squares (docs/errors.md, Rounding)."""

HISTORIES = "histories_per_request"
"""Entry of results: least and most histories that a text was given."""

DEFAULTS = {
    "num_samples": 1,
    "proposal": None,
    "temperature": 1.0,
    "seed": 0,
    "unk": None,
    "vocabulary": "Strings are scored in the model's own way",
    "scored_as": "documents",
    "mass": None,
}
"""Facts that a model with its own way of scoring may lack."""
ENDINGS = {
    "natural": "p(answer | question) totals less than 1: a thought that is not closed "
    "answers nothing.",
    "forced": "Those that did not close were closed by force: p is another model than "
    "the one that closes its own thoughts.",
}
"""Explanation of the option ``close`` of chains of thought."""


def explain(results: Path) -> str:
    """Explain the newest results below a folder, or those in a file.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If the file or folder holds something else.
    """
    if not is_there(results):
        raise FileNotFoundError(f"{results} does not exist")
    file = newest(results) if results.is_dir() else results
    if file is not None and file.suffix == ".json" and file.exists():
        content = parse(read_text(file), infinities=True)
        try:
            if not is_of_others(content):
                config, runs = content["config"], read_records(file, content)
                tasks = content["results"].items()
                values = {
                    task: printed | (_values(runs[task]) if task in runs else {})
                    for task, printed in tasks
                }
                return _explained(config, config.get("latent_eval"), values, runs)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as err:
            raise ValueError(
                f"{file} holds no results of lm_eval ({err!r}): run it again with "
                f"--output_path {results}"
            ) from err
    try:
        return "\n\n".join(_of_run(run) for run in read_together([results]))
    except KeyError as err:
        raise ValueError(
            f"{results} does not say its {err}, on which numbers depend: give the file "
            "as it was written"
        ) from err


def _of_run(run: Run) -> str:
    settings, values = run.settings, {run.task: _values(run)}
    if not run.answers:  # of another program
        return _explained({"model": settings["model"]}, None, values, {})
    facts = {**settings, "vocabulary": f"Vocabulary {settings['vocabulary']}"}
    lacking = settings.get(WITHOUT_NUMBER)
    if lacking:
        facts[WITHOUT_NUMBER] = {run.task: lacking}
    held = [answer.estimate.num_samples for answer in run.answers]
    facts[HISTORIES] = [min(held), max(held)]
    bounds = {str(answer.estimate.bound) for answer in run.answers}
    facts["bound_of_log_likelihood"] = bounds
    config = {"model": settings["model"], "checkpoint_digest": settings["checkpoint"]}
    text = _explained(config, facts, values, {})
    if run.finished or lacking:
        return text
    return f"Not finished: numbers are of {len(run.answers):,} answers.\n\n{text}"


def _values(run: Run) -> dict[str, Any]:
    """Return a run's numbers as lm-eval would write them."""
    values: dict[str, Any] = {}
    for name, number in numbers(run).items():
        if number.value != NO_WEIGHTS:
            values[f"{name},none"] = number.value
            values[f"{name}_stderr,none"] = number.stderr
    return values


def _explained(
    config: dict[str, Any],
    facts: dict[str, Any] | None,
    tasks: Mapping[str, dict[str, Any]],
    runs: Mapping[str, Run],
) -> str:
    """Explain results of lm-eval.

    Args:
        config: Configuration of the run.
        facts: Facts about a model of ours; None of others.
        tasks: Task -> its numbers. Those of a record share ties, and know errors and
            bounds that a task of lm-eval does not print.
        runs: Task -> its run, where there is a record.
    """
    if facts is None:
        ours = {}
        paragraphs = [
            f"{config.get('model')} is not one of our models; its numbers are its own. "
            "Tokens are its own, too: only rates per word and byte compare with those "
            "of other models."
        ]
    else:
        ours = _with_estimator(DEFAULTS | facts)
        paragraphs = [*_how(config, ours)]
    sections = ["\n".join(map(_wrapped, paragraphs))]
    for task, values in tasks.items():
        lines = [*_task(values, _bound(ours, runs.get(task)))]
        lines += advice(values, ours, str(config.get("model")))
        if shares := ours.get("mixture", {}).get(task):
            lines += components(shares)
        sections.append("\n".join([one_line(task), *map(_indented, lines)]))
    return "\n\n".join(sections)


def _how(config: dict[str, Any], facts: dict[str, Any]) -> Iterator[str]:
    held = facts.get(HISTORIES, [facts["num_samples"]])
    histories = f"{held[0]:,}"
    if min(held) < max(held):
        histories += f" to {held[-1]:,}"
    how = str(facts["how"])
    if max(held) > 1:
        how += f"; K = {facts['num_samples']}, {histories} histories a text"
    if "seed" in how:
        how += (
            f". Of random numbers the option seed ({facts['seed']}) alone moves them: "
            "lm_eval's --seed does not"
        )
    yield f"{config['model']}, checkpoint {config['checkpoint_digest']}: {how}."
    policy = LEFT_OUT if facts.get("tokens_are") == LEFT_OUT else facts["unk"]
    yield f"{facts['vocabulary']}. {UNKNOWN_WORDS.get(policy, '')}"
    precision = str(facts.get("computed_in") or facts.get("dtype"))
    if nats := ROUNDED.get(precision):
        yield (
            f"The network computed in {precision.removeprefix('torch.')}: by such "
            f"rounding texts moved by {nats} nats where that was measured, and other "
            "batches round otherwise. No bound or error here includes it."
        )
    if lacking := facts.get(WITHOUT_NUMBER):
        names = [name for of_task in lacking.values() for name in of_task]
        yield (
            f"No number of {', '.join(names[:NAMED])}{', ...' * (len(names) > NAMED)}: "
            "nothing that was found or drawn is possible there. Draw more samples, or "
            "from a proposal that covers the model's latents; what is printed is of "
            "the other texts alone."
        )
    if tied := facts.get("questions_tied"):
        yield (
            f"Of {facts['questions']} questions {tied} are ties: their best options "
            f"differ by rounding alone ({ROUNDING:.1g} nats a token or less), and "
            "which one lm_eval counts says nothing of the model. Records share them: "
            "`lm-latent-eval recompute` prints that accuracy."
        )
    if facts["scored_as"] == "sentences":
        yield (
            "A document is scored as the product of its sentences. How many it has is "
            "not modelled, so its rates leave that out."
        )
    if facts["mass"] == "no distribution over lengths":
        yield (
            "The model has no sentence ends, so it is no distribution over lengths: "
            "only texts of as many words compare."
        )
    if "thoughts" in facts:
        yield _how_thought(facts, facts["thoughts"])
    elif facts["mass"] == "sub-normalised":
        yield (
            "The model is sub-normalised: it wastes probability on latents that cannot "
            "happen, so its likelihoods are lower bounds of the renormalised model's."
        )


def _how_thought(facts: dict[str, Any], thoughts: dict[str, Any]) -> str:
    shares = ", ".join(
        f"{thoughts.get(f'share_{ending}', 0):.1%} {ending}" for ending in Ending
    )
    words = (
        f"Latents are thoughts: {thoughts['drawn']:,} about {thoughts['questions']:,} "
        f"questions, shared by the answers of each; {shares}. {ENDINGS[facts['close']]}"
    )
    decided = thoughts.get("questions_decided", 0)
    undecided = thoughts.get("questions_undecided", 0)
    if total := decided + undecided:
        words += (
            f" The most probable answer is certain (95 %, each by itself) of "
            f"{decided:,} of {total:,} questions; {undecided:,} are undecided."
        )
    if together := thoughts.get("questions_decided_together"):
        words += (
            f" Decided together (e-BH, at most 5 % of them wrong on average): "
            f"{together:,}."
        )
    if "noticed" in thoughts:
        missed = [name for name, is_seen in thoughts["noticed"].items() if not is_seen]
        words += (
            f" {thoughts['draws_checked']:,} tokens that the server drew follow the "
            "model's own distribution as far as so few show"
            + (f"; they would not show {', '.join(missed)}." if missed else ".")
        )
    if facts["model_temperature"] != 1:
        words += f" p is the model's at temperature {facts['model_temperature']:g}."
    return words


def _with_estimator(facts: dict[str, Any]) -> dict[str, Any]:
    """Add the facts of our estimators that results lack.

    Others are not asked: a file may name any code.
    """
    name = str(facts["estimator"])
    if "how" in facts:
        return facts
    if name not in ("auto", *ESTIMATORS.ours):
        return facts | {"how": f"estimator {name}"}
    estimator = estimator_class(name)
    return facts | {"how": estimator.how.format_map(facts), "checks": estimator.checks}


def _bound(facts: dict[str, Any], run: Run | None) -> Bound:
    if run is not None and run.is_of_texts:
        return Bound.weakest(map(Bound, run.units["bound"].unique()))
    counted = {Bound(name) for name in facts.get("bound_of_log_likelihood", ())}
    return Bound.weakest(counted - {Bound.NONE} or counted or {Bound.EXACT})


def _task(values: dict[str, Any], bound: Bound) -> list[str]:
    """Explain the numbers of a task; if none is ours, print its own scores."""
    if bound in CERTIFIED and values.get("certified_token_perplexity,none") == UNKNOWN:
        bound = Bound.NONE  # of a text, at least
    drawn = bound not in (Bound.EXACT, Bound.STRICT_LOWER)
    lines = []
    for name, meaning in (MEANING if drawn else MEANING | NOT_DRAWN).items():
        value = values.get(f"{name},none")
        if value is None or (isinstance(value, str) and name in ASKED_FOR):
            continue
        if isinstance(value, str):
            means = f" {meaning}" if name.endswith("_error") else ""
            lines.append(f"{name}: {value}.{means}")
            continue
        if name == "token_perplexity":
            meaning += BOUNDS.get(bound, "")
        number = _number(name, value, values.get(f"{name}_stderr,none"))
        lines.append(f"{name} = {number}: {meaning}")
    if lines:
        return lines
    for key, value in values.items():
        name, comma, filtered = key.partition(",")
        if not comma or name.endswith("_stderr") or not isinstance(value, int | float):
            continue
        number = _number(name, value, values.get(f"{name}_stderr,{filtered}"))
        by = "" if filtered == "none" else f" (filter {filtered})"
        lines.append(
            f"{name}{by} = {number}: the task's own score, a mean over its questions."
        )
    return lines


def _number(name: str, value: float, stderr: Any) -> str:
    if isinstance(value, int):
        return f"{value}"
    if name.endswith("_error"):
        return error(value)
    if isinstance(stderr, int | float):
        return with_error(value, stderr)
    return shown(value)


def _wrapped(text: str, indent: str = "") -> str:
    """Return lines for a terminal; names in them come from files."""
    return textwrap.fill(
        one_line(text), 88, initial_indent=indent, subsequent_indent=indent + "  "
    )


def _indented(text: str) -> str:
    """Return a line of a task, or a table of it."""
    return textwrap.indent(text, "  ") if "\n" in text else _wrapped(text, "  ")


# -- advice and mixtures ---------------------------------------------------------------


def _searching(model: str) -> str | None:
    """Return the estimator of a backend that checks itself, if it has one."""
    name = model.removeprefix("latent_")
    if name in MODELS:
        return "auto" if "auto" in model_class(name).estimators else None
    if name in WRAPPERS or name == "mixture":
        return "dpf" if name == "tokens" else None
    return "auto, where the model has it,"


def advice(values: dict[str, Any], facts: dict[str, Any], model: str) -> Iterator[str]:
    """Advise how to improve a task's numbers, if anything would help.

    Args:
        values: Numbers of a task, as lm-eval writes them.
        facts: Facts about the run.
        model: Name of the backend.
    """
    without = values.get("texts_without_monte_carlo_error,none")
    if without in (None, UNKNOWN):
        return
    unknown = float(str(without).partition(" ")[0])  # of "3 (4 of 9 texts)"
    num_samples, checks = facts.get("num_samples", 1), facts.get("checks", True)
    strict = {*facts.get("bound_of_log_likelihood", ())} == {str(Bound.STRICT_LOWER)}
    best = facts.get("default_proposal")
    if unknown and (strict or not checks):
        why = "Nothing has checked these draws."
        does = "searches in independent passes, and gives an error where they agree."
        if strict:
            why = "How far this bound is from the truth is not known."
            does = "adds what it leaves out, and an error."
        by = _searching(model)
        yield f"{why} estimator={by} {does}" if by else why
    elif unknown:
        yield (
            f"Wider searches still find more of {unknown:g} texts, or passes "
            f"contradict each other. num_samples={4 * num_samples} would look further."
        )
    if unknown and best and facts.get("proposal") != best:
        yield f"proposal={best}, the model's own, would draw what p asks for."
    error = values.get("token_perplexity_monte_carlo_error,none")
    over_texts = values.get("token_perplexity_stderr,none")
    if not isinstance(error, float) or not isinstance(over_texts, float) or not error:
        return
    if error > WORTH_LESS * over_texts:
        more = enough_samples(num_samples, error, over_texts)
        yield (
            f"About num_samples={more} would make the Monte Carlo error a fifth of "
            "that over texts, below which it hardly counts."
        )
    else:
        yield "More samples would hardly make ± smaller: what counts is more texts."


def components(shares: Mapping[str, Any]) -> Iterator[str]:
    """Describe which components carry a task's answers.

    Args:
        shares: Facts of results about the task's components (``mixtures.carriers``).
    """
    least, most = shares["components"]
    count = f"{least}" if least == most else f"{least} to {most}"
    how = f"{count} a question, all summed"
    if drawn := shares["drawn"]:
        how = f"{count} drawn for {drawn} of {shares['questions']} questions"
        if "decided" in shares:
            how += (
                f"; the best option is certain (95 % a question) of "
                f"{shares['decided']} of {shares['draws_asked']}"
            )
    yield f"Components: {how}."
    for factor, rows in shares["factors"].items():
        table = [
            {
                factor: str(row["name"]),
                "weight": float(row["weight"]),
                "carries": float(row["carries"]),
                "its own accuracy": row["accuracy"],
                "questions": row["questions"],
            }
            for row in rows
        ]
        yield f"What carries the answers, by {factor}:"
        yield rendered(frame(table), "text")
        if len(rows) == LISTED:
            yield f"(The {LISTED} that carry most.)"
    if "file" in shares:
        yield f"The components of every answer are in {shares['file']}."
