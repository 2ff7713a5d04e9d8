"""The arithmetic language of ``examples/arithmetic``, and its command."""

import json
import random
import re
import sys

import pytest
import torch

from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from tests.conftest import PROJECT


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Let the language and the training script be imported as that is run."""
    monkeypatch.syspath_prepend(PROJECT / "examples" / "arithmetic")


def test_thoughts_write_what_is_true():
    import language

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


def test_the_command_leaves_models_and_a_task(tmp_path, monkeypatch, capsys):
    import train

    command = ["train.py", str(tmp_path), "--tokens", "2000", "--questions", "3"]
    monkeypatch.setattr(sys, "argv", command)
    train.main()
    shown = capsys.readouterr().out
    counts = re.findall(r"parameters, ([\d,]+) tokens", shown)
    cot, direct = (int(count.replace(",", "")) for count in counts)
    # As many tokens, to one batch of at most 50 times 64.
    assert cot >= 2000 <= direct and abs(cot - direct) < 50 * 64
    written = (tmp_path / "questions.jsonl").read_text().splitlines()
    first = json.loads(written[0])
    model = ThinkingLM.open_directory(
        tmp_path / "cot", dtype=torch.float64, device=torch.device("cpu")
    )
    options = {"think_start": "<think>", "think_end": "</think>", "close": "forced"}
    scorer = model.scorer({**options, "max_think_tokens": 8, "num_samples": 2})
    queries = [
        Query(n, "arithmetic/0", option, first["question"])
        for n, option in enumerate(first["options"])
    ]
    assert len(list(scorer.score_continuations(queries))) == 4
    assert "output_type: multiple_choice" in (tmp_path / "arithmetic.yaml").read_text()
