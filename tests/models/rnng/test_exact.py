"""RNNG and its proposals against sums over every tree and every prefix of one."""

import math
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference import ImportanceSampling
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models.rnng import choices, crf, left_to_right
from lm_latent_eval.models.rnng.choices import log_marginal
from lm_latent_eval.models.rnng.crf import num_trees
from lm_latent_eval.models.rnng.trees import Trees
from lm_latent_eval.scoring.budget import method_of
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.testing import laws
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests.models.rnng import reference
from tests.models.rnng.reference import every_prefix
from tests.models.test_variants import VARIANTS
from tests.test_laws import TINY_MODELS

TEXT = [4, 1, 5, 5, 4]
PROPOSALS = ("adapted", "prior")


def piece(tokens, first=START):
    return TokenBatch.collate([tokens], first=first)


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def log_prefix(rnng, tokens):
    """Exact log p(all sentences that begin so)."""
    if not tokens:
        return torch.tensor(0.0, dtype=torch.float64)
    end = tokens[-1] == END and rnng.config.sentence_ends
    prefixes = every_prefix(len(tokens), end=end)
    return rnng.log_joint(rnng.encode(piece(tokens)), prefixes).logsumexp(-1)[0]


KINDS = {
    "new": TINY_MODELS["rnng"],
    "original": VARIANTS["rnng-loose"][0],
    "endless": VARIANTS["rnng-endless"][0],
}


@pytest.mark.parametrize("context", range(5))
def test_next_token_of_an_original_is_the_ratio_of_prefix_probabilities(context):
    """Whose mass is lost; of new models the laws say so."""
    rnng = KINDS["original"].build()
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


BOUNDS = {"none is": (16, 1 / 16), "every": (1, 1.0), "some": (2, 0.5)}
"""Choices that are unlikely, by ``AT_ONCE`` and ``LEAST``."""


def bounded(monkeypatch, bound):
    at_once, least = BOUNDS[bound]
    for module in (choices, left_to_right):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        monkeypatch.setattr(module, "LEAST", least)
    monkeypatch.setattr(choices, "MORE", 2)


@pytest.mark.parametrize(("bound", "exact"), [("none is", False), ("every", True)])
def test_adapted_weights_do_not_depend_on_the_last_choice(bound, exact, monkeypatch):
    """Locally optimal: the weight is p(x_t | the past), whatever z_t was drawn."""
    bounded(monkeypatch, bound)
    rnng = reference.tiny()
    prefixes = every_prefix(4)
    proposal = rnng.proposal(rnng.exact_proposal if exact else "adapted")
    batch = piece(TEXT[:4])
    log_w = rnng.log_joint(rnng.encode(batch), prefixes) - proposal.log_prob(
        proposal.encode(batch), prefixes
    )
    past = [tuple(z[:3]) for z in prefixes.before[0].tolist()]
    for z in set(past):
        weights = log_w[0, [i for i, p in enumerate(past) if p == z]]
        same(weights, weights[:1].expand_as(weights))
    assert log_w.std() > 0.01, "premise"


OF_CHOICES = (
    *("total_is_one", "beams_are", "latents_are", "wide_searches"),
    *(f"bounds_are_true-{name}-{by}" for name in PROPOSALS for by in ("is", "dpf")),
)
"""How the laws begin that see which choices are listed, drawn and kept."""


