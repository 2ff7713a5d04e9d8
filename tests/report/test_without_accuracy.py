"""Runs of several tasks, one of which asks what has no right answer."""

from dataclasses import replace

import pytest

from lm_latent_eval.report import page
from lm_latent_eval.report.compare.comparison import compare
from lm_latent_eval.report.export.hub import export_card, export_results
from tests.report.test_compare import questions, record

ASKED = questions([True] * 20)
UNJUDGED = replace(
    ASKED,
    task="unjudged",
    answers=[replace(answer, accuracy=None) for answer in ASKED.answers],
)
KNOWN = {
    "model": "m",
    "checkpoint": "c",
    "estimator": "is",
    "num_samples": 1,
    "proposal": "none",
    "temperature": 1.0,
    "seed": 0,
}
"""What an export must state, beside what the records say."""


def test_the_other_tasks_are_compared(caplog):
    runs = {"A": [[UNJUDGED, record()]], "B": [[UNJUDGED, record(3.0)]]}
    [found] = compare(runs)
    assert found.task == "t" and found.decided
    assert "unjudged: A and B have no question" in caplog.text
    with pytest.raises(ValueError, match="no question in common whose answer"):
        compare({"A": [[UNJUDGED]], "B": [[UNJUDGED]]})


def test_the_page_shows_the_other_tasks(tmp_path):
    sides = {"A": [[UNJUDGED, record()]], "B": [[UNJUDGED, record(3.0)]]}
    page.write(sides, {}, tmp_path / "page.html")
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "no accuracy to compare" in written and "B takes" in written


def test_the_other_tasks_are_exported(tmp_path, caplog):
    config = {"configs": {"q": {"dataset_path": "me/data"}}}
    both = [
        replace(each, settings=each.settings | KNOWN | config)
        for each in (UNJUDGED, ASKED)
    ]
    [written] = export_results(both, tmp_path)
    assert written.name == "q.yaml"
    card = export_card(both, tmp_path / "README.md", "m")
    assert "| q | acc | 1.0000" in card.read_text(encoding="utf-8")
    assert "unjudged has no number to export" in caplog.text
    with pytest.raises(ValueError, match="unjudged has no number to export"):
        export_card(both[:1], tmp_path / "other" / "README.md", "m")
