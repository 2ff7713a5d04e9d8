"""Latent models as languages: what they owe beside the laws of every language."""

import pytest
import torch

from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, PADDING, START, UNKNOWN
from tests import tiny_models
from tests.distortion.tiny import checkpoint, records, unlike
from tests.models.rnng.reference import every_prefix

OF_LANGUAGE = {0: START, 1: END, 2: 4, 3: 5}
"""Token of the tiny RNNG as a language -> its word id."""


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
    can = {name for name in MODELS if "log_marginal" in model_class(name).__dict__}
    assert can == {"rnng", "lstm"}
