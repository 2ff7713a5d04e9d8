"""Blocks and rules of unmasking against all that can be written, listed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm import estimators, orders
from lm_latent_eval.wrappers.mdm.generation import Writer
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.orders import PLAIN
from lm_latent_eval.wrappers.mdm.targets import Blocks, TargetTokens, answer_all
from lm_latent_eval.wrappers.mdm.unmasking import NAMES, RULES, Unmasking
from tests.means import mean_is, p_value, weights_are_of
from tests.wrappers import asking
from tests.wrappers.mdm import tiny

WORDS, MASK = (0, 1, 2), 3


class Listed:
    """Scores of each place for every masked text, drawn once."""

    def __init__(self, length: int = 3, seed: int = 0, *, ties: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (*[len(WORDS) + 1] * length, length, len(WORDS) + 1)
        scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
        self.scores = scores.round() if ties else scores
        self.length, self.read = length, 0

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self.read += len(tokens)
        return self.scores[tuple(tokens.T)]

    def reader(self, **how) -> MaskedReader:
        return MaskedReader(self, MASK, 0, len(WORDS) + 1, torch.device("cpu"), **how)

    def rows(self, state) -> torch.Tensor:
        """log p of every token at every place, (L, 4)."""
        rows = self.scores[tuple(state)].clone()
        rows[:, MASK] = -torch.inf
        return rows.log_softmax(-1)

    def written(self, rule: Unmasking, blocks: int | None = None):
        """p of every text by all that can be drawn: sequences of whole samples.

        Nothing of the implementation is used: at every step all samples of all hidden
        places of the block are listed, and the rule picks which of them are kept.
        """
        size = blocks or self.length
        states = {(MASK,) * self.length: 1.0}
        for first in range(0, self.length, size):
            block = range(first, min(first + size, self.length))
            while any(state[i] == MASK for state in states for i in block):
                after = defaultdict(float)
                for state, mass in states.items():
                    for new, p in self.step(rule, state, block):
                        after[new] += mass * p
                states = dict(after)
        return states

    def step(self, rule: Unmasking, state, block):
        hidden = [i for i in block if state[i] == MASK]
        if not hidden:
            yield state, 1.0
            return
        rows = self.rows(state)
        for words in product(WORDS, repeat=len(hidden)):
            p = math.exp(
                sum(float(rows[i, w]) for i, w in zip(hidden, words, strict=True))
            )
            sample = dict(zip(hidden, words, strict=True))
            kept_sets = list(self.kept(rule, rows, sample))
            for kept in kept_sets:
                new = tuple(sample[i] if i in kept else t for i, t in enumerate(state))
                yield new, p / len(kept_sets)

    def kept(self, rule: Unmasking, rows, sample):
        hidden, k = sorted(sample), rule.tokens_per_step
        if rule.rule == "any_order":
            yield from map(set, combinations(hidden, min(k, len(hidden))))
            return
        if rule.rule == "low_confidence":
            sure = {i: float(rows[i, w]) for i, w in sample.items()}
        else:
            own = RULES[rule.rule](rows[hidden])
            sure = {i: float(s) for i, s in zip(hidden, own, strict=True)}
        best = sorted(hidden, key=lambda i: (-sure[i], i))
        kept = set(best[:k])
        if rule.threshold is not None:
            kept |= {i for i in hidden if math.exp(sure[i]) > rule.threshold}
        yield kept


RULES_OF_ALL = [
    *(Unmasking(name, k) for name in NAMES for k in (1, 2)),
    *(
        Unmasking(name, k, threshold)
        for name in ("confidence", "low_confidence")
        for k in (1, 2)
        for threshold in (0.4, 0.7)
    ),
]


def log_p(network, rule, blocks):
    """Log p of every text by the implementation."""
    jobs, texts = [], []
    sums = orders.log_p_path if rule.follows else orders.log_p_exact
    for text in product(WORDS, repeat=network.length):
        for block in Blocks(blocks, MASK).of(TargetTokens((), text)):
            jobs.append((block, sums(len(block), rule)))
            texts.append(text)
    total = dict.fromkeys(texts, 0.0)
    for job, found in answer_all(network.reader(), rule, jobs):
        total[texts[job]] += found.value[0] if rule.follows else found.value
    return total


@pytest.mark.parametrize("blocks", [None, 2])
@pytest.mark.parametrize("rule", RULES_OF_ALL, ids=str)
def test_every_text_has_the_probability_of_all_that_can_be_drawn(rule, blocks):
    network = Listed(ties=blocks is None)
    wanted = network.written(rule, blocks)
    found = log_p(network, rule, blocks)
    assert math.fsum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-12)
    for text, value in found.items():
        assert math.exp(value) == pytest.approx(wanted[text], abs=1e-12)


def test_a_block_takes_a_pass_for_every_set_of_its_masks():
    """Counted where the network is asked: 2^m - 1 a block, in float32 as well."""
    text = (0, 2, 1, 1, 0, 2, 2)
    network, blocks = Listed(7), Blocks(4, MASK).of(TargetTokens((), text))
    jobs = [(block, orders.log_p_exact(len(block))) for block in blocks]
    list(answer_all(network.reader(), PLAIN, jobs))
    assert network.read == sum(2 ** len(block) - 1 for block in blocks)
    # Nine texts of two tokens: all masked once, and each of six tokens shown.
    network = Listed(2)
    texts = product(WORDS, repeat=2)
    jobs = [(TargetTokens((), each), orders.log_p_exact(2)) for each in texts]
    assert all(
        found.passes == 3 for _, found in answer_all(network.reader(), PLAIN, jobs)
    )
    assert network.read == 1 + 2 * len(WORDS), "what options share is read once"
    # In pairs, sets of 0, 2 and 4 of six places: 1 + 15 + 15.
    network, pairs = Listed(6), Unmasking("any_order", 2)
    job = TargetTokens((), text[:6]), orders.log_p_exact(6, pairs)
    [(_, found)] = answer_all(network.reader(), pairs, [job])
    assert network.read == found.passes == 31


DRAWN = [Unmasking("any_order", 2), Unmasking("low_confidence", 1, 0.4)]
DRAWN += [Unmasking("low_confidence", k) for k in (1, 2)]


@pytest.mark.parametrize("rule", DRAWN, ids=str)
def test_paths_are_drawn_without_bias(rule):
    """All weights of four tokens, to five standard errors of each text's mean."""
    network, number = Listed(4, seed=3), 6000
    for text in [(0, 1, 2, 0), (2, 2, 1, 0)]:
        target = TargetTokens((), text)
        drawn = orders.log_weights(4, number, Streams([7], number), unmasking=rule)
        exact = orders.log_p_exact(4, rule)
        jobs = [(target, exact), (target, drawn)]
        found = dict(answer_all(network.reader(), rule, jobs))
        weights_are_of(found[0].value, found[1].value)


