"""Published archives score their documents as the original does."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from lm_latent_eval.convert.kglm import convert
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.models.kglm.data import LinkedText
from lm_latent_eval.models.kglm.encoding import Encoded
from lm_latent_eval.models.kglm.graph import NO_ENTITY
from lm_latent_eval.models.kglm.latents import Mention
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.corpora import unmarked
from lm_latent_eval.text.words import END, START, UNKNOWN
from tests import kglm_reference as reference
from tests.kglm_archives import FOLDER, published, real, written
from tests.models.kglm.test_golden import (
    TOLERANCE,
    assert_factors,
    charged,
    over_shortlist,
)


@pytest.fixture(scope="module", params=["extract", "archive"])
def documents(request, tmp_path_factory):
    """The converted acl2020 archive in float64, and its documents."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "extract":
        arguments, cases = written(folder, "acl2020"), published()["cases"]
    else:
        golden_dir = request.getfixturevalue("golden_dir")
        arguments = real(folder, golden_dir, "acl2020")
        cases = json.loads((golden_dir / "kglm/archive/cases.json").read_text())
    convert(output=folder / "out", **arguments)
    return load_checkpoint(folder / "out", dtype=torch.float64), cases


def encode(checkpoint: Checkpoint, case: dict, unknown: float = 0.0) -> Encoded:  # type: ignore[type-arg]
    """Encode a document as its checkpoint reads it, over its shortlist."""
    _, *words = checkpoint.tokenizer(" ".join(case["tokens"])).ids
    costs = [unknown if checkpoint.tokenizer.is_unknown(i) else 0.0 for i in words]
    batch = TokenBatch.collate([words], [costs], first=START)
    return over_shortlist(checkpoint.model.encode(batch), case["shortlist"])


def test_documents_are_read_as_the_original_reads_them(documents):
    checkpoint, cases = documents
    graph, tokenizer = checkpoint.model.knowledge, checkpoint.tokenizer
    number = {name: n for n, name in enumerate(graph.node_names)}
    assert len(cases) == 3
    for case in cases:
        z, node = case["z"], [NO_ENTITY] * len(case["tokens"])
        for m in LinkedText.from_json(case).mentions():
            begin = Mention.DERIVED if m.edges else Mention.NEW
            assert z["mention_type"][m.start - 1] == begin
            node[m.start : m.end] = [number.get(m.entity, UNKNOWN)] * (m.end - m.start)
        assert node[1:] == z["raw_entity_ids"]
        assert graph.entity_of[node[1:]].tolist() == z["entity_ids"]
        # Ids of words to utter are original.
        ids = tokenizer(" ".join(case["tokens"])).ids
        known = [UNKNOWN if tokenizer.is_unknown(i) else i for i in ids]
        assert known == case["token_ids"]
        text_alone = " ".join(unmarked(case["tokens"]))
        assert text_alone.count("\n") == 1
        assert [START, *tokenizer(text_alone).ids, END] == ids


def test_every_factor_of_the_published_documents(documents):
    checkpoint, cases = documents
    penalty = -math.log(checkpoint.model.config.num_unknown_types)
    for case in cases:
        encodings = encode(checkpoint, case), encode(checkpoint, case, penalty)
        assert_factors(checkpoint.model, encodings, case, case["p"]["factors"])


def test_totals_of_the_published_documents(documents):
    """Ours differ only where the original counts a listed parent twice, or not at all.

    It sums over the parents that the annotation lists, twice if listed twice; p is a
    sum over all recent entities, each once.
    """
    checkpoint, cases = documents
    penalty = -math.log(checkpoint.model.config.num_unknown_types)
    equal = 0
    for case in cases:
        for cost, name in ((0.0, "logp_clean"), (penalty, "penalized_logp_clean")):
            encoded = encode(checkpoint, case, cost)
            rest, listed, every = charged(checkpoint.model, encoded, case["z"])
            assert abs((rest + listed).sum().item() - case["p"][name]) < TOLERANCE
            walks = reference.walks(case["z"])
            ours = checkpoint.model.log_joint(encoded, walks)[0, 0]
            torch.testing.assert_close(ours, (rest + every).sum(), rtol=0, atol=1e-9)
            for t, parents in enumerate(case["z"]["parent_ids"]):
                twice = math.log(len(parents) / len(set(parents)))
                assert every[t] >= listed[t] - twice - 1e-12
            equal += abs(ours.item() - case["p"][name]) < TOLERANCE
    assert equal == 4, "two of the three documents list every parent once"


def test_both_branches_convert(tmp_path):
    """They call the same layers otherwise."""
    acl = load_file(FOLDER / "acl2020.safetensors")
    master = {name.replace("_rnn._rnns.", "rnns."): t for name, t in acl.items()}
    assert master.keys() == load_file(FOLDER / "master.safetensors").keys()
    found = []
    for branch, weights in (("acl2020", acl), ("master", master)):
        convert(output=tmp_path / branch, **written(tmp_path, branch, weights))
        found.append(load_checkpoint(tmp_path / branch).model.state_dict())
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        assert torch.equal(found[1][name], tensor)
