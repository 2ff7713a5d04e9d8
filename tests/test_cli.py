"""The command line: help, training and loading again, mistakes that end in one line."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

import lm_latent_eval
from lm_latent_eval import demo
from lm_latent_eval.cli import _parser, main
from lm_latent_eval.cli.arguments import Parser
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.registry import ESTIMATORS
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from lm_latent_eval.training.supervised import only_trainer

RUN = ["--epochs", "2", "--batch-size", "8", "--num-layers", "1", "--hidden-size", "9"]
KGLM = [*RUN, "--token-embedding-dim", "8", "--entity-embedding-dim", "5"]
LSTM = [*RUN, "--embedding-dim", "8"]
OUT = ["--output", "OUTPUT"]


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


def log_p(checkpoint, text: str) -> torch.Tensor:
    ids = [*checkpoint.tokenizer(text).ids, END]
    batch = TokenBatch.collate([ids], first=START)
    model, latents = checkpoint.model, NO_LATENT
    if checkpoint.name == "kglm":
        proposal = model.proposal()
        latents = proposal.beam(proposal.encode(batch), 3).latents
    return model.log_joint(model.encode(batch), latents)


def test_train_and_load_both_models(folder, capsys):
    knowledge = ["--knowledge", str(folder / "graph.json")]
    assert train(folder, "kglm", "kglm", *knowledge, *KGLM) == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {folder / 'kglm'}\n"
    assert shown.err.count("nats a token, train -> dev: p ") == 2
    kglm = load_checkpoint(folder / "kglm", expected="kglm")
    assert kglm.model.config.hidden_size == 9
    assert kglm.model.config.num_entities > 250, "the whole graph"
    text = json.loads((folder / "dev.jsonl").read_text("utf-8").splitlines()[0])
    assert log_p(kglm, " ".join(text["tokens"])).isfinite().all()

    vocabulary = ["--vocabulary", str(folder / "kglm")]
    assert train(folder, "lstm", "lstm", *vocabulary, *LSTM) == 0
    lstm = load_checkpoint(folder / "lstm", expected="lstm")
    assert lstm.tokenizer.vocab_size == kglm.tokenizer.vocab_size
    assert log_p(lstm, " ".join(text["tokens"])).isfinite().all()

    # Runs that have ended leave nothing to go on from: the same command begins anew.
    assert not [*folder.glob("*.training*")]
    capsys.readouterr()
    assert train(folder, "lstm", "lstm", *vocabulary, *LSTM) == 0
    shown = capsys.readouterr().err
    assert "lstm holds a checkpoint: it is replaced at the end" in shown
    assert "resuming" not in shown
    assert load_checkpoint(folder / "lstm", expected="lstm")


def test_train_and_load_texts_that_are_cut_already(folder, tmp_path, capsys):
    texts = [json.loads(t) for t in (folder / "train.jsonl").read_text().splitlines()]
    lines = [" ".join(text["tokens"]).replace(".", " <unk>") for text in texts]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text(
            "\n".join(json.dumps({"text": line}) for line in lines)
        )
    cut = ["--already-cut", "--min-count", "1", "--epochs", "1", "--hidden-size", "7"]
    rnn = ["--embedding-dim", "7", "--num-classes", "5"]
    srnn = ["--distortion", "0.3", "--l2", "0.001"]
    for model, options in (("rnn", rnn), ("srnn", srnn)):
        assert train(tmp_path, model, model, *cut, *options) == 0
        read = load_checkpoint(tmp_path / model, expected=model)
        assert {*read.tokenizer.vocabulary} == {*" ".join(lines).split()} - {"<unk>"}
        assert read.orthography is None, "their strings are lost"
        assert log_p(read, lines[0]).isfinite().all()
    # The vocabulary of one is that of the other.
    words = ["--vocabulary", str(tmp_path / "srnn")]
    capsys.readouterr()
    assert train(tmp_path, "rnn", "same", *cut, *rnn, *words) == 0
    assert (
        "--min-count: no effect, the vocabulary is that of" in capsys.readouterr().err
    )
    same = load_checkpoint(tmp_path / "same").tokenizer.vocabulary
    assert same == load_checkpoint(tmp_path / "srnn").tokenizer.vocabulary
    assert train(tmp_path, "rnn", "rnn", *cut, *rnn, "--hidden-size", "6") == 0
    assert load_checkpoint(tmp_path / "rnn").model.config.hidden_size == 6
    assert train(tmp_path, "srnn", "never", *cut, "--distortion", "0.7") == 2
    assert "distortion=0.7: expected" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["lrlm", "nklm"])
def test_train_and_load_relation_models(folder, capsys, model):
    knowledge = ["--knowledge", str(folder / "graph.json")]
    assert train(folder, model, model, *knowledge, *LSTM, "--fact-dim", "4") == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {folder / model}\n"
    assert shown.err.count("nats a token, train -> dev: p ") == 2
    found = load_checkpoint(folder / model, expected=model)
    assert found.model.config.num_topics > 200, "the whole graph"
    assert found.model.config.fact_dim == 4
    first, *_ = (folder / "train.jsonl").read_text().splitlines()
    words = found.tokenizer(" ".join(json.loads(first)["tokens"])).ids
    batch = TokenBatch.collate([[*words, END]], first=START)
    proposal = found.model.proposal()
    beam = proposal.beam(proposal.encode(batch), 3)
    assert found.model.log_joint(found.model.encode(batch), beam.latents).max() > -1e3


def test_the_package_is_a_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lm-latent-eval", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("lm_latent_eval", run_name="__main__")
    assert capsys.readouterr().out == f"lm-latent-eval {lm_latent_eval.__version__}\n"
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "COMMAND" in capsys.readouterr().err


READERS = {
    "estimate": ["estimate", str(CHECKPOINT), "--data", "FILE"],
    "study": ["study", "--pretrained", str(CHECKPOINT), "--data", "FILE", *OUT],
    "kglm": ["train", "kglm", "--data", "FILE", "--dev", "FILE", *OUT],
    "lrlm": ["train", "lrlm", "--data", "FILE", "--dev", "FILE", *OUT],
    "nklm": ["train", "nklm", "--data", "FILE", "--dev", "FILE", *OUT],
    "entitynlm": ["train", "entitynlm", "--data", "FILE", "--dev", "FILE", *OUT],
    "lstm": ["train", "lstm", "--data", "FILE", "--dev", "FILE", *OUT],
    "rnng": ["train", "rnng", "--data", "FILE", "--dev", "FILE", *OUT],
    "spelling": ["train", "spelling", str(CHECKPOINT), "--data", "FILE"],
    "productivity": ["distort", "productivity", "--data", "FILE", *OUT],
    "tokenizer": ["distort", "tokenizer", "--data", "FILE", *OUT],
}
"""Every command that reads texts, and which file."""
UNREADABLE = {
    "letters": b'{"tokens": "a string", "mentions": [], "triples": []}\n',
    "nested": b'{"tokens": [["a"]], "mentions": [], "triples": []}\n',
    "twice": b'{"tokens": ["a"], "mentions": [], "triples": [], "tokens": ["b"]}\n',
    "deep": b'{"tokens": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "utf-16": "Ada met Bo .\n".encode("utf-16"),
    "nul": b"Ada\0met Bo .\n",
    "mark within": b"{}\n\xef\xbb\xbfAda met Bo .\n",
}


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_text_is_refused_by_all_that_read_texts(tmp_path, capsys, command):
    for name, content in UNREADABLE.items():
        path = tmp_path / f"{name}.JSONL"
        path.write_bytes(content)
        places = {"FILE": str(path), "OUTPUT": str(tmp_path / "out")}
        assert main([places.get(word, word) for word in READERS[command]]) == 2, name
        shown = capsys.readouterr().err
        assert shown.startswith(f"lm-latent-eval: {path}"), name
        assert shown.count("\n") == 1, name


@pytest.mark.parametrize("command", ["estimate", "tokenizer"])
@pytest.mark.parametrize("name", ["bank.mrg", "bank.txt"])
def test_brackets_are_not_learned_or_scored_as_words(tmp_path, capsys, command, name):
    (tmp_path / name).write_text("(S (NP (NN plum)) (VP (VBZ is)))\n")
    places = {"FILE": str(tmp_path / name), "OUTPUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in READERS[command]]) == 2
    assert "has trees in brackets, which `train rnng` reads" in capsys.readouterr().err


def test_a_thousand_may_be_written_1e3(capsys):
    parser = _parser()
    read = parser.parse_args(["study", "--output", "o", "--num-samples", "1e3"])
    assert read.num_samples == 1000
    sample = ["distort", "sample", "--language", "agreement", "--output", "o"]
    assert parser.parse_args([*sample, "--num-sequences", "2e1"]).num_sequences == 20
    trained = ["train", "lstm", "--data", "d", "--dev", "d", "--output", "o"]
    assert parser.parse_args([*trained, "--epochs", "1e1"]).epochs == 10
    for wrong in ("1.5", "inf", "many"):
        with pytest.raises(SystemExit):
            parser.parse_args([*trained, "--epochs", wrong])
        assert f"argument --epochs: invalid int value: '{wrong}'" in (
            capsys.readouterr().err
        )


def test_an_interruption_says_how_to_go_on(folder, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("lm_latent_eval.training.supervised.Trainer.run", interrupted)
    assert train(folder, "lstm", "cut", *LSTM) == 130
    assert capsys.readouterr().err == (
        f"\ninterrupted; the finished epochs are kept in {folder / 'cut'}, and the "
        "same command goes on from there\n"
    )


def test_two_do_not_train_into_one_folder(folder, capsys):
    with only_trainer(folder / "locked"):
        assert train(folder, "lstm", "locked", *LSTM) == 2
        assert not (folder / "locked").exists()
    shown = capsys.readouterr().err.splitlines()[-1]
    assert f"another run is writing into {folder / 'locked'}: wait for it" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "train.jsonl"),
        (b"", "train.jsonl has no text"),
        (b'{"tokens": ["cut', "train.jsonl, line 1: "),
        (b"\xff\xfe", "train.jsonl is not UTF-8"),
    ],
)
def test_bad_data_ends_in_one_line(tmp_path, folder, capsys, content, message):
    if content is not None:
        (tmp_path / "train.jsonl").write_bytes(content)
    (tmp_path / "dev.jsonl").write_bytes((folder / "dev.jsonl").read_bytes())
    assert train(tmp_path, "kglm", "out") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("lm-latent-eval: ")
    assert message in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--epochs", "0"], "epochs=0: expected at least 1"),
        (["--vocabulary", "nowhere"], "pretrained=nowhere: no such directory"),
        (["--dev", "{empty}"], "has no trees"),
    ],
)
def test_bad_options_end_in_one_line(folder, tmp_path, capsys, option, message):
    option = [each.format(empty=tmp_path) for each in option]
    assert train(folder, "lstm", "never", *LSTM, *option) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (folder / "never").exists()


def test_threads_sleep_while_they_wait_unless_told_otherwise(monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert main(["tasks"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert main(["tasks"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_calibrate_says_how_far_estimates_are(capsys, kglm_directory):
    """Bounds from both sides, of the model's own texts."""
    asked = ["--texts", "8", "--max-words", "6", "--num-samples", "20"]
    assert main(["calibrate", str(kglm_directory), *asked]) == 0
    said = capsys.readouterr().out
    assert "texts drawn from the model" in said
    assert re.search(
        r"by auto, num_samples=20 are on average at most 0\.0\d+ nats", said
    )