def test_more_sets_than_can_be_weighed_are_refused_by_name():
    options = MDMOptions(unmasking="low_confidence", threshold=0.9, estimator="is")
    with pytest.raises(ValueError, match=r"8,191 sets of 13 places.*smaller block_len"):
        estimators.check_length(13, options)


# -- whole scorers -------------------------------------------------------------------


TEXT = "the fox saw Ada . a Bo"


@pytest.fixture(scope="module")
def model():
    return MaskedDiffusion(tiny.network())


def scored(model, text=TEXT, **options):
    return asking.estimate(model.scorer(options, quiet=True), text)


def test_what_takes_too_many_passes_is_estimated(model):
    """Of seven tokens in blocks of four: 15 passes, and 7 of the last three."""
    few = scored(model, block_length=4, num_samples=8)
    assert str(few.bound) == "stochastic lower" and few.estimator == "exact+is"
    most = scored(model, block_length=4, num_samples=15)
    assert str(most.bound) == "exact" and most.estimator == "exact"
    assert abs(few.log_evidence - most.log_evidence) < 6 * few.draws_stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": 0.9}, "threshold=0.9: unmasking=any_order does not go by"),
        ({"threshold": 1}, "threshold=1: expected a number between 0 and 1"),
        ({"estimator": "elbo", "tokens_per_step": 2}, "elbo bounds orders of single"),
        ({"convention": "llada", "block_length": 4}, "one program's loop over whole"),
        ({"convention": "llada", "num_samples": 40}, "no whole number of its batches"),
    ],
)
def test_what_is_not_computed_together_is_said(model, options, said):
    with pytest.raises(ValueError, match=said):
        scored(model, **options)


# -- LLaDA's program -----------------------------------------------------------------


def by_the_program(network, text):
    """The loop's expectation, its masks listed: counts as torch rounds them."""
    length, size, total = len(text), 32, 0.0
    logits = {}
    for first in range(1, length + 1):
        last = first + (size - 1) * (length / size)
        x = torch.linspace(float(first), last, size).round().long()
        for count in (((x - 1) % length) + 1).tolist():
            if count not in logits:
                losses = []
                for masked in combinations(range(length), count):
                    state = [MASK if i in masked else t for i, t in enumerate(text)]
                    rows = network.scores[tuple(state)].log_softmax(-1)
                    losses.append(sum(float(rows[i, text[i]]) for i in masked))
                logits[count] = sum(losses) / len(losses)
            total += logits[count] * length / count / (size * length)
    return total


