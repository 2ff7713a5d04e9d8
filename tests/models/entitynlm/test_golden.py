"""EntityNLM and its proposals against the numbers of the original implementation."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.models.entitynlm.given_chains import Factors
from lm_latent_eval.models.entitynlm.steps import Unfolding, mentions
from tests.models.entitynlm import reference
from tests.models.entitynlm.tiny import every_chain

REFERENCE = reference.numbers()
CASES = REFERENCE["cases"]
NONPEEKING = REFERENCE["nonpeeking"]["cases"]
EXACT = REFERENCE["exact"]
TOLERANCE = 1e-10
"""Rounding of float64 over the longest documents; design asks for 1e-6."""
FACTORS = ("type", "id", "length")


def assert_same(ours, listed):
    wanted = torch.tensor(listed, dtype=torch.float64)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE)


def predicted(listed):
    """Factors of the predicted tokens, 0 where the original has none."""
    return [0.0 if f is None else f for f in listed[1:]]


def assert_factors(ours: Factors, listed):
    for factor, which in zip(ours, FACTORS, strict=True):
        assert_same(factor[0, 0], predicted(listed[which]))


@pytest.mark.parametrize("case", CASES)
def test_every_factor_of_p(case):
    model = reference.model(case["model"])
    encoded = model.encode(reference.batch(case["tokens"]))
    chains = reference.chains(case["z"])
    assert_factors(encoded.follow(chains).factors(), case["p"]["factors"])
    words = model.log_words(encoded, encoded.follow(chains))[0, 0]
    assert_same(words, predicted(case["p"]["factors"]["word"]))
    log_p = model.log_joint(encoded, chains).item()
    assert abs(log_p - case["p"]["logp"]) < TOLERANCE


@pytest.mark.parametrize("case", [c for c in CASES if "debug" in c["p"]])
def test_hidden_states_and_slots(case):
    """Every slot after every token, reached in pieces."""
    model, batch = reference.model(case["model"]), reference.batch(case["tokens"])
    chains, debug = reference.chains(case["z"]), case["p"]["debug"]
    encoded = model.encode(batch)
    assert_same(encoded.hidden[0], debug["hidden"])
    zero = torch.tensor([0])
    for t, golden_slots in enumerate(debug["entity_state_after_update_at_t"]):
        begin = type(chains)(*(x[..., :t] for x in chains))
        state = model.advance(model.encode(batch.piece(0, t)), begin)
        next_one = model.encode(batch.piece(t, t + 1), state)
        walk = Unfolding.after(state, 1)
        mentioned, last_entity = mentions(walk.entity)
        walk = walk.with_slots(last_entity)
        walk.settle(next_one.steps, mentioned, zero)
        memory = walk.memory
        number = golden_slots["num_embeddings"]
        assert walk.count.item() == number - 1
        assert_same(memory.slots[0, :number], golden_slots["embeddings"])
        assert memory.last[0, :number].tolist() == golden_slots["last_seen"]


OF_Q = [
    ("peeking", c, c["q"]["factors_forward"], c["q"]["logq_forward"]) for c in CASES
]
OF_Q += [
    ("nonpeeking", c, c["factors_shifted"], c["logq_nonpeeking"]) for c in NONPEEKING
]


@pytest.mark.parametrize(("which", "case", "factors", "log_q"), OF_Q)
def test_every_factor_of_q(which, case, factors, log_q):
    proposal = reference.model(case["model"]).proposal(which)
    encoded = proposal.encode(reference.batch(case["tokens"]))
    chains = reference.chains(case["z"])
    assert_factors(encoded.follow(chains).factors(), factors)
    assert abs(proposal.log_prob(encoded, chains).item() - log_q) < TOLERANCE


@pytest.mark.parametrize("case", EXACT)
def test_sums_over_every_chain(case):
    model, batch = reference.model(case["model"]), reference.batch(case["tokens"])
    chains = every_chain(len(case["tokens"]) - 1, model.config.max_mention_length)
    assert chains.entity.shape[1] == case["num_z"]
    log_p = model.log_joint(model.encode(batch), chains)[0]
    assert abs(log_p.logsumexp(0).item() - case["log_px"]) < TOLERANCE
    proposal = model.proposal("peeking")
    log_q = proposal.log_prob(proposal.encode(batch), chains)[0]
    assert abs(log_q.exp().sum().item() - case["sum_q"]) < TOLERANCE
    elbo = (log_q.exp() * (log_p - log_q)).sum().item()
    assert abs(elbo - case["kl_q_p_elbo"]) < TOLERANCE
    second = (2 * log_p - log_q).logsumexp(0) - 2 * log_p.logsumexp(0)
    assert math.isclose((-second).exp(), case["ess_fraction_q"], rel_tol=1e-9)
    if case["num_z"] < 400:  # else the original lists no chains
        assert_same(log_p, case["all_logp"])
        assert_same(log_q, case["all_logq"])


def test_a_batch_is_scored_as_its_texts():
    padding = REFERENCE["padding"]
    model = reference.model(padding["model"])
    encoded = model.encode(reference.batch(*padding["tokens"]))
    log_p = model.log_joint(encoded, reference.chains(*padding["z"]))[:, 0]
    for golden_name in ("batched_logp", "single_logp"):
        assert_same(log_p, padding[golden_name])


def test_pieces_sum_to_the_whole():
    chunks = REFERENCE["chunks"]
    model = reference.model(chunks["model"])
    batch, whole = reference.batch(chunks["tokens"]), reference.chains(chunks["z"])
    for cut in [chunk["cut"] for chunk in chunks["chunks"]]:
        first = model.encode(batch.piece(0, cut))
        begin = type(whole)(*(x[..., :cut] for x in whole))
        rest = type(whole)(*(x[..., cut:] for x in whole))
        total = model.log_joint(first, begin)
        second = model.encode(batch.piece(cut, 99), model.advance(first, begin))
        total = total + model.log_joint(second, rest)
        assert abs(total.item() - chunks["full_logp"]) < TOLERANCE


def test_padding_has_what_is_missing_from_the_original_total():
    """The originals' softmax covers padding; over the other ids p does not sum to 1."""
    model = reference.model("B")
    ids = torch.arange(1, model.config.vocab_size)
    texts = torch.cartesian_prod(ids, ids).tolist()
    chains = every_chain(2, model.config.max_mention_length)
    encoded = model.encode(reference.batch(*([2, *text] for text in texts)))
    shape = (len(texts), -1, -1)
    log_p = model.log_joint(encoded, type(chains)(*(x.expand(shape) for x in chains)))
    total = log_p.logsumexp((0, 1)).exp().item()
    assert abs(total - REFERENCE["total_without_padding"]) < TOLERANCE
