"""Help has sections, examples that parse, and costs no torch; a shell can complete."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

from lm_latent_eval.cli import _parser, main
from lm_latent_eval.cli.arguments import Parser
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.scoring.options import ScoringOptions


def commands(parser: Parser, *names: str) -> dict[tuple[str, ...], Parser]:
    """Every command that runs, by its name."""
    found = {}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, command in action.choices.items():
                found |= commands(command, *names, name)
    return found or {names: parser}


COMMANDS = commands(_parser())


def test_every_command_is_listed_under_a_heading():
    shown = _parser().format_help()
    for name, *_ in COMMANDS:
        assert f"\n  {name} " in shown
    assert "\nscores:\n  estimate " in shown
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_parses(names):
    command = COMMANDS[names]
    program, *words = shlex.split(command.example)
    assert program == "lm-latent-eval"
    assert tuple(words[: len(names)]) == names
    assert _parser().parse_args(words).run
    assert command.example in command.format_help()
    assert command.description.endswith("."), "what it does, as a sentence"


def test_help_of_options_is_that_of_the_table():
    shown = " ".join(COMMANDS["estimate",].format_help().split())
    for field in fields(ScoringOptions):
        assert f"--{field.name.replace('_', '-')} " in shown
    assert "One of auto, mixed, is, beam, dpf, smc, ais, l2r, chib, exact" in shown
    assert "with --target-stderr the size of the pilot (default: 100)" in shown
    assert "%" not in shown and "``" not in shown


def test_no_command_needs_torch_to_show_help():
    code = (
        "import sys\n"
        "from lm_latent_eval.cli import _parser\n"
        "def show(parser):\n"
        "    parser.format_help()\n"
        "    for action in parser._actions:\n"
        "        if isinstance(action.choices, dict):\n"
        "            [show(command) for command in action.choices.values()]\n"
        "show(_parser())\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'lm_eval', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_package_is_a_command(capsys):
    done = subprocess.run(
        [sys.executable, "-m", "lm_latent_eval", "tasks"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert main(["tasks"]) == 0
    assert done.stdout == capsys.readouterr().out


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """What bash offers when the tab key is pressed at the end of a line."""
    import argcomplete

    if not (bash := shutil.which("bash")):
        pytest.skip("there is no bash")
    folder = tmp_path_factory.mktemp("shell")
    program = folder / "lm-latent-eval"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lm_latent_eval "$@"\n')
    program.chmod(0o755)
    (folder / "texts.jsonl").touch()
    register = argcomplete.shellcode(["lm-latent-eval"])

    def press(line: str) -> list[str]:
        words = line.split(" ")
        script = (
            f"{register}\n"
            f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}\n"
            f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9\n"
            "_python_argcomplete lm-latent-eval\n"
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        shown = subprocess.run(
            [bash, "--norc", "-c", script],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        )
        return sorted(shown.stdout.split())

    return press


def test_bash_completes(completed):
    assert completed("lm-latent-eval es") == ["estimate"]
    assert completed("lm-latent-eval train k") == ["kglm"]
    assert completed("lm-latent-eval estimate DIR --target") == ["--target-stderr"]
    assert completed("lm-latent-eval estimate DIR --estimator ") == sorted(
        ["auto", *ESTIMATORS.names()]
    )
    assert completed("lm-latent-eval estimate DIR --unk s") == ["spelled"]
    assert completed("lm-latent-eval recompute R --format ") == ["csv", "latex", "text"]
    assert completed("lm-latent-eval estimate DIR --data te") == ["texts.jsonl"]


def test_what_a_model_has_of_its_own_is_given_by_name(tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("She studied in the town.\n")
    score = ["estimate", str(CHECKPOINT), "--data", str(texts), "--option"]
    assert main([*score, "steps=5"]) == 2
    assert "'steps' is not an argument of latent_kglm" in capsys.readouterr().err
    assert main([*score, "steps"]) == 2
    assert "--option 'steps': expected NAME=VALUE" in capsys.readouterr().err
