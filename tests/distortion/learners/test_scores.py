"""Scores of corpora, perturbed and random sequences, against the models themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from lm_latent_eval.distortion.catalog import language_of
from lm_latent_eval.distortion.columns import ScoresFolder
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
from tests.distortion.languages.tiny import pcfg, regular
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
    guess, source = Guess(), Unchanged(corpus, 30)
    for _ in range(2):
        scores = score_sequences(guess, source, tmp_path / "out", quiet=True)
    assert guess.asked == 1 + 30, "one to see whether it can be done, and none twice"
    found, known = scores.columns(), corpus.reader()(range(3, 33))
    assert found.index.tolist() == [*range(3, 33)]
    assert found.true_log_p.equal(known.log_p)
    assert found.ended.equal(known.ended)
    assert len({*found.ended.tolist()}) == 2, "premise"
    assert found.num_tokens.tolist() == [len(ids) for ids in known.ids]
    expected = Guess().score(known.ids, found.index.tolist())
    assert found.model_log_p.equal(expected.log_p)
    assert found.stderr.equal(expected.stderr)
    assert scores.settings["bound"] == str(Bound.STOCHASTIC_LOWER)
    with pytest.raises(ValueError, match=r"num_sequences=41: .* has 40"):
        score_sequences(Guess(), Unchanged(corpus, 41), tmp_path / "more")


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
    read = corpus.reader()
    for row in range(len(found)):
        index, edits = 3 + row // 5, row % 5
        (ids,) = read(range(index, index + 1)).ids
        new = perturbation.steps(ids, 4, seed=7, index=index)[edits]
        assert (found.index[row], found.edits[row]) == (index, edits)
        assert found.num_tokens[row] == len(new)
        assert found.ended[row] == (new[-1] == 1)
        expected = language.log_p([new])[0]
        assert found.true_log_p[row] == pytest.approx(expected.item(), rel=1e-12)
        assert found.model_log_p[row] == Guess().score([new], [5 * index + edits]).log_p
    plain = found[found.edits == 0]
    assert torch.allclose(
        plain.true_log_p, read(corpus.indices).log_p, rtol=1e-12, atol=0
    )
    assert found.impossible.any(), "premise: some are not of the language"
    assert not plain.impossible.any()


def test_random(corpus, tmp_path):
    source = Random(corpus, language_of(corpus), 25, mean_length=2.0, seed=1)
    found = score_sequences(Guess(), source, tmp_path / "out", quiet=True).columns()
    how = {"max_length": LENGTH, "mean_length": 2.0, "seed": 1}
    drawn = [random_sequence([2, 3, 4], 1, index=i, **how) for i in range(25)]
    assert found.index.tolist() == [*range(25)]
    assert found.num_tokens.tolist() == [len(ids) for ids in drawn]
    expected = language_of(corpus).log_p(drawn)
    assert torch.allclose(found.true_log_p, expected, rtol=1e-12, atol=0)
    assert found.model_log_p.equal(Guess().score(drawn, range(25)).log_p)
