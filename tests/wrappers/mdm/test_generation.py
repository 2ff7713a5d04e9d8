"""Texts are written by unmasking: in blocks, in steps, until they end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.generation import Writer
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.targets import Blocks
from lm_latent_eval.wrappers.mdm.unmasking import RULES
from tests.wrappers.mdm import tiny
from tests.wrappers.mdm.listed import MASK as MASK_OF_LISTED
from tests.wrappers.mdm.listed import Listed

GREEDY = GenerationOptions((), 6, 0.0)


@pytest.fixture(scope="module")
def model():
    return tiny.mdm("bert")


def written(model, how=GREEDY, contexts=("the fox",), **options):
    scorer = model.scorer(options, quiet=True)
    asked = [(Query(n, f"q/{n}", "", c), how) for n, c in enumerate(contexts)]
    found = dict(scorer.generate(asked))
    return [found[n] for n in range(len(contexts))]


@pytest.mark.parametrize(
    "how",
    [
        *({"unmasking": rule} for rule in RULES),
        {"block_length": 2},
        {"unmasking": "entropy", "tokens_per_step": 2, "block_length": 4},
        {"unmasking": "low_confidence", "threshold": 0.5},
    ],
    ids=str,
)
def test_what_is_written_surely_is_greedy(model, how):
    (text,) = written(model, **{"block_length": 6, **how})
    scorer = model.scorer({"block_length": 6, **how}, quiet=True)
    (answer,) = scorer.score_continuations([Query(0, "q", text, "the fox")])
    assert answer.is_greedy


def test_blocks_are_finished_one_after_the_other(model, monkeypatch):
    seen = []
    original = Writer._reveal

    def spy(self, tokens, *rest):
        original(self, tokens, *rest)
        seen.append((tokens[0, 2:8] != tiny.MASK).tolist())

    monkeypatch.setattr(Writer, "_reveal", spy)
    written(model, block_length=4, tokens_per_step=2)
    assert [sum(each) for each in seen] == [2, 4, 6]
    assert all(seen[1][:4]) and not any(seen[1][4:])


def writer(model, reader, options):
    """A writer of one block."""
    cut = model.scorer({}, quiet=True).cut
    return Writer(reader, cut, options, Blocks(6, tiny.MASK))


ALL = torch.tensor([0])


@pytest.mark.parametrize("order", RULES)
def test_a_step_keeps_what_is_surest(model, order):
    """Of all six at once, a step of three reveals those that the rule says."""
    reader = tiny.denoiser()
    tokens = torch.tensor([[5, 6, *[tiny.MASK] * 6]])
    places = tokens == tiny.MASK
    rows = reader.log_probs(tokens, places)
    surest = RULES[order](rows).topk(3).indices.sort().values.tolist()
    options = MDMOptions(unmasking=order, tokens_per_step=3)
    asked = [(Query(0, "q", "", "the fox"), GREEDY, [5, 6])]
    writer(model, reader, options)._reveal(tokens, ALL, slice(2, 8), 2, asked, 0)
    assert (tokens[0, 2:] != tiny.MASK).nonzero()[:, 0].tolist() == surest
    best = rows.argmax(-1)[surest].tolist()
    assert tokens[0, 2:][surest].tolist() == best


def test_a_warm_step_keeps_the_most_probable_of_what_was_drawn(model):
    reader, warm = tiny.denoiser(), replace(GREEDY, temperature=1.5)
    tokens = torch.tensor([[5, 6, *[tiny.MASK] * 6]])
    places = tokens == tiny.MASK
    rows = reader.log_probs(tokens, places)
    asked = [(Query(0, "q", "", "the fox"), warm, [5, 6])]
    every, some = tokens.clone(), tokens.clone()
    for number, kept in ((6, every), (3, some)):
        one = writer(model, reader, MDMOptions(tokens_per_step=number))
        one._reveal(kept, ALL, slice(2, 8), 2, asked, 0)
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
    how = {"unmasking": "any_order"}
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
    warm = replace(GREEDY, temperature=1.5)
    assert written(model, warm, unmasking="any_order") != written(model, warm)
    guided = written(model, contexts=("the fox saw",), guidance=5.0)
    assert guided != plain and written(model, guidance=0) == written(model)


@pytest.mark.parametrize(
    "how",
    [
        {"unmasking": "low_confidence", "block_length": 2},
        {"unmasking": "low_confidence", "threshold": 0.5, "block_length": 3},
        {"unmasking": "any_order", "tokens_per_step": 2, "block_length": 3},
    ],
    ids=str,
)
def test_texts_are_written_as_often_as_they_are_scored(how):
    """Three tokens of three words: chi-square over the 27 texts."""
    network, number = Listed(seed=1), 4000
    reader = network.reader()
    options = MDMOptions(**how).chosen_for("bidirectional", None)
    blocks = Blocks(options.block_length, MASK_OF_LISTED)
    cut = SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=None), after=())
    one = Writer(reader, cut, options, blocks)
    warm = GenerationOptions((), 3, 1.0)
    asked = [(Query(n, f"q/{n}", "", ""), warm, []) for n in range(number)]
    tokens = torch.full((number, 3), MASK_OF_LISTED)
    step = 0
    for first, last in one._blocks(0, 3):
        while len(rows := one._unfinished(tokens, slice(first, last))):
            one._reveal(tokens, rows, slice(first, last), 0, asked, step)
            step += 1
    seen = Counter(map(tuple, tokens.tolist()))
    wanted = network.written(options.process, options.block_length)
    assert seen.keys() <= wanted.keys()
    statistic = sum(
        (seen[t] - number * p) ** 2 / (number * p) for t, p in wanted.items()
    )
    assert statistic < 26 + 5 * (2 * 26) ** 0.5
