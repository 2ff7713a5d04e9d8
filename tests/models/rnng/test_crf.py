"""Trees of the CRF and of p: ties, shared and cut work, and what is none."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.rnng import crf
from lm_latent_eval.models.rnng.networks import GenerativeModel, SpanScores
from lm_latent_eval.models.rnng.trees import Trees
from tests.models.rnng import reference

TEXT = [4, 1, 5, 5, 4, 1, 4]


def model(ends):
    return reference.tiny(sentence_ends=ends == "eos")


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


def test_cutting_the_work_changes_nothing(monkeypatch):
    rnng = model("eos")
    largest: dict[str, int] = {}

    def watch(owner, name, size):
        found = getattr(owner, name)

        def watching(*arguments):
            result = found(*arguments)
            largest[name] = max(largest.get(name, 0), size(result))
            return result

        monkeypatch.setattr(owner, name, watching)

    watch(GenerativeModel, "log_words", lambda scores: scores.numel())
    watch(SpanScores, "_score", len)
    batch = reference.batch([TEXT], "eos", unknown=-0.7)
    trees = reference.trees([reference.every_tree(7)], "eos")

    def scored():
        rnng.proposal("crf").encode(batch)
        return rnng.log_joint(rnng.encode(batch), trees)

    whole = scored()
    assert largest["log_words"] > 50, "premise: there is something to cut"
    assert largest["_score"] > 3, "premise"
    largest.clear()
    monkeypatch.setattr("lm_latent_eval.models.rnng.joint.STACKS_AT_ONCE", 50)
    monkeypatch.setattr("lm_latent_eval.models.rnng.networks.TABLE", 50)
    monkeypatch.setattr("lm_latent_eval.models.rnng.networks.SPANS_AT_ONCE", 3)
    torch.testing.assert_close(scored(), whole, rtol=0, atol=1e-12)
    assert largest["log_words"] <= 50
    assert largest["_score"] <= 3


def test_what_is_no_tree_is_impossible():
    rnng = model("no_eos")
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
    rnng = model("eos")
    with pytest.raises(ValueError, match="without a sentence end"):
        rnng.proposal("crf").encode(reference.batch([TEXT], "no_eos"))
    with pytest.raises(ValueError, match="words follow the end"):
        rnng.encode(reference.batch([[4, 3, 4]], "eos"))
    with pytest.raises(ValueError, match="can read 10"):
        rnng.proposal("crf").encode(reference.batch([[4] * 11], "eos"))
    longest = rnng.proposal("crf").encode(reference.batch([[4] * 10, [5]], "eos"))
    assert longest.log_z.isfinite().all()
    assert [rnng.proposal().name, model("no_eos").proposal().name] == ["adapted", "crf"]
    with pytest.raises(ValueError, match="adapted, crf, prior"):
        rnng.proposal("smoothing")
    with pytest.raises(ValueError, match="temperature=0"):
        rnng.proposal(temperature=0.0)
