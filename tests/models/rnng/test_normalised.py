"""Whether the probabilities of all sentences total one."""

from __future__ import annotations

import itertools

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.models.rnng import reference
from tests.models.rnng.test_left_to_right import every_prefix

LONGEST = 4


def mass(rnng, words, *, end):
    """The total probability of sentences, or of beginnings, of so many words."""
    alphabet = [w for w in range(6) if w not in (*rnng.config.never_uttered, END)]
    texts = [
        [*text, END] if end else list(text)
        for text in itertools.product(alphabet, repeat=words)
    ]
    trees = every_prefix(len(texts[0]), end=end)
    trees = type(trees)(*(x.expand(len(texts), *x.shape[1:]) for x in trees))
    batch = TokenBatch.collate(texts, first=START)
    return rnng.log_joint(rnng.encode(batch), trees).exp().sum().item()


@pytest.mark.parametrize("seed", range(3))
def test_new_models_are_normalised(seed):
    rnng = reference.tiny(seed=seed)
    ended = [mass(rnng, n, end=True) for n in range(1, LONGEST + 1)]
    begun = [1.0] + [mass(rnng, n, end=False) for n in range(1, LONGEST + 1)]
    assert min(ended) > 1e-6, "premise"
    for n in range(1, LONGEST + 1):
        longer = begun[n] - ended[n - 1]
        assert abs(sum(ended[:n]) + longer - 1) < 1e-12
        if n < LONGEST:
            assert abs(longer - begun[n + 1]) < 1e-12


def test_originals_lose_mass():
    """To ends before one tree stands, and to the action after the end."""
    rnng = reference.tiny(only_possible=False, never_uttered=[])
    ended = [mass(rnng, n, end=True) for n in range(1, 4)]
    begun = [mass(rnng, n, end=False) for n in range(1, 4)]
    none = torch.tensor([0])
    at_start = rnng.generative.log_words(rnng.generative.begin().top(none), none)
    # Nothing but an end is lost before the first word.
    assert abs(begun[0] - at_start.exp().sum().item()) < 1e-12
    for n in range(1, 3):
        assert ended[n - 1] + begun[n] < begun[n - 1] - 1e-4


def test_the_same_weights_lose_nothing_when_only_possible():
    """Masking moves the mass of what is impossible to what remains."""
    loose = reference.tiny(only_possible=False, never_uttered=[0, 2])
    strict = reference.tiny()
    assert mass(loose, 2, end=False) < mass(strict, 2, end=False)


def test_what_an_original_loses_before_its_first_word():
    """An end as the first word: 8.7 % of the mass of model B, 0.3 % of model A."""
    for name, lost in (("A", 0.0030783), ("B", 0.0868455)):
        rnng = reference.model(name, "eos")
        encoded = rnng.encode(TokenBatch.collate([[4]], first=START))
        zeros = torch.zeros(1, 1, dtype=torch.float64)
        log_p = rnng.next_token(encoded, zeros, Streams([0], 1))
        assert abs(1 - log_p.exp().sum().item() - lost) < 1e-6
        at_start = rnng.generative.begin()
        scores = rnng.generative.embeddings.weight @ at_start.state[0, -1, 0]
        share = (scores + rnng.generative.bias).softmax(-1)[END]
        assert abs(share - lost) < 1e-6


def test_a_model_without_ends_cannot_claim_to_be_normalised():
    with pytest.raises(ValueError, match="without sentence_ends"):
        reference.tiny(sentence_ends=False, only_possible=True)
