"""Latent models as learners and as languages: estimates and exact sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lm_latent_eval.distortion.catalog import load_learner
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.learners.latent import (
    LatentLearner,
    words_of,
)
from lm_latent_eval.estimators import Bound
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.models import checkpoint as checkpoints
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, PADDING, START, UNKNOWN, WordTokenizer
from tests import tiny_checkpoint, tiny_models
from tests.distortion.languages import tiny
from tests.distortion.languages.tiny import records
from tests.distortion.learners.tiny import (
    END_ID,
    WORDS,
    checkpoint,
    draw,
    sequences,
    unlike,
)
from tests.models.rnng.reference import every_prefix

OF_LANGUAGE = {0: START, 1: END, 2: 4, 3: 5}
"""Token of the tiny RNNG as a language -> its word id."""


def latent(given=None, words=WORDS, batch_size=None, **options) -> LatentLearner:
    how = ScoringOptions.parse({"estimator": "is"} | options)
    given = given or checkpoint()
    return LatentLearner(given, words, END_ID, how, batch_size=batch_size)


def listed(given: Checkpoint, sequences) -> torch.Tensor:
    """Log p of sequences of a tiny RNNG's words, by a list of all histories."""
    found = []
    for tokens in sequences:
        text = [OF_LANGUAGE[token] for token in tokens]
        batch = TokenBatch.collate([text], first=START)
        histories = every_prefix(len(text), end=text[-1] == END)
        log_p = given.model.log_joint(given.model.encode(batch), histories)
        found.append(log_p.logsumexp(-1))
    return torch.cat(found)


# -- learners ------------------------------------------------------------------------


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
    found = learner.score(some[::-1], range(len(some))[::-1])
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
    found = latent(given, words, estimator="beam", num_samples=5).score([ids], [0])
    torch.testing.assert_close(found.log_p, expected, rtol=0, atol=1e-10)
    cut = LatentModel(given).log_likelihood(
        ["Plums . Plums ."], estimator="beam", num_samples=5, unk="closed"
    )
    assert abs(cut[0].log_evidence - expected.item()) > 0.1


def test_a_sentence_has_words():
    found = latent(num_samples=4).score([[END_ID], [2, 3, 3, 2, 3, END_ID]], [0, 1])
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
        ([[2, 1], [], [2, 1]], r"sequence 8 is \[\]: expected one end"),
        ([[2, 1], [2, 1], [2, 3]], r"sequence 9 is \[2, 3\]: expected one end"),
        ([[2, 1, 2, 1], [2, 1], [2, 1]], "sequence 7 is .*: expected one end"),
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
    found = learner.score(rows["ids"], corpus.indices)
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


# -- languages: what they owe beside the laws of every language ----------------------


def test_log_p_sums_over_every_history():
    given = checkpoint()
    some = [ids for n in (1, 2, 4) for ids in records(LatentLanguage(given), n)]
    some += [[2, 3, 3, 2, 3, 1], [3, 3, 2, 2, 3, 2]]
    expected = listed(given, some)
    found = LatentLanguage(given).log_p(some)
    assert 0 < found.isneginf().sum() < len(some), "begin ids, and no words at all"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_log_p_without_latents_is_a_chain_of_predictions():
    given = unlike("lstm")
    ids = {0: START, 1: END, 2: UNKNOWN, 3: tiny_models.KNOWN}
    for sequence in ([3, 2, 3, 1], [2, 2, 3], [1]):
        text = [ids[token] for token in sequence]
        known, hidden = torch.tensor([START, *text[:-1]]), None
        values = given.model.embeddings(known)[None]
        hidden, _ = given.model.rnn(values, torch.tensor([len(text)]), None)
        expected = given.model.log_probs(hidden[0])[range(len(text)), text].sum()
        found = LatentLanguage(given).log_p([sequence])
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-12)


def test_words_are_those_that_can_be_uttered():
    assert LatentLanguage(checkpoint()).words == ("grow", "plums")
    unknown = LatentLanguage(checkpoint(never_uttered=[PADDING, START]))
    assert unknown.words == ("<unk>", "grow", "plums")
    total = unknown.log_p(records(unknown, 3)).exp().sum().item()
    assert total == pytest.approx(1, abs=1e-12)
    # A word that can only be copied is none of them.
    assert LatentLanguage(unlike("lstm")).words == ("<unk>", "the")


def test_a_sequence_with_too_many_latents_is_refused():
    language = LatentLanguage(checkpoint())
    assert language.log_p([[2] * 10, [2] * 10 + [1]]).isfinite().all()
    message = r"2 of 3 sequences have more than 10 words: sequence 1 has 11, and 16,796"
    with pytest.raises(ValueError, match=rf"{message}.* a smaller max_length"):
        language.log_p([[2, 1], [2] * 11, [2] * 12 + [1]])
    message = "max_length=11: .* 11 words, and 16,796 latents .* of 10 or less"
    with pytest.raises(ValueError, match=message):
        language.sample(0, [0], 11)
    without = LatentLanguage(unlike("lstm"))
    assert without.log_p([[2] * 99]).isfinite()


def test_models_that_are_no_languages():
    kglm = unlike("kglm", tiny_models.full_graph())
    for given, message in (
        (unlike("srnn"), r"do not \(unnormalised\)"),
        (kglm, "holds a kglm model, whose latents cannot be summed"),
        (checkpoint(sentence_ends=False), r"do not \(no distribution over lengths\)"),
        (checkpoint(never_uttered=[PADDING]), r"do not \(sub-normalised\)"),
        (
            checkpoint(never_uttered=[PADDING, START, END]),
            "never utters the end of a text",
        ),
        (checkpoint(["grow", "New York"]), r"untrained: .*'New York' is not a str"),
    ):
        with pytest.raises(ValueError, match=message):
            LatentLanguage(given)
    can = {name for name in MODELS if hasattr(model_class(name), "log_marginal")}
    assert can == {"rnng", "lstm"}
