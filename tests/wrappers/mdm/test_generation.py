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
    other = "Bo" if text.split()[0] != "Bo" else "Ada"
    changed = " ".join([other, *text.split()[1:]])
    (answer,) = scorer.score_continuations([Query(0, "q", f" {changed}", "the fox")])
    assert not answer.is_greedy


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


def test_other_ways_to_write(model):
    plain = written(model, contexts=("the fox saw",))
    warm = replace(GREEDY, temperature=1.5)
    assert written(model, warm, unmasking="any_order") != written(model, warm)
    guided = written(model, contexts=("the fox saw",), guidance=5.0)
    assert guided != plain and written(model, guidance=0) == written(model)
    (whole,) = written(model)
    word = whole.split()[-1]
    (cut,) = written(model, replace(GREEDY, until=(word,)))
    assert cut == whole[: whole.index(word)], "stop strings end a text"


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
