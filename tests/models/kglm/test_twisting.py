"""Twists: names that stand in the text, and what p will pay for the text ahead."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm_latent_eval.inference import BeamMarginalization, DiscreteFilter, particles
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.kglm import candidates as named
from lm_latent_eval.models.kglm import outlooks, parent_gains, tables
from lm_latent_eval.models.kglm.candidates import FEWEST_WORDS, candidates_of
from lm_latent_eval.models.kglm.chain import backward
from lm_latent_eval.models.kglm.encoding import KGLMState
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.latents import Mention
from lm_latent_eval.models.kglm.network import AliasMatching
from lm_latent_eval.models.kglm.scores import Twist
from lm_latent_eval.models.kglm.steps import log_prob_walks
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import START
from tests import kglm_reference as reference
from tests import tiny_models
from tests.kglm_space import walks_of
from tests.means import normal, uniform
from tests.tiny_models import COPIED, KNOWN

ADA, BO, CY = 1, 2, 3
EXACTLY = {"rtol": 0, "atol": 1e-10}


def test_names_speak_for_their_nodes():
    graph = KnowledgeGraph.build(
        [("Ada", "knows", "Bo")],
        {"Ada": [[7, 8], [7]], "Bo": [[7, 8, 9]], "Cy": [[8]]},
        max_aliases=2,
        max_alias_words=3,
    )
    matching = AliasMatching().double()
    matching.weight.data = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    text = torch.tensor([[7, 8, 5, 7], [8, 7, 8, 9]])
    twist = matching(text, torch.tensor([4, 3]), graph)
    expected = torch.zeros(2, 4, 4, dtype=torch.float64)
    expected[0, 0, ADA] = 111.0  # "7 8" stands there: whole, and one word longer
    expected[0, 0, BO] = 1.0  # "7 8 9" only begins like that
    expected[0, 1, CY] = 11.0
    expected[0, 3, ADA] = 11.0  # the end of the text cuts "7 8" off, "7" stands
    expected[0, 3, BO] = 1.0
    expected[1, 0, CY] = 11.0
    expected[1, 1, ADA] = 111.0
    expected[1, 1, BO] = 1.0  # the 9 is beyond the end
    expected[1, 2, CY] = 11.0
    found = twist.at(torch.arange(8)[:, None], torch.arange(4).expand(8, -1))
    assert torch.equal(found.view(2, 4, 4), expected)
    row, node, value = twist.entries(torch.tensor([3, 0, 2]))
    assert row.tolist() == [0, 0, 1, 1]
    assert node.tolist() == [ADA, BO, ADA, BO]
    assert value.tolist() == [11.0, 1.0, 111.0, 1.0]


@pytest.mark.parametrize("listed", [1.0, 0.5])
@pytest.mark.parametrize("model", ["A", "B"])
def test_a_twisted_walk_is_the_plain_one_times_the_twist(model, listed):
    """Token by token: p'(z_t | past) is p(z_t | past) e^b, normalised over z_t."""
    kglm = reference.model(model)
    encoded = kglm.proposal("peeking").encode(reference.batch([2, 4, 5, 3]))
    num_nodes = kglm.knowledge.num_nodes
    some = uniform(3, num_nodes, seed=2) < listed
    twist = normal(3, num_nodes, seed=0) * some
    (key,) = some.flatten().nonzero(as_tuple=True)
    sparse = Twist(
        torch.cat([key, torch.tensor([3 * num_nodes])]),
        torch.cat([twist.flatten()[key], twist.new_zeros(1)]),
        num_nodes,
    )
    twist[:, 0] = 0.0
    twisted = replace(encoded.walk, twist=sparse)
    walks = walks_of(kglm, 3)
    history = encoded.history.expand(1, walks.node.shape[1], -1)
    plain, ours = (
        log_prob_walks(walk, history, walks, encoded.batch.length[:, None])[0]
        for walk in (encoded.walk, twisted)
    )
    assert abs(ours.sum(-1).logsumexp(0)) < 1e-10
    of_node = twist[torch.arange(3), walks.node[0]]
    kept = walks.mention[0] == 3
    weighted = plain + of_node.masked_fill(kept, 0.0)
    steps = torch.stack([walks.mention[0], walks.node[0]], -1).tolist()
    for t in range(3):
        choices: dict[str, dict[str, int]] = defaultdict(dict)
        for k, walk in enumerate(steps):
            choices[str(walk[:t])][str(walk[t])] = k
        for options in choices.values():
            some = torch.tensor([*options.values()])
            wanted = weighted[some, t].log_softmax(0)
            torch.testing.assert_close(ours[some, t], wanted, **EXACTLY)


