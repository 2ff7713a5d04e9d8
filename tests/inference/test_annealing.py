"""Annealed estimates and their sweeps, against every latent."""

import math

import pytest
import torch

from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference import AnnealedImportanceSampling, annealing
from lm_latent_eval.inference.annealing import log_evidence_from_above, sweeps
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import parts_of, rebuilt
from lm_latent_eval.testing.case import keys
from tests.means import weights_are_of
from tests.models.lda import tiny
from tests.test_laws import TINY_MODELS
from tests.watching import watch

TEXT = [4, 1, 4, 5]


@pytest.fixture
def case():
    return TINY_MODELS["lda"].case()


@pytest.mark.parametrize("proposal", ["document", "prior"])
def test_chains_backwards_are_unbiased_for_the_reciprocal(case, proposal):
    q, number, texts = case.proposal(proposal), 10 * 500, [TEXT] * 500
    every, method = tiny.every_topic(len(TEXT)), AnnealedImportanceSampling(100)
    exact, posterior = case.log_p(TEXT).item(), case.log_joint(TEXT).softmax(-1)
    draw = torch.Generator().manual_seed(1)
    drawn = posterior.multinomial(number, replacement=True, generator=draw)
    latents = every[0][drawn].view(500, 10, -1)
    batch, names = case.batch(texts), keys(500)
    log_w = method.reverse_log_weights(Texts(case.model, q, batch, names), latents)
    weights_are_of(-exact, -log_w)
    above = log_evidence_from_above(log_w)
    below = log_evidence(method.log_weights(Texts(case.model, q, batch, names)))
    # On average log p lies between; 500 texts tell averages to within their errors.
    slack = 5 * max(above.std().item(), below.std().item()) / math.sqrt(500)
    assert below.mean() - slack < exact < above.mean() + slack


def test_a_text_is_weighed_in_any_company_alike(case):
    texts, q, model = [TEXT, TEXT[:1], TEXT[:3]], case.proposal(), case.model
    method = AnnealedImportanceSampling(50)
    together = case.log_weights(method, q, texts)
    for n, text in enumerate(texts):
        one = Texts(model, q, case.batch([text]), [keys(3)[n]])
        alone = method.log_weights(one)
        torch.testing.assert_close(alone[0], together[n], rtol=0, atol=1e-10)


def test_no_sweep_uses_the_random_numbers_of_another(case, monkeypatch):
    drawn = watch(
        monkeypatch, annealing, "sweep_uniforms", lambda _, streams, sweep, *more: sweep
    )
    case.log_weights(AnnealedImportanceSampling(50), case.proposal(), [TEXT])
    assert len(drawn) == len(set(drawn)) == 50 // 5 - 1


def test_the_error_is_that_of_ten_chains(case):
    """How far estimates are apart: what each says of its own error."""
    method = AnnealedImportanceSampling(100)
    rows = case.log_weights(method, case.proposal(), [TEXT] * 400)
    estimates = [method.estimate(row, len(TEXT)) for row in rows]
    found = torch.tensor([e.log_evidence for e in estimates], dtype=torch.float64)
    said = torch.tensor([e.draws_stderr for e in estimates], dtype=torch.float64)
    ratio = said.square().mean().sqrt() / found.std()
    # Variances of 400 estimates are known to 7 %, so their roots to 4 %.
    assert abs(ratio - 1) < 5 * 0.04


def test_what_no_chain_can_do_is_refused():
    with pytest.raises(ValueError, match="ais needs a multiple of 10"):
        AnnealedImportanceSampling(105)
    case = TINY_MODELS["rnng"].case()
    with pytest.raises(ValueError, match="a RNNG has no closed form for"):
        case.log_weights(AnnealedImportanceSampling(10), case.proposal(), [TEXT])


@pytest.mark.parametrize("which", ["document", "prior"])
def test_it_is_unbiased(case, which):
    method = AnnealedImportanceSampling(5)
    log_w = case.log_weights(method, case.proposal(which), [TEXT] * 2000)[:, 0]
    weights_are_of(case.log_p(TEXT), log_w)


NUMBER = 10_000


def pick(latents, index):
    return rebuilt(latents, [part[:, index] for part in parts_of(latents)])


@pytest.mark.parametrize("which", ["document", "prior"])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_sweep_leaves_what_is_between_as_it_is(case, which, backwards):
    """A latent of f_b = q^(1 - b) p^b is one of f_b after the sweep as well."""
    b = 0.4
    texts, every = case.whole([TEXT], case.proposal(which)), case.latents(TEXT)
    move = sweeps(texts, Streams(keys(1, "move"), NUMBER))
    _, log_p, log_q = move.scored(every)
    f = ((1 - b) * log_q + b * log_p)[0].softmax(-1)
    draw = torch.Generator().manual_seed(0)
    begun = pick(every, f.multinomial(NUMBER, replacement=True, generator=draw))
    moved, *scores = move(move.scored(begun), b, 1, backwards=backwards)
    torch.testing.assert_close(scores, [*move.scored(moved)[1:]])
    known, order = fingerprint(every)[0].sort()
    found = order[torch.searchsorted(known, fingerprint(moved)[0])]
    assert (fingerprint(every)[0][found] == fingerprint(moved)[0]).all()
    went = fingerprint(begun)[0] != fingerprint(moved)[0]
    assert went.double().mean() > 0.02, "premise: some are moved"
    share = found.bincount(minlength=len(f)) / NUMBER
    error = (f * (1 - f) / NUMBER).sqrt()
    # Five standard errors, and one draw of a latent that is hardly ever drawn.
    assert ((share - f).abs() <= 5 * error + 1 / NUMBER).all()
