"""What is scored beside a text moves no number, nor does a memory that is small."""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.string_scorers import CausalLMScorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.rounding import agree
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm

LETTERS = ["".join("ab"[int(bit)] for bit in f"{16 + n:b}") for n in range(16)]
WORDS = ("the fox saw", "a Bo saw .", "Ada saw a fox", "Bo saw the fox", "fox . a Bo")
"""Have little in common: what texts share is read once."""


@dataclass(frozen=True)
class Case:
    """How to score some texts, so many rows at a time."""

    network: Callable[[], Network]
    scorer: Callable[[Network, int], Any]
    ask: str
    asked: list[Any]

    def found(self, scorer: Any, asked: list[Any] | None = None) -> list[Any]:
        """Answer in the order of indices, whatever that of the scorer is."""
        found = getattr(scorer, self.ask)(self.asked if asked is None else asked)
        if self.ask == "score":
            return found.log_p.tolist()
        if self.ask == "generate":
            return sorted(found)
        return sorted(found, key=lambda answer: answer.index)

    def groups(self) -> list[list[Any]]:
        """Answers of one question belong together: each is a hint of the others."""

        def name(one: Any) -> str:
            query = one[0] if isinstance(one, tuple) else one
            return getattr(query, "name", query)

        return [[*some] for _, some in itertools.groupby(self.asked, name)]


def letters():
    return tiny_causal.network(tiny_causal.letters())


def of_tokens(contexts=("",), **options):
    def scorer(network, rows):
        more = {"num_samples": 10, "seed": 1, **options}
        return SegmentedLM(network).scorer(more, batch_size=rows, quiet=True)

    asked = [
        Query(n, f"text/{n}", text, contexts[n % len(contexts)])
        for n, text in enumerate(LETTERS)
    ]
    ask = "score_continuations" if any(contexts) else "score_texts"
    return Case(letters, scorer, ask, asked)


def of_mdm(ask="score_texts", **options):
    def scorer(network, rows):
        more = {"num_samples": 4, "seed": 1, **options}
        return MaskedDiffusion(network).scorer(more, batch_size=rows, quiet=True)

    asked = [Query(n, f"text/{n}", WORDS[n % 5]) for n in range(16)]
    if ask == "generate":
        how = GenerationOptions((), 4, 1.0)
        asked = [(Query(n, f"text/{n}", "", "the fox"), how) for n in range(16)]
    return Case(tiny_mdm.network, scorer, ask, asked)


def of_cot(**options):
    def scorer(network, rows):
        more = {"num_samples": 24, "close": "forced", "seed": 1, **options}
        return tiny_cot.scorer(network, rows=rows, questions=max(rows // 4, 1), **more)

    questions = ("a b", "c", "b b c a", "a c", "", "c c c", "a", "b")
    asked = [
        Query(n, f"text/{n // 2}", (" c", " a a")[n % 2], questions[n // 2])
        for n in range(16)
    ]
    return Case(tiny_cot.network, scorer, "score_continuations", asked)


CASES = {
    **{
        f"tokens {name}": of_tokens(("aab", "aab", "ba", ""), estimator=name)
        for name in ("canonical", "is", "smc", "beam", "mixed")
    },
    "tokens whole": of_tokens(),
    "mdm elbo": of_mdm(estimator="elbo"),
    "mdm is": of_mdm(estimator="is"),
    "mdm generation": of_mdm("generate"),
    "cot": of_cot(),
    "cot hinted": of_cot(proposal="hinted"),
    "causal LM": Case(
        letters,
        lambda network, rows: CausalLMScorer(
            network.model, network.tokenizer, batch_size=rows
        ),
        "score",
        LETTERS,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_company_and_order_move_no_number(case):
    network = case.network()
    expected = case.found(case.scorer(network, 64))
    for rows in (1, 7):
        assert agree(case.found(case.scorer(network, rows)), expected)
    scorer = case.scorer(network, 64)
    alone = [found for some in case.groups() for found in case.found(scorer, some)]
    assert agree(alone, expected)
    if case.ask != "score":
        backwards = [each for some in case.groups()[::-1] for each in some]
        assert agree(case.found(scorer, backwards), expected)


def hold(network, monkeypatch, rows):
    """Make networks hold a number of rows at a time; return what is tried."""
    forward, tried = type(network.model).forward, []

    @functools.wraps(forward)
    def limited(self, input_ids=None, **kwargs):
        tried.append(len(input_ids))
        if len(input_ids) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(network.model), "forward", limited)
    return tried


@every_case
def test_out_of_memory_halves_the_batch(case, monkeypatch, caplog):
    network = case.network()
    expected = case.found(case.scorer(network, 4))
    scorer, other = case.scorer(network, 64), case.scorer(network, 64)
    with monkeypatch.context() as patched:
        tried = hold(network, patched, rows=6)
        with caplog.at_level(logging.WARNING):
            assert agree(case.found(scorer), expected)
        assert re.search(r"out of memory with \d+ at a time; \d+ fit", caplog.text)
        assert max(tried) > 6, "premise: more was tried than memory holds"
        before = len(tried)
        assert agree(case.found(scorer), expected)
        assert max(tried[before:]) <= 6, "what does not fit is not tried again"
    hold(network, monkeypatch, rows=0)
    with pytest.raises(ValueError, match="not fit into the memory of cpu") as found:
        case.found(other)
    if case.network is not letters:  # whose equal strings are scored together
        assert "text" in str(found.value)
