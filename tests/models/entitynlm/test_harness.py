"""An EntityNLM checkpoint behind lm-eval, against sums over every chain."""

from __future__ import annotations

import math

import pytest

from lm_latent_eval.harness.backends import LatentEntityNLM
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import tiny_checkpoint
from tests.models.entitynlm.space import every_chain
from tests.tiny_checkpoint import UNKNOWN_TYPES, conditional, ids, rolling
from tests.tiny_models import randomised

MAX_LENGTH = 2
EVERY_CHAIN = 2_000
"""More than a text of four words and its end has chains."""
TEXTS = ("the fox saw the", "the fox. " * 5, "", "a zebra saw the fox", ".")
PAIRS = (("the fox", " saw the"), ("", "the fox"), ("the fox. " * 4, "saw"), ("a", ""))


@pytest.fixture(scope="module")
def model():
    config = EntityNLMConfig(
        vocab_size=tiny_checkpoint.tokenizer().vocab_size,
        num_words=tiny_checkpoint.tokenizer().num_words,
        embedding_dim=4,
        hidden_size=5,
        max_mention_length=MAX_LENGTH,
        num_unknown_types=UNKNOWN_TYPES,
    )
    return randomised(EntityNLM(config).double(), 3, 0.7).eval()


@pytest.fixture(scope="module")
def pretrained(model, tmp_path_factory):
    return str(tiny_checkpoint.write(tmp_path_factory.mktemp("entitynlm"), model))


def log_p(model, words: list[int]) -> float:
    """log p of a text that begins with these words, by listing."""
    if not words:
        return 0.0
    beyond = model.config.vocab_size
    cost = [
        -math.log(UNKNOWN_TYPES) if w == UNKNOWN or w >= beyond else 0.0 for w in words
    ]
    batch = TokenBatch.collate([words], [cost], first=START)
    chains = every_chain(len(words), MAX_LENGTH)
    return model.log_joint(model.encode(batch), chains).logsumexp(-1).item()


CASES = (
    ("the fox saw the", ["the", "fox", "saw", "the"]),
    ("zebra Ada.", ["?", "Ada", "."]),
    ("", []),
)


def test_a_wide_beam_is_exact(model, pretrained):
    lm = LatentEntityNLM(
        pretrained=pretrained, estimator="beam", num_samples=EVERY_CHAIN
    )
    answers = lm.loglikelihood_rolling(rolling(*(text for text, _ in CASES)))
    for answer, (_, words) in zip(answers, CASES, strict=True):
        assert answer == pytest.approx(log_p(model, [*ids(*words), END]), abs=1e-9)
    ((part, _),) = lm.loglikelihood(conditional(("the fox", " saw the")))
    whole, prefix = ids("the", "fox", "saw", "the"), ids("the", "fox")
    assert part == pytest.approx(log_p(model, whole) - log_p(model, prefix), abs=1e-9)


def numbers(lm) -> list[float]:
    whole = lm.loglikelihood_rolling(rolling(*TEXTS))
    parts = [answer for answer, _ in lm.loglikelihood(conditional(*PAIRS))]
    return [w for a in whole for w in a.estimate.log_weights] + [*whole, *parts]
