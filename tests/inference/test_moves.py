"""Local moves of each model's latents, against lists of all of them."""

from __future__ import annotations

import math

import pytest
import torch

from lm_latent_eval.inference import AnnealedImportanceSampling
from lm_latent_eval.inference.annealing import Metropolis, Scored
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END, UNKNOWN
from tests.test_laws import TINY_MODELS

CASES = [
    ("entitynlm", "adapted", [4, UNKNOWN, 4]),
    ("entitynlm", "prior", [4, UNKNOWN, 4]),
    ("kglm", "adapted", [4, 5, 4]),
    ("kglm", "prior", [4, 5]),
    ("lda", "adapted", [4, UNKNOWN, 4]),
    ("rnng", "adapted", [4, UNKNOWN, 4, 5, 4, END]),
    ("rnng", "crf", [4, UNKNOWN, 4, 5, END]),
]
every_move = pytest.mark.parametrize(
    ("name", "which", "text"), CASES, ids=lambda x: x if isinstance(x, str) else None
)
NUMBER = 10_000


def pick(latents, index):
    if isinstance(latents, torch.Tensor):
        return latents[:, index]
    return type(latents)(*(part[:, index] for part in latents))


@every_move
def test_a_move_leaves_what_is_between_as_it_is(name, which, text):
    """A latent of f_b = q^(1 - b) p^b, moved or not, is one of f_b."""
    case, b = TINY_MODELS[name].case(), 0.4
    proposal, every = case.proposal(which), case.latents(text)
    batch = case.batch([text])
    p, q = case.model.encode(batch), proposal.encode(batch)
    log_f = (1 - b) * proposal.log_prob(q, every) + b * case.model.log_joint(p, every)
    f = log_f[0].double().softmax(-1)
    draw = torch.Generator().manual_seed(0)
    begun = pick(every, f.multinomial(NUMBER, replacement=True, generator=draw))
    streams = Streams(keys(1, "move"), NUMBER)
    move = Metropolis(case.model, proposal, p, q, streams)
    scores = case.model.log_joint(p, begun).double(), proposal.log_prob(q, begun)
    moved, log_p, log_q = move(Scored(begun, *scores), b, 1, backwards=False)
    torch.testing.assert_close(log_p, case.model.log_joint(p, moved).double())
    torch.testing.assert_close(log_q, proposal.log_prob(q, moved))
    known, order = fingerprint(every)[0].sort()
    found = order[torch.searchsorted(known, fingerprint(moved)[0])]
    assert (fingerprint(every)[0][found] == fingerprint(moved)[0]).all()
    went = fingerprint(begun)[0] != fingerprint(moved)[0]
    assert went.double().mean() > 0.02, "premise: some are moved"
    share = found.bincount(minlength=len(f)) / NUMBER
    error = (f * (1 - f) / NUMBER).sqrt()
    # Five standard errors, and one draw of a latent that is hardly ever drawn.
    assert ((share - f).abs() <= 5 * error + 1 / NUMBER).all()


@every_move
def test_annealing_by_moves_is_unbiased(name, which, text):
    case, copies = TINY_MODELS[name].case(), 2000
    method = AnnealedImportanceSampling(4)
    log_w = case.log_weights(method, case.proposal(which), [text] * copies)[:, 0]
    ratio = (log_w - case.log_p(text)).exp()
    error = ratio.std().item() / math.sqrt(copies)
    assert error < 0.1, "premise: a bias would be noticed"
    assert abs(ratio.mean().item() - 1) < 5 * error + 1e-9


@every_move
def test_moves_lead_everywhere(name, which, text):
    """Many moves, all accepted, reach every latent from one."""
    case = TINY_MODELS[name].case()
    proposal, every = case.proposal(which), case.latents(text)
    q = proposal.encode(case.batch([text]))
    possible = case.log_joint(text) > -torch.inf
    wanted = {*fingerprint(every)[0][possible].tolist()}
    known = {*fingerprint(every)[0].tolist()}
    start = int(possible.nonzero()[0])
    here = pick(every, torch.full((300,), start))
    seen = {*fingerprint(here)[0].tolist()}
    p = case.model.encode(case.batch([text]))
    for step in range(60):
        streams = Streams(keys(1, f"walk {step}"), 300)
        there, _ = proposal.moved(q, here, streams)
        sound = (case.model.log_joint(p, there) > -torch.inf)[0]
        assert {*fingerprint(there)[0][sound].tolist()} <= known
        order = torch.where(sound, torch.arange(300) + 300, torch.arange(300))
        both = [there, here]
        here = (
            torch.cat(both[::-1], 1)[:, order]
            if isinstance(there, torch.Tensor)
            else type(there)(
                *(
                    torch.cat(pair[::-1], 1)[:, order]
                    for pair in zip(*both, strict=True)
                )
            )
        )
        seen |= {*fingerprint(here)[0].tolist()}
    assert wanted <= seen
