"""The laws of lm_latent_eval, and sums in plain Python as the truth."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from latent_steps.__main__ import KINDS, random, write

import lm_latent_eval
from lm_latent_eval.extend import END, Case, laws

CHOICES = {"semi_markov": 6, "pointer": 6, "transducer": 3}
"""N of the tiny models; the transducer is given two words."""


def case(name: str) -> Case:
    """Six words, in float64."""

    def every_latent(text: list[int]) -> torch.Tensor:
        walks = itertools.product(range(CHOICES[name]), repeat=len(text))
        return torch.tensor([[*walks]])

    given = (4, 5) if name == "transducer" else None
    ends = name != "transducer"  # a transducer's text is over
    return Case(
        random(name, 6).double(),
        every_latent,
        words=(1, 4, 5),
        proposals=("adapted", "prior"),
        goes_on=ends,
        given=given,
        length=2 if ends else 3,
    )


LAWS = [
    pytest.param(law, id=f"{name}-{law}") for name in KINDS for law in laws(case(name))
]


@pytest.mark.parametrize("law", LAWS)
def test_it_keeps_the_law(law):
    law()


def probabilities(scores: torch.Tensor, *never: int) -> list[float]:
    scores = scores.double().clone()
    scores[[*never]] = -math.inf
    return scores.softmax(-1).tolist()


def semi_markov(model, ids: list[int]) -> float:
    """Over where segments begin: the last one may go on beyond the text."""
    states = range(model.config.num_states)
    moves = [probabilities(row) for row in model.moves]
    lasts = [probabilities(row) for row in model.durations]
    words = [probabilities(row, 0, 2) for row in model.emissions]

    def rest(begin: int, before: int) -> float:
        total = 0.0 if begin < len(ids) else 1.0
        for state in states if begin < len(ids) else ():
            for size, p in enumerate(lasts[state], 1):
                part = ids[begin : begin + size]
                written = math.prod(words[state][word] for word in part)
                total += moves[before][state] * p * written * rest(begin + size, state)
        return total

    return math.log(rest(0, len(states)))


def pointer(model, ids: list[int]) -> float:
    """Word by word: its probability as written, and of all places that hold it."""
    hidden, seen, total = torch.zeros(1, 1, model.config.hidden_size), [2], 0.0
    hidden = hidden.to(model.gate.weight)
    for word in ids:
        last = torch.tensor([[seen[-1]]])
        _, hidden = model.gru(model.words(last), hidden)
        h = hidden[0, 0]
        window = [w for w in seen[-model.config.window :] if w not in (0, 1, 2)]
        scores = [model.gate(h)[0], *(model.words.weight[w] @ h for w in window)]
        p_z = torch.stack(scores).double().softmax(-1).tolist()
        written = probabilities(model.words.weight @ h, 0, 2)[word]
        copied = sum(p for p, w in zip(p_z[1:], window, strict=True) if w == word)
        total += math.log(p_z[0] * written + copied)
        seen.append(word)
    return total


def transducer(model, ids: list[int], x: list[int]) -> float:
    """Over paths of single moves: one word of x on, or one word of y more."""

    def rest(at: int, t: int) -> float:
        if at == len(x):
            return float(ids[t:] == [END])
        last = ids[t - 1] if t else 2
        skip = torch.sigmoid(model.skips[0, x[at]] + model.skips[1, last]).item()
        total = skip * rest(at + 1, t)
        if ids[t] != END:
            scores = model.writes[0, x[at]] + model.writes[1, last]
            written = probabilities(scores, 0, 2, END)[ids[t]]
            total += (1 - skip) * written * rest(at, t + 1)
        return total

    return math.log(rest(0, 0))


TEXTS = ["the cat saw a dog", "", "a dog ran the cat the dog"]


def opened_of(name: str, directory: Path):
    """Write a model and open it, whether its package is installed or not."""
    model = write(name, directory)
    place = f"latent_steps.{name}:{type(model).__name__}"
    return lm_latent_eval.load(directory, model=place, device="cpu")


@pytest.mark.parametrize("truth", [semi_markov, pointer])
def test_the_default_is_the_sum(truth, tmp_path):
    opened = opened_of(truth.__name__, tmp_path)
    for text, found in zip(TEXTS, opened.log_likelihood(TEXTS), strict=True):
        ids = [*opened.checkpoint.tokenizer(text).ids, END]
        exact = truth(opened.checkpoint.model, ids)
        assert found.log_evidence == pytest.approx(exact, abs=1e-5)
        assert str(found.bound) == "exact"
    [after] = opened.log_likelihood([" a dog"], contexts=["the cat saw"])
    ids = opened.checkpoint.tokenizer("the cat saw a dog").ids
    model = opened.checkpoint.model
    exact = truth(model, ids) - truth(model, ids[:3])
    assert after.log_evidence == pytest.approx(exact, abs=1e-5)
    assert opened.generate(["the"], max_tokens=3)


def test_a_transducer_is_the_sum_over_its_paths(tmp_path: Path):
    opened = opened_of("transducer", tmp_path)
    model = opened.checkpoint.model
    pair = "das haus ist klein", "the house is small"
    x, y = (opened.checkpoint.tokenizer(text).ids for text in pair)
    case_of = Case(model, lambda text: torch.tensor([[[0]]]), (4,), (), given=tuple(x))
    batch = case_of.batch([[*y, END]])
    walks = torch.cartesian_prod(*[torch.arange(5)] * 5)[None]
    listed = model.log_joint(model.encode(batch), walks).logsumexp(-1).item()
    assert listed == pytest.approx(transducer(model, [*y, END], x), abs=1e-6)
    [found] = opened.log_likelihood([pair[1]], contexts=[pair[0]])
    assert str(found.bound) == "exact"
    with pytest.raises(ValueError, match="nothing is given: put the sentence"):
        opened.log_likelihood([pair[1]], contexts=[""])
