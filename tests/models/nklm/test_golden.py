"""NKLM against the numbers of the original implementation, to 1e-10 in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lm_latent_eval.convert.relation_models import nklm_config_of, weights_of
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Copies
from lm_latent_eval.models.nklm.modeling import NKLM
from lm_latent_eval.models.nklm.training import copied
from lm_latent_eval.text.words import END
from tests.models.lrlm.reference import (
    NAMES,
    batch,
    close,
    document,
    every,
    naming,
    numbers,
    original,
    told,
    topics,
)

VARIANTS = ("none", "char")


def nklm(name: str) -> NKLM:
    """The original NKLM of a configuration in this package's terms, in float64."""
    weights, content = original(name, "nklm"), numbers(name)
    options, known = content["config"]["nklm"], topics(name, weights)
    config = NKLMConfig(
        **nklm_config_of(options, weights, content["config"]["vocab_size"]),
        num_words=content["num_words"],
        **known.sizes(),
    )
    model = NKLM(config, known).double()
    model.load_state_dict(weights_of(weights, tied=config.tie_weights))
    return model.eval().requires_grad_(False)


def copies(model: NKLM, which: str, annotations: list[list[tuple[int, int, int]]]):
    """Annotations (relation, position, surface) of each word as latents of one text."""
    sources = [
        [WORD if r < 0 else naming(model, which, r, s) for r, _, s in z]
        for z in annotations
    ]
    offsets = [[max(p, 0) for _, p, _ in z] for z in annotations]
    return Copies(
        torch.full((1, len(annotations)), model.knowledge.number(which)),
        torch.tensor(sources)[None],
        torch.tensor(offsets)[None],
    )


@every("nklm")
def test_annotated_documents(name, case):
    """Of all that the original scores: it does not look at what it copies."""
    model, which = nklm(name), case["id"]
    z = list(zip(case["rel"], case["pos"], case["surface"], strict=True))
    latents = copies(model, which, [z])
    words, facts = (document(name, which)[part] for part in ("words", "facts"))
    for t, (relation, position, surface) in enumerate(z):
        if relation >= 0:
            alias = facts[relation]["aliases"][surface]
            assert alias[position] == words[t], "premise: what is copied stands there"
    for variant in VARIANTS:
        encoded = told(model, name, case, variant)
        found = model.log_joint(encoded, latents)[0, 0]
        close(found, case[f"logp_{variant}"])
    # Every factor of the original at every place.
    hidden = model.predicted_from(encoded, encoded.state, latents)
    hidden, tables = hidden[0, 0], encoded.tables
    topic = latents.topic[0].expand(len(hidden))
    for row, golden in enumerate(torch.tensor(case["fact"], dtype=torch.float64).t()):
        first, _ = tables.topics.facts_of(topic)
        fact = first + row if row else torch.zeros_like(first)
        close(model._log_fact(tables, hidden, topic, fact), golden.tolist())
    named = (latents.source[0, 0] - 1).clamp_min(0)
    copied = latents.source[0, 0] != WORD
    row = torch.where(copied, tables.topics.naming_fact[named] + 1, 0)
    value = torch.cat([hidden, tables.fact[row]], -1)
    close(model.copy(value)[:, 0].sigmoid(), case["copy_prob"])
    close(model.to_position(value).log_softmax(-1), case["position"])
    words = encoded.batch.targets[0]
    close(model.words.log_prob(value, words), case["word"])


@every("nklm_exact")
def test_every_latent_of_short_documents(name, case):
    """Listed, and found by a wide beam."""
    model, which = nklm(name), case["id"]
    words = document(name, which)["words"][: case["k"]]
    z = [list(map(tuple, some)) for some in product(*case["options"])]
    for variant in VARIANTS:
        texts = batch(name, [[*words, END]], variant)
        encoded = model.encode(texts, model.about([which]))
        found = model.log_joint(encoded, copies(model, which, z))[0]
        close(found, case[f"log_pxz_{variant}"])
        close(found.logsumexp(0), case[f"logp_all_{variant}"])
        beam = model.log_joint(encoded, model.proposal().beam(encoded, 1000).latents)
        assert beam.shape[1] == case["n_z"], "premise: all of them"
        close(beam[0].logsumexp(0), case[f"logp_all_{variant}"])


@pytest.mark.parametrize("name", NAMES)
def test_training_copies_by_the_rule_of_the_original(name):
    """Against its annotations of documents whose names overlap and share texts."""
    known = topics(name, original(name, "nklm"))
    seen = 0
    for case in numbers(name)["nklm"]:
        if case["annotation"] != "gold":
            continue
        topic = known.number(case["id"])
        first, _ = known.facts_of(torch.tensor(topic))
        listed = []
        for n in (known.naming_topic == topic).nonzero()[:, 0].tolist():
            start, _ = known.namings_of(known.naming_fact[n])
            words = known.alias_words[known.naming_alias[n]]
            listed.append((n, n - int(start), words[words >= 0].tolist()))
        source, offset = copied(document(name, case["id"])["words"], listed)
        relation = [int(known.naming_fact[s - 1] - first) if s else -1 for s in source]
        assert relation == case["rel"][:-1]
        assert [o if s else -1 for s, o in zip(source, offset, strict=True)] == case[
            "pos"
        ][:-1]
        seen += sum(map(bool, source))
    assert seen > 3, "premise: something was copied"
