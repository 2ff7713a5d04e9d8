"""Training of an RNNG on a corpus."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.distortion.learners.rnng import train_grammar
from lm_latent_eval.models import checkpoint as checkpoints
from lm_latent_eval.training.options import Options, RNNGSize
from tests.distortion.languages import tiny

SIZE = RNNGSize(hidden_size=6, num_layers=1, proposal_size=4, max_words=99, dropout=0.0)
OPTIONS = Options(epochs=4, learning_rate=2e-2)


def corpora(directory, language):
    return [
        Corpus.draw(
            language,
            directory / name,
            number,
            first=first,
            max_length=200,
            quiet=True,
        )
        for name, number, first in (("train", 120, 0), ("dev", 40, 1000))
    ]


@pytest.mark.parametrize(
    ("make", "objective"), [(tiny.pcfg, "supervised"), (tiny.regular, "unsupervised")]
)
def test_it_learns_with_all_words_of_the_language(tmp_path, make, objective):
    language = make()
    corpus, dev = corpora(tmp_path, language)
    ids = dev.dataset()["ids"]
    mean = {}
    for epochs in (1, 4):
        options = Options(epochs=epochs, learning_rate=2e-2)
        path = tmp_path / f"rnng{epochs}"
        train_grammar(
            corpus, dev, path, objective=objective, size=SIZE, options=options
        )
        learner = LatentLearner.load(path, dev, num_samples=10)
        mean[epochs] = learner.score(ids, dev.indices).log_p.mean().item()
    best = language.log_p(ids).mean().item()
    assert mean[1] < mean[4] < best
    # "never" is no word of the sample, but one of the language; there is no unknown.
    found = checkpoints.load_checkpoint(tmp_path / "rnng4")
    assert found.tokenizer.vocabulary == ["a", "b", "never"]
    generative = found.model.generative
    log_p = generative.log_words(
        generative.begin().top(torch.tensor([0])), torch.tensor([0])
    )[0]
    assert log_p.isfinite().tolist() == [False] * 4 + [True] * 3
    assert str(found.model.normalization) == "normalised"
    assert found.model.config.hidden_size == SIZE.hidden_size


def test_bad_corpora(tmp_path):
    corpus, _ = corpora(tmp_path / "pcfg", tiny.pcfg())
    drawn = Corpus.draw(tiny.causal(), tmp_path / "causal", 3, max_length=9, quiet=True)
    with pytest.raises(ValueError, match="its tokens are not words"):
        train_grammar(drawn, drawn, tmp_path / "rnng", size=SIZE)
    other = {**tiny.AMBIGUOUS, "words": ["b", "a", "never"]}
    _, dev = corpora(tmp_path / "other", type(tiny.pcfg())(other))
    with pytest.raises(ValueError, match="different words: draw both from one"):
        train_grammar(corpus, dev, tmp_path / "rnng", size=SIZE, options=OPTIONS)
