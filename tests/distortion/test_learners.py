"""Learners: estimates of latent models, and models that do not fit a corpus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel

from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.learners import (
    LatentLearner,
    load_learner,
    words_of,
)
from lm_latent_eval.estimators import Bound
from lm_latent_eval.models import checkpoint as checkpoints
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.text.words import WordTokenizer
from tests import tiny_checkpoint, tiny_models
from tests.distortion import tiny
from tests.distortion.tiny import (
    END_ID,
    WORDS,
    checkpoint,
    draw,
    gpt2,
    sequences,
)


def latent(given=None, words=WORDS, batch_size=None, **options) -> LatentLearner:
    options = {"estimator": "is"} | options
    given = given or checkpoint()
    return LatentLearner(given, words, END_ID, batch_size=batch_size, **options)


def named(*indices: int) -> list[str]:
    """Names as ``LatentModel`` gives them to texts."""
    return [f"text/{index}" for index in indices]


WITHOUT = Checkpoint(
    "lstm", tiny_checkpoint.lstm(), tiny_checkpoint.tokenizer(), Path("untrained")
)
RNNG = checkpoint()
NUMBERS = [
    (RNNG, {"num_samples": 6, "estimator": "is", "seed": 3, "temperature": 1.5}),
    (RNNG, {"num_samples": 6, "estimator": "is", "proposal": "adapted"}),
    (RNNG, {"num_samples": 4, "estimator": "auto"}),
    (RNNG, {"num_samples": 3, "estimator": "beam"}),
    (WITHOUT, {"estimator": None}),
]


@pytest.mark.parametrize(("given", "options"), NUMBERS)
def test_numbers_are_those_of_the_model(given, options):
    """Where no sentence ends within a text, ``LatentModel`` says the same of that one.

    In another order and in other batches: numbers follow from those of the sequences.
    Those of a model without latents may be empty.
    """
    exact = given is WITHOUT
    words = dict(enumerate(tiny_checkpoint.UTTERED, start=2)) if exact else WORDS
    some = [[END_ID]] * exact + sequences(4)
    texts = [" ".join(words[token] for token in ids[:-1]) for ids in some]
    expected = LatentModel(given).log_likelihood(texts, unk="closed", **options)
    learner = latent(given, words, batch_size=2, **options)
    found = learner.score(some[::-1], named(*range(len(some)))[::-1])
    log_p = [estimate.log_evidence for estimate in expected[::-1]]
    stderr = [estimate.draws_stderr for estimate in expected[::-1]]
    assert found.log_p.tolist() == pytest.approx(log_p, rel=0, abs=1e-10)
    assert found.stderr.tolist() == pytest.approx(stderr, rel=0, abs=1e-10)
    bounds = {e.bound for e in expected} - {Bound.EXACT}  # of one tree
    assert bounds <= {learner.bound}
    assert (learner.bound is Bound.EXACT) == exact


def test_a_sequence_is_not_cut_into_sentences():
    words = {2: "Plums", 3: "."}
    given = checkpoint(["Plums", "."])
    assert len(given.model.sentence_starts("Plums . Plums .")) == 2, "premise"
    ids = [2, 3, 2, 3, END_ID]
    expected = LatentLanguage(given).log_p([ids])
    found = latent(given, words, estimator="beam", num_samples=5).score([ids], named(0))
    torch.testing.assert_close(found.log_p, expected, rtol=0, atol=1e-10)
    cut = LatentModel(given).log_likelihood(
        ["Plums . Plums ."], estimator="beam", num_samples=5, unk="closed"
    )
    assert abs(cut[0].log_evidence - expected.item()) > 0.1


def test_a_sentence_has_words():
    found = latent(num_samples=4).score(
        [[END_ID], [2, 3, 3, 2, 3, END_ID]], named(0, 1)
    )
    assert found.log_p[0] == -torch.inf
    assert found.log_p[1].isfinite()
    assert latent().score([], []).log_p.shape == (0,)


def test_words_that_the_model_lacks_or_cuts():
    few = WordTokenizer.train(["plums plums grow grow"])
    words = {2: "plums", 3: "pears", 4: "figs", 5: "<unk>"}
    for given, message in (
        (
            words,
            "3 of 4 words of .* known word of the checkpoint's: pears, figs, <unk>",
        ),
        (WORDS | {4: "plum-", 5: "(a)"}, r"checkpoint's: plum-, \(a\)"),
        ({i: f"w{i}" for i in range(2, 14)}, r"w2, .*, w11 and 2 more"),
    ):
        with pytest.raises(ValueError, match=message):
            latent(replace(checkpoint(), words=few), given)


def test_sequences_that_have_no_probability():
    for given, message in (
        ([[2, 1], [], [2, 1]], r"text/8 is \[\]: expected one end"),
        ([[2, 1], [2, 1], [2, 3]], r"text/9 is \[2, 3\]: expected one end"),
        ([[2, 1, 2, 1], [2, 1], [2, 1]], "text/7 is .*: expected one end"),
        ([[2, 1], [2, 1], [2, 0, 1]], "text/9 has the token id 0, which is no"),
    ):
        with pytest.raises(ValueError, match=message):
            latent().score(given, named(7, 8, 9))


def test_models_and_options_that_do_not_apply():
    srnn = replace(checkpoint(), name="srnn", model=tiny_models.srnn())
    with pytest.raises(ValueError, match=r"no distribution over texts \(unnormalised"):
        latent(srnn)
    endless = checkpoint(sentence_ends=False)
    with pytest.raises(ValueError, match=r"\(no distribution over lengths\)"):
        latent(endless)
    with pytest.raises(ValueError, match=r"no option of .*: bounds, unk"):
        latent(bounds="both", unk="spelled")


def saved(directory: Path) -> Path:
    """An RNNG over the words of the tiny grammar."""
    given = checkpoint(["b", "never", "a"])
    model, tokenizer = given.model, given.tokenizer
    checkpoints.save(model, tokenizer, directory, model.state_dict())
    return directory


def test_from_files(tmp_path):
    corpus = draw(tmp_path / "corpus", 40, language=tiny.pcfg(), max_length=99)
    assert words_of(corpus) == {2: "a", 3: "b", 4: "never"}
    path = saved(tmp_path / "rnng")
    options = {"estimator": "is", "num_samples": 7, "proposal": "prior"}
    learner = load_learner(path, corpus, **options)
    rows = corpus.dataset()
    found = learner.score(rows["ids"], named(*corpus.indices))
    assert found.log_p.isfinite().all()
    settings = learner.settings()
    assert settings["digest"] == checkpoints.load_checkpoint(path).digest
    assert (options | {"seed": 0}).items() < settings.items()


def test_corpora_that_cannot_be_scored(tmp_path):
    path = saved(tmp_path / "rnng")
    cut = draw(tmp_path / "cut", 40, language=tiny.pcfg(), max_length=3)
    number = sum(ids[-1] != 1 for ids in cut.dataset()["ids"])
    assert 0 < number < 40, "premise"
    message = f"{number} of 40 sequences of .* cut at 3 tokens, .* larger --max-length"
    with pytest.raises(ValueError, match=message):
        load_learner(path, cut)
    pieces = draw(tmp_path / "pieces", 4, language=tiny.causal())
    with pytest.raises(ValueError, match="its tokens are not words"):
        load_learner(path, pieces)


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