def test_the_convention_of_llada_is_its_program(model):
    """On average over seeds what its loop expects; neither log p nor its bound."""
    network, text = Listed(5, seed=4), (0, 1, 2, 2, 0)
    reader, target = network.reader(mask_is_word=True), TargetTokens((), text)
    asked = [estimators.log_p_llada(5, 64, tiny.numbers(seed)) for seed in range(200)]
    found = dict(answer_all(reader, PLAIN, [(target, each) for each in asked]))
    wanted = by_the_program(network, text)
    mean_is([f.value.log_evidence for f in found.values()], wanted, 0.05)
    # The bound that the loop is meant to estimate: every set, every count alike.
    job = target, estimators.elbo(len(text), 10**6, None)
    [(_, bounded)] = answer_all(network.reader(), PLAIN, [job])
    assert abs(wanted - bounded.value.log_evidence) > 0.3, (
        "premise: it is another number"
    )
    estimate = scored(model, convention="llada", num_samples=64)
    assert str(estimate.bound) == "none" and estimate.estimator == "llada"
    assert estimate.stderr is None and estimate.draws_stderr > 0
    words = [f" {word}" for word in ("the", "fox", "saw", "Ada", "Bo", "a", ".")]
    scorer = model.scorer({"convention": "llada", "num_samples": 4}, quiet=True)
    found = asking.answers(scorer, *words, context="the fox")
    surest = max(found, key=lambda answer: answer.estimate.log_evidence)
    assert [a.is_greedy for a in found] == [a is surest for a in found]


# -- writing, in steps, until a text ends ----------------------------------------------


GREEDY = GenerationOptions((), 6, 0.0)


def written(model, how=GREEDY, contexts=("the fox",), **options):
    scorer = model.scorer(options, quiet=True)
    asked = [(Query(n, f"text/{n}", "", c), how) for n, c in enumerate(contexts)]
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
    how = {"block_length": 6, **how}
    (text,) = written(model, **how)
    other = "Bo" if text.split()[0] != "Bo" else "Ada"
    changed = " ".join(["", other, *text.split()[1:]])
    scorer = model.scorer(how, quiet=True)
    both = asking.answers(scorer, text, changed, context="the fox")
    assert [answer.is_greedy for answer in both] == [True, False]


def test_other_texts_of_a_batch_move_no_text(model):
    """Which take more steps, and so other numbers if steps were counted for all."""
    how = {"unmasking": "confidence", "threshold": 0.5, "block_length": 2}
    warm, contexts = replace(GREEDY, temperature=2.0), ("the fox", "Ada saw", "Bo a")
    scorer = model.scorer(how, batch_size=1, quiet=True)
    asked = [(Query(n, f"text/{n}", "", c), warm) for n, c in enumerate(contexts * 4)]
    alone = dict(scorer.generate(asked))
    assert written(model, warm, contexts * 4, **how) == [alone[n] for n in range(12)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"unmasking": "any_order"}),  # what is written by default is surest first
        ({"estimator": "exact"}, {"estimator": "is"}),
    ],
)
def test_what_moves_texts_or_bounds_is_in_fingerprints(model, one, other):
    found = [model.scorer(how, quiet=True).fingerprint for how in (one, other)]
    assert found[0] != found[1]


def test_other_ways_to_write(model):
    # Of what is drawn the surest is kept, which would leave little to chance.
    warm, how = replace(GREEDY, temperature=1.0), {"unmasking": "any_order"}
    one, other = written(model, warm, ("the fox",) * 2, **how)
    assert one != other, "another query, other draws"
    assert [one, other] != written(model, warm, ("the fox",) * 2, seed=1, **how)
    assert written(model, replace(GREEDY, temperature=1e-6)) == written(model)
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
    """Three tokens of three words."""
    network, number = Listed(seed=1), 4000
    reader = network.reader()
    options = MDMOptions(**how).chosen_for("bidirectional", None)
    blocks = Blocks(options.block_length, MASK)
    one = Writer(reader, SimpleNamespace(after=()), options, blocks, ends=())
    warm = GenerationOptions((), 3, 1.0)
    asked = [(Query(n, f"q/{n}", "", ""), warm, []) for n in range(number)]
    tokens = torch.full((number, 3), MASK)
    step = 0
    for first, last in one.blocks.spans(0, 3):
        while len(rows := one._unfinished(tokens, slice(first, last))):
            one._reveal(tokens, rows, slice(first, last), asked, step)
            step += 1
    seen = Counter(map(tuple, tokens.tolist()))
    wanted = network.written(options.process, options.block_length)
    expected = {text: number * p for text, p in wanted.items()}
    assert p_value(seen, expected) > 1e-4