TEXT = [KNOWN, COPIED, KNOWN, COPIED]
"""Every node but Di has an alias that begins with a word of it."""


def of_graph(*more):
    """Two edges lead from Ada to Bo, one from either to Cy, and none from there."""
    graph = KnowledgeGraph.build(
        [("Ada", r, "Bo") for r in ("knows", "likes")]
        + [(someone, "likes", "Cy") for someone in ("Ada", "Bo")]
        + [*more],
        {"Ada": [[COPIED], [KNOWN, COPIED]], "Bo": [[KNOWN]], "Cy": [[KNOWN]]},
        max_aliases=2,
        max_alias_words=2,
        reflexive=False,
        inverse=False,
    )
    return tiny_models.kglm(graph)


WITH_DI = (("Ada", "likes", "Di"), ("Di", "knows", "Bo"))
"""Whom nothing names."""


@pytest.fixture
def kglm(monkeypatch):
    for name in ("FURTHEST", "FURTHEST_DRAWN"):
        monkeypatch.setattr(outlooks, name, torch.inf)
    return of_graph(*WITH_DI)


def batch_of(*texts):
    """Texts in which a word that can only be copied has a price elsewhere."""
    costs = [[-3.0 if word == COPIED else 0.0 for word in text] for text in texts]
    return TokenBatch.collate(texts, costs, first=START)


def encoded(kglm, *texts):
    return kglm.proposal("adapted").encode(batch_of(*texts))


def candidates(graph, *texts):
    """Names of the states of each text but the first, which is nobody."""
    states, lesser = candidates_of(TokenBatch.collate(texts, first=2), graph)
    assert not states[:, 0].any()
    assert not lesser[states == 0].any()
    return [[graph.node_names[n] for n in nodes if n] for nodes in states]


def test_candidates_have_a_word_and_come_by_words_that_name_them(monkeypatch):
    graph = KnowledgeGraph.build(
        [],
        {"A": [[7, 8, 9]], "B": [[7, 9]], "C": [[9]], "D": [[8, 7]], "E": [[6]]},
        max_aliases=1,
        max_alias_words=3,
    )
    texts = [5, 7, 8, 5, 7, 9], [8, 5, 9]
    assert candidates(graph, *texts) == [[*"BADCE"], [*"ACDBE"]], "one is left"
    monkeypatch.setattr(named, "FEW", 0)
    assert candidates(graph, *texts) == [[*"BADC"], [*"ACDB"]]
    monkeypatch.setattr(named, "COMMON", 2)
    assert candidates(graph, *texts) == [[*"AD"], [*"AD"]], "they have an 8"
    monkeypatch.setattr(named, "COMMON", 4)
    monkeypatch.setattr(named, "MOST_PAIRS", FEWEST_WORDS)  # one a short text
    assert candidates(graph, *texts) == [["B"], ["A"]]


def test_nodes_that_share_most_edges_with_candidates_are_states(monkeypatch):
    """Z shares an edge with one that does, and is none."""
    triples = [("A", "r", name) for name in "VWX"]
    triples += [("B", "r", name) for name in "WXY"]
    graph = KnowledgeGraph.build(
        [*triples, ("Z", "r", "Y"), ("B", "s", "W")],
        {"A": [[7]], "B": [[8]], "C": [[9]]},
        max_aliases=1,
        max_alias_words=1,
    )
    monkeypatch.setattr(named, "FEW", 0)
    found = candidates(graph, [7, 8], [9, 8], [5])
    assert found == [[*"ABWXVY"], [*"BCWXY"], []]
    monkeypatch.setattr(named, "LINKED", 1)
    assert candidates(graph, [9, 7], [9, 8]) == [[*"ACV"], [*"BCW"]]


