"""Languages by name: their files, what is wrong with them, and that of a corpus."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.loading import language_of, load_language
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.learners import words_of
from lm_latent_eval.models import checkpoint as checkpoints
from tests.distortion.tiny import REGULAR, checkpoint, draw, gpt2

WRONG_RULES = (
    (
        {"S": {"S S": 0.6, "a": 0.4}},
        "infinite: each rewriting leaves 1.2 symbols .* those of S$",
    ),
    ({"S": {"A": 1}, "A": {"B B": 0.7, "a": 0.3}, "B": {"A": 1}}, "those of A, B"),
    ({"S": {"a": 0.5, "b": 0.4}}, "rules of S: the probabilities total 0.9,"),
    ({"S": {"a": 1.5, "b": -0.5}}, "'a' has the probability 1.5"),
    ({"S": {"a": "1"}}, "'a' has '1'; expected a probability"),
    ({"S": {}}, "rules of S: expected names and their probabilities"),
    ({"S": {"a NP": 1}}, "S -> a NP: NP is neither a symbol with rules nor"),
    ({"S": {"a": 1}, "A": {"B": 1}, "B": {"a": 1}}, "nothing leads from S to A, B"),
    (
        {"S": {"a": 0.9, "A": 0.1}, "A": {"B a": 1}, "B": {"A b": 1}},
        "each rewriting leaves 1 symbols .* those of A, B",
    ),
    ({"S": {"a": 0.5, " ": 0.5}}, "S is rewritten as nothing"),
    ({"S": {"a b": 0.5, "a  b": 0.5}}, "S -> a  b stands there twice"),
    ({"S": {"a": 1}, "a": {"b": 1}}, "'a' is a word, and has"),
    ({"T": {"a": 1}}, "'S' .the start. for one"),
)
WRONG_WORDS = (
    ([], "at least one word"),
    ("ab", "at least one word"),
    (["a", "b c"], "'b c' is not a string without white space"),
    (["a", 3], "3 is not a string"),
    (["a", "b", "a"], "'a' stands there more than once"),
    (["a", "</s>"], "</s> stands for a begin or end"),
)


def test_a_wrong_grammar_is_told_what_is_wrong_with_it():
    grammar = {"kind": "pcfg", "start": "S", "words": ["a", "b"], "rules": {}}
    for changes, message in (
        *(({"rules": rules}, message) for rules, message in WRONG_RULES),
        *(({"words": words}, message) for words, message in WRONG_WORDS),
    ):
        with pytest.raises(ValueError, match=message):
            PCFG(grammar | changes)


def test_bad_files(tmp_path):
    path = tmp_path / "language.json"
    for text, message in (
        ("{", "is not the description of a language"),
        ("[]", "expected a JSON object"),
        ('{"kind": "dfa"}', "kind is 'dfa', expected 'pcfg'"),
        ('{"kind": "pcfg", "word": []}', r"missing or unknown: \['rules', 'start', 'w"),
        ('{"kind": "pcfg", "kind": "pcfg"}', "'kind' stands twice in one place"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message) as caught:
            load_language(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ValueError, match="not the description of a language"):
        load_language(tmp_path / "none.json")
    with pytest.raises(ValueError, match="is not a causal LM: it has no temperature"):
        load_language("agreement", temperature=0.5)


def test_rounded_probabilities_total_one():
    thirds = {"kind": "pcfg", "start": "S", "words": ["a", "b", "c"]}
    language = PCFG({**thirds, "rules": {"S": dict.fromkeys("abc", 0.3333333)}})
    p = language.log_p([[2, 1], [3, 1], [4, 1]]).exp()
    torch.testing.assert_close(p, torch.ones(3).double() / 3, rtol=0, atol=1e-15)


# The language that a corpus was drawn from


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
    known = corpus.read(corpus.indices)
    torch.testing.assert_close(
        again.log_p(known.sequences), known.log_p, rtol=0, atol=1e-10
    )
    if name == "rnng":
        assert words_of(corpus) == {2: "grow", 3: "plums"}
    # It may have been moved, but not changed.
    moved = tmp_path / name
    copy = shutil.copy if name.endswith("json") else shutil.copytree
    copy(folder / name, moved)
    assert language_of(corpus, moved, device="cpu").settings() == language.settings()
    with pytest.raises(ValueError, match="was not drawn from this language"):
        language_of(corpus, "agreement" if name != "walk.json" else folder / "rnng")


@pytest.mark.parametrize("language", [{}, [], {"kind": "causal"}, {"kind": "latent"}])
def test_a_corpus_that_names_no_language(language, tmp_path):
    corpus = draw(tmp_path, 3, language=load_language("agreement"))
    with pytest.raises(ValueError, match="does not say what language it was drawn"):
        language_of(replace(corpus, settings=corpus.settings | {"language": language}))


def test_options_that_a_language_has_not(folder):
    with pytest.raises(ValueError, match="is a latent LM: it has no end_id, temp"):
        load_language(folder / "rnng", temperature=0.5, end_id=1)
    with pytest.raises(ValueError, match="no such directory, and not a repository"):
        load_language(folder / "nothing")
