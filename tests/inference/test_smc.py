"""Particle filters: unbiased whatever is resampled, and the same in any company."""

import math

import pytest
import torch
from scipy.stats import binom
from scipy.stats import t as student
from torch.distributions import Normal

from lm_latent_eval.estimators import Bound, log_evidence
from lm_latent_eval.inference import ParticleFilter, smc
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.models.real_latents import NormalProposal
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END, UNKNOWN
from tests import tiny_checkpoint
from tests.means import weights_are_of
from tests.models.rnng import reference as tiny_rnng
from tests.models.rnng.reference import every_prefix
from tests.tiny_checkpoint import Truth, ids
from tests.tiny_models import batch
from tests.watching import watch

WORDS = ids("the", "fox", "saw", "the", "fox")
CONTEXT = 3
"""Words of ``WORDS`` that are taken as the context."""


@pytest.fixture(scope="module")
def model():
    """Return a tiny KGLM whose flat proposals give uneven weights."""
    return tiny_checkpoint.kglm()


@pytest.fixture
def resampled(monkeypatch):
    """Return a list: which share of the filters drew anew after each token."""

    def share(result, before, log_psi, uniform, filters, *more):
        moved = (result[0] != before).unflatten(-1, (filters, -1))
        return moved.any(-1).double().mean().item()

    return watch(monkeypatch, smc, "resampled", share)


def filtered(model, copies, num_samples, words=WORDS):
    """Weights of copies of one text from the prior, (copies, K)."""
    method = ParticleFilter(num_samples)
    texts = batch([words] * copies)
    proposal = model.proposal("prior")
    return method.log_weights(Texts(model, proposal, texts, keys(copies)))


def filtered_in_two(model, proposal, num_samples, copies, cut, words):
    """Weights of copies of a text that is read up to a place, and then on."""
    method, texts = ParticleFilter(num_samples), batch([words] * copies)
    read = Particles.begin(copies, "cpu")
    for start, end in ((0, cut), (cut, len(words))):
        piece, starts = texts.piece(start, end), [start] * copies
        read = method.extend(Texts(model, proposal, piece, keys(copies), starts), read)
    return read.log_w


@pytest.fixture(scope="module")
def grammar():
    """Return a tiny RNNG whose words depend much on the stack, so weights are uneven.

    Those of the tiny models elsewhere stay so even that no filter draws anew.
    """
    return tiny_rnng.tiny(seed=1, spread=1.5)


@pytest.fixture(scope="module")
def ahead():
    """Return a proposal that looks ahead, flattened so that its weights are uneven."""
    model = tiny_checkpoint.kglm(seed=3, spread=1.3)
    return model, model.proposal("adapted", temperature=4.0)


@pytest.mark.parametrize("num_samples", [4, 20])
@pytest.mark.parametrize("cut", [0, CONTEXT])
def test_the_estimate_is_unbiased_where_it_looks_ahead(
    ahead, num_samples, cut, resampled
):
    """Of a text at once, and of one whose continuation is read after a context."""
    log_w = filtered_in_two(*ahead, num_samples, 4_000 // num_samples, cut, WORDS)
    assert sum(share > 0.1 for share in resampled) > 1, "premise: again and again"
    weights_are_of(Truth(ahead[0]).log_p(WORDS), log_evidence(log_w))


def test_drawing_by_what_is_ahead_helps(ahead, monkeypatch):
    """What saves words later costs some at first: weights so far would drop it."""
    model, proposal = ahead
    copies, spread = 200, []
    texts = batch([WORDS * 2] * copies)
    nothing = torch.zeros(copies, 20, dtype=torch.float64)
    for _ in range(2):
        log_w = ParticleFilter(20).log_weights(
            Texts(model, proposal, texts, keys(copies))
        )
        spread.append(log_evidence(log_w).std())
        monkeypatch.setattr(type(proposal), "log_twist", lambda *_: nothing)
    # Standard deviations of 200 values are known to about 5 %.
    assert spread[0] < 0.8 * spread[1]


SENTENCE = [4, UNKNOWN, 5, 5, 4]


@pytest.mark.parametrize("words", [SENTENCE, [*SENTENCE, END]], ids=len)
def test_the_estimate_of_a_grammar_is_unbiased(grammar, words, resampled):
    log_w = filtered(grammar, 1_600, 10, words)
    assert sum(share > 0.5 for share in resampled) > 1, "premise: again and again"
    prefixes = every_prefix(len(words), end=words[-1] == END)
    log_p = grammar.log_joint(grammar.encode(batch([words])), prefixes)
    weights_are_of(log_p.logsumexp(-1).item(), log_evidence(log_w))


@pytest.mark.parametrize("name", ["model", "grammar"])
def test_a_context_and_its_continuation_are_one_filter(name, request, resampled):
    model = request.getfixturevalue(name)
    words = WORDS if name == "model" else [*SENTENCE, END]
    whole = filtered(model, 4, 20, words)
    assert max(resampled[:CONTEXT]) > 0, "premise: the context draws anew"
    parts = filtered_in_two(model, model.proposal("prior"), 20, 4, CONTEXT, words)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=0)


def test_filters_are_the_weights_of_the_estimate(model):
    method = ParticleFilter(200)
    assert method.filters == 10
    [log_w] = filtered(model, 1, 200)
    estimate = method.estimate(log_w, len(WORDS))
    by_hand = log_w.view(10, 20).logsumexp(-1) - math.log(20)
    assert estimate.log_weights == pytest.approx(by_hand.tolist())
    assert estimate.log_evidence == pytest.approx(log_evidence(log_w).item())
    ratio = (by_hand - by_hand.logsumexp(-1)).exp() * 10
    expected = ratio.std(correction=1).item() / math.sqrt(10)
    assert estimate.draws_stderr == pytest.approx(expected)
    assert estimate.stderr is None, "nothing has checked them"
    assert (estimate.num_samples, estimate.estimator) == (200, "smc")
    assert estimate.bound is Bound.STOCHASTIC_LOWER


def test_the_errors_say_how_far_off_it_is(model):
    copies, num_samples = 200, 200
    log_w = filtered(model, copies, num_samples)
    method, truth = ParticleFilter(num_samples), Truth(model).log_p(WORDS)
    estimates = [method.estimate(row, len(WORDS)) for row in log_w]
    errors = [e.draws_stderr for e in estimates]
    assert max(errors) < 0.3, "premise: reliable"
    reach = student.ppf(0.975, method.filters - 1)
    missed = sum(
        abs(e.log_evidence - truth) > reach * e.draws_stderr for e in estimates
    )
    # Of 200 intervals of 95 % more than 23 miss the truth in one run of a thousand.
    assert missed <= binom.ppf(0.999, copies, 0.05)


def test_a_proposal_of_whole_texts_is_an_error(model):
    chart = NormalProposal("chart", of=lambda batch: Normal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"num_samples=105: .* a multiple of 10"):
        ParticleFilter(105)
    assert ParticleFilter(15).filters == 1
    with pytest.raises(ValueError, match="'chart' reads whole texts at once"):
        ParticleFilter(10).log_weights(Texts(model, chart, batch([WORDS]), [1]))
