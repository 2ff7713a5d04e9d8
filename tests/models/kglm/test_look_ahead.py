"""What p will pay for the text ahead: against sums over every walk of the stand-in."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.kglm import look_ahead
from lm_latent_eval.models.kglm.encoding import KGLMState
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.look_ahead import Candidates
from lm_latent_eval.models.kglm.walk import Mention, Walks
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.tiny_models import COPIED, KNOWN

EXACTLY = {"rtol": 0, "atol": 1e-10}
TEXT = [KNOWN, COPIED, KNOWN, COPIED]
"""Every node has an alias that begins with a word of it."""


@pytest.fixture
def kglm(monkeypatch):
    monkeypatch.setattr(look_ahead, "FURTHEST", torch.inf)
    return tiny_models.kglm(tiny_models.plain_graph())


def batch_of(*texts):
    """Texts in which a word that can only be copied has a price elsewhere."""
    costs = [[-3.0 if word == COPIED else 0.0 for word in text] for text in texts]
    return TokenBatch.collate(texts, costs, first=START)


def encoded(kglm, *texts):
    return kglm.proposal("adapted").encode(batch_of(*texts))


def test_candidates_begin_with_a_word_and_whole_names_come_first(monkeypatch):
    graph = KnowledgeGraph.build(
        [],
        {"A": [[7, 8, 9]], "B": [[7, 9]], "C": [[9]], "D": [[8, 7]], "E": [[6]]},
        max_aliases=1,
        max_alias_words=3,
    )
    batch = TokenBatch.collate([[5, 7, 8, 7, 9], [8, 5, 9]], first=2)
    a, b, c, d = (graph.node_names.index(name) for name in "ABCD")
    states = Candidates.of(batch, graph)
    found = [
        nodes[used].tolist()
        for nodes, used in zip(states.node, states.used, strict=True)
    ]
    assert found == [[0, *sorted([b, d]), c, a], [0, c, d]]
    monkeypatch.setattr(look_ahead, "MOST_PAIRS", 5)  # one a text of five words
    assert Candidates.of(batch, graph).node.tolist() == [[0, min(b, d)], [0, c]]


def stand_in(kglm, text):
    """Sum over every path of the chain of states, by hand: log psi and log beta."""
    encoding = kglm.proposal("prior").encode(batch_of(text))
    walk, num_tokens = encoding.walk, len(text)
    states = [0, *range(1, kglm.knowledge.num_nodes)]

    def word(t, node):
        position, nodes = torch.tensor([t]), torch.tensor([node])
        return kglm._log_words(encoding.text, encoding.batch, position, nodes)[0]

    scores = walk.scores.mention

    def step(t, before, after):
        """Log-probabilities of all ways from one state to another at token t."""
        possible = [True, True, True, before != 0]
        types = scores[t].masked_fill(~torch.tensor(possible), -torch.inf)
        types = types.log_softmax(-1)
        if after == 0:
            return types[Mention.NONE]
        entity = kglm.knowledge.entity(torch.tensor([after]))
        new = walk.new.log_prob(torch.tensor([t]), entity)[0]
        ways = [
            types[Mention.NEW] + new,
            types[Mention.DERIVED] - torch.tensor(len(states) - 1.0).log(),
        ]
        if before == after:
            ways.append(types[Mention.CONTINUE])
        return torch.stack(ways).logsumexp(0)

    def beta(t, before):
        if t == num_tokens:
            return torch.zeros((), dtype=torch.float64)
        return torch.stack([step(t, before, s) + psi(t, s) for s in states]).logsumexp(
            0
        )

    def psi(t, state):
        return word(t, state) + beta(t + 1, state)

    def relative(f):
        table = [[f(t, s) - f(t, 0) for s in states] for t in range(num_tokens)]
        return torch.tensor(table, dtype=torch.float64)

    return relative(psi), relative(beta)


def test_the_tilt_sums_over_every_path(kglm):
    walk = encoded(kglm, TEXT[:1], TEXT, TEXT[:2]).walk
    wanted_tilt, wanted_beta = stand_in(kglm, TEXT)
    position = torch.arange(4, 8)[:, None]  # the second text of the batch
    node = torch.arange(1, kglm.knowledge.num_nodes).expand(4, -1)
    for tilt, wanted in [(walk.tilt, wanted_tilt), (walk.expected, wanted_beta)]:
        found = tilt.at(position.expand_as(node), node)
        # Rounding leaves 1e-16 of p_new to nodes beyond the candidates.
        torch.testing.assert_close(found, wanted[:, 1:], rtol=0, atol=1e-8)
    assert wanted_tilt[:, 1:].abs().max() > 0.1, "premise: something to see"


def test_a_filter_is_told_what_is_expected_after_the_last_node(kglm):
    encoding, proposal = encoded(kglm, TEXT[:2], TEXT), kglm.proposal("adapted")
    _, wanted = stand_in(kglm, TEXT)
    nodes = torch.arange(kglm.knowledge.num_nodes)
    history = nodes.new_zeros(2, len(nodes), kglm.config.cutoff)
    history[..., -1] = nodes
    state = KGLMState(encoding.carry, history)
    for t in range(len(TEXT)):
        found = proposal.log_ahead(encoding, t, state)
        torch.testing.assert_close(found[1], wanted[t], rtol=0, atol=1e-8)
        assert found[0].any() == (t < 2), "nothing is ahead of a text that ended"
    assert not proposal.log_ahead(encoding, len(TEXT), state).any()
    prior = kglm.proposal("prior")
    assert not prior.log_ahead(prior.encode(batch_of(TEXT)), 1, state).any()


@pytest.mark.parametrize("name", ["adapted", "smoothing"])
def test_tokens_that_are_cut_out_know_the_rest_of_the_text(kglm, name):
    """q of a walk is the product of those of its steps, each after the steps before."""
    proposal, batch = kglm.proposal(name, temperature=2.0), batch_of(TEXT[:2], TEXT)
    encoding = proposal.encode(batch)
    draws = proposal.sample(encoding, Streams([1, 2], 5), 5)
    state, log_q = None, torch.zeros_like(draws.log_q)
    for t in range(len(TEXT)):
        step = Walks(*(part[..., t : t + 1] for part in draws.latents))
        token = proposal.token(encoding, t, state)
        log_q = log_q + proposal.log_prob(token, step)
        state = proposal.advance(token, step)
    torch.testing.assert_close(log_q, draws.log_q, **EXACTLY)
    at_once = proposal.advance(encoding, draws.latents)
    assert state.history.equal(at_once.history)


def test_a_search_ranks_by_p_so_far_and_what_is_expected(kglm):
    """At the end of a text nothing is expected: by log p, up to one number."""
    batch, proposal = batch_of(TEXT), kglm.proposal("adapted")
    walks = every_walk(kglm.knowledge, len(TEXT), kglm.config.cutoff, 1)
    encoding = proposal.encode(batch)
    for width in (1, 7, walks.node.shape[1]):
        beam = proposal.beam(encoding, width)
        found = beam.score[0] > -torch.inf
        log_p = kglm.log_joint(kglm.encode(batch), beam.latents)[0, found]
        shared = beam.score[0, found] - log_p
        torch.testing.assert_close(shared, shared[:1].expand_as(shared), **EXACTLY)
    assert len(log_p) == width, "every walk was found"


def test_a_hopeless_choice_keeps_a_share_of_its_probability(monkeypatch):
    kglm = tiny_models.kglm(tiny_models.plain_graph())
    monkeypatch.setattr(look_ahead, "FURTHEST", 0.5)
    tilt = encoded(kglm, TEXT).walk.tilt
    assert tilt.value.abs().max() <= 0.5
    assert tilt.others.abs().max() <= 0.5


def test_words_that_nothing_can_utter_tilt_nothing():
    """Without an alias in sight every state gives a copied word probability zero."""
    graph = KnowledgeGraph.build(
        [], {"Bo": [[KNOWN]]}, max_aliases=1, max_alias_words=1
    )
    kglm = tiny_models.kglm(graph)
    batch = tiny_models.batch([[COPIED, KNOWN]])
    tilt = kglm.proposal("adapted").encode(batch).walk.tilt
    assert tilt.others.isfinite().all()
    assert tilt.value.isfinite().all()
    assert tilt.others[0] == 0


def test_a_piece_may_be_empty(kglm):
    """Of texts that end before it, or of a context that is none."""
    proposal, batch = kglm.proposal("adapted"), batch_of(TEXT, TEXT[:1])
    assert proposal.beam(proposal.encode(batch.piece(0, 0)), 3).score.shape == (2, 3)
    beam = proposal.beam(proposal.encode(batch.piece(2, 4)), 3)
    assert beam.score[1].tolist() == [0.0, -torch.inf, -torch.inf]
