"""The reader of causal networks, against their own logits without batch or cache."""

import functools
import itertools
import math

import pytest
import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import DynamicCache

from lm_latent_eval.networks.causal import (
    CausalReader,
    cache_name,
    check_causal,
)
from tests import tiny_causal
from tests.wrappers.asking import watched

SIZE = 7
GIVEN = (5, 0, 1)


@pytest.fixture
def network():
    return tiny_causal.model(SIZE)


def expected(network, given, tokens, temperature=1.0):
    """Log p of each token and whether it is the best, a pass each."""
    rows = []
    for n, token in enumerate(tokens):
        with torch.no_grad():
            logits = network(torch.tensor([[*given, *tokens[:n]]])).logits[0, -1]
        log_p = (logits / temperature).log_softmax(-1)
        rows.append((log_p[token].item(), int(log_p.argmax()) == token))
    log_p, greedy = zip(*rows, strict=True)
    return log_p, greedy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("most", [None, 1, 2])
def test_scores_are_those_of_a_pass_a_token(network, temperature, most):
    wanted = [
        (GIVEN, (2, 3, 4)),
        ((5,), (0, 1, 6)),
        (GIVEN, (6,)),
        ((2,), (2, 2, 2, 2)),
        (GIVEN[:2], (1, 2)),
        (GIVEN, (2, 3, 4)),
    ]
    found = CausalReader(network, "tiny", temperature).score(wanted, most)
    assert len(found) == len(wanted)
    for (given, tokens), scores in zip(wanted, found, strict=True):
        log_p, greedy = expected(network, given, tokens, temperature)
        assert scores.log_p == pytest.approx(log_p, abs=1e-12)
        assert scores.greedy == greedy
        assert scores.total == pytest.approx(sum(log_p), abs=1e-12)
    assert len({greedy for each in found for greedy in each.greedy}) == 2, "premise"


def test_what_is_known_is_not_read_again(network):
    """What begins another sequence, and what was read before a branch."""
    wanted = [(GIVEN[:1], GIVEN[1:]), (GIVEN, (2,)), (GIVEN, (2, 3, 4)), (GIVEN, (6,))]
    with watched(network) as shapes:
        CausalReader(network, "tiny").score(wanted)
    assert shapes == [(2, len(GIVEN) + 2)], "two sequences, none with its last token"
    with watched(network) as shapes:
        reading = CausalReader(network, "tiny").begin(torch.tensor([GIVEN]))
        reading.read(torch.tensor([[2], [3]]), after=torch.tensor([0, 0]))
        reading.read(torch.tensor([[4], [4]]))
    assert shapes == [(1, len(GIVEN)), (2, 1), (2, 1)]


def hybrid(kind, size=SIZE):
    """Return a network with a recurrent layer: transformers goes on from its state
    with one token alone (Jamba), or never (Bamba)."""
    sizes = {
        "vocab_size": size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "mamba_d_state": 4,
        "initializer_range": 0.5,
    }
    torch.manual_seed(0)
    if kind == "bamba":
        heads = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_chunk_size": 8}
        return BambaForCausalLM(BambaConfig(**sizes, **heads, attn_layer_indices=[1]))
    more = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
    return JambaForCausalLM(JambaConfig(**sizes, **more, use_mamba_kernels=False))


@pytest.mark.parametrize("kind", ["cached", "read again", "jamba", "bamba"])
def test_rows_are_kept_dropped_and_repeated(network, kind, monkeypatch):
    cached, error = kind != "read again", 1e-12
    if kind in ("jamba", "bamba"):
        network, error = hybrid(kind).eval(), 1e-4
    forward = network.forward

    @functools.wraps(forward)
    def forgetful(*args, **kwargs):
        assert kwargs.get(cache_name(network)) is None
        found = forward(*args, **{**kwargs, "use_cache": False})
        setattr(found, cache_name(network), None)
        return found

    if not cached:
        monkeypatch.setattr(network, "forward", forgetful)
    reader = CausalReader(network, "tiny", 0.7)
    one, two = [5, 0, 1], [5, 2, 2]

    def same(log_p, *rows):
        fresh = reader.begin(torch.tensor(rows)).log_p
        torch.testing.assert_close(log_p, fresh, rtol=0, atol=error)

    reading = reader.begin(torch.tensor([one, two]))
    same(reading.log_p, one, two)
    copy = reading.rows(torch.tensor([1, 1, 0]))
    found = copy.read(torch.tensor([[3, 4], [6, 6], [0, 1]]))
    assert found.shape == (3, 2, SIZE)
    same(found[:, 0], [*two, 3], [*two, 6], [*one, 0])
    same(copy.log_p, [*two, 3, 4], [*two, 6, 6], [*one, 0, 1])
    copy.read(torch.tensor([[2], [3]]), after=torch.tensor([2, 0]))
    same(copy.log_p, [*one, 0, 1, 2], [*two, 3, 4, 3])
    same(reading.log_p, one, two)
    reading.keep(torch.tensor([1]))
    places = [place for place, _ in reading.along(torch.tensor([[4, 4]]))]
    assert places[0] == 0
    same(reading.log_p, [*two, 4, 4])


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (torch.OutOfMemoryError, lambda call, length: call == 2),
        (IndexError, lambda call, length: length > 6),
    ],
)
def test_a_trial_that_fails_for_another_reason(error, fails, monkeypatch):
    network, calls = hybrid("jamba").eval(), itertools.count()
    forward = network.forward

    @functools.wraps(forward)
    def failing(*args, **kwargs):
        if fails(next(calls), kwargs["input_ids"].shape[1]):
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(network, "forward", failing)
    reader, tokens = CausalReader(network, "tiny"), torch.tensor([GIVEN])
    if error is IndexError:  # it is too short for the trial, not for the text
        assert reader.begin(tokens).cache is None
        return
    with pytest.raises(error):  # with fewer rows it is tried again
        reader.begin(tokens)
    assert reader.begin(tokens).cache is not None


@pytest.mark.parametrize("size", [2, 8])
def test_states_that_stay_with_the_wrong_rows_are_noticed(size, monkeypatch):
    """Rows of the trial differ, however small the vocabulary is."""
    reorder = DynamicCache.reorder_cache

    def swapped(cache, order):
        reorder(cache, 1 - order)

    monkeypatch.setattr(DynamicCache, "reorder_cache", swapped)
    reader = CausalReader(hybrid("jamba", size).eval(), "tiny")
    assert reader.begin(torch.tensor([[0, 1]])).cache is None


@pytest.mark.parametrize(
    ("share", "kept"), [(0.0, True), (0.09, False), (math.nan, False)]
)
def test_rounding_is_told_from_a_state_that_is_a_little_wrong(share, kept, monkeypatch):
    """By a share of the spread of its scores, which half precision does not explain."""
    network = hybrid("jamba").eval().bfloat16()
    forward = network.forward

    @functools.wraps(forward)
    def moved(*args, **kwargs):
        found = forward(*args, **kwargs)
        if kwargs.get(cache_name(network)) is not None:
            sign = 1 - 2 * (torch.arange(SIZE) % 2)
            found.logits = found.logits + share * found.logits.std() * sign
        return found

    monkeypatch.setattr(network, "forward", moved)
    reading = CausalReader(network, "tiny").begin(torch.tensor([GIVEN]))
    assert (reading.cache is not None) == kept


def test_a_network_with_an_encoder_is_refused():
    size = {"vocab_size": SIZE, "d_model": 8, "d_ff": 8, "d_kv": 4}
    t5 = T5ForConditionalGeneration(T5Config(**size, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="has an encoder: give a causal language"):
        check_causal(t5)
