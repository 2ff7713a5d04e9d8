"""The command line: help, training and loading again, mistakes that end in one line."""

from __future__ import annotations

import errno
import json
import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

import lm_latent_eval
from lm_latent_eval import demo
from lm_latent_eval.cli import _parser, main
from lm_latent_eval.cli.arguments import Parser
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.registry import ESTIMATORS

SIZES = {
    "kglm": "--token-embedding-dim 8 --entity-embedding-dim 5 --knowledge {graph}",
    "lrlm": "--embedding-dim 8 --fact-dim 4 --knowledge {graph}",
    "nklm": "--embedding-dim 8 --fact-dim 4 --knowledge {graph}",
    "lstm": "--embedding-dim 8",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Training text, development text and the graph of a small world."""
    folder, documents = tmp_path_factory.mktemp("cli"), demo.documents("dev")
    for name, some in (("train", documents[:10]), ("dev", documents[10:14])):
        spaced = [{**d, "text": " ".join(d["tokens"])} for d in some]
        lines = [json.dumps(d, ensure_ascii=False) for d in spaced]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "graph.json").write_text(json.dumps(demo.knowledge()), encoding="utf-8")
    return folder


def train(folder, model: str, output: str, *options: str) -> int:
    data = ["--data", str(folder / "train.jsonl"), "--dev", str(folder / "dev.jsonl")]
    return main(["train", model, *data, "--output", str(folder / output), *options])


def train_small(folder, model: str, output: str) -> int:
    run = "--epochs 2 --batch-size 8 --num-layers 1 --hidden-size 9 " + SIZES[model]
    options = run.format(graph=folder / "graph.json").split()
    return train(folder, model, output, *options)


@pytest.mark.parametrize("model", SIZES)
def test_train_and_load(folder, capsys, model):
    assert train_small(folder, model, model) == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {folder / model}\n"
    assert shown.err.count("nats a token, train -> dev: p ") == 2
    found = load_checkpoint(folder / model, expected=model)
    assert found.model.config.hidden_size == 9
    if model == "kglm":
        assert found.model.config.num_entities > 250, "the whole graph"
    if model == "lrlm":
        assert found.model.config.num_topics > 200, "the whole graph"
    assert not [*folder.glob("*.training*")], "it has ended"


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("lstm", ["--embedding-dim", "7", "--cell", "rnn"]),
        ("srnn", ["--distortion", "0.3", "--l2", "0.001"]),
    ],
)
def test_train_on_texts_that_are_cut_already(tmp_path, capsys, model, options):
    texts = [" ".join(d["tokens"]) for d in demo.documents("dev")[:10]]
    lines = [text.replace(".", " <unk>") for text in texts]
    for name in ("train", "dev"):
        rows = "\n".join(json.dumps({"text": line}) for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    cut = ["--already-cut", "--min-count", "1", "--epochs", "1", "--hidden-size", "7"]
    assert train(tmp_path, model, model, *cut, *options) == 0
    read = load_checkpoint(tmp_path / model, expected=model)
    assert {*read.tokenizer.vocabulary} == {*" ".join(lines).split()} - {"<unk>"}
    assert read.orthography is None, "their strings are lost"
    capsys.readouterr()
    words = ["--vocabulary", str(tmp_path / model)]
    assert train(tmp_path, model, model, *cut, *options, *words) == 0
    said = capsys.readouterr().err
    assert "--min-count: no effect, the vocabulary is that of" in said
    assert f"{model} holds a checkpoint: it is replaced at the end" in said
    assert "resuming" not in said
    again = load_checkpoint(tmp_path / model).tokenizer.vocabulary
    assert again == read.tokenizer.vocabulary


def test_the_package_is_a_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lm-latent-eval", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("lm_latent_eval", run_name="__main__")
    assert capsys.readouterr().out == f"lm-latent-eval {lm_latent_eval.__version__}\n"
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "COMMAND" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "DIR", "--txets", "3"])
    assert "--txets 3 (did you mean --texts?)" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["estimat", "DIR"])
    assert "(did you mean estimate?)" in capsys.readouterr().err


def test_one_trains_into_a_folder_and_says_what_an_interruption_keeps(
    folder, capsys, monkeypatch
):
    def interrupted(*_):
        assert train_small(folder, "lstm", "cut") == 2, "meanwhile"
        raise KeyboardInterrupt

    monkeypatch.setattr("lm_latent_eval.training.supervised.Trainer.run", interrupted)
    assert train_small(folder, "lstm", "cut") == 130
    shown = capsys.readouterr().err
    assert f"another run is writing into {folder / 'cut'}: wait for it" in shown
    assert f"the finished epochs are kept in {folder / 'cut'}, and the same" in shown


TRAIN = "train lstm --data {train} --dev {train} --output {out} "
CALIBRATE = f"calibrate {CHECKPOINT} --texts 2 "
SCORE = f"estimate {CHECKPOINT} --data {{train}} --option "
MISTAKES = {
    TRAIN + "--data {empty}": "no-text.jsonl has no text",
    TRAIN + "--dev {folder}": "has no trees",
    TRAIN + "--data {folder}/none": "nothing/none: No such file or directory",
    TRAIN + "--cell gru": "cell=gru: expected lstm or rnn",
    TRAIN + "--device nowhere": "device='nowhere': not the name of a device",
    TRAIN + "--vocabulary nowhere": "pretrained=nowhere: no such directory",
    TRAIN.replace("lstm", "srnn") + "--distortion 0.7": "distortion=0.7: expected",
    CALIBRATE + "--max-words 300": "texts of 300 words: expected at most 256",
    SCORE + "steps=5": "'steps' is not an argument of latent_kglm",
    SCORE + "steps": "--option 'steps': expected NAME=VALUE",
    SCORE + "batch_size=1": "--option batch_size: give --batch-size 1",
    "audit --model none --seed 4294967296": "--seed='4294967296': expected a whole",
    "audit --model none --tolerance 0": "--tolerance='0': expected a positive",
    f"estimate {CHECKPOINT} --data {{folder}}": "nothing: Is a directory",
    "compare a b --power 0": "--power=0.0: expected a positive number",
    f"compare {CHECKPOINT} {{train}}": "is a model, and has no results: score texts",
    SCORE + "seed=1 --seed 2": "seed is given twice: 2 and 1",
    SCORE + "seed=1 --max-batch-size 0": "max_batch_size='0': expected a whole",
    "text {train} --output {train}": "is read: write another file",
    "report {train} --output {train}": "is read: write another file",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_end_in_one_line(folder, tmp_path, refused, command):
    empty = tmp_path / "no-text.jsonl"
    empty.touch()
    places = {"train": folder / "train.jsonl", "empty": empty, "out": tmp_path / "out"}
    given = command.format(**places, folder=tmp_path / "nothing").split()
    (tmp_path / "nothing").mkdir()
    assert MISTAKES[command] in refused(*given)
    assert not (tmp_path / "out").exists()


def test_an_error_that_names_no_file_is_said_as_it_is(monkeypatch, refused):
    def fails():
        raise FileNotFoundError(errno.ENOENT, "No such socket")

    monkeypatch.setattr("lm_latent_eval.cli.files.task_path", fails)
    assert refused("tasks") == "lm-latent-eval: [Errno 2] No such socket\n"


def test_threads_sleep_while_they_wait_unless_told_otherwise(monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert main(["tasks"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert main(["tasks"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_calibrate_says_how_far_estimates_are(capsys, kglm_directory):
    """Bounds from both sides, of the model's own texts."""
    asked = ["--texts", "30", "--max-words", "6", "--num-samples", "20"]
    assert main(["calibrate", str(kglm_directory), *asked]) == 0
    said = capsys.readouterr().out
    assert "texts drawn from the model" in said
    wanted = r"by auto, num_samples=20 are on average at most 0\.0\d+ nats"
    assert re.search(wanted, said)
    asked[1] = "8"
    assert main(["calibrate", str(kglm_directory), *asked]) == 0
    said = capsys.readouterr().out
    assert "do not tell how far others are apart" in said and "±" not in said
    asked[3] = "3"
    assert main(["calibrate", str(kglm_directory), *asked]) == 0
    said = capsys.readouterr().out
    assert "are exact" in said and "±" not in said and "-0.0000" not in said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train lstm --data a --dev b --output {file}", "is a file: name a folder"),
        ("convert rnng --model a --output {file}", "is a file: name a folder"),
        ("report a --output {folder}", "is a folder: name a file in it"),
    ],
)
def test_where_nothing_can_be_written_is_said_first(command, said, tmp_path, capsys):
    (tmp_path / "file").touch()
    places = {"file": tmp_path / "file", "folder": tmp_path}
    with pytest.raises(SystemExit, match="2"):
        main(command.format(**places).split())
    assert said in capsys.readouterr().err


