"""Word distributions: their normaliser, and that they are distributions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.models.kglm.network import log_add, log_sum_product, logsumexp
from lm_latent_eval.text.words import UNKNOWN
from tests import tiny_models
from tests.tiny_models import COPIED


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


# -- distributions ------------------------------------------------------------------


@pytest.fixture(
    scope="module", params=[tiny_models.plain_graph, tiny_models.full_graph]
)
def setting(request):
    """A model, the words at four positions under every node, and what they are of."""
    kglm = tiny_models.kglm(request.param(), spread=1.5)
    words = kglm.generative.words
    hidden = scores(4, 3, 1.0, 5, torch.float64).tanh()
    node = torch.arange(kglm.knowledge.num_nodes)
    aliases = kglm.knowledge.aliases[node]
    shared = (words.encode_aliases(aliases), aliases.flatten(1))
    return kglm, words, hidden, kglm._entity_vectors(node), shared


def log_paths(setting, symbol: int, cost: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions, nodes) of generating and copying a symbol."""
    _, words, hidden, vectors, (keys, aliases) = setting
    position, node = torch.cartesian_prod(
        torch.arange(len(hidden)), torch.arange(len(vectors))
    ).T
    paths = words.log_paths(
        hidden[None],
        torch.full((1, len(hidden)), symbol),
        torch.full((1, len(hidden)), cost, dtype=torch.float64),
        vectors,
        keys,
        aliases,
        position,
        node,
    )
    shape = (len(hidden), len(vectors))
    return paths[0].view(shape), paths[1].view(shape)


def test_words_are_copied_where_an_alias_has_them(setting):
    kglm = setting[0]
    for symbol in range(1, kglm.config.num_words):
        generate, copy = log_paths(setting, symbol, 0.0)
        has_it = (kglm.knowledge.aliases == symbol).flatten(1).any(1)
        assert torch.equal(copy > -torch.inf, has_it.expand(copy.shape))
        if symbol == COPIED:
            unknown, _ = log_paths(setting, UNKNOWN, 0.0)
            wanted = unknown.masked_fill(has_it, -torch.inf)
            torch.testing.assert_close(generate, wanted)
