"""Networks read what a device holds: batches that do not fit are halved, and go on."""

from __future__ import annotations

import functools
import logging
import re

import pytest
import torch

from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.string_scorers import CausalLMScorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.rounding import agree
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm

NUMBER = 16
"""Texts, which are asked for together."""


LETTERS = ["".join("ab"[int(bit)] for bit in f"{16 + n:b}") for n in range(NUMBER)]


def by_index(answers):
    return sorted(answers, key=lambda answer: answer.index)


def queries(*texts, context=""):
    return [
        Query(n, f"text/{n}", texts[n % len(texts)], context) for n in range(NUMBER)
    ]


def of_tokens(network, rows, **options):
    more = {"num_samples": 4, "seed": 1, **options}
    scorer = SegmentedLM(network).scorer(more, batch_size=rows, quiet=True)
    return lambda: by_index(scorer.score_texts(queries(*LETTERS)))


def of_mdm(network, rows, **options):
    more = {"num_samples": 4, "seed": 1, **options}
    scorer = MaskedDiffusion(network).scorer(more, batch_size=rows, quiet=True)
    # What texts have in common is read once: these have little.
    texts = "the fox saw", "a Bo saw .", "Ada saw a fox", "Bo saw the fox", "fox . a Bo"
    return lambda: by_index(scorer.score_texts(queries(*texts)))


def unmasking(network, rows):
    scorer = MaskedDiffusion(network).scorer({"seed": 1}, batch_size=rows, quiet=True)
    how = GenerationOptions((), 4, 1.0)
    asked = [(query, how) for query in queries("", context="the fox")]
    return lambda: sorted(scorer.generate(asked))


def of_cot(network, rows, **options):
    more = {"num_samples": 24, "close": "forced", "seed": 1, **options}
    scorer = tiny_cot.scorer(network, rows=rows, questions=NUMBER, **more)
    asked = [
        Query(n, f"text/{n // 2}", (" c", " a a")[n % 2], "a b") for n in range(NUMBER)
    ]
    return lambda: by_index(scorer.score_continuations(asked))


def of_causal_lm(network, rows):
    scorer = CausalLMScorer(network.model, network.tokenizer, batch_size=rows)
    return lambda: scorer.score(LETTERS).log_p.tolist()


def letters():
    return tiny_causal.network(tiny_causal.letters())


WRAPPERS = {
    "tokens canonical": (letters, functools.partial(of_tokens, estimator="canonical")),
    "tokens mixed": (letters, functools.partial(of_tokens, estimator="mixed")),
    "mdm elbo": (tiny_mdm.network, functools.partial(of_mdm, estimator="elbo")),
    "mdm is": (tiny_mdm.network, functools.partial(of_mdm, estimator="is")),
    "mdm generation": (tiny_mdm.network, unmasking),
    "cot": (tiny_cot.network, of_cot),
    "cot hinted": (tiny_cot.network, functools.partial(of_cot, proposal="hinted")),
    "causal LM": (letters, of_causal_lm),
}


def hold(network, monkeypatch, rows):
    """Make a network hold a number of rows at a time; return what is tried."""
    forward, tried = type(network.model).forward, []

    @functools.wraps(forward)
    def limited(self, input_ids=None, **kwargs):
        tried.append(len(input_ids))
        if len(input_ids) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(network.model), "forward", limited)
    return tried


@pytest.mark.parametrize("name", WRAPPERS)
def test_out_of_memory_halves_the_batch(name, monkeypatch, caplog):
    make, scoring = WRAPPERS[name]
    network = make()
    expected = scoring(network, 4)()
    run, least = scoring(network, 64), scoring(network, 64)
    with monkeypatch.context() as patched:
        tried = hold(network, patched, rows=6)
        with caplog.at_level(logging.WARNING):
            assert agree(run(), expected)
        assert re.search(r"out of memory with \d+ at a time; \d+ fit", caplog.text)
        assert max(tried) > 6, "premise: more was tried than memory holds"
        before = len(tried)
        assert agree(run(), expected)
        assert max(tried[before:]) <= 6, "what does not fit is not tried again"
    hold(network, monkeypatch, rows=0)
    with pytest.raises(ValueError, match="not fit into the memory of cpu") as found:
        least()
    canonical = name.startswith("tokens")  # scored first, equal ones of texts together
    assert canonical or "text" in str(found.value)
