"""Work that walks share is done once: counted, not timed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.kglm import steps
from lm_latent_eval.models.kglm.latents import Mention, NextStep
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.kglm.steps import windows
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from tests import large_graph, tiny_models

TEXTS = [[4, 7, 90, 4, 3, 11], [150, 5, 4]]
K, WIDTH = 200, 12


@pytest.fixture
def kglm():
    """Few nodes with many edges, so that walks meet again and again."""
    model = large_graph.kglm(large_graph.graph(12, 90)).double()
    return tiny_models.randomised(model, 0, 1.0)


def listed(monkeypatch) -> list[int]:
    """How many places and pasts each list of parents is made for."""
    numbers: list[int] = []
    found = NextStep._recent

    def watching(self, rows):
        numbers.append(len(rows.position))
        return found(self, rows)

    monkeypatch.setattr(NextStep, "_recent", watching)
    return numbers


def test_walks_that_agree_so_far_are_advanced_once(kglm, monkeypatch):
    proposal, numbers = kglm.proposal("adapted"), listed(monkeypatch)
    batch = tiny_models.batch(TEXTS)
    encoded = proposal.encode(batch)
    draws = proposal.sample(
        encoded, Streams([stream_key(0, str(i)) for i in range(2)], K), K
    )
    mention, node = draws.latents
    before, _ = encoded.on_host(draws.latents)
    behind = windows(before, node).tolist()
    steps = [
        (t, (b, *behind[b][k][t]), int(mention[b, k, t]), int(node[b, k, t]))
        for b, text in enumerate(TEXTS)
        for t in range(len(text))
        for k in range(K)
    ]
    pasts = {(t, past) for t, past, _, _ in steps}
    assert 2 * len(pasts) < len(steps), "premise: walks agree"
    a_token = Counter(t for t, _ in pasts)
    # Nodes that were derived are scored in one go.
    derived = {(t, past, n) for t, past, m, n in steps if m == Mention.DERIVED}
    assert numbers == [*(a_token[t] for t in range(len(TEXTS[0]))), len(derived)]


def test_a_search_lists_no_more_than_may_be_among_the_best(kglm, monkeypatch):
    proposal, batch = kglm.proposal("adapted"), tiny_models.batch(TEXTS)
    encoded, numbers = proposal.encode(batch), []
    listed_steps = steps.listed_steps

    def watching(*arguments):
        result = listed_steps(*arguments)
        numbers.append(len(result.row))
        return result

    monkeypatch.setattr(steps, "listed_steps", watching)
    beam, few = proposal.beam(encoded, WIDTH), sum(numbers)
    numbers.clear()

    def nothing_known(group, value, number):
        return value.new_full((int(group[-1]) + 1,), -torch.inf)

    monkeypatch.setattr(steps, "least_of_best", nothing_known)
    everything = proposal.beam(encoded, WIDTH)
    assert 2 * few < sum(numbers), "premise: most choices are hopeless"
    for ours, wanted in zip(beam.latents, everything.latents, strict=True):
        assert torch.equal(ours, wanted)
    assert torch.equal(beam.score, everything.score)


def test_options_of_one_question_share_its_context(monkeypatch):
    scorer = Scorer(load_checkpoint(CHECKPOINT), ScoringOptions.parse(num_samples=4))
    read: list[int] = []
    encode = KGLM.encode

    def watching(self, batch, after=None):
        read.append(int(batch.length.sum()))
        return encode(self, batch, after)

    monkeypatch.setattr(KGLM, "encode", watching)

    def words(context: str) -> int:
        read.clear()
        options = enumerate(["the", "his", "of", "in"])
        queries = [Query(n, "question", text, context) for n, text in options]
        assert len([*scorer.score_continuations(queries)]) == 4
        return sum(read)

    context = "Piers Garbrand left Eskelmere at"
    # Words of a context are read once by each of two beams, by the passes and a pilot.
    longer = words(f"{context} {context}") - words(context)
    assert longer == 4 * len(context.split())
