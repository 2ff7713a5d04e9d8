"""What the components of a mixture were worth, in words and in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lm_latent_eval.report.tabular import Cell, Table, one_line, rendered
from lm_latent_eval.wrappers.mixtures.worth import LISTED, TOGETHER

QUESTIONS = "questions"


def components(found: Mapping[str, Any]) -> Iterator[str]:
    """Say what carries a task's answers, and what moves them.

    Args:
        found: What results say of the task's components (``mixtures.worth``).
    """
    least, most = found["components"]
    number = f"{least}" if least == most else f"{least} to {most}"
    if drawn := found["drawn"]:
        how = f"{number} drawn for {drawn} of {found['questions']} questions"
        if "decided" in found:
            how += (
                f"; the best option is certain (95 % a question) of "
                f"{found['decided']} of {found['draws_asked']}"
            )
        yield f"Components: {how}."
    else:
        yield f"Components: {number} a question, all summed."
    for factor, rows in found["factors"].items():
        yield f"What carries the answers, by {factor}:"
        yield rendered(_carriers(factor, rows), "text")
        if len(rows) == LISTED:
            yield f"(The {LISTED} that carry most.)"
    if found["variance"]:
        yield "What moves them: shares of the variance over questions and components."
        yield rendered(spread(found["variance"]), "text")
    for one in found["carriers"]:
        by = ", ".join(
            f"{factor} {name!r} ({share:.0%})"
            for factor, (name, share) in one["carried_by"].items()
        )
        yield one_line(
            f"question {one['document']}: {one['answer']!r}, p = {one['p']:.4g}, is "
            f"carried by {by}"
        )
    if found["questions"] > len(found["carriers"]) and "file" in found:
        yield f"The others are in {one_line(found['file'])}."


def _carriers(factor: str, rows: list[dict[str, Any]]) -> Table:
    """Return what each variant of a factor is worth."""
    head = [factor, "weight", "carries", "its own accuracy", "questions"]
    cells: list[list[Cell]] = [
        [
            str(row["name"]),
            float(row["weight"]),
            float(row["carries"]),
            row["accuracy"],
            row["questions"],
        ]
        for row in rows
    ]
    return Table(head, cells)


def spread(variance: Mapping[str, Any]) -> Table:
    """Return how much of the spread each factor makes.

    Args:
        variance: Of the right answer's share of p and of accuracy, by what moves them.
    """
    totals = {name: sum(variance[name].values()) for name in ("share", "accuracy")}
    names = [name for name in variance["share"] if name != TOGETHER]
    if variance["share"].get(TOGETHER) or variance["accuracy"].get(TOGETHER):
        names.append(TOGETHER)

    def of(kind: str, name: str) -> Cell:
        return variance[kind][name] / totals[kind] if totals[kind] else None

    rows: list[list[Cell]] = [
        [
            name,
            of("share", name),
            of("accuracy", name),
            variance["accuracy_moved_by"].get(name),
        ]
        for name in names
    ]
    head = ["moved by", "right answer's share of p", "right or wrong"]
    return Table([*head, "± of the accuracy, one drawn"], rows)
