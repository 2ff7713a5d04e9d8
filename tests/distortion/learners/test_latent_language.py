"""Latent models as languages: what they owe beside the laws of every language."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.models import MODELS, model_class
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, PADDING, START, UNKNOWN
from tests import tiny_models
from tests.distortion.languages.tiny import records
from tests.distortion.learners.tiny import LATENT, unlike
from tests.distortion.learners.tiny import checkpoint as rnng
from tests.means import p_value
from tests.models.rnng.reference import every_prefix


def opinionated() -> Checkpoint:
    """An RNNG whose words tell much of their trees."""
    given = rnng(seed=2, spread=1.0)
    generative = given.model.generative
    for even in (generative.bias, generative.action.bias):
        even.zero_()
    generative.embeddings.weight.mul_(3)
    return given


def listed(given: Checkpoint, sequences: list[list[int]]) -> torch.Tensor:
    """Log p of sequences of the tiny RNNG's words, by a list of all histories."""
    found = []
    for ids in sequences:
        text = [{0: START, 1: END}.get(token, token + 2) for token in ids]
        batch = TokenBatch.collate([text], first=START)
        histories = every_prefix(len(text), end=text[-1] == END)
        log_p = given.model.log_joint(given.model.encode(batch), histories)
        found.append(log_p.logsumexp(-1))
    return torch.cat(found)


def test_draws_are_from_the_marginal(monkeypatch):
    """They are not if a latent is drawn without regard to the word that follows it."""
    given = opinionated()
    every, number = records(LatentLanguage(given), 5), 3000
    p = listed(given, every).exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    expected = dict(zip(map(tuple, every), (number * p).tolist(), strict=True))

    def drawn() -> Counter[tuple[int, ...]]:
        found = LatentLanguage(given).sample(0, range(number), 5)
        return Counter(map(tuple, found.sequences))

    assert p_value(drawn(), expected) > 1e-3
    blind = given.model.proposal("prior")
    monkeypatch.setattr(given.model, "proposal", lambda _: blind)
    assert p_value(drawn(), expected) < 1e-6


def test_log_p_sums_over_every_history():
    given = rnng()
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


@pytest.mark.parametrize("make", LATENT.values(), ids=LATENT)
def test_batches_move_nothing(make):
    language, narrow = make(), make(batch_size=7)
    one, other = language.sample(4, range(60), 6), narrow.sample(4, range(60), 6)
    assert one.sequences == other.sequences
    torch.testing.assert_close(one.log_p, other.log_p, rtol=0, atol=1e-12)


def test_words_are_those_that_can_be_uttered():
    assert LatentLanguage(rnng()).words == ("grow", "plums")
    unknown = LatentLanguage(rnng(never_uttered=[PADDING, START]))
    assert unknown.words == ("<unk>", "grow", "plums")
    total = unknown.log_p(records(unknown, 3)).exp().sum().item()
    assert total == pytest.approx(1, abs=1e-12)
    # A word that can only be copied is none of them.
    assert LatentLanguage(unlike("rnn")).words == ("<unk>", "the")


def test_a_sequence_with_too_many_latents_is_refused():
    language = LatentLanguage(rnng(), max_words=4)
    assert language.log_p([[2] * 4, [2] * 4 + [1]]).isfinite().all()
    message = r"2 of 3 sequences have more than 4 words: sequence 1 has 5, and 14 lat"
    with pytest.raises(ValueError, match=rf"{message}.* a smaller max_length"):
        language.log_p([[2, 1], [2] * 5, [2] * 6 + [1]])
    message = "max_length=5: .* 5 words, and 14 latents .* max_length of 4 or less"
    with pytest.raises(ValueError, match=message):
        language.sample(0, [0], 5)
    without = LatentLanguage(unlike("lstm"), max_words=1)
    assert without.log_p([[2] * 99]).isfinite()


def test_models_that_are_no_languages():
    kglm = unlike("kglm", tiny_models.full_graph())
    for given, message in (
        (unlike("srnn"), r"do not \(unnormalised\)"),
        (kglm, "holds a kglm model, whose latents cannot be summed"),
        (rnng(sentence_ends=False), r"do not \(no distribution over lengths\)"),
        (rnng(never_uttered=[PADDING]), r"do not \(sub-normalised\)"),
        (rnng(never_uttered=[PADDING, START, END]), "never utters the end of a text"),
        (rnng(["grow", "New York"]), r"untrained: .*'New York' is not a str"),
    ):
        with pytest.raises(ValueError, match=message):
            LatentLanguage(given)
    can = {name for name in MODELS if hasattr(model_class(name), "log_marginal")}
    assert can == {"rnng", "lstm", "rnn"}
