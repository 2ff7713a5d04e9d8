"""Languages by name, and the one that a corpus was drawn from."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from lm_latent_eval.distortion.catalog import language_of, load_language
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.latent import words_of
from lm_latent_eval.models import checkpoint as checkpoints
from tests.distortion.languages.tiny import REGULAR, gpt2
from tests.distortion.learners.tiny import checkpoint, draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One language of each kind, saved."""
    folder = tmp_path_factory.mktemp("languages")
    (folder / "walk.json").write_text(json.dumps(REGULAR))
    gpt2(torch.float32).save_pretrained(folder / "gpt2")
    rnng, words = checkpoint().model.float(), checkpoint().tokenizer
    checkpoints.save(rnng, words, folder / "rnng", rnng.state_dict())
    return folder


DOUBLE = {"device": "cpu", "dtype": "float64"}


@pytest.mark.parametrize(
    ("name", "options"),
    [("walk.json", {}), ("gpt2", DOUBLE | {"temperature": 0.7}), ("rnng", DOUBLE)],
)
def test_the_language_of_a_corpus(name, options, folder, tmp_path):
    language = load_language(folder / name, **options)
    assert language.settings().get("dtype", "float64") == "float64"
    corpus = draw(tmp_path / "corpus", 30, language=language, max_length=5)
    again = language_of(Corpus.open(tmp_path / "corpus"), device="cpu")
    assert again.settings() == language.settings()
    known = corpus.reader()(corpus.indices)
    torch.testing.assert_close(again.log_p(known.ids), known.log_p, rtol=0, atol=1e-10)
    if name == "rnng":
        assert words_of(corpus) == {2: "grow", 3: "plums"}
    # It may have been moved, but not changed.
    moved = tmp_path / name
    copy = shutil.copy if name.endswith("json") else shutil.copytree
    copy(folder / name, moved)
    assert language_of(corpus, moved, device="cpu").settings() == language.settings()
    with pytest.raises(ValueError, match="was not drawn from this language"):
        language_of(corpus, "agreement" if name != "walk.json" else folder / "rnng")


def test_options_that_a_language_has_not(folder):
    with pytest.raises(ValueError, match="is a latent LM: it has no end_id, temp"):
        load_language(folder / "rnng", temperature=0.5, end_id=1)
    with pytest.raises(ValueError, match="no such directory, and not a repository"):
        load_language(folder / "nothing")