def test_calibrate_refuses_texts_that_never_end(capsys, kglm_directory):
    asked = ["--texts", "2", "--max-words", "300"]
    assert main(["calibrate", str(kglm_directory), *asked]) == 2
    assert "texts of 300 words: expected at most 256" in capsys.readouterr().err


# -- options without effect ------------------------------------------------------------


def first_line(capsys, *command: str) -> str:
    """What a command says first; with nothing to work on, it then ends in an error."""
    assert main([*command]) == 2
    return capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "study --report none --output out --seed=3 --limit 2",
            "--limit, --seed: no effect, --report runs nothing",
        ),
        (
            "distort study --report --output out --plan gpt2",
            "--plan: no effect, --report runs nothing",
        ),
        (
            "compare a.json b.json --num-samples 9 --data c",
            "--data, --num-samples: no effect, no side is a checkpoint",
        ),
        (
            "export none --to model-card --output x --task-id t",
            "--task-id: no effect, --to model-card has no place for it",
        ),
        (
            "distort measure lengths a=b --output x --num-bins=7",
            "--num-bins: no effect, lengths needs none",
        ),
        (
            "train rnng --data=a --dev=b --output=x --num-samples=3",
            "--num-samples: no effect, trees are drawn by --objective unsupervised",
        ),
    ],
)
def test_options_without_effect_are_named(command, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert first_line(capsys, *command.split()).startswith(said)


def test_options_that_were_not_given_are_not_named(capsys, tmp_path):
    """A default is no choice of anybody."""
    command = ["distort", "measure", "lengths", "a=none", "--output", str(tmp_path)]
    assert "--num-bins" not in first_line(capsys, *command)


# -- help and completion ---------------------------------------------------------------


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


def test_every_command_has_an_example_that_parses():
    for names, command in COMMANDS.items():
        program, *words = shlex.split(command.example)
        assert program == "lm-latent-eval"
        assert tuple(words[: len(names)]) == names
        assert _parser().parse_args(words).run
        assert command.example in command.format_help()


def test_help_of_options_is_that_of_the_table():
    shown = " ".join(COMMANDS["estimate",].format_help().split())
    for field in fields(ScoringOptions):
        assert f"--{field.name.replace('_', '-')} " in shown
    assert "One of auto, mixed, is, beam, dpf, smc, ais, l2r, chib, exact" in shown
    assert "with --target-stderr the size of the pilot (default: 100)" in shown
    assert "%" not in shown and "``" not in shown


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
