"""A new EntityNLM is a distribution, and nothing moves its numbers."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from lm_latent_eval.inference import importance, particles
from lm_latent_eval.inference.beam import BeamMarginalization
from lm_latent_eval.inference.importance import ImportanceSampling
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams, stream_key
from lm_latent_eval.latent import LeftToRight
from lm_latent_eval.models.entitynlm import following, network
from lm_latent_eval.models.entitynlm.latents import Chains
from lm_latent_eval.text.words import START, UNKNOWN
from tests.models.entitynlm import tiny
from tests.models.entitynlm.space import every_chain
from tests.models.entitynlm.tiny import BEYOND, MAX_LENGTH, SYMBOLS

LENGTH = 4
PROPOSALS = ("adapted", "peeking", "nonpeeking", "prior")
RAGGED = [[4, 5, 1, 4, 3], [5], [4, 4, 5, 5, 4, 1, 6, 3], [], [5, 3]]
EXACTLY = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request):
    return tiny.entitynlm(tied=request.param)


def expanded(chains: Chains, batch: int) -> Chains:
    return Chains(*(x.expand(batch, -1, -1) for x in chains))


def log_p_of(model, texts, chains: Chains, **price) -> torch.Tensor:
    encoded = model.encode(tiny.batch(texts, **price))
    return model.log_joint(encoded, expanded(chains, len(texts)))


def every_text(length: int) -> list[list[int]]:
    return [list(text) for text in product(SYMBOLS, repeat=length)]


# -- totals ------------------------------------------------------------------------


def test_every_text_under_every_chain_totals_one(model):
    chains = every_chain(LENGTH, MAX_LENGTH)
    total = log_p_of(model, every_text(LENGTH), chains).logsumexp((0, 1)).exp()
    assert chains.entity.shape[1] > 100, "premise: there is something to sum"
    assert abs(total.item() - 1) < 1e-10


def test_a_text_is_as_likely_as_its_continuations(model):
    log_p = log_p_of(model, every_text(3), every_chain(3, MAX_LENGTH)).logsumexp(1)
    shorter = log_p_of(model, every_text(2), every_chain(2, MAX_LENGTH)).logsumexp(1)
    torch.testing.assert_close(
        log_p.view(-1, len(SYMBOLS)).logsumexp(1), shorter, **EXACTLY
    )


def test_a_chain_that_cannot_be_has_no_probability(model):
    """Of all pairs of numbers, exactly the listed chains are possible."""
    length, most = 3, 3
    step = list(product(range(most + 1), range(-1, MAX_LENGTH + 1)))
    every = torch.tensor(list(product(step, repeat=length)))[None]
    chains = Chains(every[..., 0], every[..., 1])
    possible = {
        tuple(c) for c in torch.cat(every_chain(length, MAX_LENGTH), -1)[0].tolist()
    }
    wanted = [tuple(c) in possible for c in torch.cat(chains, -1)[0].tolist()]
    assert sum(wanted) == len(possible), "premise: all chains are among them"
    batch = tiny.batch([[4, 5, 4]])
    found = model.log_joint(model.encode(batch), chains)[0] > -torch.inf
    assert found.tolist() == wanted
    for name in PROPOSALS:
        q = model.proposal(name)
        assert ((q.log_prob(q.encode(batch), chains)[0] > -torch.inf) == found).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.1, 2.0])
@pytest.mark.parametrize("which", PROPOSALS)
def test_proposals_total_one_and_weigh_right(model, which, temperature):
    texts = every_text(LENGTH)[::5]
    chains = every_chain(LENGTH, MAX_LENGTH)
    q = model.proposal(which, temperature)
    log_q = q.log_prob(q.encode(tiny.batch(texts)), expanded(chains, len(texts)))
    log_p = log_p_of(model, texts, chains)
    assert log_q.logsumexp(-1).abs().max() < 1e-10
    weighed = (log_q + (log_p - log_q)).logsumexp(-1)
    torch.testing.assert_close(weighed, log_p.logsumexp(-1), **EXACTLY)
    assert (log_q > -torch.inf).all()


def test_an_unknown_word_costs_its_price(model):
    chains = every_chain(3, MAX_LENGTH)
    price = -math.log(7)
    free = log_p_of(model, [[4, UNKNOWN, 5]], chains)
    for word in (UNKNOWN, BEYOND):
        charged = log_p_of(model, [[4, word, 5]], chains, unknown=price)
        torch.testing.assert_close(charged, free + price, **EXACTLY)


def test_the_price_is_only_that_of_unknown_words(model):
    batch = tiny.batch([[4, 5, 3]])
    priced = type(batch)(
        batch.inputs, batch.targets, batch.length, batch.unknown_log_prob - 5.0
    )
    chains = every_chain(3, MAX_LENGTH)
    log_p = [model.log_joint(model.encode(b), chains) for b in (batch, priced)]
    torch.testing.assert_close(*log_p, **EXACTLY)


def test_the_adapted_proposal_weighs_each_choice_by_what_p_says_of_the_word(model):
    """Against its definition, with slopes of log p from automatic differentiation.

    q(z_t | ..) is proportional to p(z_t | ..) psi(g), over all z_t after one z_<t.
    """
    text = [4, 1, 5, 4]
    chains = every_chain(len(text), MAX_LENGTH)
    encoded, q = model.encode(tiny.batch([text])), model.proposal("adapted")
    following = encoded.follow(chains)
    versions, which = following.contexts()
    vectors, tangents = versions.vectors, []
    for at in (0, 1):
        with torch.enable_grad():
            hidden = encoded.hidden[0].detach()
            context = at * model.generative.trunk.first_slot.detach().expand_as(hidden)
            context = context.clone().requires_grad_()
            said = model.generative.words.log_words(hidden, context)
            said = said[range(len(text)), text]
            (slope,) = torch.autograd.grad(said.sum(), context)
        rise = (slope * (vectors[which[0]] - context)).sum(-1)
        tangents.append((said + rise).detach())
    log_psi = torch.minimum(*tangents)
    score = following.log_prob()[0] + log_psi
    steps = torch.stack([*chains], -1)[0].tolist()
    expected = torch.zeros(len(steps), dtype=score.dtype)
    for t in range(len(text)):
        begun = {str(z[: t + 1]): k for k, z in enumerate(steps)}
        total: dict[str, float] = {}
        for k in begun.values():
            past = str(steps[k][:t])
            total[past] = total.get(past, 0.0) + score[k, t].exp().item()
        norm = [math.log(total[str(z[:t])]) for z in steps]
        expected += score[:, t] - torch.tensor(norm, dtype=score.dtype)
    found = q.log_prob(q.encode(tiny.batch([text])), chains)[0]
    assert log_psi.std(0).max() > 0.1, "premise: contexts matter"
    assert (tangents[0] < tangents[1]).any() and (tangents[1] < tangents[0]).any()
    torch.testing.assert_close(found, expected, **EXACTLY)


def test_the_adapted_proposal_wastes_less_than_p_alone(model):
    """By the exact variance of the weights, summed over texts."""
    chains, texts = every_chain(LENGTH, MAX_LENGTH), every_text(LENGTH)[::3]
    log_p = log_p_of(model, texts, chains)

    def spread(which):
        q = model.proposal(which)
        log_q = q.log_prob(q.encode(tiny.batch(texts)), expanded(chains, len(texts)))
        return ((2 * log_p - log_q).logsumexp(-1) - 2 * log_p.logsumexp(-1)).exp() - 1

    assert spread("adapted").mean() < 0.5 * spread("prior").mean()


def test_psi_bounds_p_and_is_exact_where_contexts_begin(model):
    batch, model_words = tiny.batch(every_text(2)), model.generative.words
    encoded = model.proposal("adapted").encode(batch)
    places = torch.arange(encoded.steps.num_tokens * len(batch.length))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    first = model.generative.trunk.first_slot
    begins = torch.stack([0 * first, first])
    for n, context in enumerate(torch.cat([begins, drawn])):
        psi = encoded.steps.twist(places, context.expand(len(places), 1, -1))[:, 0]
        h = encoded.hidden.flatten(0, 1)
        log_p = model_words.log_words(h, context.expand_as(h))
        log_p = log_p.gather(1, batch.targets.flatten()[:, None])[:, 0]
        assert (psi >= log_p - 1e-10).all()
        assert ((psi - log_p).abs().max() < 1e-10) == (n < len(begins))


def test_a_word_that_is_never_uttered_leaves_a_distribution(model):
    chains = every_chain(2, MAX_LENGTH)
    batch, q = tiny.batch([[START, 4]]), model.proposal("adapted")
    assert (model.log_joint(model.encode(batch), chains) == -torch.inf).all()
    assert abs(q.log_prob(q.encode(batch), chains).logsumexp(-1).item()) < 1e-10


def test_proposals_read_as_far_as_they_say(model):
    """q of the first two tokens, while the tokens from ``changed`` on change."""
    chains = every_chain(2, MAX_LENGTH)
    chains = Chains(*(torch.cat([x, x[..., :1] * 0], -1) for x in chains))
    for which, reads in zip(PROPOSALS, (1, 1, 0, 0), strict=True):
        q = model.proposal(which)

        def log_q(text, q=q):
            encoded = q.encode(tiny.batch([text]))
            factors = encoded.follow(chains).log_prob()
            return factors[0, :, :2]

        plain = log_q([4, 5, 4])
        torch.testing.assert_close(log_q([4, 5, 3]), plain, **EXACTLY)
        moved = (log_q([4, 1, 4]) - plain).abs()
        assert moved[:, 0].max() < 1e-10, "the next token does not matter"
        assert (moved[:, 1].nan_to_num().max() > 1e-3) == bool(reads)


# -- invariance ----------------------------------------------------------------------


def keys(number: int) -> list[int]:
    return [stream_key(3, str(b)) for b in range(number)]


@pytest.mark.parametrize("method", [ImportanceSampling(7), BeamMarginalization(9)])
@pytest.mark.parametrize("which", PROPOSALS)
def test_a_batch_is_scored_as_its_texts(model, which, method):
    q = model.proposal(which)
    together = method.log_weights(model, q, tiny.batch(RAGGED, -2.0), keys(len(RAGGED)))
    for b, text in enumerate(RAGGED):
        alone = method.log_weights(
            model, q, tiny.batch([text], -2.0), [keys(len(RAGGED))[b]]
        )
        # Of a short text alone a beam is no wider than what there is to find.
        found, rest = together[b].split(
            [alone.shape[1], len(together[b]) - alone.shape[1]]
        )
        torch.testing.assert_close(found, alone[0], **EXACTLY)
        assert rest.isneginf().all()


@pytest.mark.parametrize("piece", [1, 2, 3])
@pytest.mark.parametrize("method", [ImportanceSampling(7), BeamMarginalization(9)])
@pytest.mark.parametrize("which", PROPOSALS)
def test_pieces_are_scored_as_the_whole(model, which, method, piece, monkeypatch):
    q, batch = model.proposal(which), tiny.batch(RAGGED, -2.0)
    whole = method.log_weights(model, q, batch, keys(len(RAGGED)))
    for module in (particles, importance):
        monkeypatch.setattr(module, "PIECE", piece)
    cut = method.log_weights(model, q, batch, keys(len(RAGGED)))
    assert (whole > -torch.inf).any(1).all(), "premise"
    torch.testing.assert_close(cut, whole, **EXACTLY)


@pytest.mark.parametrize("which", PROPOSALS)
def test_samples_are_nested(model, which):
    q, batch = model.proposal(which), tiny.batch(RAGGED)
    few, many = (
        ImportanceSampling(k).log_weights(model, q, batch, keys(len(RAGGED)))
        for k in (5, 12)
    )
    torch.testing.assert_close(many[:, :5], few, **EXACTLY)
    assert len(many[2].unique()) > 6, "premise: samples differ"


@pytest.mark.parametrize("which", PROPOSALS)
def test_a_state_is_that_of_its_text_and_chain(model, which):
    """Selected and resampled states go on as the texts and chains they are of."""
    texts = [[4, 5, 4, 1], [5, 5], [1, 4, 4, 5]]
    batch, q = tiny.batch(texts), model.proposal(which)
    for part in (model, q):
        start = part.encode(batch.piece(0, 3))
        draws = q.sample(q.encode(batch.piece(0, 3)), Streams(keys(3), 6), 6).latents
        state = part.advance(start, draws)
        text, chain = torch.tensor([2, 0]), torch.tensor([[5, 0, 2], [1, 1, 4]])
        picked = state.select(text).resample(chain)
        rest = part.encode(batch.select(text).piece(3, 4), picked)
        more = q.sample(
            q.encode(batch.select(text).piece(3, 4), picked), Streams([8, 9], 3), 3
        ).latents
        score = part.log_joint if part is model else part.log_prob
        prefix = Chains(*(x[text[:, None], chain] for x in draws))
        whole = Chains(
            *(torch.cat([a, b], -1) for a, b in zip(prefix, more, strict=True))
        )
        total = score(part.encode(batch.select(text)), whole)
        begun = score(part.encode(batch.select(text).piece(0, 3)), prefix)
        torch.testing.assert_close(score(rest, more), total - begun, **EXACTLY)
    assert isinstance(model, LeftToRight) and isinstance(q, LeftToRight)


def test_a_state_is_not_changed_by_going_on(model):
    q, batch = model.proposal("peeking"), tiny.batch([[4, 5, 4, 4, 1, 3]])
    begin = q.encode(batch.piece(0, 3))
    draws = q.sample(begin, Streams([1], 5), 5)
    state = q.advance(begin, draws.latents)
    before = [x.clone() for x in (state.memory.slots, state.memory.last, state.entity)]
    rest = q.encode(batch.piece(3, 6), state)
    first = q.sample(rest, Streams([2], 5, starts=[3]), 5)
    q.beam(rest, 8, draws.log_q)
    again = q.sample(rest, Streams([2], 5, starts=[3]), 5)
    torch.testing.assert_close(first.log_q, again.log_q, **EXACTLY)
    after = (state.memory.slots, state.memory.last, state.entity)
    for x, y in zip(before, after, strict=True):
        torch.testing.assert_close(x, y, **EXACTLY)


def test_memory_limits_move_no_number(model, monkeypatch):
    q, batch = model.proposal("peeking"), tiny.batch(RAGGED)
    method = ImportanceSampling(7)
    plain = method.log_weights(model, q, batch, keys(len(RAGGED)))
    monkeypatch.setattr(network, "NUMBERS", 13)
    monkeypatch.setattr(following, "NUMBERS", 40)
    torch.testing.assert_close(
        method.log_weights(model, q, batch, keys(len(RAGGED))), plain, **EXACTLY
    )


def test_samples_continue_as_many_histories(model):
    q, batch = model.proposal("peeking"), tiny.batch([[4, 5, 4]])
    begin = q.encode(batch)
    state = q.advance(begin, q.sample(begin, Streams([1], 3), 3).latents)
    with pytest.raises(ValueError, match="3 histories cannot continue in 5 latents"):
        q.sample(q.encode(batch, state), Streams([1], 5), 5)


def rows_of_words(monkeypatch) -> list[int]:
    """Collect how many rows of scores of all words are asked for."""
    rows, alone, factored = [], network.Words.log_words, network.log_softmax_at

    def log_words(self, hidden, context):
        rows.append(len(hidden))
        return alone(self, hidden, context)

    def log_softmax_at(column, p, q):
        rows.append(len(p) + len(q))
        return factored(column, p, q)

    monkeypatch.setattr(network.Words, "log_words", log_words)
    monkeypatch.setattr(network, "log_softmax_at", log_softmax_at)
    return rows


def test_chains_share_the_scores_of_words(model, monkeypatch):
    """A row a token and one a context, where a pair of them each would be more."""
    q, text = model.proposal("prior"), [4, 5, 4, 4, 1, 5]
    for samples in (1, 200):
        chains = q.sample(q.encode(tiny.batch([text])), Streams([1], samples), samples)
        encoded = model.encode(tiny.batch([text]))
        versions, which = encoded.follow(chains.latents).contexts()
        mark = versions.mark[which[0]]
        pairs = sum(len(of_token.unique()) for of_token in mark.unbind(1))
        rows = rows_of_words(monkeypatch)
        model.log_joint(encoded, chains.latents)
        monkeypatch.undo()
        assert sum(rows) == min(pairs, len(text) + len(mark.unique()))
        assert (sum(rows) < pairs) == (samples > 1)


def test_versions_of_slots_are_sums_of_states(model):
    """In pieces, so that some slots began before the text at hand."""
    q, text = model.proposal("prior"), [4, 5, 4, 4, 1, 5]
    first, then = tiny.batch([text]).piece(0, 3), tiny.batch([text]).piece(3, 6)
    chains = q.sample(q.encode(first), Streams([1], 50), 50).latents
    state = model.advance(model.encode(first), chains)
    encoded, before = model.encode(then, state), q.advance(q.encode(first), chains)
    chains = q.sample(q.encode(then, before), Streams([2], 50), 50).latents
    versions, _ = encoded.follow(chains).contexts()
    assert versions.rank.max() > 0, "premise: slots that moved more than once"
    _, vector = versions.vectors.unique(dim=0, return_inverse=True)
    pairs = {*zip(versions.mark.tolist(), vector.tolist(), strict=True)}
    assert len(pairs) == len(versions.mark.unique()) == len(vector.unique())
    every = torch.arange(len(versions.vectors))
    sums = versions.terms(every)
    owner = torch.bucketize(torch.arange(len(sums.of)), sums.start, right=True) - 1
    parts = sums.weight[:, None] * versions.term(sums.of)
    found = torch.zeros_like(versions.vectors).index_add(0, owner, parts)
    torch.testing.assert_close(found, versions.vectors, **EXACTLY)


def test_chains_that_began_alike_are_sums_of_the_same_vectors(model):
    """Of a text and of others beside it: what began, and a state of each token."""
    q, texts = model.proposal("prior"), [[4, 5, 4, 4, 1, 5], [5, 4, 4]]
    batch, streams = tiny.batch(texts), Streams([1, 2], 200)
    chains = q.sample(q.encode(batch), streams, 200).latents
    versions, which = model.encode(batch).follow(chains).contexts()
    for of_text, text in zip(which, texts, strict=True):
        contexts = of_text[of_text >= 0].unique()
        moved = contexts[contexts >= len(versions.begin)]
        terms = versions.terms(moved).of.unique()
        assert len(moved) > 50, "premise: many chains move slots"
        assert len(terms) <= len(text) + 2, "a slot to begin with, or none yet"


def test_scores_too_far_apart_for_their_type_are_not_factored(monkeypatch):
    """Where places and contexts want other words, float32 loses the sum of products."""
    model = tiny.entitynlm(tied=False)
    model.generative.words.weight.data *= 200
    model.generative.words.entity.weight.data *= -1
    q, batch = model.proposal("prior"), tiny.batch([[4, 5, 4, 4, 1, 5]])
    chains = q.sample(q.encode(batch), Streams([1], 50), 50).latents
    exact = model.log_words(model.encode(batch), chains)
    rows = rows_of_words(monkeypatch)
    found = model.float().log_words(model.encode(batch), chains)
    assert rows[-1] > 0, "premise: some pairs are found alone"
    rounding = exact.abs().max().item() * torch.finfo(torch.float32).eps
    torch.testing.assert_close(found, exact, rtol=0, atol=100 * rounding)


# -- prediction ----------------------------------------------------------------------


def test_next_token_is_the_ratio_of_prefixes(model):
    """From every chain of the prefix, weighted by p: exact but for what is left out."""
    prefixes = [[4, 5, 4], [1, 4, 5]]
    chains = expanded(every_chain(3, MAX_LENGTH), len(prefixes))
    encoded = model.encode(tiny.batch(prefixes))
    log_w = model.log_joint(encoded, chains)
    state = model.advance(encoded, chains)
    after = Particles(state, None, log_w, log_w, log_w.long())
    last = torch.tensor([p[-1] for p in prefixes])
    predicted = after.ahead(model, last).next_token(model, [0, 1], [3, 3])
    assert predicted.shape == (2, model.config.num_words)
    longer = every_chain(4, MAX_LENGTH)
    for b, prefix in enumerate(prefixes):
        joint = log_p_of(model, [[*prefix, v] for v in SYMBOLS], longer).logsumexp(1)
        wanted = joint - log_w[b].logsumexp(0)
        ours = predicted[b, list(SYMBOLS)]
        assert abs(wanted.logsumexp(0).item()) < 1e-10, "premise"
        torch.testing.assert_close(ours.exp(), wanted.exp(), rtol=0, atol=2e-6)
        assert (predicted[b, [0, 2, BEYOND]] == -torch.inf).all()


# -- errors --------------------------------------------------------------------------


def test_proposals_that_are_not_there(model):
    with pytest.raises(ValueError, match="has adapted, nonpeeking, peeking, prior"):
        model.proposal("smoothing")
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="expected a positive number"):
            model.proposal(None, temperature)
    assert model.proposal().name == "adapted"
