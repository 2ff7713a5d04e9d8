"""LRLM against the numbers of the original implementation, to 1e-10 in float64."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.models.lrlm.lattice import FLOOR, Lattice
from lm_latent_eval.models.lrlm.modeling import Planned
from lm_latent_eval.text.words import START, UNKNOWN
from tests.models.lrlm import reference
from tests.models.lrlm.reference import (
    NAMES,
    batch,
    close,
    every,
    lrlm,
    numbers,
    told,
    whole,
)

VARIANTS = ("none", "char", "upp", "oracle")


def opened(name: str, case, variant: str = "none"):
    """Return a model and a document whose topic it is told."""
    model = lrlm(name, oracle=variant == "oracle")
    return model, told(model, name, case, variant)


@every("lrlm")
def test_every_factor(name, case):
    model, encoded = opened(name, case)
    value = encoded.value[0]
    close(model.selector(value).log_softmax(-1), case["selector"])
    close(model.words.log_prob(value, encoded.batch.targets[0]), case["word"])
    topics = model.knowledge
    start, end = topics.facts_of(torch.tensor(topics.number(case["id"])))
    facts = torch.arange(int(start), int(end))
    vectors = model.facts.vectors(topics, facts)
    close((model.to_fact(value) @ vectors.t()).log_softmax(-1), case["relation"])
    for fact, golden in zip(facts, case["alias"], strict=True):
        namings = torch.arange(*map(int, topics.namings_of(fact)))
        aliases = model.facts.aliases(topics, topics.naming_alias[namings])
        close((model.to_alias(value) @ aliases.t()).log_softmax(-1), golden)


@every("lrlm")
def test_the_spans_are_all_that_match(name, case):
    model, encoded = opened(name, case)
    arcs, topics = encoded.lattice.arcs, model.knowledge
    fact, _ = topics.facts_of(torch.tensor(topics.number(case["id"])))
    ours = []
    for start, end, naming in zip(arcs.start, arcs.end, arcs.naming, strict=True):
        of = topics.naming_fact[naming]
        first, _ = topics.namings_of(of)
        ours.append([int(v) for v in (start, end, of - fact, naming - first)])
    spans = [
        [span[name] for name in ("l", "r", "rel", "surface")] for span in case["spans"]
    ]
    assert sorted(ours) == spans
    order = torch.tensor([ours.index(span) for span in spans])
    close(encoded.lattice.score[order], [span["rel_path"] for span in case["spans"]])


@every("lrlm")
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_exact_sum_and_every_alpha(name, case, variant):
    model, encoded = opened(name, case, variant)
    close(model.log_joint(encoded, NO_LATENT)[0, 0], case[f"logp_{variant}"])
    if variant in ("none", "oracle"):  # of others the original lists none
        alpha, _ = forward(encoded)
        assert alpha.shape[1] == 2, "premise: no topic, and the one"
        close(alpha[1:, 1], case[f"alpha_{variant}"])
    words = batch(name, [whole(name, case["id"])[:-1]], variant)
    state = model.about([case["id"]])
    texts = model.encode(words, state)
    # Without the end: the names that would go on beyond it are left out.
    alpha, _ = forward(texts)
    close(alpha[-1, -1], case[f"logp_without_end_{variant}"])


def forward(encoded):
    """Alpha of a text that is told its topic, (T + 1, rows)."""
    lattice = encoded.lattice
    begin = torch.full((lattice.num_rows,), FLOOR, dtype=torch.float64)
    begin[lattice.num_texts :] = 0.0
    nothing = torch.zeros(0, dtype=torch.long)
    return lattice.forward(begin, (nothing, nothing, nothing.double()))


@every("lrlm")
def test_every_posterior(name, case):
    _, encoded = opened(name, case)
    lattice, after = encoded.lattice, encoded.lattice.backward()
    alpha, _ = forward(encoded)
    through = alpha[:-1, 1] + lattice.word[0] + after[1:, 1] - alpha[-1, 1]
    close(through.exp(), case["posterior_word_none"])
    arcs = lattice.arcs
    entered = alpha[arcs.start, 1] + lattice.score
    through = entered + after[arcs.end, 1] - alpha[-1, 1]
    golden = [span["posterior_none"] for span in case["spans"]]
    close(through.exp().sort().values, sorted(golden))


@every("lrlm")
def test_the_best_reading(name, case):
    model, encoded = opened(name, case)
    planned = Planned(encoded, Lattice.backward, 1.0)
    beam = model.proposal("adapted").beam(planned, 50)
    log_p = model.log_joint(encoded, beam.latents)[0]
    best = log_p.argmax()
    close(log_p[best], case["viterbi_none"]["logp"])
    z = reference.readings(model, case["id"], [case["viterbi_none"]["segments"]])
    assert torch.equal(beam.latents.source[0, best], z.source[0, 0])


@every("lrlm")
@pytest.mark.parametrize("variant", ["none", "char"])
def test_every_prefix(name, case, variant):
    """Read a word at a time, so that names are open at every border."""
    model, words = lrlm(name), whole(name, case["id"])[:-1]
    texts, state = batch(name, [words], variant), model.about([case["id"]])
    total, found = torch.zeros(()), [torch.zeros(())]
    for t in range(len(words)):
        encoded = model.encode(texts.piece(t, t + 1), state)
        total = total + model.log_joint(encoded, NO_LATENT)[0, 0]
        found.append(total)
        state = model.advance(encoded, NO_LATENT)
    close(torch.stack([f.double() for f in found]), case[f"log_prefix_{variant}"])


@pytest.mark.parametrize("name", NAMES)
def test_every_next_word(name):
    model, words = lrlm(name), whole(name, "short0")[:-1]
    table = numbers(name)["next_token_upp"]
    particles = Particles.begin(1, "cpu")
    state, log_w = model.about(["short0"]), particles.log_w
    upp = numbers(name)["upp"]
    for t, row in enumerate(table):
        last = torch.tensor([(START, *words)[t]])
        particles = Particles(state, state, log_w, log_w, log_w.long())
        found = particles.ahead(model, last).next_token(model, [0], [t])[0]
        for word, golden in row["logp"].items():
            ours = found[int(word)]
            if int(word) >= model.config.vocab_size:
                ours = torch.logaddexp(ours, found[UNKNOWN] + upp)
            close(ours, golden)
        if t == len(words):
            break
        encoded = model.encode(batch(name, [words], "upp").piece(t, t + 1), state)
        state = model.advance(encoded, NO_LATENT)


@every("lrlm_exact")
def test_every_reading(name, case):
    model = lrlm(name)
    for variant in ("none", "char"):
        encoded = told(model, name, case, variant)
        z = reference.readings(model, case["id"], case["z"])
        close(model.log_joint(encoded, z)[0], case[f"log_pxz_{variant}"])
