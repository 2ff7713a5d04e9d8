"""What only models of topics and their facts owe: LRLM and NKLM."""

import pytest
import torch

from lm_latent_eval.latent import NO_LATENT, Normalization
from lm_latent_eval.models.lrlm.latents import Readings
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.nklm.latents import Copies
from tests.models.lrlm.tiny import lrlm
from tests.models.nklm.tiny import every_copy, nklm
from tests.tiny_models import COPIED, KNOWN, SYMBOLS, batch


def test_a_topic_that_is_given_is_a_condition():
    """The sum over topics of prior and likelihood is p of the text."""
    model = lrlm()
    words = torch.tensor(SYMBOLS)
    texts = torch.cartesian_prod(words, words, words, words).tolist()
    parts = []
    for name, prior in zip(("Ada", "Bo"), model.knowledge.log_prior, strict=True):
        encoded = model.encode(batch(texts), model.about([name] * len(texts)))
        parts.append(model.log_joint(encoded, NO_LATENT) + prior)
    total = torch.stack(parts).logsumexp(0)
    wanted = model.log_joint(model.encode(batch(texts)), NO_LATENT)
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-10)
    assert (parts[0] - parts[1]).abs().max() > 0.1, "premise: topics matter"


def test_words_that_need_a_topic_say_so():
    model = lrlm(knowledge_vector=True)
    with pytest.raises(ValueError, match=r"about\(\[topic\]\)"):
        model.encode(batch([[KNOWN]]))
    with pytest.raises(ValueError, match="no topic 'Cy': there are 2"):
        model.about(["Cy"])


def test_a_name_is_said_from_its_beginning_to_its_end():
    model = lrlm()
    every = torch.arange(len(model.knowledge.naming_alias))
    [two] = every[model.knowledge.length(every) == 2].tolist()
    for pieces in ([[KNOWN, COPIED]], [[KNOWN], [COPIED]]):
        found = []
        for sources, offsets in (
            ((two + 1, two + 1), (0, 1)),
            ((two + 1, 0), (0, 0)),
            ((0, two + 1), (0, 1)),
        ):
            state, total, at = None, torch.zeros(1, 1).double(), 0
            for words in pieces:
                here = slice(at, at + len(words))
                at += len(words)
                source, offset = (
                    torch.tensor([[each[here]]]) for each in (sources, offsets)
                )
                encoded = model.encode(batch([words]), state)
                total = total + model.log_joint(encoded, Readings(source, offset))
                state = model.advance(encoded, Readings(source, offset))
            found.append(total.item())
        assert found[0] > -20
        assert found[1:] == [-torch.inf] * 2


def test_a_model_that_is_told_the_words_has_no_normalization():
    assert nklm(oracle=True).normalization is Normalization.UNNORMALISED


def test_rare_words_tell_what_a_text_is_about():
    """A word of one topic of two speaks for that; one that both have for neither."""
    known = Topics.build(
        {"Ada": [Fact(0, 0, (0, 1))], "Bo": [Fact(0, 0, (0,))]},
        [[COPIED], [KNOWN]],
        counts={"Ada": 2},
        pieces=[[0], [1]],
    )
    model, text = nklm(known=known), [COPIED, KNOWN, KNOWN]
    encoded = model.encode(batch([text]))
    every = every_copy(model, text)
    for name, odds in (("adapted", 3 * 2**2), ("peeking", 3)):
        log_q = model.proposal(name).log_prob(encoded, every)
        ada = log_q.masked_fill(every.topic != 1, -torch.inf).logsumexp(-1)
        bo = log_q.masked_fill(every.topic != 2, -torch.inf).logsumexp(-1)
        assert abs((ada - bo).exp() - odds) < 1e-10
        assert abs(log_q.logsumexp(-1)) < 1e-10


def test_what_does_not_stand_there_cannot_have_been_copied():
    model = nklm()
    topic = torch.ones(1, 1, dtype=torch.long)
    wrong = Copies(topic, topic[..., None], 0 * topic[..., None])  # Ada
    encoded = model.encode(batch([[KNOWN]]))
    assert model.log_joint(encoded, wrong).isneginf().all()
    other = Copies(topic + 1, topic[..., None], 0 * topic[..., None])
    encoded = model.encode(batch([[COPIED]]))
    assert model.log_joint(encoded, wrong).isfinite().all()
    assert model.log_joint(encoded, other).isneginf().all()