def stand_in(kglm, text, after=None, *, derived="by edges", rounds=0):
    """Sum over every path of the chain of states, by hand: log psi and log beta.

    A state is the node of a mention, or 0, and the last node that was mentioned; Di is
    "any other node", with the words of all. Mentions are derived "by edges" of parents,
    from parents whose edges are "unlisted", or from "anybody", but Di neither derives
    any nor is derived. DERIVED keeps its share where nobody can be derived from. Who
    was mentioned lately is known from the chain of the round before; without rounds,
    all are taken to have been.
    """
    encoding = kglm.proposal("prior").encode(batch_of(text), after)
    walk, graph, cutoff = encoding.walk, kglm.knowledge, kglm.config.cutoff
    every = torch.arange(graph.num_nodes)
    nodes, di = every[1:], list(graph.node_names).index("Di")
    named = nodes[nodes != di]
    parents = named[graph.has_edges[graph.entity(named)]]
    size = len(every)
    node, last = torch.cat([0 * every, nodes]), torch.cat([every, nodes])
    """Of the states: first those of no mention, then those of each."""
    recent = torch.ones(len(text), size, dtype=torch.float64)
    if rounds is not None and derived != "anybody":
        before = {"derived": derived, "rounds": rounds - 1}
        before = before if rounds else {"derived": "anybody"}
        *_, begun = stand_in(kglm, text, after, **before)
        for t in range(len(text)):
            recent[t, 1:] = 1 - (1 - begun[max(t - cutoff, 0) : t]).prod(0)

    def p_derived(t, unknown):
        """Of each node after each that was mentioned last."""
        found = torch.zeros(size, size, dtype=torch.float64)
        if derived == "anybody":
            found[:, named] = 1 / len(named)
            return found
        score = walk.scores.parent.at(0 * parents + t, graph.entity(parents))
        score = (score - score.max()).exp()
        weight = (score * recent[t, parents]).repeat(size, 1)
        weight[parents, range(len(parents))] = score
        head, tail = torch.cartesian_prod(parents, named).T
        edge = walk.edges.log_prob(0 * head + t, graph.entity(head), tail).exp()
        edge = edge.view(len(parents), -1)
        total = unknown + weight.sum(1, keepdim=True)
        found[:, named] = (unknown / len(named) + weight @ edge) / total
        return found.nan_to_num()

    def steps(t):
        """Of every state before every one after: that a mention begins, or none does.

        And what each state pays for the word.
        """
        unknown = float(after is not None and t < cutoff)
        yes = torch.ones_like(node, dtype=torch.bool)
        possible = torch.stack([yes, yes, (last > 0) | (unknown > 0), node > 0], -1)
        scores = walk.scores.mention[t].masked_fill(~possible, -torch.inf)
        types = scores.softmax(-1).T[..., None]
        new = walk.new.log_prob(0 * nodes + t, graph.entity(nodes)).exp()
        begin = torch.zeros_like(types[0]).repeat(1, len(node))
        begin[:, size:] = types[Mention.NEW] * new
        begin[:, size:] += types[Mention.DERIVED] * p_derived(t, unknown)[last, 1:]
        go_on = torch.diag(types[Mention.CONTINUE, :, 0])
        go_on[range(len(node)), last] += types[Mention.NONE, :, 0]
        word = kglm._log_words(encoding.text, encoding.batch, 0 * every + t, every)
        word = word.exp()
        return begin, go_on, word[node]

    chain = [steps(t) for t in range(len(text))]
    beta, psi = [torch.ones_like(chain[0][2])], []
    for begin, go_on, word in chain[::-1]:
        psi.insert(0, word * beta[0])
        beta.insert(0, (begin + go_on) @ psi[0])
    reached, begun = torch.zeros_like(beta[0]), []
    reached[0] = 1.0
    for (begin, go_on, word), ahead in zip(chain, psi, strict=True):
        begun.append(((reached @ begin) * ahead)[size:] / beta[0][0])
        reached = reached @ (begin + go_on) * word

    def relative(tables):
        """To nobody: of each mention, and of none after it."""
        logs = torch.stack(tables).log()
        return logs[:, size:] - logs[:, :1], logs[:, 1:size] - logs[:, :1]

    return relative(psi), relative(beta[:-1]), torch.stack(begun)


def outlooks_of(encoding, text=0):
    """What is expected of a text, relative to no mention after none, node by node.

    The twist of a mention, and of none after one, then what is expected before each
    token after a mention just now, and longer ago: (tokens, nodes) each.
    """
    whole = encoding.tables
    tables, beta = whole.tables[text], whole.beta[text][:-1]
    twist = whole.twist(text)(tables)
    states = [*tables.node[1 : tables.other]]
    every = range(1, encoding.tables.scores.graph.num_nodes)
    order = [states.index(n) + 1 if n in states else tables.other for n in every]
    psi = twist.mention[:, order], twist.none[:, order]
    found = (part - twist.none[:, :1] for part in psi), beta - beta[:, 1:, :1]
    return (
        tuple(map(torch.from_numpy, found[0])),
        tuple(torch.from_numpy(found[1][:, k, order]) for k in range(2)),
    )


def assert_sums(encoding, psi, beta, text=0):
    for found, wanted in zip(outlooks_of(encoding, text), (psi, beta), strict=True):
        torch.testing.assert_close(found, wanted, **EXACTLY)


