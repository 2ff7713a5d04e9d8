"""Estimated and exact likelihoods of latent models as learners."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from lm_latent_eval.distortion.learners.latent import (
    EveryTree,
    LatentLearner,
    exact_vocabulary,
    words_of,
)
from lm_latent_eval.estimators import Bound
from lm_latent_eval.models import checkpoint as checkpoints
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START, WordTokenizer
from tests import tiny_checkpoint, tiny_models
from tests.distortion.languages import tiny
from tests.distortion.learners.tiny import (
    END_ID,
    IDS,
    WORDS,
    checkpoint,
    draw,
    sequences,
)
from tests.models.entitynlm.tiny import entitynlm
from tests.models.rnng.reference import every_tree, trees

SENTENCE = [2, 3, 3, 2, 3, END_ID]


def latent(given=None, words=WORDS, batch_size=None, **options) -> LatentLearner:
    how = ScoringOptions.parse({"estimator": "is"} | options)
    given = given or checkpoint()
    return LatentLearner(given, words, END_ID, how, batch_size=batch_size)


def lstm() -> Checkpoint:
    model, tokenizer = tiny_checkpoint.lstm(), tiny_checkpoint.tokenizer()
    return Checkpoint("lstm", model, tokenizer, Path("untrained"))


def test_an_estimate_depends_on_its_number_and_the_seed_alone():
    some = sequences(4)
    indices = [*range(100, 100 + len(some))]
    together = latent(num_samples=5, proposal="crf").score(some, indices)
    narrow = latent(num_samples=5, proposal="crf", batch_size=2).score(
        some[::-1], indices[::-1]
    )
    for name in ("log_p", "stderr"):
        one, other = getattr(narrow, name).flip(0), getattr(together, name)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    long = torch.tensor([len(ids) > 3 for ids in some])
    for other in (
        latent(num_samples=5, proposal="crf").score(some, [i + 1 for i in indices]),
        latent(num_samples=5, proposal="crf", seed=1).score(some, indices),
    ):
        assert (other.log_p != together.log_p)[long].double().mean() > 0.9


def test_numbers_are_those_of_the_model():
    """Where no sentence ends within a text, ``LatentModel`` says the same."""
    some = sequences(4)
    texts = [" ".join(WORDS[token] for token in ids[:-1]) for ids in some]
    for options in (
        {"num_samples": 6, "estimator": "is", "seed": 3, "temperature": 1.5},
        {"num_samples": 6, "estimator": "is", "proposal": "adapted"},
        {"num_samples": 4, "estimator": "auto"},
        {"num_samples": 3, "estimator": "beam"},
    ):
        model = LatentModel(checkpoint())
        expected = model.log_likelihood(texts, unk="closed", **options)
        found = latent(**options).score(some, range(len(some)))
        log_p = [estimate.log_evidence for estimate in expected]
        stderr = [estimate.draws_stderr for estimate in expected]
        assert found.log_p.tolist() == pytest.approx(log_p, rel=0, abs=1e-10)
        assert found.stderr.tolist() == pytest.approx(stderr, rel=0, abs=1e-10)
        bounds = {e.bound for e in expected} - {Bound.EXACT}  # of one tree
        assert bounds <= {latent(**options).bound}


def test_a_sequence_is_not_cut_into_sentences():
    words = {2: "Plums", 3: "."}
    given = checkpoint(["Plums", "."])
    assert len(given.model.sentence_starts("Plums . Plums .")) == 2, "premise"
    ids = [2, 3, 2, 3, END_ID]
    expected = EveryTree(given, words, END_ID).score([ids], [0]).log_p
    found = latent(given, words, estimator="beam", num_samples=5).score([ids], [0])
    torch.testing.assert_close(found.log_p, expected, rtol=0, atol=1e-10)
    cut = LatentModel(given).log_likelihood(
        ["Plums . Plums ."], estimator="beam", num_samples=5, unk="closed"
    )
    assert abs(cut[0].log_evidence - expected.item()) > 0.1


def test_a_model_without_latents_is_exact():
    """Its sequences may be empty; all of them and longer beginnings total one."""
    words = dict(enumerate(tiny_checkpoint.UTTERED, start=2))
    learner = latent(lstm(), words, estimator=None)
    some = [[*ids, END_ID] for n in range(3) for ids in product(words, repeat=n)]
    found = learner.score(some, range(len(some)))
    texts = [" ".join(words[token] for token in ids[:-1]) for ids in some]
    alone = LatentModel(lstm()).log_likelihood(texts, unk="closed")
    expected = [estimate.log_evidence for estimate in alone]
    assert found.log_p.tolist() == pytest.approx(expected, abs=1e-10)
    assert found.stderr.tolist() == [0.0] * len(some)
    assert learner.bound is Bound.EXACT
    assert 0.01 < found.log_p.exp().sum() < 1


def test_a_sentence_has_words():
    found = latent(num_samples=4).score([[END_ID], SENTENCE], [0, 1])
    assert found.log_p[0] == exact().score([[END_ID]]).log_p[0] == -torch.inf
    assert found.log_p[1].isfinite()
    assert latent().score([], []).log_p.shape == (0,)


def test_words_that_the_model_lacks_or_cuts():
    few = WordTokenizer.train(["plums plums grow grow"])
    words = {2: "plums", 3: "pears", 4: "figs", 5: "<unk>"}
    for given, message in (
        (words, "lacks 3 of 4 words of the language: pears, figs, <unk>"),
        (WORDS | {4: "plum-", 5: "(a)"}, r"one in the language: plum-, \(a\)"),
        ({i: f"w{i}" for i in range(2, 14)}, r"w2, .*, w11 and 2 more"),
    ):
        with pytest.raises(ValueError, match=message):
            latent(replace(checkpoint(), words=few), given)
    with pytest.raises(ValueError, match="words that are marks: <unk>; rename"):
        exact_vocabulary(["a", "<unk>"])


def test_sequences_that_have_no_probability():
    for given, message in (
        ([[2, 1], [], [2, 1]], "1 of 3 sequences have no end, number 8 the first"),
        ([[2, 1, 2, 1], [2, 1], [2, 1]], "sequence 7 goes on after its end"),
        ([[2, 1], [2, 1], [2, 0, 1]], "sequence 9 has the token id 0, which is no"),
    ):
        with pytest.raises(ValueError, match=message):
            latent().score(given, [7, 8, 9])


def test_models_and_options_that_do_not_apply():
    srnn = replace(checkpoint(), name="srnn", model=tiny_models.srnn())
    with pytest.raises(ValueError, match=r"no distribution over texts \(unnormalised"):
        latent(srnn)
    endless = checkpoint(sentence_ends=False)
    with pytest.raises(ValueError, match=r"\(no distribution over lengths\)"):
        latent(endless)
    with pytest.raises(ValueError, match=r"target_stderr: .* give num_samples"):
        latent(target_stderr=0.1)
    with pytest.raises(ValueError, match="unk='spelled': a learner knows every word"):
        latent(unk="spelled")


# Exact sums


def exact(**options):
    return EveryTree(checkpoint(), WORDS, END_ID, **options)


def test_it_sums_over_every_tree():
    model, some = checkpoint().model, sequences(5)
    expected = []
    for ids in some:
        listed = trees([every_tree(len(ids) - 1)], "eos")
        batch = TokenBatch.collate([[IDS[token] for token in ids]], first=START)
        expected.append(model.log_joint(model.encode(batch), listed).logsumexp(-1)[0])
    found = exact().score(some, range(len(some)))
    torch.testing.assert_close(found.log_p, torch.stack(expected), rtol=0, atol=1e-10)
    assert found.stderr.tolist() == [0.0] * len(some)
    assert exact().bound is Bound.EXACT


def test_sequences_that_cannot_be_summed():
    learner = exact(max_words=3)
    message = "2 of 3 sequences have more than 3 words: number 8 has 4, and 5 trees"
    with pytest.raises(ValueError, match=message):
        learner.score([[2, 1], [2, 2, 2, 2, 1], [2, 3, 2, 3, 1]], [7, 8, 9])
    with pytest.raises(ValueError, match="1 of 1 sequences have no end"):
        learner.score([[2, 2]], [7])
    with pytest.raises(ValueError, match="max_words=0: expected a whole number"):
        exact(max_words=0)
    with pytest.raises(ValueError, match="holds a entitynlm model, whose latents"):
        EveryTree(replace(checkpoint(), name="entitynlm", model=entitynlm()), WORDS, 1)


# Files


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
    learner = LatentLearner.load(path, corpus, **options)
    rows = corpus.dataset()
    found = learner.score(rows["ids"], corpus.indices)
    assert found.log_p.isfinite().all()
    settings = learner.settings()
    assert settings["digest"] == checkpoints.load_checkpoint(path).digest
    assert (options | {"seed": 0}).items() < settings.items()
    exact = EveryTree.load(path, corpus, max_words=4, dtype="float32")
    assert exact.settings()["dtype"] == "float32"
    short = [list(ids) for ids in rows["ids"] if len(ids) <= 5]
    assert len(short) > 10, "premise"
    beam = LatentLearner.load(path, corpus, estimator="beam", num_samples=5)
    one, other = (each.score(short, range(len(short))).log_p for each in (exact, beam))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_corpora_that_cannot_be_scored(tmp_path):
    path = saved(tmp_path / "rnng")
    cut = draw(tmp_path / "cut", 40, language=tiny.pcfg(), max_length=3)
    number = sum(ids[-1] != 1 for ids in cut.dataset()["ids"])
    assert 0 < number < 40, "premise"
    message = f"{number} of 40 sequences of .* cut at 3 tokens, .* larger --max-length"
    for kind in (LatentLearner, EveryTree):
        with pytest.raises(ValueError, match=message):
            kind.load(path, cut)
    pieces = draw(tmp_path / "pieces", 4, language=tiny.causal())
    with pytest.raises(ValueError, match="its tokens are not words"):
        LatentLearner.load(path, pieces)
