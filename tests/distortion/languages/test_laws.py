"""What every language owes."""

from collections import Counter

import pytest
import torch

from tests.distortion.tiny import LANGUAGES, LATENT, beginnings, records
from tests.means import p_value


@pytest.fixture(scope="module", params=[*LANGUAGES, *LATENT])
def language(request):
    return (LANGUAGES | LATENT)[request.param]()


@pytest.mark.parametrize("max_length", [1, 2, 5])
def test_what_can_be_drawn_totals_one(language, max_length):
    total = language.log_p(records(language, max_length)).exp().sum().item()
    assert total == pytest.approx(1, abs=1e-12)


def test_a_beginning_ends_or_goes_on(language):
    """p(x ..) = sum over tokens of p(x x' ..), the end one of them."""
    some = list(beginnings(language, 4))
    longer = [[*ids, token] for ids in some for token in range(language.vocab_size)]
    expected = language.log_p(longer).exp().view(len(some), -1).sum(1)
    found = language.log_p(some).exp()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_draws_follow_the_probabilities(language):
    number, every = 2000, records(language, 4)
    drawn = Counter(map(tuple, language.sample(3, range(number), 4).sequences))
    expected = (number * language.log_p(every).exp()).tolist()
    assert p_value(drawn, dict(zip(map(tuple, every), expected, strict=True))) > 1e-3


def test_a_sample_has_the_probabilities_that_scoring_finds(language):
    sample = language.sample(0, range(200), 6)
    again = language.log_p(sample.sequences)
    torch.testing.assert_close(sample.log_p, again, rtol=1e-12, atol=1e-12)
    assert {ids[-1] == language.end_id for ids in sample.sequences} == {True, False}
    assert max(map(len, sample.sequences)) == 6


def test_a_sequence_depends_on_its_number_and_the_seed_alone(language):
    """A smaller maximum cuts the same ones."""
    whole = language.sample(1, range(90), 6)
    for indices in ([71, 3, 44, 3], []):
        some = language.sample(1, indices, 6)
        assert some.sequences == [whole.sequences[i] for i in indices]
        torch.testing.assert_close(some.log_p, whole.log_p[indices], rtol=1e-12, atol=0)
    assert language.sample(2, range(90), 6).sequences != whole.sequences
    cut = [ids[:2] for ids in whole.sequences]
    assert language.sample(1, range(90), 2).sequences == cut


def test_scores_do_not_depend_on_company(language):
    some = records(language, 4)
    together = language.log_p(some)
    alone = torch.cat([language.log_p([ids]) for ids in some])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    assert language.log_p([]).shape == (0,)


def test_bad_input(language):
    word, end = language.vocab_size - 1, language.end_id
    for sequences, message in (
        ([[word], []], "sequence 1 has no tokens"),
        ([[word, end, word]], "sequence 0 goes on after its end"),
        ([[word, -1]], "token id -1"),
        ([[language.vocab_size]], "of another tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            language.log_p(sequences)
    with pytest.raises(ValueError, match="max_length=0: expected a whole number"):
        language.sample(0, [0], 0)
