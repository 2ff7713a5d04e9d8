"""Every proposal, and p word by word, against sums over every prefix of every tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lm_latent_eval.inference import BeamMarginalization, ImportanceSampling, Mixed
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.networks import StackCell
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START
from tests.models.rnng import reference
from tests.models.rnng.reference import every_prefix
from tests.test_laws import TINY_MODELS

TEXT = [4, 1, 5, 5, 4]
PROPOSALS = ("adapted", "prior")
every_proposal = pytest.mark.parametrize("name", PROPOSALS)


def piece(tokens, first=START):
    return TokenBatch.collate([tokens], first=first)


def log_prefix(rnng, tokens):
    """Exact log p(all sentences that begin so)."""
    if not tokens:
        return torch.tensor(0.0, dtype=torch.float64)
    end = tokens[-1] == END and rnng.config.sentence_ends
    prefixes = every_prefix(len(tokens), end=end)
    return rnng.log_joint(rnng.encode(piece(tokens)), prefixes).logsumexp(-1)[0]


@pytest.mark.parametrize("context", range(5))
def test_next_token_of_an_original_is_the_ratio_of_prefix_probabilities(context):
    """Whose mass is lost; of new models the laws say so."""
    rnng = reference.tiny(only_possible=False, never_uttered=[])
    log_w, state = torch.zeros(1, 1, dtype=torch.float64), None
    if context:
        prefixes = every_prefix(context)
        encoded = rnng.encode(piece(TEXT[:context]))
        log_w = rnng.log_joint(encoded, prefixes)
        state = rnng.advance(encoded, prefixes)
    particles = Particles(state, state, log_w, log_w, log_w.long())
    last = torch.tensor([[START, *TEXT][context]])
    ours = particles.ahead(rnng, last).next_token(rnng, [0], [0])
    for word in range(6):
        exact = log_prefix(rnng, [*TEXT[:context], word])
        exact = exact - log_prefix(rnng, TEXT[:context])
        if word == END and not context:  # empty sentences are no sentences
            exact = torch.tensor(-torch.inf)
        torch.testing.assert_close(
            ours[0, word], exact, rtol=0, atol=1e-12, check_dtype=False
        )


def test_the_prior_does_not_read_the_next_word():
    """It is p's own chain of actions, whatever the word is; an end is forced."""
    rnng = reference.tiny()
    proposal, prefixes = rnng.proposal("prior"), every_prefix(3)
    first, *others = (
        proposal.log_prob(rnng.encode(piece([4, 5, word])), prefixes)
        for word in (1, 4, 5)
    )
    assert all(torch.equal(log_q, first) for log_q in others)
    forced = every_prefix(4, end=True)
    end = proposal.log_prob(rnng.encode(piece([4, 5, 4, END])), forced)
    torch.testing.assert_close(end, first, rtol=0, atol=1e-12)


def test_adapted_weights_do_not_depend_on_the_last_choice():
    """Locally optimal: the weight is p(x_t | the past), whatever z_t was drawn."""
    rnng = reference.tiny()
    prefixes = every_prefix(4)
    proposal = rnng.proposal("adapted")
    batch = piece(TEXT[:4])
    log_w = rnng.log_joint(rnng.encode(batch), prefixes) - proposal.log_prob(
        proposal.encode(batch), prefixes
    )
    past = [tuple(z[:3]) for z in prefixes.before[0].tolist()]
    for z in set(past):
        same = log_w[0, [i for i, p in enumerate(past) if p == z]]
        torch.testing.assert_close(same, same[:1].expand_as(same), rtol=0, atol=1e-12)
    assert log_w.std() > 0.01, "premise"


@every_proposal
def test_what_was_found_is_not_scored_by_q_again(name, monkeypatch):
    """Histories of a search, of draws and of p: each is listed once a word."""
    rnng, counted = reference.tiny(), []
    batch = TokenBatch.collate([TEXT[:2], [*TEXT, END], [END]], first=START)
    proposal, listed = rnng.proposal(name, 2.0), WordByWord.listed

    def watching(self, stacks, row, word):
        counted.append(len(word))
        return listed(self, stacks, row, word)

    monkeypatch.setattr(WordByWord, "listed", watching)
    encoded = proposal.encode(batch)
    weights = Mixed(20).weigh(rnng, proposal, batch, [1, 2, 3], (encoded, encoded))
    assert sum(counted) == 2 * int(batch.length.sum())
    beam = proposal.beam(encoded, 10)
    log_p = rnng.log_joint(encoded, beam.latents)
    log_w = log_p - proposal.log_prob(encoded, beam.latents)
    found = (beam.score > -torch.inf) & (log_p > -torch.inf)
    assert found.sum() > 10, "premise"
    torch.testing.assert_close(weights[:, -10:][found], log_w[found])


