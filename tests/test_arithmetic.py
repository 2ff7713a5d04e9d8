"""The arithmetic language of ``examples/arithmetic``, and its command."""

from __future__ import annotations

import json
import random
import re
import sys

import pytest
import torch

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from tests.conftest import PROJECT


@pytest.fixture(scope="module")
def example():
    """Import the language and the training script as that is run."""
    sys.path.insert(0, str(PROJECT / "examples" / "arithmetic"))
    try:
        import language
        import train

        yield language, train
    finally:
        sys.path.pop(0)


def test_thoughts_write_what_is_true(example):
    language, _ = example
    chance = random.Random(0)
    for _ in range(200):
        expression = language.Expression.draw(chance)
        value = int(expression.question[0])
        thought, left = expression.thought(chance), expression.question[1:-1]
        for operation, number, written in re.findall(r"([-+*])(\d)(?:=(\d))?", thought):
            assert left.startswith(operation + number)
            left = left[2:]
            value = eval(f"{value}{operation}{number}") % 10
            assert written in ("", str(value))
        assert not left and value == expression.values[-1]


def test_the_command_leaves_models_and_a_task(example, tmp_path, monkeypatch, capsys):
    _, train = example
    command = ["train.py", str(tmp_path), "--tokens", "2000", "--questions", "3"]
    monkeypatch.setattr(sys, "argv", command)
    train.main()
    shown = capsys.readouterr().out
    counts = re.findall(r"parameters, ([\d,]+) tokens", shown)
    cot, direct = (int(count.replace(",", "")) for count in counts)
    # As many tokens, to one batch of at most 50 times 64.
    assert cot >= 2000 <= direct and abs(cot - direct) < 50 * 64
    rows = [
        json.loads(line)
        for line in (tmp_path / "questions.jsonl").read_text().splitlines()
    ]
    model = ThinkingLM.open_directory(
        tmp_path / "cot", dtype=torch.float64, device=torch.device("cpu")
    )
    options = {"think_start": "<think>", "think_end": "</think>", "close": "forced"}
    scorer = model.scorer({**options, "max_think_tokens": 8, "num_samples": 2})
    queries = [
        Query(n, "arithmetic/0", option, rows[0]["question"])
        for n, option in enumerate(rows[0]["options"])
    ]
    assert len(list(scorer.score_continuations(queries))) == 4
    assert "output_type: multiple_choice" in (tmp_path / "arithmetic.yaml").read_text()
