"""Annealed, left-to-right and Chib-style estimates and moves, against every latent."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.inference import (
    AnnealedImportanceSampling,
    ChibStyle,
    LeftToRightEstimator,
    chains,
)
from lm_latent_eval.inference.chains import (
    Metropolis,
    Scored,
    log_evidence_from_above,
    transitions,
)
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import fingerprint
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import parts_of, rebuilt
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END, UNKNOWN
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
    for method in (
        AnnealedImportanceSampling(50),
        LeftToRightEstimator(6),
        ChibStyle(50),
    ):
        together = case.log_weights(method, q, texts)
        for n, text in enumerate(texts):
            one = Texts(model, q, case.batch([text]), [keys(3)[n]])
            alone = method.log_weights(one)
            torch.testing.assert_close(alone[0], together[n], rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [AnnealedImportanceSampling(50), ChibStyle(50)])
def test_no_sweep_uses_the_random_numbers_of_another(case, method, monkeypatch):
    sweeps = watch(
        monkeypatch, chains, "sweep_uniforms", lambda _, streams, sweep, *more: sweep
    )
    case.log_weights(method, case.proposal(), [TEXT])
    assert len(sweeps) == len(set(sweeps)) >= 2 * (50 // 10) - 1


def test_left_to_right_is_nested(case):
    few, many = (
        case.log_weights(LeftToRightEstimator(n), case.proposal(), [TEXT, TEXT[:3]])
        for n in (3, 8)
    )
    torch.testing.assert_close(few, many[:, :3])


def test_the_published_left_to_right_estimate_is_biased(case):
    """Means over particles, multiplied word by word, are not p(x) on average.

    With topics that a text rarely leaves, two particles are far from forgetting.
    """
    case.model.log_alpha.fill_(math.log(0.05))
    text, method, copies = [4, 5, 4, 4, 5], LeftToRightEstimator(2), 8_000
    log_p = method.log_predicted(case.whole([text] * copies, case.proposal()))
    exact_log_p = case.log_p(text).item()
    weights_are_of(exact_log_p, log_evidence(log_p.sum(-1)))
    ratio = (method.word_by_word(log_p) - exact_log_p).exp()
    error = ratio.std().item() / math.sqrt(len(ratio))
    assert abs(ratio.mean().item() - 1) > 5 * error


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
    with pytest.raises(ValueError, match="have no local moves"):
        AnnealedImportanceSampling(10).log_weights(Texts(object(), None, None, [0]))
    with pytest.raises(ValueError, match="no closed form"):
        LeftToRightEstimator(1).log_weights(Texts(object(), None, None, [0]))


# -- local moves of each model ------------------------------------------------------


CASES = [
    ("entitynlm", "adapted", [4, UNKNOWN, 4]),
    ("entitynlm", "prior", [4, UNKNOWN, 4]),
    ("kglm", "adapted", [4, 5, 4]),
    ("kglm", "prior", [4, 5]),
    ("lda", "adapted", [4, UNKNOWN, 4]),
    ("rnng", "adapted", [4, UNKNOWN, 4, 5, 4, END]),
    ("rnng", "crf", [4, UNKNOWN, 4, 5, END]),
]

NUMBER = 10_000


@pytest.mark.parametrize(
    ("name", "which", "text", "method", "copies", "precise"),
    [
        *(
            ("lda", which, TEXT, method, 2000, 0.05)
            for method, which in (
                (AnnealedImportanceSampling(5), "document"),
                (AnnealedImportanceSampling(5), "prior"),
                (LeftToRightEstimator(1), None),
                (ChibStyle(1), None),
                (ChibStyle(4), None),
            )
        ),
        # EntityNLM's weights vary little, and take long.
        *(
            pytest.param(
                *case, AnnealedImportanceSampling(4), copies, 0.1, marks=others
            )
            for case in CASES
            for copies in [500 if case[0] == "entitynlm" else 2000]
            for others in [() if case[1] == "adapted" else pytest.mark.nightly]
        ),
    ],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_it_is_unbiased(name, which, text, method, copies, precise):
    case = TINY_MODELS[name].case()
    log_w = case.log_weights(method, case.proposal(which), [text] * copies)[:, 0]
    weights_are_of(case.log_p(text), log_w, precise)


def pick(latents, index):
    return rebuilt(latents, [part[:, index] for part in parts_of(latents)])


@pytest.mark.parametrize(
    ("name", "which", "text", "backwards"),
    [
        *((*case, False) for case in CASES),
        # Sweeps over all topics of a text, and moves of one.
        *(("lda", q, TEXT, way) for q in ("document", "prior") for way in (0, 1)),
    ],
    ids=str,
)
def test_a_move_leaves_what_is_between_as_it_is(name, which, text, backwards):
    """A latent of f_b = q^(1 - b) p^b, moved or not, is one of f_b."""
    case, b = TINY_MODELS[name].case(), 0.4
    texts, every = case.whole([text], case.proposal(which)), case.latents(text)
    move = transitions(texts, Streams(keys(1, "move"), NUMBER))
    _, log_p, log_q = move.scored(every)
    f = ((1 - b) * log_q + b * log_p)[0].softmax(-1)
    draw = torch.Generator().manual_seed(0)
    begun = pick(every, f.multinomial(NUMBER, replacement=True, generator=draw))
    moved, *scores = move(move.scored(begun), b, 1, backwards=bool(backwards))
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


def test_latents_may_be_plain_tuples(case):
    old, new = ((torch.full((1, 2), n), torch.full((1, 2, 3), n)) for n in (0, 1))
    zero, log_p = torch.zeros(2, 1, 2).double()
    log_p[0, 1] = -torch.inf  # so the second is never moved
    model = SimpleNamespace(log_joint=lambda p, latents: log_p)
    proposal = SimpleNamespace(
        moved=lambda q, latents, uniforms: (new, zero), log_prob=lambda q, latents: zero
    )
    texts = Texts(model, proposal, None, [0])
    move = Metropolis(texts, None, None, Streams([0], 2), proposal)
    (flat, deep), *_ = move(Scored(old, zero, zero), 0.5, 1, backwards=False)
    assert flat.tolist() == [[1, 0]] and deep.tolist() == [[[1] * 3, [0] * 3]]
    assert type(replace(case, latents=lambda text: old).every_latent(TEXT)) is tuple


@pytest.mark.parametrize(("name", "which", "text"), CASES, ids=str)
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
        both = zip(parts_of(here), parts_of(there), strict=True)
        here = rebuilt(there, [torch.cat(pair, 1)[:, order] for pair in both])
        seen |= {*fingerprint(here)[0].tolist()}
        if wanted <= seen:
            break
    assert wanted <= seen