# -- options without effect ------------------------------------------------------------


NO_EFFECT = {
    "compare a.json b.json --columns a,b --better higher": "--better, --columns",
    "export none --to model-card --output x --task-id t": "--task-id",
    "train rnng --data=a --dev=b --output=x --num-samples=3": "--num-samples",
}


@pytest.mark.parametrize("command", NO_EFFECT)
def test_options_without_effect_are_named(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2, "there is nothing to work on"
    assert capsys.readouterr().err.startswith(f"{NO_EFFECT[command]}: no effect, ")


# -- help and completion ---------------------------------------------------------------


def commands(parser: Parser, *names: str) -> dict[tuple[str, ...], Parser]:
    """Every command that runs, by its name."""
    found = {}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, command in action.choices.items():
                found |= commands(command, *names, name)
    return found or {names: parser}


PARSER = _parser()
COMMANDS = commands(PARSER)


def test_every_command_has_an_example_that_parses():
    assert len(COMMANDS) > 15, "premise"
    for names, command in COMMANDS.items():
        program, *words = shlex.split(command.example)
        assert program == "lm-latent-eval"
        assert tuple(words[: len(names)]) == names
        assert PARSER.parse_args(words).run
        assert command.example in command.format_help()


def test_the_shell_completes(tmp_path):
    """As argcomplete asks the program when the tab key is pressed."""
    (tmp_path / "texts.jsonl").touch()
    found = tmp_path / "found"

    def completed(line: str) -> list[str]:
        asked = {
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
            "COMP_LINE": f"lm-latent-eval {line}",
            "COMP_POINT": str(len(f"lm-latent-eval {line}")),
        }
        code = "from lm_latent_eval.cli import main; main()"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=asked)
        return sorted(word.strip() for word in found.read_text().split("\x0b"))

    assert completed("es") == ["estimate"]
    assert completed("estimate DIR --temp") == ["--temperature"]
    estimators = sorted(["auto", *ESTIMATORS.names()])
    assert completed("estimate DIR --estimator ") == estimators
    assert completed("estimate DIR --data te") == ["texts.jsonl"]


def test_a_reader_that_leaves_ends_a_command_quietly(monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", os.fdopen(writer, "w"))
        assert main(["tasks"]) == 128 + 13
    assert capfd.readouterr().err == ""


def test_other_broken_pipes_are_errors(monkeypatch, capfd):
    def fails(args):
        raise BrokenPipeError(32, "the server left")

    monkeypatch.setattr("lm_latent_eval.cli.files._tasks", fails)
    assert main(["tasks"]) == 2
    assert "the server left" in capfd.readouterr().err
