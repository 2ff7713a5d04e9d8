"""How texts are written is learned beside a model."""

from __future__ import annotations

import tempfile

from lm_latent_eval.models.learning import learn_orthography
from lm_latent_eval.text.words import WordTokenizer
from lm_latent_eval.training.options import Options

TEXTS = ["The fox saw a plum.", "A plum fell, and the fox ran."]


def test_training_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tokenizer = WordTokenizer.train(TEXTS, min_count=1)
    found = learn_orthography(TEXTS, tokenizer, options=Options(epochs=1))
    assert found.spelling.alphabet, "premise: it was trained"
    assert not [*tmp_path.glob("*training*")]
