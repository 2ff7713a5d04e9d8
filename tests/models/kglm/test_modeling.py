"""What only a KGLM owes: possible walks, the words' normaliser, work that is shared."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch

from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.models.kglm import steps
from lm_latent_eval.models.kglm.latents import Mention, NextStep, Walks
from lm_latent_eval.models.kglm.network import log_add, log_sum_product, logsumexp
from lm_latent_eval.models.kglm.steps import windows
from tests import large_graph, tiny_models
from tests.kglm_space import every_walk
from tests.tiny_models import KNOWN

CUTOFF = 2
GRAPHS = {"plain": tiny_models.plain_graph, "full": tiny_models.full_graph}
EXACTLY = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module", params=GRAPHS)
def kglm(request):
    return tiny_models.kglm(GRAPHS[request.param]())


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


def test_scores_follow_the_weights(kglm):
    """What a model remembers between calls belongs to its weights of that time."""
    model = copy.deepcopy(kglm)
    other = tiny_models.randomised(copy.deepcopy(kglm), 1, 1.0)
    texts = tiny_models.batch([[4, 5, 4], [5, 5, 1]])
    walks = every_walk(model.knowledge, 3, CUTOFF, model.config.special_entities)
    walks = Walks(*(z.expand(2, -1, -1) for z in walks))

    def log_p(of):
        return of.log_joint(of.encode(texts), walks)

    with torch.enable_grad():  # nothing is remembered then
        before, wanted = log_p(model), log_p(other)
    assert not torch.allclose(before, wanted), "premise"
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(log_p(model), before, **EXACTLY)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(log_p(model), wanted, **EXACTLY)


# -- the normaliser -----------------------------------------------------------------


def direct(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return (a.double()[:, None] + b.double()[None]).logsumexp(-1)


def all_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The code under test for every pair of rows of one text."""
    pairs = torch.cartesian_prod(torch.arange(len(a)), torch.arange(len(b)))
    return log_sum_product(a[None], b, *pairs.T).view(len(a), len(b))


def scores(rows: int, columns: int, spread: float, seed: int, dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * spread).to(dtype)


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