def test_histories_cannot_multiply():
    rnng = reference.tiny()
    proposal = rnng.proposal("prior")
    prefixes = every_prefix(3)
    state = rnng.advance(rnng.encode(piece(TEXT[:3])), prefixes)
    encoded = proposal.encode(piece(TEXT[3:]), state)
    with pytest.raises(ValueError, match="2 histories"):
        proposal.sample(encoded, Streams([1], 9), 9)


def test_impossible_text_has_probability_zero():
    """An empty sentence, and a word that is never uttered."""
    rnng = reference.tiny()
    for tokens in ([END], [4, 2]):
        for name in PROPOSALS:
            log_w = ImportanceSampling(4).log_weights(
                rnng, rnng.proposal(name), piece(tokens), [1]
            )
            assert (log_w == -torch.inf).all()


@every_proposal
def test_a_narrow_beam_goes_on_from_the_best(name):
    """Of more histories than it is wide, wherever they stand."""
    rnng = reference.tiny()
    prefixes = every_prefix(4)
    encoded = rnng.encode(piece(TEXT[:4]))
    score = rnng.log_joint(encoded, prefixes).flip(1)
    backwards = torch.arange(score.shape[1]).flip(0)[None]
    state = rnng.advance(encoded, prefixes).resample(backwards)
    best = score[0].argsort(descending=True)
    assert best[:2].tolist() != [0, 1], "premise: the first are not the best"
    proposal = rnng.proposal(name)
    kept = proposal.beam(proposal.encode(piece([]), state), 2, score)
    order = kept.score[0].argsort(descending=True)
    assert torch.equal(kept.origin[0, order], best[:2])
    assert torch.equal(kept.score[0, order], score[0, best[:2]])


@pytest.mark.parametrize("name", PROPOSALS)
@pytest.mark.parametrize("method", [ImportanceSampling(300), BeamMarginalization(3)])
def test_a_word_that_is_written_is_made_once(name, method, monkeypatch):
    """Every stack before and after it: once by p, which predicts, and once by q."""
    rnng = reference.tiny()
    proposal, made = rnng.proposal(name), []
    begin = Particles.begin(1, "cpu")
    before = method.extend(rnng, proposal, piece(TEXT[:4]), [5], [0], begin)
    forward = StackCell.forward

    def counting(self, value, state):
        made.append(len(value))
        return forward(self, value, state)

    monkeypatch.setattr(StackCell, "forward", counting)
    read = before.ahead(rnng, torch.tensor(TEXT[3:4]))
    read.next_token(rnng, [0], [0])
    after = method.extend(rnng, proposal, piece(TEXT[4:], TEXT[3]), [5], [4], read)
    stacks, row = before.model_state.stacks, np.unique(before.model_state.row)
    assert len(row) > 1, "premise"
    reduced = (stacks.size[row] - 1).sum()
    shifted = len(np.unique(after.model_state.row))
    assert sum(made) == 2 * (reduced + shifted)


@torch.no_grad()
def test_what_was_read_of_some_stacks_is_not_taken_for_others():
    """Encoded again after other histories, which stand on stacks not listed before."""
    case = TINY_MODELS["rnng"].case()
    model, proposal = case.model, case.proposal("adapted")
    words = case.some_words(4)
    batch = case.batch([words])
    before, after = batch.piece(0, 3), batch.piece(3, 4)
    first = proposal.encode(before)
    histories = proposal.advance(first, proposal.beam(first, 8).latents)
    number = histories.row.shape[1]
    some = histories.resample(torch.zeros(1, number, dtype=torch.long))
    assert not np.isin(histories.row, some.row).all(), "premise"
    read = model.encode(after, some)
    zeros = torch.zeros(1, number, dtype=torch.float64)
    uniforms = Streams([0], number)
    model.next_token(read, zeros, uniforms)
    found = proposal.beam(proposal.encode(after, histories), 8)
    histories = histories.resample(found.origin)
    zeros = torch.zeros_like(found.score)
    again, anew = (
        model.encode_again(read, after, histories),
        model.encode(after, histories),
    )
    torch.testing.assert_close(
        model.next_token(again, zeros, uniforms),
        model.next_token(anew, zeros, uniforms),
    )
    again = model.encode_again(read, after, histories)
    torch.testing.assert_close(
        model.log_joint(again, found.latents), model.log_joint(anew, found.latents)
    )