@pytest.fixture
def words_alone(monkeypatch):
    """Let states be those that words suggest, and parents be found ``rounds`` times."""

    def found(rounds=0):
        monkeypatch.setattr(outlooks, "ROUNDS", rounds)

    monkeypatch.setattr(named, "LINKED", 0)
    monkeypatch.setattr(named, "FEW", 0)
    found()
    return found


@pytest.mark.parametrize("rounds", [0, 2, None])
def test_the_twist_sums_every_path(kglm, words_alone, rounds):
    """Rounds of None: with the parents by which searches are checked."""
    words_alone(rounds or 0)
    proposal = kglm.proposal("adapted").with_checks()
    encoding = proposal.encode(batch_of(TEXT[:1], TEXT, TEXT[:2]))
    psi, beta, _ = stand_in(kglm, TEXT, rounds=rounds)
    if rounds is None:
        everybody = [
            x._replace(recent=np.ones_like(x.recent)) for x in encoding.tables.parents
        ]
        encoding.tables.__dict__["parents"] = everybody
    assert_sums(encoding, psi, beta, text=1)
    assert psi[0].abs().max() > 0.1, "premise: something to see"
    assert psi[1].abs().max() > 0.01, "premise, likewise"


def test_parents_from_before_a_piece_lead_to_all_alike(kglm, words_alone):
    proposal, batch = kglm.proposal("adapted"), batch_of([KNOWN, KNOWN])
    encoding = proposal.encode(batch)
    draws = proposal.sample(encoding, Streams([1], 1), 1)
    after = proposal.advance(encoding, draws.latents)
    psi, beta, _ = stand_in(kglm, TEXT, after)
    assert_sums(proposal.encode(batch_of(TEXT), after), psi, beta)
    first, _ = outlooks_of(encoded(kglm, TEXT))
    assert not torch.allclose(first[1], psi[1]), "premise: it matters"


def test_a_filter_is_told_what_is_expected_after_the_last_node(kglm, words_alone):
    encoding, proposal = encoded(kglm, TEXT[:2], TEXT), kglm.proposal("adapted")
    _, (mention, none), _ = stand_in(kglm, TEXT)
    nodes = torch.arange(1, kglm.knowledge.num_nodes)
    history = nodes.new_zeros(2, 2 * len(nodes) + 1, kglm.config.cutoff)
    history[..., : len(nodes), -1] = nodes
    history[..., len(nodes) : -1, 0] = nodes
    state = KGLMState(encoding.carry, history)
    for t in range(len(TEXT)):
        found = proposal.log_twist(encoding, t, state)
        wanted = torch.cat([mention[t], none[t], torch.zeros(1)])
        torch.testing.assert_close(found[1], wanted, **EXACTLY)
        assert found[0].any() == (t < 2), "nothing is ahead of a text that ended"
    assert not proposal.log_twist(encoding, len(TEXT), state).any()
    prior = kglm.proposal("prior")
    assert not prior.log_twist(prior.encode(batch_of(TEXT)), 1, state).any()


@pytest.mark.parametrize(
    ("piece", "ahead", "states"),
    [(2, 0, None), (2, 1, None), (2, 2, None), (9, 0, None), (9, 0, 1)],
)
def test_a_search_ranks_by_log_p_at_the_end(monkeypatch, piece, ahead, states):
    """Of nodes that are no state of the look-ahead as well."""
    monkeypatch.setattr(particles, "PIECE", piece)
    monkeypatch.setattr(particles, "AHEAD", ahead)
    if states is not None:
        monkeypatch.setattr(named, "MOST_PAIRS", states * FEWEST_WORDS)
        monkeypatch.setattr(named, "LINKED", 0)
        monkeypatch.setattr(named, "FEW", 0)
    kglm, batch = of_graph(), batch_of(TEXT)
    every = walks_of(kglm, len(TEXT))
    begin = particles.Particles.begin(1, "cpu")
    for width in (7, every.node.shape[1]):
        method = BeamMarginalization(width)
        found = method.extend(Texts(kglm, kglm.proposal("adapted"), batch, [0]), begin)
        used = ~found.log_q.isneginf()
        torch.testing.assert_close(found.log_q[used], found.log_w[used], **EXACTLY)
    assert used.sum() == width, "every walk was found"


