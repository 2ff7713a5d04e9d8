"""``distort score | measure | productivity | show`` as a user runs them."""

from __future__ import annotations

import json

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.columns import ScoresFolder
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import word_tokenizer
from tests.distortion.languages.tiny import REGULAR, gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A hidden Markov model, a corpus of it, and a causal LM of the same words."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "walk.json").write_text(json.dumps(REGULAR))
    sample = ["--language", f"{folder}/walk.json", "--output", f"{folder}/corpus"]
    numbers = ["--num-sequences", "60", "--max-length", "8"]
    assert main(["distort", "sample", *sample, *numbers]) == 0
    gpt2(torch.float32, vocab_size=5).save_pretrained(folder / "learner")
    word_tokenizer(REGULAR["words"]).save_pretrained(folder / "learner")
    return folder


def score(folder, *options):
    given = ["--learner", f"{folder}/learner", "--corpus", f"{folder}/corpus"]
    return main(["distort", "score", *given, "--device", "cpu", *options])


def test_score(folder, tmp_path):
    found = {}
    for name, number, options in (
        ("test", 60, ()),
        ("perturbed", 80, ("--perturb", "3", "--num-sequences", "20")),
        ("random", 30, ("--random", "--num-sequences", "30", "--mean-length", "4")),
    ):
        assert score(folder, *options, "--output", f"{tmp_path}/{name}") == 0
        found[name] = ScoresFolder.open(tmp_path / name).columns()
        assert len(found[name]) == number
    plain = found["perturbed"][found["perturbed"].edits == 0]
    assert torch.allclose(plain.model_log_p, found["test"].model_log_p[:20], atol=1e-4)


def test_what_cannot_be_scored(folder, tmp_path, capsys):
    for options, message in (
        (("--perturb", "0"), "num_edits=0: expected a whole number of at least 1"),
        (("--num-samples", "10"), "exact: it has no num_samples"),
        (("--random", "--language", "agreement"), "was not drawn from this"),
    ):
        assert score(folder, *options, "--output", f"{tmp_path}/out") == 2
        assert message in capsys.readouterr().err


def test_show(folder, capsys):
    assert main(["distort", "show", f"{folder}/corpus", "--num-sequences", "4"]) == 0
    said = capsys.readouterr().out.splitlines()
    corpus = Corpus.open(folder / "corpus")
    known = corpus.reader()(range(4))
    assert said[:2] == ["| x | log p |", "| --- | ---: |"]
    words = ["<s>", "</s>", *REGULAR["words"]]
    for line, ids, ended, log_p in zip(
        said[2:], known.ids, known.ended.tolist(), known.log_p.tolist(), strict=True
    ):
        text = " ".join(words[i] for i in (ids[:-1] if ended else ids))
        assert line == f"| {text}{'' if ended else ' …'} | {log_p:.4f} |"
    assert main(["distort", "show", f"{folder}/corpus", "--num-sequences", "0"]) == 2


def test_productivity(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("a plum and a plum\na river\n")
    given = ["--data", str(text), "--orders", "1", "2", "--output", f"{tmp_path}/out"]
    assert main(["distort", "productivity", *given]) == 0
    found = json.loads((tmp_path / "out" / "productivity.json").read_text())
    # Words: a 3, plum 2, and, river; pairs: a plum 2, plum and, and a, a river.
    assert found["1-grams"]["num_hapax"][-1] == 2
    assert found["1-grams"]["sample_sizes"][-1] == 7
    assert found["2-grams"]["productivity"][-1] == pytest.approx(3 / 5)
    assert found["whole texts"]["productivity"][-1] == 1
    assert "| 2-grams | 5 | 4 | 3 | 0.6 |" in capsys.readouterr().out
    given[3:5] = ["6"]
    assert main(["distort", "productivity", *given]) == 2
    assert "6-grams of words: " in capsys.readouterr().err