def longer(kind):
    """Texts of as many words as there must be for a choice to be unlikely."""
    case = KINDS[kind].case()
    return replace(case, words=(4, 5), proposals=PROPOSALS, length=4)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        *(("new", bound) for bound in BOUNDS),
        ("original", "some"),
        pytest.param("endless", "some", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "which", [str(x) for x in laws(longer("new")) if str(x).startswith(OF_CHOICES)]
)
def test_laws_hold_where_choices_are_unlikely(which, kind, bound, monkeypatch):
    """Listed or not: q is normalised, drawn from and searched, as the laws say."""
    bounded(monkeypatch, bound)
    [law] = [law for law in laws(longer(kind)) if str(law) == which]
    law()


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROPOSALS)
def test_log_p_that_the_steps_know_is_that_of_the_model(name, kind, bound, monkeypatch):
    bounded(monkeypatch, bound)
    rnng = KINDS[kind].build()
    batch = TokenBatch.collate([TEXT[:2], [*TEXT, 5, END], [END]], first=START)
    proposal = rnng.proposal(name)
    encoded, uniforms = proposal.encode(batch), Streams([1, 2, 3], 50)
    beam = proposal.beam(encoded, 10)
    for made in (beam, proposal.sample(encoded, uniforms, 50)):
        if kind != "new":
            assert made.log_p is None
            continue
        log_p = rnng.log_joint(rnng.encode(batch), made.latents)
        used = torch.ones_like(log_p, dtype=torch.bool)
        if made is beam:
            used = beam.score > -torch.inf
        same(made.log_p[used], log_p[used])


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
    anew = model.encode(after, histories)
    for ask in (
        lambda encoded: model.next_token(encoded, zeros, uniforms),
        lambda encoded: model.log_joint(encoded, found.latents),
    ):
        again = model.encode_again(read, after, histories)
        torch.testing.assert_close(ask(again), ask(anew))


def test_a_beam_of_whole_sentences_is_the_best_trees():
    """Of any width, among all trees of six words."""
    rnng = reference.tiny()
    proposal = rnng.proposal("crf")
    encoded = proposal.encode(reference.batch([[*TEXT, 4]], "eos"))
    every = reference.trees([reference.every_tree(6)], "eos")
    best = proposal.log_prob(encoded, every)[0].sort(descending=True).values
    for width in (*range(1, 12), 42):
        same(proposal.beam(encoded, width).score[0], best[:width])


def test_ties_go_to_the_shorter_left_part():
    """With equal scores everywhere: every tree once, right-branching ones first."""
    scores = torch.zeros(1, 5, 5, dtype=torch.float64)
    words = torch.tensor([5])
    ends, score = crf.trees_of(crf.k_best(scores, 14), words)
    assert torch.equal(score, torch.zeros_like(score))
    assert len(ends[0].unique(dim=0)) == 14
    assert ends[0, 0].tolist() == [0, 0, 0, 0, 0, 4], "(a (b (c (d e))))"
    assert ends[0, -1].tolist() == [0, 0, 1, 1, 1, 1], "((((a b) c) d) e)"
    for width in range(1, 14):
        fewer, _ = crf.trees_of(crf.k_best(scores, width), words)
        assert torch.equal(fewer[0, 0], ends[0, 0])
        assert len(fewer[0].unique(dim=0)) == width


def test_what_is_no_tree_is_impossible():
    rnng = reference.tiny(sentence_ends=False)
    batch = reference.batch([TEXT[:3]], "no_eos")
    before = torch.tensor([[[0, 0, 0], [0, 2, 0], [0, 0, 2], [1, 0, 0], [0, 0, 0]]])
    trees = Trees(before, torch.tensor([[1, 0, 0, 2, 3]]))
    proposal = rnng.proposal("crf")
    log_q = proposal.log_prob(proposal.encode(batch), trees)
    assert (log_q == -torch.inf).all()
    log_p = rnng.log_joint(rnng.encode(batch), trees)[0]
    assert log_p[0] > -torch.inf, "a prefix of a tree"
    assert (log_p[1:] == -torch.inf).all()