@pytest.mark.parametrize("num_samples", [5, 20, 20_000])
def test_a_word_of_one_name_is_found_where_none_is_listed(monkeypatch, num_samples):
    """Neither candidates nor the typical node have it: it is no less possible."""
    kglm = of_graph()
    ada = kglm.knowledge.node_names.index("Ada")
    kglm.generative.trunk.new_bias.data[kglm.knowledge.entity_of[ada]] = -5.0
    for name in ("MOST_PAIRS", "LINKED", "FEW"):
        monkeypatch.setattr(named, name, 0)
    monkeypatch.setattr(tables, "OTHERS", 1)
    text = [KNOWN, COPIED, KNOWN]
    costs = [-torch.inf if word == COPIED else 0.0 for word in text]
    batch = TokenBatch.collate([text], [costs], first=START)
    walks = walks_of(kglm, len(text))
    log_p = kglm.log_joint(kglm.encode(batch), walks).logsumexp(-1).item()
    assert log_p > -torch.inf, "premise"
    method, proposal = DiscreteFilter(num_samples), kglm.proposal("adapted")
    many = TokenBatch.collate([text] * 200, [costs] * 200, first=START)
    rows = method.log_weights(Texts(kglm, proposal, many, list(range(200))))
    found = torch.stack([method.unbiased(row) for row in rows]).sub(log_p).exp()
    error = found.mean(1).std() / math.sqrt(len(rows))
    assert abs(found.mean() - 1) <= 4 * error + 1e-9


@pytest.mark.parametrize("most", [0, 2])
def test_a_longer_text_beside_it_changes_nothing(monkeypatch, most):
    monkeypatch.setattr(named, "MOST_PAIRS", most * FEWEST_WORDS)
    kglm = of_graph()
    for found in zip(
        outlooks_of(encoded(kglm, TEXT)),
        outlooks_of(encoded(kglm, TEXT, TEXT * 30)),
        strict=True,
    ):
        torch.testing.assert_close(*found, **EXACTLY)


@pytest.mark.parametrize("special", [0, 1])
def test_nobody_may_be_introduced(special):
    """A graph without entities, or with special ones alone: no walk mentions any."""
    names = {"A": [[KNOWN]]} if special else {}
    graph = KnowledgeGraph.build([], names, max_aliases=1, max_alias_words=1)
    kglm = tiny_models.kglm(graph, special_entities=graph.num_entities).double()
    batch, text = batch_of([KNOWN, KNOWN]), [KNOWN, KNOWN]
    nothing = walks_of(kglm, len(text))
    log_p = kglm.log_joint(kglm.encode(batch), nothing).logsumexp(-1)[0]
    method = DiscreteFilter(100)
    [row] = method.log_weights(Texts(kglm, kglm.proposal("adapted"), batch, [1]))
    found = method.estimate(row, len(text))
    assert found.bound == "exact"
    assert found.log_evidence == pytest.approx(log_p.item())


def test_parents_are_worth_what_the_chain_finds_with_them(monkeypatch):
    """Against sums of the chain with one state known to be a parent, or none."""
    monkeypatch.setattr(parent_gains, "LIKELY", 0.0)
    look_ahead = encoded(of_graph(*WITH_DI), TEXT).tables
    [text], [parents], [beta] = look_ahead.tables, look_ahead.parents, look_ahead.beta
    worth = parent_gains.worth_of.py_func(text, parents, beta)

    def log_p_over_the_chains(u, s, recent):
        other = parents.recent.copy()
        other[u, s] = recent
        changed = backward(text, parents._replace(recent=other))
        return changed[0, 1, 0] - beta[0, 1, 0]

    num_tokens, num_states = parents.recent.shape
    for u in range(num_tokens):
        for s in range(1, num_states):
            for found, recent in ((worth.unknown, 0.0), (worth.known, 1.0)):
                wanted = log_p_over_the_chains(u, s, recent)
                assert math.log(found[u, s]) == pytest.approx(wanted, abs=1e-9)
    cutoff, t = look_ahead.cutoff, 0
    gains = parent_gains.gains_at(worth, t, cutoff, num_states + 1)
    assert not gains[:, -1].any(), "of a state that is no candidate"
    for s in range(1, num_states):
        later = -np.expm1(worth.absent[:, s] - worth.absent[t + 1, s])
        expected = (
            worth.unknown[:, s] * (1 - later[:-1]) + worth.known[:, s] * later[:-1]
        )
        every = np.log(worth.known[:, s] / expected)
        for n in range(cutoff + 1):
            wanted = every[t + 1 : t + 1 + n].sum()
            assert gains[n, s] == pytest.approx(wanted, abs=1e-9)
    assert np.abs(gains).max() > 0.01, "premise: something to see"
