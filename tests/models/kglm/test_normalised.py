"""A new KGLM and its proposals are distributions: sums over every text and walk."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.kglm import modeling
from lm_latent_eval.models.kglm.latents import Walks
from lm_latent_eval.text.words import START
from tests import tiny_models
from tests.kglm_space import every_walk
from tests.tiny_models import COPIED, KNOWN, SYMBOLS

LENGTH, CUTOFF = 4, 2  # longer than the cutoff, so that entities are forgotten
GRAPHS = {"plain": tiny_models.plain_graph, "full": tiny_models.full_graph}
CAUSAL = ("peeking", "nonpeeking", "prior")
PROPOSALS = (*CAUSAL, "smoothing", "adapted")
EXACTLY = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module", params=GRAPHS)
def kglm(request):
    return tiny_models.kglm(GRAPHS[request.param]())


def walks_over(kglm, length: int) -> Walks:
    return every_walk(kglm.knowledge, length, CUTOFF, kglm.config.special_entities)


def every_text(length: int) -> list[list[int]]:
    return [list(text) for text in product(SYMBOLS, repeat=length)]


def log_p_of(kglm, texts, walks: Walks) -> torch.Tensor:
    """log p(x, z) of every text under every walk, (texts, walks)."""
    shape = (len(texts), -1, -1)
    encoded = kglm.encode(tiny_models.batch(texts))
    return kglm.log_joint(encoded, Walks(*(z.expand(shape) for z in walks)))


# -- totals ------------------------------------------------------------------------


def test_every_text_under_every_walk_totals_one(kglm):
    walks = walks_over(kglm, LENGTH)
    total = log_p_of(kglm, every_text(LENGTH), walks).logsumexp((0, 1)).exp()
    assert walks.node.shape[1] > 100, "premise: there is something to sum"
    assert abs(total.item() - 1) < 1e-10


def test_a_larger_cutoff_remembers_more():
    """Premise of the total above: at this length the cutoff cuts something off."""
    graph = tiny_models.plain_graph()
    some, more = (every_walk(graph, LENGTH, cutoff, 1) for cutoff in (2, 3))
    assert some.node.shape[1] < more.node.shape[1]


def test_what_cannot_happen_has_probability_zero(kglm):
    encoded = kglm.encode(tiny_models.batch([[KNOWN, KNOWN]]))
    bo = list(kglm.knowledge.node_names).index("Bo")
    impossible = [
        ((3, 0), (1, 0)),  # nothing to continue
        ((2, 0), (1, 0)),  # nothing to derive from
        ((1, 3), (1, bo)),  # a continuation changes its node
        ((0, 0), (1, 0)),  # nothing, by name
        ((1, 0), (0, 0)),  # nobody is introduced
    ]
    for mention, node in impossible:
        walk = Walks(torch.tensor(mention)[None, None], torch.tensor(node)[None, None])
        assert kglm.log_joint(encoded, walk).item() == -torch.inf
        assert kglm.proposal().log_prob(encoded, walk).item() == -torch.inf


# -- batches and pieces -------------------------------------------------------------


def draw(kglm, which, texts, keys, num_samples):
    proposal = kglm.proposal(which)
    encoded = proposal.encode(tiny_models.batch(texts))
    return proposal.sample(encoded, Streams(keys, num_samples), num_samples)


def test_a_text_may_wait_while_others_go_on(kglm):
    """A piece without tokens of a text leaves the text where it is."""
    whole = [[4, 5, 4], [5, 5, 4, 1]]
    keys = [stream_key(4, str(i)) for i in range(2)]
    proposal, method = kglm.proposal("peeking"), ImportanceSampling(6)
    read = Particles.begin(2, "cpu")
    done = [0, 0]
    for more in ([1, 2], [0, 1], [2, 1]):
        ends = [a + b for a, b in zip(done, more, strict=True)]
        texts = [x[a:b] for x, a, b in zip(whole, done, ends, strict=True)]
        piece = tiny_models.batch(texts)
        for b, start in enumerate(done):
            piece.inputs[b, 0] = whole[b][start - 1] if start else START
        read = method.extend(kglm, proposal, piece, keys, done, read)
        done = ends
    wanted = method.log_weights(kglm, proposal, tiny_models.batch(whole), keys)
    torch.testing.assert_close(read.log_w, wanted, **EXACTLY)


# -- states ------------------------------------------------------------------------


def test_states_pick_texts_and_walks(kglm):
    texts = [[4, 5, 4], [5, 5], [4]]
    keys = [stream_key(3, str(i)) for i in range(3)]
    draws = draw(kglm, "peeking", texts, keys, 4)
    state = kglm.advance(kglm.encode(tiny_models.batch(texts)), draws.latents)
    for b, text in enumerate(texts):  # the last nodes of each text, the latest last
        path = [[0] * CUTOFF + walk for walk in draws.latents.node[b].tolist()]
        wanted = [walk[: CUTOFF + len(text)][-CUTOFF:] for walk in path]
        assert state.history[b].tolist() == wanted

    index = torch.tensor([2, 0, 2])
    picked = state.select(index)
    assert torch.equal(picked.history, state.history[index])
    for (h, c), (hh, cc) in zip(picked.carry.layers, state.carry.layers, strict=True):
        assert torch.equal(h, hh[index])
        assert torch.equal(c, cc[index])

    chosen = torch.tensor([[3, 3], [0, 1], [2, 0]])
    resampled = state.resample(chosen)
    assert resampled.history.shape == (3, 2, CUTOFF)
    for b, row in enumerate(chosen.tolist()):
        for k, kept in enumerate(row):
            assert torch.equal(resampled.history[b, k], state.history[b, kept])


@pytest.mark.parametrize("prefix", [[], [5], [4, 1], [4, 5, 4]])
def test_next_token_is_the_enumerated_marginal(kglm, monkeypatch, prefix):
    """With every walk a particle of weight p(x, z)."""
    length = len(prefix)
    continued = log_p_of(
        kglm, [[*prefix, s] for s in SYMBOLS], walks_over(kglm, length + 1)
    ).logsumexp(1)
    wanted = torch.full((kglm.config.num_words,), -torch.inf, dtype=torch.float64)
    wanted[torch.tensor(SYMBOLS)] = continued - continued.logsumexp(0)

    batch = tiny_models.batch([[*prefix, KNOWN]])
    walks = (
        walks_over(kglm, length)
        if prefix
        else Walks(*torch.zeros(2, 1, 1, 0, dtype=torch.long))
    )
    p = kglm.encode(batch.piece(0, length))
    log_w = kglm.log_joint(p, walks)
    ahead = kglm.encode(batch.piece(length, length + 1), kglm.advance(p, walks))
    approximate = kglm.next_token(ahead, log_w, Streams([0], 1))
    assert 1 - modeling.NEGLIGIBLE <= approximate.exp().sum().item() <= 1 + 1e-12
    monkeypatch.setattr(modeling, "NEGLIGIBLE", 0.0)
    predicted = kglm.next_token(ahead, log_w, Streams([0], 1))
    assert predicted.shape == (1, kglm.config.num_words)
    torch.testing.assert_close(predicted[0].exp(), wanted.exp(), **EXACTLY)
    scaled = kglm.next_token(ahead, log_w - 300.0, Streams([0], 1))
    torch.testing.assert_close(scaled, predicted, rtol=0, atol=1e-8)


# -- weights that change ------------------------------------------------------------


def test_scores_follow_the_weights():
    """What a model remembers between calls belongs to its weights of that time."""
    kglm = tiny_models.kglm(tiny_models.full_graph())
    other = tiny_models.kglm(tiny_models.full_graph(), seed=1)
    walks, texts = walks_over(kglm, 2), [[KNOWN, COPIED]]
    with torch.no_grad():
        before = log_p_of(kglm, texts, walks)
        wanted = log_p_of(other, texts, walks)
        assert not torch.allclose(before, wanted), "premise"
        kglm.load_state_dict(other.state_dict())
        torch.testing.assert_close(log_p_of(kglm, texts, walks), wanted, **EXACTLY)


def test_remembered_aliases_change_nothing(kglm):
    walks, texts = walks_over(kglm, 3), [[4, 5, 4], [5, 5, 1]]
    with torch.enable_grad():
        plain = log_p_of(kglm, texts, walks)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(log_p_of(kglm, texts, walks), plain, **EXACTLY)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(1, 1000),
    spread=st.floats(0.1, 3.0),
    text=st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=3),
)
def test_any_weights_give_distributions(seed, spread, text):
    kglm = tiny_models.kglm(tiny_models.plain_graph(), seed=seed, spread=spread)
    walks = walks_over(kglm, len(text))
    total = log_p_of(kglm, every_text(len(text)), walks).logsumexp((0, 1))
    assert abs(total.item()) < 1e-10
    for which in PROPOSALS:
        proposal = kglm.proposal(which)
        encoded = proposal.encode(tiny_models.batch([text]))
        assert abs(proposal.log_prob(encoded, walks).logsumexp(1).item()) < 1e-10
