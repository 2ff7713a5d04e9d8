"""EntityNLM and its proposals against the numbers of the original implementation."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.models.entitynlm.following import Factors
from lm_latent_eval.models.entitynlm.steps import Unfolding, mentions
from tests.models.entitynlm import reference
from tests.models.entitynlm.space import best_chains, every_chain

REFERENCE = reference.numbers()
CASES = REFERENCE["cases"]
NONPEEKING = REFERENCE["nonpeeking"]["cases"]
EXACT = REFERENCE["exact"]
TOLERANCE = 1e-10
"""Rounding of float64 over the longest documents; design asks for 1e-6."""
FACTORS = ("type", "id", "length")


def name(case):
    return f"{case['model']}-{len(case['tokens'])}"


def golden(listed):
    """Factors of the predicted tokens, 0 where the original has none."""
    return torch.tensor(
        [0.0 if f is None else f for f in listed[1:]], dtype=torch.float64
    )


def assert_same(ours, listed):
    wanted = golden(listed)
    assert ours.shape == wanted.shape
    torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE)


def assert_factors(ours: Factors, listed):
    for factor, which in zip(ours, FACTORS, strict=True):
        assert_same(factor[0, 0], listed[which])


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_factor_of_p(case):
    model = reference.model(case["model"])
    encoded = model.encode(reference.batch(case["tokens"]))
    chains = reference.chains(case["z"])
    assert_factors(encoded.follow(chains).factors(), case["p"]["factors"])
    words = model.log_words(encoded, chains)[0, 0]
    assert_same(words, case["p"]["factors"]["word"])
    log_p = model.log_joint(encoded, chains).item()
    assert abs(log_p - case["p"]["logp"]) < TOLERANCE


@pytest.mark.parametrize("case", [c for c in CASES if "debug" in c["p"]], ids=name)
def test_hidden_states_and_slots(case):
    """Every slot after every token, reached in pieces."""
    model, batch = reference.model(case["model"]), reference.batch(case["tokens"])
    chains, debug = reference.chains(case["z"]), case["p"]["debug"]
    same = {"rtol": 0, "atol": TOLERANCE}
    encoded = model.encode(batch)
    hidden = torch.tensor(debug["hidden"], dtype=torch.float64)
    torch.testing.assert_close(encoded.hidden[0], hidden, **same)
    zero = torch.tensor([0])
    for t, golden_slots in enumerate(debug["entity_state_after_update_at_t"]):
        begin = type(chains)(*(x[..., :t] for x in chains))
        state = model.advance(model.encode(batch.piece(0, t)), begin)
        next_one = model.encode(batch.piece(t, t + 1), state)
        walk = Unfolding.after(state, 1)
        mentioned, most = mentions(walk.entity)
        walk = walk.roomy(most)
        walk.settle(next_one.steps, mentioned, zero)
        memory = walk.memory
        number = golden_slots["num_embeddings"]
        assert walk.count.item() == number - 1
        slots = torch.tensor(golden_slots["embeddings"], dtype=torch.float64)
        torch.testing.assert_close(memory.slots[0, :number], slots, **same)
        assert memory.last[0, :number].tolist() == golden_slots["last_seen"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_factor_of_the_peeking_q(case):
    proposal = reference.model(case["model"]).proposal("peeking")
    encoded = proposal.encode(reference.batch(case["tokens"]))
    chains = reference.chains(case["z"])
    assert_factors(encoded.follow(chains).factors(), case["q"]["factors_forward"])
    log_q = proposal.log_prob(encoded, chains).item()
    assert abs(log_q - case["q"]["logq_forward"]) < TOLERANCE


@pytest.mark.parametrize("case", NONPEEKING, ids=name)
def test_every_factor_of_the_nonpeeking_q(case):
    proposal = reference.model(case["model"]).proposal("nonpeeking")
    encoded = proposal.encode(reference.batch(case["tokens"]))
    chains = reference.chains(case["z"])
    assert_factors(encoded.follow(chains).factors(), case["factors_shifted"])
    log_q = proposal.log_prob(encoded, chains).item()
    assert abs(log_q - case["logq_nonpeeking"]) < TOLERANCE


@pytest.mark.parametrize("case", EXACT, ids=name)
def test_sums_over_every_chain(case):
    model, chains = enumerated(case)
    batch = reference.batch(case["tokens"])
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
        listed = [case["all_logp"], case["all_logq"]]
        wanted = torch.tensor(listed, dtype=torch.float64)
        ours = torch.stack([log_p, log_q])
        torch.testing.assert_close(ours, wanted, rtol=0, atol=TOLERANCE)


def enumerated(case):
    model = reference.model(case["model"])
    return model, every_chain(len(case["tokens"]) - 1, model.config.max_mention_length)


def test_a_batch_is_scored_as_its_texts():
    padding = REFERENCE["padding"]
    model = reference.model(padding["model"])
    encoded = model.encode(reference.batch(*padding["tokens"]))
    log_p = model.log_joint(encoded, reference.chains(*padding["z"]))[:, 0]
    for golden_name in ("batched_logp", "single_logp"):
        wanted = torch.tensor(padding[golden_name], dtype=torch.float64)
        torch.testing.assert_close(log_p, wanted, rtol=0, atol=TOLERANCE)


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


# -- what the original does otherwise ------------------------------------------------


@pytest.mark.parametrize("case", REFERENCE["sampler_support"], ids=name)
def test_what_the_original_sampler_estimates(case):
    """It skips the token after every non-mention, and p then charges it no type.

    So its weights add up to something else than p(x), which we find again by leaving
    those factors out over the chains that it can draw.
    """
    model, chains = enumerated(case)
    encoded = model.encode(reference.batch(case["tokens"]))
    following = encoded.follow(chains)
    log_mention, log_slot, log_length = following.factors()
    charged = log_slot + log_length + model.log_words(encoded, chains)
    drawn, free_types = [], []
    for k in range(chains.entity.shape[1]):
        entity, remaining = (
            chains.entity[0, k].tolist(),
            chains.remaining[0, k].tolist(),
        )
        skipped, skip = [], True  # the token after the first one is skipped
        for e, more in zip(entity, remaining, strict=True):
            skipped.append(skip)
            inside = e != 0 and more > 0
            skip = not inside and e == 0 and not skip
        drawn.append(not any(s and e for s, e in zip(skipped, entity, strict=True)))
        free_types.append(skipped)
    keep = torch.tensor(drawn)
    assert int(keep.sum()) == case["num_z"]
    free = torch.tensor(free_types)
    total = (charged + log_mention.masked_fill(free, 0.0)).sum(-1)[0]
    support = total[keep].logsumexp(0).item()
    assert abs(support - case["log_px_over_sampler_support"]) < TOLERANCE
    # Another quantity: it misses chains, and charges those that it draws too little.
    assert not keep.all()
    log_p = model.log_joint(encoded, chains)[0]
    assert (total[keep] > log_p[keep]).all()


@pytest.mark.parametrize("case", REFERENCE["beam"], ids=lambda c: f"{name(c)}-{c['k']}")
def test_beam_is_a_bound_where_the_original_is_none(case):
    """Ours spends its width on chains that differ after the first token.

    The original, whose first tokens differ, keeps fewer. That need not be worse, as
    pruning is not nested; with one place both find the same.
    """
    model = reference.model(case["model"])
    batch = reference.batch(case["tokens"])
    proposal = model.proposal("peeking")
    beam = proposal.beam(proposal.encode(batch), case["k"])
    found = beam.score[0] > -torch.inf
    listed = torch.stack(beam.latents, -1)[0, found].tolist()
    chains = {tuple(map(tuple, chain)) for chain in listed}
    assert chains == best_chains(proposal, batch, case["k"])
    log_p = model.log_joint(model.encode(batch), beam.latents)[0, found]
    total = log_p.logsumexp(-1).item()
    if case["k"] == 1:
        assert abs(total - case["beam_logsumexp"]) < TOLERANCE
    if case["exact_log_px"] is not None:
        assert total <= case["exact_log_px"] + TOLERANCE


def test_the_original_beam_exceeds_p():
    """Premise of the above: the numbers of the original are no bounds."""
    over = [
        case["beam_logsumexp"] - case["exact_log_px"]
        for case in REFERENCE["beam"]
        if case["exact_log_px"] is not None
    ]
    assert max(over) > TOLERANCE
