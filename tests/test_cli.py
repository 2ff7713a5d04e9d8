"""The command line: train and load again; mistakes end in one line that helps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.demo.world import generate
from lm_latent_eval.durable import LOCK_FILE, only_writer
from lm_latent_eval.models.checkpoint import load
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START

RUN = ["--epochs", "2", "--batch-size", "8", "--num-layers", "1", "--hidden-size", "9"]
KGLM = [*RUN, "--token-embedding-dim", "8", "--entity-embedding-dim", "5"]
LSTM = [*RUN, "--embedding-dim", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Training text, development text and the graph of a small world."""
    world, folder = generate(seed=0), tmp_path_factory.mktemp("cli")
    documents = world.documents("dev")
    for name, some in (("train", documents[:30]), ("dev", documents[30:40])):
        lines = [json.dumps(d, ensure_ascii=False) for d in some]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    knowledge = {"triples": world.triples, "aliases": world.aliases}
    (folder / "graph.json").write_text(json.dumps(knowledge), encoding="utf-8")
    return folder


def train(folder, model: str, output: str, *options: str) -> int:
    data = ["--data", str(folder / "train.jsonl"), "--dev", str(folder / "dev.jsonl")]
    return main(["train", model, *data, "--output", str(folder / output), *options])


def log_p(checkpoint, text: str) -> torch.Tensor:
    ids = [*checkpoint.tokenizer(text).ids, END]
    batch = TokenBatch.collate([ids], first=START)
    model, latents = checkpoint.model, 1
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
    kglm = load(folder / "kglm", expected="kglm")
    assert kglm.model.config.hidden_size == 9
    assert kglm.model.config.num_entities > 250, "the whole graph"
    text = json.loads((folder / "dev.jsonl").read_text("utf-8").splitlines()[0])
    assert log_p(kglm, " ".join(text["tokens"])).isfinite().all()

    vocabulary = ["--vocabulary", str(folder / "kglm")]
    assert train(folder, "lstm", "lstm", *vocabulary, *LSTM) == 0
    lstm = load(folder / "lstm", expected="lstm")
    assert lstm.tokenizer.vocab_size == kglm.tokenizer.vocab_size
    assert log_p(lstm, " ".join(text["tokens"])).isfinite().all()

    # The same command again: the run is finished, the weights are the same.
    first = kglm.digest
    capsys.readouterr()
    assert train(folder, "kglm", "kglm", *knowledge, *KGLM) == 0
    assert "resuming after epoch 2" in capsys.readouterr().err
    assert load(folder / "kglm").digest == first
    # Another size is another run.
    for option in ("--token-embedding-dim", "--cutoff", "--min-count", "--seed"):
        assert train(folder, "kglm", "kglm", *knowledge, *KGLM, option, "7") == 2
        shown = capsys.readouterr().err
        assert "start anew" in shown
        assert shown.count("\n") <= 2


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
        read = load(tmp_path / model, expected=model)
        assert {*read.tokenizer.vocabulary} == {*" ".join(lines).split()} - {"<unk>"}
        assert read.orthography is None, "their strings are lost"
        assert log_p(read, lines[0]).isfinite().all()
    # The vocabulary of one is that of the other.
    words = ["--vocabulary", str(tmp_path / "srnn")]
    assert train(tmp_path, "rnn", "same", *cut, *rnn, *words) == 0
    same = load(tmp_path / "same").tokenizer.vocabulary
    assert same == load(tmp_path / "srnn").tokenizer.vocabulary
    capsys.readouterr()
    assert train(tmp_path, "srnn", "never", *cut, "--distortion", "0.7") == 2
    assert "distortion=0.7: expected" in capsys.readouterr().err


def test_an_interruption_says_how_to_go_on(folder, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("lm_latent_eval.training.supervised.Trainer.run", interrupted)
    assert train(folder, "lstm", "cut", *LSTM) == 130
    assert capsys.readouterr().err == (
        f"\ninterrupted; the finished epochs are kept in {folder / 'cut'}, and the "
        "same command goes on from there\n"
    )


@pytest.mark.parametrize("model", ["kglm", "lstm", "rnn", "srnn"])
def test_two_do_not_train_into_one_folder(folder, capsys, model):
    size = [*RUN[:4], "--hidden-size", "9"]
    with only_writer(folder / "locked", "all"):
        assert train(folder, model, "locked", *size) == 2
        assert [path.name for path in (folder / "locked").iterdir()] == [LOCK_FILE]
    shown = capsys.readouterr().err.splitlines()[-1]
    assert f"another run is writing into {folder / 'locked'}: wait for it" in shown


@pytest.mark.parametrize("model", ["kglm", "lstm", "rnn", "srnn"])
def test_help_is_quick(model):
    """It imports nothing heavy."""
    code = (
        "import sys\n"
        "from lm_latent_eval.cli import main\n"
        "try:\n"
        f"    main(['train', {model!r}, '--help'])\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'tokenizers', 'lm_eval', 'numpy'}\n"
        "    print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "--learning-rate" in done.stdout
    assert "heavy: []" in done.stdout


def test_a_missing_command_is_explained(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["kglm", "lstm", "srnn"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "train.jsonl"),
        ("", "train.jsonl has no text"),
        ('{"tokens": ["cut', "train.jsonl, line 1: "),
        (b"\xff\xfe", "train.jsonl is not UTF-8"),
    ],
)
def test_bad_data_ends_in_one_line(tmp_path, folder, capsys, model, content, message):
    if isinstance(content, str):
        content = content.encode()
    if content is not None:
        (tmp_path / "train.jsonl").write_bytes(content)
    (tmp_path / "dev.jsonl").write_bytes((folder / "dev.jsonl").read_bytes())
    assert train(tmp_path, model, "out") == 2
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
        (["--dev", "/"], "Is a directory"),
    ],
)
def test_bad_options_end_in_one_line(folder, capsys, option, message):
    assert train(folder, "lstm", "never", *LSTM, *option) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (folder / "never").exists()
