"""What only a KGLM owes: possible walks, the words' normaliser, work that is shared."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.kglm import steps
from lm_latent_eval.models.kglm.latents import Mention, NextStep, Walks
from lm_latent_eval.models.kglm.network import log_add, log_sum_product, logsumexp
from lm_latent_eval.models.kglm.steps import windows
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import large_graph, tiny_models
from tests.kglm_space import every_walk
from tests.tiny_models import COPIED, KNOWN, SYMBOLS

CUTOFF = 2
GRAPHS = {"plain": tiny_models.plain_graph, "full": tiny_models.full_graph}
PROPOSALS = ("peeking", "nonpeeking", "prior", "smoothing", "adapted")
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
@example(seed=0, spread=1.0, text=[KNOWN, COPIED, UNKNOWN, END])
def test_any_weights_give_distributions(seed, spread, text):
    """Of texts beyond the cutoff, too, where entities are forgotten."""
    kglm = tiny_models.kglm(tiny_models.plain_graph(), seed=seed, spread=spread)
    walks = walks_over(kglm, len(text))
    total = log_p_of(kglm, every_text(len(text)), walks).logsumexp((0, 1))
    assert abs(total.item()) < 1e-10
    for which in PROPOSALS:
        proposal = kglm.proposal(which)
        encoded = proposal.encode(tiny_models.batch([text]))
        assert abs(proposal.log_prob(encoded, walks).logsumexp(1).item()) < 1e-10


def direct(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return (a.double()[:, None] + b.double()[None]).logsumexp(-1)


def all_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The code under test for every pair, as two texts: the first row and the rest."""
    first, second = a[:1], a[1:]
    padded = (
        torch.stack(
            [
                torch.cat([first, a.new_zeros(max(len(second) - 1, 0), a.shape[1])]),
                second,
            ]
        )
        if len(second)
        else first[None]
    )
    row = torch.tensor([0, *range(padded.shape[1], padded.shape[1] + len(second))])
    pairs = torch.cartesian_prod(row, torch.arange(len(b)))
    return log_sum_product(padded, b, *pairs.T).view(len(a), len(b))


def scores(rows: int, columns: int, spread: float, seed: int, dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * spread).to(dtype)


# -- the normaliser -----------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0, 100.0])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-11)]
)
def test_the_normaliser_is_its_definition(dtype, tolerance, spread):
    a, b = scores(7, 40, spread, 0, dtype), scores(9, 40, spread, 1, dtype)
    a[:, [0, 2]] = -torch.inf  # words that are never uttered
    result = all_pairs(a, b)
    assert result.shape == (7, 9)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, direct(a, b), rtol=tolerance, atol=tolerance)


def test_peaks_far_apart_do_not_underflow():
    """In float32 every product of exponentials of a pair can be zero, or subnormal."""
    places = torch.arange(12.0)
    for gap in (5.0, 20.0, 44.0, 60.0, 88.0, 100.0, 150.0, 1e4):
        a = -gap * (places - 1).abs()[None]
        b = -gap * (places - 10).abs()[None] - 3
        a[0, 0] = -torch.inf
        torch.testing.assert_close(
            all_pairs(a, b).double(), direct(a, b), rtol=1e-6, atol=1e-4
        )


@given(
    st.lists(st.lists(st.floats(-300, 300), min_size=4, max_size=4), min_size=1),
    st.lists(st.lists(st.floats(-300, 300), min_size=4, max_size=4), min_size=1),
)
def test_the_normaliser_of_any_scores(a, b):
    a, b = torch.tensor(a), torch.tensor(b)
    torch.testing.assert_close(
        all_pairs(a, b).double(), direct(a, b), rtol=1e-5, atol=1e-3
    )


def test_the_normaliser_has_the_gradients_of_its_definition():
    a, b = scores(3, 6, 2.0, 0, torch.float64), scores(4, 6, 2.0, 1, torch.float64)
    a[0] = torch.tensor([0.0] + [-900.0] * 5)
    b[0] = torch.tensor([-900.0] * 5 + [0.0])  # this pair underflows
    a[:, 2] = -torch.inf
    weight = scores(3, 4, 1.0, 2, torch.float64)
    gradients = []
    for function in (all_pairs, direct):
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        (function(*leaves) * weight).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-12)


def test_sums_of_nothing():
    nothing = torch.full((2, 3), -torch.inf, requires_grad=True)
    summed = logsumexp(nothing)
    assert summed.tolist() == [-torch.inf, -torch.inf]
    summed.masked_fill(summed.isneginf(), 0.0).sum().backward()
    assert nothing.grad is not None
    assert not nothing.grad.isnan().any()
    assert logsumexp(torch.zeros(2, 0)).tolist() == [-torch.inf, -torch.inf]
    assert log_add(nothing[0], torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert log_add(nothing[0], nothing[1]).isneginf().all()


TEXTS = [[4, 7, 90, 4, 3, 11], [150, 5, 4]]
K, WIDTH = 200, 12


@pytest.fixture
def large():
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


def test_walks_that_agree_so_far_are_advanced_once(large, monkeypatch):
    proposal, numbers = large.proposal("adapted"), listed(monkeypatch)
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


def test_a_search_lists_no_more_than_may_be_among_the_best(large, monkeypatch):
    proposal, batch = large.proposal("adapted"), tiny_models.batch(TEXTS)
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
