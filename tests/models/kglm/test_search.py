"""Searches over tables: log p is the model's, and passes are unbiased for it."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference import cuts, discrete
from lm_latent_eval.inference.cuts import Best
from lm_latent_eval.inference.discrete import CHECKS, OTHERS, PASSES, DiscreteFilter
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.models.kglm import candidates, search
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from tests import large_graph, tiny_models
from tests.kglm_space import walks_of
from tests.means import weights_are_of
from tests.tiny_models import COPIED, KNOWN
from tests.watching import watch

EXACTLY = {"rtol": 0, "atol": 1e-10}
TEXT = [KNOWN, COPIED, KNOWN]
SEEDS = 400


@pytest.fixture(scope="module")
def kglm():
    """Of twelve nodes one is named by words; each has edges to some others."""
    names = [f"node {i}" for i in range(12)]
    triples = [(names[i], "knows", names[(5 * i + 3) % 12]) for i in range(12)]
    triples += [(names[0], "likes", names[i]) for i in (4, 7)]
    graph = KnowledgeGraph.build(
        triples,
        {names[0]: [[COPIED], [KNOWN, COPIED]]},
        max_aliases=2,
        max_alias_words=2,
        reflexive=False,
    )
    return tiny_models.kglm(graph, cutoff=3)


@pytest.fixture(params=[True, False], ids=["unlisted", "linked"])
def few_listed(request, monkeypatch):
    monkeypatch.setattr(candidates, "FEW", 0)
    if request.param:
        monkeypatch.setattr(candidates, "LINKED", 0)
    return request.param


def test_what_is_found_has_the_models_log_p(few_listed):
    model = large_graph.kglm(large_graph.graph(40, 200)).double()
    model = tiny_models.randomised(model, 0, 1.0)
    batch = tiny_models.batch([[4, 7, 90, 4, 3, 11], [150, 5, 4]])
    proposal = model.proposal("adapted")
    encoded = proposal.encode(batch)
    for width in (30, 50):
        beam = proposal.search(encoded, Best(width)).beam
        wanted = model.log_joint(model.encode(batch), beam.latents)
        used = beam.score > -torch.inf
        assert used.sum(1).tolist() == [width] * 2
        torch.testing.assert_close(beam.log_p[used], wanted[used], **EXACTLY)


def test_beams_of_other_proposals_rank_by_log_q(kglm):
    batch = tiny_models.batch([TEXT])
    for name in ("smoothing", "peeking", "nonpeeking", "prior"):
        proposal = kglm.proposal(name, temperature=1.5)
        encoded = proposal.encode(batch)
        beam = proposal.beam(encoded, 200)
        log_q = proposal.log_prob(encoded, beam.latents)
        torch.testing.assert_close(beam.score, log_q, **EXACTLY)
        every = proposal.log_prob(encoded, walks_of(kglm, len(TEXT)))
        worst = every.sort(descending=True).values[0, 199]
        assert beam.score.min() >= worst - 1e-3, "they are the best"


@pytest.mark.parametrize("width", [2, 8])
def test_passes_are_unbiased_whatever_is_listed(kglm, monkeypatch, few_listed, width):
    """Each node can be drawn, and most are named by no word."""
    drawn = watch(monkeypatch, search, "drawn_new", lambda found, *_: found)
    batch = tiny_models.batch([TEXT])
    exact = kglm.log_joint(kglm.encode(batch), walks_of(kglm, len(TEXT)))
    log_p = exact.logsumexp(-1).item()
    many = tiny_models.batch([TEXT] * SEEDS)
    texts = Texts(kglm, kglm.proposal("adapted"), many, [*range(SEEDS)])
    found = DiscreteFilter(PASSES * width).extend(texts, None)
    assert found.cut.any(1).all(), "premise: something is thinned"
    assert drawn, "premise: some of what is not listed survives"
    assert found.checks.log_p.shape[1] == 2 * CHECKS + OTHERS
    for passes in (found.log_p, *found.checks.log_p.split([CHECKS, CHECKS, OTHERS], 1)):
        weights_are_of(log_p, passes, 0.1)
    nodes = {int(n) for found in drawn for n in found[0]}
    assert nodes == {*range(2, 13)} or not few_listed


def test_the_number_is_unbiased_where_checks_choose_the_places(kglm, monkeypatch):
    """Of a text whose checks agree with some random numbers and not with others."""
    monkeypatch.setattr(candidates, "FEW", 0)
    monkeypatch.setattr(cuts, "FEWEST", 1)
    monkeypatch.setattr(discrete, "AGREE", 0.1)
    made = watch(monkeypatch, discrete, "Thinned", lambda cut, *_: cut)
    batch, number, width = tiny_models.batch([TEXT] * 2000), 2000, 8
    texts = Texts(kglm, kglm.proposal("adapted"), batch, [*range(number)])
    found = DiscreteFilter(PASSES * width).extend(texts, None)
    _, passes = made
    easy = passes.worth[:, 0] == 1 / discrete.FINE / width
    assert number / 5 < easy.sum() < number / 2, "premise: both are common"
    assert passes.worth[~easy].eq(1 / discrete.FINEST / width).all()
    assert easy.equal(discrete._agree(found.checks.log_p)), "checks alone choose"
    joint = kglm.log_joint(
        kglm.encode(tiny_models.batch([TEXT])), walks_of(kglm, len(TEXT))
    )
    weights_are_of(joint.logsumexp(-1).item(), found.log_p)


def test_passes_that_read_on_are_unbiased(kglm, few_listed):
    proposal, method = kglm.proposal("adapted").with_checks(), DiscreteFilter(5 * 6)
    text = [*TEXT, KNOWN]
    exact = kglm.log_joint(
        kglm.encode(tiny_models.batch([text])), walks_of(kglm, len(text))
    )
    texts = Texts(kglm, proposal, tiny_models.batch([text] * SEEDS), [*range(SEEDS)])
    begin = Particles.begin(SEEDS, "cpu")
    read = method.extend(texts.piece(0, 2), begin)
    found = method.extend(texts.piece(2, 4), read)
    for passes in (found.log_p, *found.checks.log_p.split([CHECKS, CHECKS, OTHERS], 1)):
        weights_are_of(exact.logsumexp(-1).item(), passes, 0.1)


def test_narrower_passes_begin_no_mention_of_the_lesser_half(kglm, monkeypatch):
    """Of the nodes that an edge suggests; so they find less, by what those hold."""
    kglm = tiny_models.kglm(kglm.knowledge, cutoff=3)
    kglm = tiny_models.randomised(kglm, 2, 1.0)
    monkeypatch.setattr(candidates, "FEW", 0)
    monkeypatch.setattr(candidates, "LINKED", 2)
    proposal, batch = kglm.proposal("adapted").with_checks(), tiny_models.batch([TEXT])
    nodes, lesser = proposal.encode(batch).tables.candidates
    assert nodes.shape[1] == 1 + 1 + 2
    assert lesser.tolist() == [[False, False, False, True]]
    walks = walks_of(kglm, len(TEXT))
    log_p = kglm.log_joint(kglm.encode(batch), walks)
    left = log_p.masked_fill((walks.node == nodes[0, 3]).any(-1), -torch.inf)
    assert left.logsumexp(-1) < log_p.logsumexp(-1) - 0.3, "premise: a difference"
    many = tiny_models.batch([TEXT] * SEEDS)
    texts = Texts(kglm, proposal, many, [*range(SEEDS)])
    found = DiscreteFilter(PASSES * 8).extend(texts, None)
    for passes in (found.log_p, found.checks.log_p[:, 2 * CHECKS :]):
        weights_are_of(log_p.logsumexp(-1).item(), passes, 0.1)
    narrow = found.checks.log_p[:, : 2 * CHECKS]
    weights_are_of(left.logsumexp(-1).item(), narrow, 0.1)
