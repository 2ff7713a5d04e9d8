"""Surprisal by word of a causal LM against sums over what can follow."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lm_latent_eval.scoring.inside.regions import Regions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.wrappers import asking

PIECES = ["a", "b", "Ġ", "Ġa", "ab"]
TEXT = "ab a b"


@pytest.fixture(scope="module")
def model():
    tokenizer = tiny_causal.byte_level(PIECES, [("Ġ", "a"), ("a", "b")])
    return SegmentedLM(tiny_causal.network(tokenizer))


def next_log_p(model, tokens):
    """Log p of every token after the end token and some tokens."""
    ids = [[model.network.prefix_token, *tokens]]
    with torch.no_grad():
        return model.network.model(torch.tensor(ids)).logits[0, -1].log_softmax(-1)


def scored(model, regions, **options):
    scorer = model.scorer({"estimator": "canonical", **options}, quiet=True)
    [(_, found)] = scorer.score_regions([regions])
    return found


def words(text):
    return Regions.of_words(Query(0, "text/0", text))


def test_a_word_ends_where_a_space_or_the_end_may_follow(model):
    tokens, end = model.network.tokenizer.encode(TEXT), model.network.tokenizer
    assert end.convert_ids_to_tokens(tokens) == ["ab", "Ġa", "Ġ", "b"], "premise"
    after = [PIECES.index("Ġ"), PIECES.index("Ġa"), end.eos_token_id]

    def border(n):
        return next_log_p(model, tokens[:n])[after].logsumexp(0).item()

    def log_p(n):
        return next_log_p(model, tokens[:n])[tokens[n]].item()

    expected = [
        log_p(0) + border(1),
        log_p(1) + border(2) - border(1),
        log_p(2) + log_p(3) + border(4) - border(2),
    ]
    found = [score.estimate.log_evidence for score in scored(model, words(TEXT))]
    assert found == pytest.approx(expected, abs=1e-9)
    [whole] = asking.answers(model.scorer({"estimator": "canonical"}, quiet=True), TEXT)
    plain = whole.estimate.log_evidence
    assert math.fsum(found) == pytest.approx(plain + border(4), abs=1e-9)


def test_an_end_takes_back_the_last_border(model):
    scores = scored(model, words(TEXT), end="eos")
    assert [score.number for score in scores] == [0, 1, 2, None]
    scorer = model.scorer({"estimator": "canonical", "end": "eos"}, quiet=True)
    [whole] = asking.answers(scorer, TEXT)
    total = math.fsum(score.estimate.log_evidence for score in scores)
    assert total == pytest.approx(whole.estimate.log_evidence, abs=1e-9)


def test_words_after_a_border_total_at_most_one(model):
    """Over words of up to four tokens; longer ones have the rest."""
    first, border = model.network.tokenizer.encode("ab"), [2, 3, 5]
    letters, total = [0, 1, 4], 0.0
    start = next_log_p(model, first)[border].logsumexp(0).item()
    for begin in (2, 3):
        for length in range(4):
            for rest in itertools.product(letters, repeat=length):
                tokens, log_p = [*first], 0.0
                for token in (begin, *rest):
                    log_p += next_log_p(model, tokens)[token].item()
                    tokens.append(token)
                if (begin, *rest) == (2,):
                    continue  # no word
                ended = next_log_p(model, tokens)[border].logsumexp(0).item()
                total += math.exp(log_p + ended - start)
    assert 0.3 < total < 1


def test_regions_inside_a_word_add_up_to_it(model):
    text = Regions(Query(0, "text/0", TEXT), (1, 2, 4, 6))
    parts = [score.estimate.log_evidence for score in scored(model, text)]
    whole = [score.estimate.log_evidence for score in scored(model, words(TEXT))]
    assert parts[0] == 0, "its token ends in the next region"
    assert parts[1:] == pytest.approx(whole, abs=1e-9)


def test_sums_over_tokenizations_are_refused(model):
    scorer = model.scorer({}, quiet=True)
    with pytest.raises(ValueError, match="give estimator=canonical"):
        next(scorer.score_regions([words(TEXT)]))