def test_sentences_that_cannot_be_read_are_refused():
    rnng = reference.tiny()
    with pytest.raises(ValueError, match="without a sentence end"):
        rnng.proposal("crf").encode(reference.batch([TEXT], "no_eos"))
    with pytest.raises(ValueError, match="words follow the end"):
        rnng.encode(reference.batch([[4, 3, 4]], "eos"))
    longest = rnng.proposal("crf").encode(reference.batch([[4] * 10, [5]], "eos"))
    assert longest.log_z.isfinite().all()
    assert rnng.proposal().name == "adapted"
    endless = reference.tiny(sentence_ends=False)
    assert "smc" not in endless.estimators
    for name in PROPOSALS:
        with pytest.raises(ValueError, match="has an end word, and this model has no"):
            endless.proposal(name).encode(reference.batch([TEXT], "eos"))
    with pytest.raises(ValueError, match="adapted, crf, prior"):
        rnng.proposal("smoothing")
    with pytest.raises(ValueError, match="without sentence_ends"):
        reference.tiny(sentence_ends=False, only_possible=True)
    histories = rnng.advance(rnng.encode(piece(TEXT[:3])), every_prefix(3))
    encoded = rnng.proposal("prior").encode(piece(TEXT[3:]), histories)
    with pytest.raises(ValueError, match="2 histories"):
        rnng.proposal("prior").sample(encoded, Streams([1], 9), 9)


def test_impossible_text_has_probability_zero():
    """An empty sentence, and a word that is never uttered."""
    rnng = reference.tiny()
    for tokens in ([END], [4, 2]):
        for name in PROPOSALS:
            log_w = ImportanceSampling(4).log_weights(
                Texts(rnng, rnng.proposal(name), piece(tokens), [1])
            )
            assert (log_w == -torch.inf).all()
        assert log_marginal(rnng.generative, torch.tensor([tokens])) == -torch.inf
    both = log_marginal(rnng.generative, torch.tensor([[4, START, 5], [4, 4, 5]]))
    alone = log_marginal(rnng.generative, torch.tensor([[4, 4, 5]]))
    assert both[0] == -torch.inf
    same(both[1:], alone)


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_of_all_next_words_total_one_within_their_errors(seed):
    """By the default, with 20 samples, after eight words; of one word and of two."""
    model = reference.tiny(seed=seed)
    proposal, options = model.proposal(), ScoringOptions(num_samples=20)
    method = method_of(options, model.estimators, proposal)
    words = random.Random(seed).choices([UNKNOWN, 4, 5], k=8)
    begin = Particles.begin(1, "cpu")
    context = method.extend(Texts(model, proposal, piece(words), [7]), begin)

    def after(*words: int) -> Estimate:
        texts = Texts(model, proposal, piece(words, first=4), [7], [8])
        on = method.extend(texts, context)
        return method.difference(on.log_w[0], context.log_w[0], len(words))

    one = [after(word) for word in (UNKNOWN, 4, 5, END)]
    two = [after(a, b) for a in (UNKNOWN, 4, 5) for b in (UNKNOWN, 4, 5, END)]
    for every in (one, [*two, one[-1]]):
        p = [math.exp(each.log_evidence) for each in every]
        errors = [each.stderr for each in every if each.stderr is not None]
        assert len(errors) > 0.7 * len(every), "others say that they have none"
        assert abs(math.fsum(p) - 1) < 1.96 * max(errors)


def test_what_an_original_loses_before_its_first_word():
    """An end as the first word: 8.7 % of the mass of model B, 0.3 % of model A."""
    for name, lost in (("A", 0.0030783), ("B", 0.0868455)):
        rnng = reference.model(name, "eos")
        encoded = rnng.encode(TokenBatch.collate([[4]], first=START))
        zeros = torch.zeros(1, 1, dtype=torch.float64)
        log_p = rnng.next_token(encoded, zeros, Streams([0], 1))
        assert abs(1 - log_p.exp().sum().item() - lost) < 1e-6


@pytest.mark.parametrize("num_words", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("end", [True, False])
def test_it_sums_over_every_history(num_words, end):
    model = reference.tiny(seed=num_words)
    texts = [[*t, *[END] * end] for t in product((1, 4, 5), repeat=num_words)][::5]
    assert len(every_prefix(num_words + end, end=end).after[0]) == num_trees(num_words)
    expected = [log_prefix(model, text) for text in texts]
    same(log_marginal(model.generative, torch.tensor(texts)), torch.stack(expected))
