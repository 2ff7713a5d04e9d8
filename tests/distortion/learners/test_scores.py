"""Scores of corpora, perturbed and random sequences, against the models themselves.

Causal learners that do not fit; ``distort score`` as a user runs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from lm_latent_eval.cli import main
from lm_latent_eval.distortion.catalog import language_of, load_learner
from lm_latent_eval.distortion.columns import (
    ScoresFolder,
)
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.learners.scores import score_sequences
from lm_latent_eval.distortion.sources import (
    Perturbation,
    Perturbed,
    Random,
    Unchanged,
    random_sequence,
)
from lm_latent_eval.estimators import Bound
from lm_latent_eval.scoring.sequence_scorer import LogLikelihoods
from tests.distortion.languages.tiny import REGULAR, gpt2, pcfg, regular
from tests.distortion.learners.tiny import draw

LENGTH = 6


@dataclass
class Guess:
    """A model whose numbers say which row and which tokens they are of."""

    asked: int = 0
    bound = Bound.STOCHASTIC_LOWER

    def score(self, sequences, indices, /) -> LogLikelihoods:
        self.asked += len(indices)
        rows = zip(indices, sequences, strict=True)
        log_p = [-i - sum(ids) / 1000 for i, ids in rows]
        numbers = torch.tensor(log_p, dtype=torch.float64)
        return LogLikelihoods(numbers, torch.full_like(numbers, 0.5))

    def settings(self):
        return {"kind": "guess"}


@pytest.fixture(params=[pcfg, regular])
def corpus(request, tmp_path):
    how = {"language": request.param(), "max_length": LENGTH}
    return draw(tmp_path / "corpus", 40, first=3, **how)


def test_a_corpus(corpus, tmp_path):
    guess, source = Guess(), Unchanged(corpus, num_sequences=30)
    for _ in range(2):
        scores = score_sequences(guess, source, tmp_path / "out", quiet=True)
    assert guess.asked == 1 + 30, "one to see whether it can be done, and none twice"
    found, known = scores.columns(), corpus.read(range(3, 33))
    ended = [ids[-1] == 1 for ids in known.sequences]
    assert found.index.tolist() == [*range(3, 33)]
    assert found.true_log_p.equal(known.log_p)
    assert found.ended.tolist() == ended
    assert len({*found.ended.tolist()}) == 2, "premise"
    assert found.num_tokens.tolist() == [*map(len, known.sequences)]
    expected = Guess().score(known.sequences, found.index.tolist())
    assert found.model_log_p.equal(expected.log_p)
    assert found.stderr.equal(expected.stderr)
    assert scores.settings["bound"] == str(Bound.STOCHASTIC_LOWER)
    with pytest.raises(ValueError, match=r"num_sequences=41: .* has 40"):
        score_sequences(Guess(), Unchanged(corpus, num_sequences=41), tmp_path / "more")


def test_perturbed(corpus, tmp_path, monkeypatch):
    module = "lm_latent_eval.distortion.learners.scores"
    monkeypatch.setattr(f"{module}._ROWS_AT_ONCE", 20)
    monkeypatch.setattr(f"{module}._SHARD_ROWS", 50)
    language = language_of(corpus)
    source = Perturbed(corpus, language, num_edits=4, seed=7)
    score_sequences(Guess(), source, tmp_path / "out", quiet=True)
    found = ScoresFolder.open(tmp_path / "out").columns()
    assert len(found) == 40 * 5
    perturbation = Perturbation([2, 3, 4], 1, LENGTH)
    for row in range(len(found)):
        index, edits = 3 + row // 5, row % 5
        (ids,) = corpus.read(range(index, index + 1)).sequences
        new = perturbation.steps(ids, 4, seed=7, index=index)[edits]
        assert (found.index[row], found.edits[row]) == (index, edits)
        assert found.num_tokens[row] == len(new)
        assert found.ended[row] == (new[-1] == 1)
        expected = language.log_p([new])[0]
        assert found.true_log_p[row] == pytest.approx(expected.item(), rel=1e-12)
        assert found.model_log_p[row] == Guess().score([new], [5 * index + edits]).log_p
    plain, known = found[found.edits == 0], corpus.read(corpus.indices).log_p
    assert torch.allclose(plain.true_log_p, known, rtol=1e-12, atol=0)
    assert found.impossible.any(), "premise: some are not of the language"
    assert not plain.impossible.any()


def test_random(corpus, tmp_path):
    source = Random(corpus, language_of(corpus), 2.0, seed=1, num_sequences=25)
    found = score_sequences(Guess(), source, tmp_path / "out", quiet=True).columns()
    how = {"max_length": LENGTH, "mean_length": 2.0, "seed": 1}
    drawn = [random_sequence([2, 3, 4], 1, index=i, **how) for i in range(25)]
    assert found.index.tolist() == [*range(25)]
    assert found.num_tokens.tolist() == [len(ids) for ids in drawn]
    expected = language_of(corpus).log_p(drawn)
    assert torch.allclose(found.true_log_p, expected, rtol=1e-12, atol=0)
    assert found.model_log_p.equal(Guess().score(drawn, range(25)).log_p)


def test_what_does_not_fit_is_refused(tmp_path):
    def save(name, model, words=("a", "b", "never")):
        model.save_pretrained(tmp_path / name)
        word_tokenizer(words).save_pretrained(tmp_path / name)

    corpus = draw(tmp_path / "corpus", 5)
    longer = draw(tmp_path / "longer", 5, max_length=13)
    save("other", gpt2(vocab_size=5), ["a", "c", "never"])
    save("more", gpt2(vocab_size=6))
    save("short", gpt2(vocab_size=5))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertConfig(vocab_size=5, intermediate_size=8, initializer_range=1.0, **sizes)
    save("bert", BertLMHeadModel(bert))
    gpt2(vocab_size=5).save_pretrained(tmp_path / "bare")
    for name, data, message in (
        ("missing", corpus, "missing: no such directory, and not a repository"),
        ("other", corpus, r"token 3 is 'c' for .* and 'b' for"),
        ("more", corpus, r"has 6 token ids and .* has 5"),
        ("bare", corpus, "bare has no tokenizer"),
        ("short", longer, "12 positions, but sequences have up to 13"),
        ("bert", corpus, "sees the tokens that follow: it is no causal"),
    ):
        with pytest.raises(ValueError, match=message):
            load_learner(tmp_path / name, data)


# -- commands -----------------------------------------------------------------------


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


def test_score(folder, tmp_path, capsys):
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
    for options, message in (
        (("--perturb", "0"), "num_edits=0: expected a whole number of at least 1"),
        (("--num-samples", "10"), "exact: it has no num_samples"),
        (("--random", "--mean-length", "0"), "mean_length=0.0: expected a positive"),
        (("--random", "--language", "agreement"), "was not drawn from this"),
    ):
        assert score(folder, *options, "--output", f"{tmp_path}/out") == 2
        assert message in capsys.readouterr().err
