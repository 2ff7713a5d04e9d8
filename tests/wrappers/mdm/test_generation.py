"""Texts are written by unmasking: in blocks, in steps, until they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.generation import Writer, _shares
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.orders import RULES
from tests.wrappers.mdm import tiny

GREEDY = GenerationOptions((), 6, 0.0)


@pytest.fixture(scope="module")
def model():
    return tiny.mdm("bert")


def written(model, how=GREEDY, contexts=("the fox",), **options):
    scorer = model.scorer(options, quiet=True)
    asked = [(Query(n, f"q/{n}", "", c), how) for n, c in enumerate(contexts)]
    found = dict(scorer.generate(asked))
    return [found[n] for n in range(len(contexts))]


@pytest.mark.parametrize("order", RULES)
def test_what_is_written_one_by_one_is_greedy(model, order):
    (text,) = written(model, order=order, block_length=6)
    scorer = model.scorer({"order": order}, quiet=True)
    (answer,) = scorer.score_continuations([Query(0, "q", text, "the fox")])
    assert answer.is_greedy


def test_blocks_are_finished_one_after_the_other(model, monkeypatch):
    seen = []
    original = Writer._reveal

    def spy(self, tokens, block, *rest):
        original(self, tokens, block, *rest)
        seen.append((tokens[0, 2:8] != tiny.MASK).tolist())

    monkeypatch.setattr(Writer, "_reveal", spy)
    written(model, block_length=4, steps=3)
    assert [sum(each) for each in seen] == [2, 4, 6]
    assert all(seen[1][:4]) and not any(seen[1][4:])


@pytest.mark.parametrize("order", RULES)
def test_a_step_keeps_what_is_surest(model, order):
    """Of all six at once, two steps reveal the three that the rule says."""
    reader = tiny.denoiser()
    tokens = torch.tensor([[5, 6, *[tiny.MASK] * 6]])
    places = tokens == tiny.MASK
    rows = reader.log_probs(tokens, places)
    surest = RULES[order](rows).topk(3).indices.sort().values.tolist()
    options = MDMOptions(order=order, steps=2, block_length=6)
    writer = Writer(reader, model.scorer({}, quiet=True).cut, options)
    query = Query(0, "q", "", "the fox")
    writer._reveal(tokens, slice(2, 8), 3, 2, [(query, GREEDY, [5, 6])], 0)
    assert (tokens[0, 2:] != tiny.MASK).nonzero()[:, 0].tolist() == surest
    best = rows.argmax(-1)[surest].tolist()
    assert tokens[0, 2:][surest].tolist() == best


def test_a_warm_step_keeps_the_most_probable_of_what_was_drawn(model):
    reader, warm = tiny.denoiser(), replace(GREEDY, temperature=1.5)
    tokens = torch.tensor([[5, 6, *[tiny.MASK] * 6]])
    places = tokens == tiny.MASK
    rows = reader.log_probs(tokens, places)
    writer = Writer(reader, model.scorer({}, quiet=True).cut, MDMOptions())
    asked = [(Query(0, "q", "", "the fox"), warm, [5, 6])]
    every, some = tokens.clone(), tokens.clone()
    writer._reveal(every, slice(2, 8), 6, 2, asked, 0)
    writer._reveal(some, slice(2, 8), 3, 2, asked, 0)
    drawn = every[0, 2:]
    assert (drawn != rows.argmax(-1)).any(), "premise: not all are the best"
    surest = rows.gather(-1, drawn[:, None])[:, 0].topk(3).indices
    kept = (some[0, 2:] != tiny.MASK).nonzero()[:, 0]
    assert kept.tolist() == surest.sort().values.tolist()
    assert some[0, 2:][kept].tolist() == drawn[kept].tolist()


def test_chance_follows_the_query_and_its_temperature(model):
    warm = replace(GREEDY, temperature=1.0)
    contexts = ("the fox", "the fox", "Ada saw the")
    # Of what is drawn the surest is kept, which would leave little to chance.
    how = {"remasking": "random"}
    one = written(model, warm, contexts, **how)
    assert one == written(model, warm, contexts, **how)
    assert one[0] != one[1], "another query, other draws"
    assert one != written(model, warm, contexts, seed=1, **how)
    cold = replace(GREEDY, temperature=1e-6)
    assert written(model, cold) == written(model, GREEDY)


def test_sampled_tokens_have_their_probabilities(model):
    """One token: how often each word is written, to five standard errors."""
    number = 1500
    how = GenerationOptions((), 1, 1.0)
    texts = written(model, how, ("the fox",) * number)
    reader = tiny.denoiser()
    tokens = torch.tensor([[5, 6, tiny.MASK]])
    p = reader.log_probs(tokens, tokens == tiny.MASK)[0].exp()
    assert p.max() < 0.9, "premise"
    for word, name in enumerate(tiny.VOCABULARY):
        share = sum(text.strip() == name for text in texts) / number
        error = float((p[word] * (1 - p[word]) / number).sqrt())
        assert abs(share - float(p[word])) < 5 * error + 1 / number


def test_stop_strings_end_a_text(model):
    (whole,) = written(model, contexts=("the fox",))
    word = whole.split()[-1]
    (cut,) = written(model, replace(GREEDY, until=(word,)))
    assert cut == whole[: whole.index(word)]


def test_other_ways_to_write(model):
    plain = written(model, contexts=("the fox saw",))
    warm = replace(GREEDY, temperature=0.7)
    assert written(model, warm, remasking="random") != written(model, warm)
    guided = written(model, contexts=("the fox saw",), guidance=5.0)
    assert guided != plain and written(model, guidance=0) == written(model)


def test_places_are_shared_out_among_steps():
    assert _shares(7, 3) == [3, 2, 2] and _shares(2, 5) == [1, 1]
