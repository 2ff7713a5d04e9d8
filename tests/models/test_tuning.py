"""Tuned proposals: the laws of proposals hold, and files say what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lm_latent_eval import manifest
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.models import tuning
from lm_latent_eval.models.checkpoint import CheckpointError, load_checkpoint
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.tuning import (
    Tuned,
    fit_after_training,
    grouped,
    learned,
    spaced,
)
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.digests import digest
from lm_latent_eval.text.words import END
from tests import tiny_checkpoint
from tests.test_laws import PAIRS, TINY_MODELS

STRENGTHS = (
    {"scores": 0.3, "look_ahead": 2.0, "start": -3.0, "whole": 12.0, "longer": 2.0},
    {"scores": 4.0, "look_ahead": 0.0, "start": 20.0, "whole": -20.0, "longer": 0.0},
)
TUNED = {
    "smoothing": Tuned(
        {"scores": 0.5, "start": -1.0, "whole": 3.0, "longer": 0.0},
        [digest("the fox saw Ada.")],
        {"chosen": 1},
    )
}


@pytest.mark.parametrize("strengths", STRENGTHS, ids=["sharp", "blunt"])
@pytest.mark.parametrize(
    ("name", "which"),
    [pair for pair in PAIRS if pair[0] in ("entitynlm", "kglm", "rnng")],
)
def test_tuned_proposals_total_one_cover_the_model_and_weigh_to_p(
    name, which, strengths
):
    tiny = TINY_MODELS[name].case()
    model = tiny.model
    own = {n: strengths[n] for n in model.untuned(which)}
    plain = model.proposal(which)
    model.tuned = {which: Tuned(own, [], {})}
    proposal = model.proposal(which)
    differs = []
    texts = tiny.readable(proposal)[::9]
    if name == "rnng":  # two words have but one tree
        texts = [
            t
            for t in replace(tiny, length=5).outcomes()
            if t[-1] == END and len(t) == 5
        ][::30]
    for text in texts:
        latents, log_p = tiny.latents(text), tiny.log_joint(text)
        log_q, before = (
            q.log_prob(q.encode(tiny.batch([text])), latents)[0]
            for q in (proposal, plain)
        )
        assert abs(log_q.logsumexp(-1)) < 1e-10
        some = log_p > -torch.inf
        assert (log_q > -torch.inf)[some].all()
        weighed = (log_q[some] + (log_p - log_q)[some]).logsumexp(-1)
        assert abs(weighed - log_p.logsumexp(-1)) < 1e-10
        differs.append(not torch.allclose(log_q, before))
        # What is drawn has the probability that it is scored with.
        encoded = proposal.encode(tiny.batch([text]))
        draws = proposal.sample(encoded, Streams(keys(1), 20), 20)
        again = proposal.log_prob(encoded, draws.latents)
        torch.testing.assert_close(draws.log_q, again, rtol=0, atol=1e-10)
    assert any(differs), "premise: the strengths are others"


@pytest.mark.parametrize("strengths", STRENGTHS, ids=["sharp", "blunt"])
def test_strengths_divide_by_the_temperature(strengths):
    tiny = TINY_MODELS["kglm"].case()
    model, text = tiny.model, [4, 5, 4]
    own = {n: strengths[n] for n in model.untuned("adapted")}
    half = {name: value / 2 for name, value in own.items()}
    latents = tiny.latents(text)
    first, second = (
        q.log_prob(q.encode(tiny.batch([text])), latents)
        for q in (
            model.proposal("adapted", 2.0, own),
            model.proposal("adapted", 1.0, half),
        )
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["entitynlm", "kglm", "rnng"])
def test_beams_of_what_looks_ahead_do_not_depend_on_strengths(name):
    tiny = TINY_MODELS[name].case()
    model, batch = tiny.model, tiny.batch([[4, 5, 4]])
    plain = model.proposal("adapted")
    for strengths in ({"scores": 0.3, "look_ahead": 2.0}, {**plain.strengths}):
        proposal = model.proposal("adapted", 3.0, strengths)
        found = proposal.beam(proposal.encode(batch), 5)
        best = plain.beam(plain.encode(batch), 5)
        assert all(map(torch.equal, found.latents, best.latents))
        assert torch.equal(found.score, best.score)


def test_what_training_fits_was_learned_from_annotation():
    names = {name: learned(tiny.build()) for name, tiny in TINY_MODELS.items()}
    assert {name: found for name, found in names.items() if found} == {
        "kglm": ["smoothing"]
    }


def test_texts_at_even_distances_and_of_similar_length_together():
    assert spaced("abcdefghij", 3) == ["a", "d", "g"]
    assert spaced([], 3) == []
    lengths = [*range(9, -1, -1)]
    assert [*map(list, grouped(lengths, int))] == [[*range(8)], [8, 9]]


def test_training_ends_with_a_fit_to_training_text(monkeypatch):
    """Of a proposal that sees a mention wherever a name could begin."""
    model = tiny_checkpoint.kglm()
    model.proposals["smoothing"].matching.weight.fill_(6.0)
    model.tuned = {"adapted": Tuned({"scores": 9.0, "look_ahead": 9.0}, [], {})}
    model.requires_grad_(True)
    texts = [f"the fox saw Ada {'. ' * n}" for n in range(25)]
    read = []
    monkeypatch.setattr(
        tuning, "spaced", lambda all_, most: read.append(most) or all_[:3]
    )
    tokenizer = tiny_checkpoint.tokenizer()
    found = fit_after_training(model, tokenizer, [*texts[:2], "", *texts], seed=0)
    assert read == [20]
    assert found["smoothing"].strengths["start"] < 6.0
    assert found["smoothing"].texts == sorted(map(digest, texts[:2]))
    assert model.tuned == {}
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


# -- files ----------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    model = tiny_checkpoint.kglm()
    model.tuned = TUNED
    writing = tiny_checkpoint.orthography()
    return tiny_checkpoint.write(tmp_path / "tuned", model, writing)


def test_a_tuned_checkpoint_is_one_and_says_so(checkpoint):
    loaded = load_checkpoint(checkpoint)
    assert loaded.model.tuned == TUNED
    assert loaded.model.strengths("smoothing") == TUNED["smoothing"].strengths
    assert loaded.model.strengths("adapted") == {"scores": 1.0, "look_ahead": 1.0}
    assert KGLM.from_pretrained(checkpoint).tuned == TUNED
    assert (
        "tuning.json"
        in json.loads((checkpoint / manifest.FILE_NAME).read_text())["files"]
    )


def test_saving_writes_the_tuning_and_removes_an_old_one(checkpoint, tmp_path):
    loaded = load_checkpoint(checkpoint)
    loaded.model.save_pretrained(tmp_path / "copy")
    assert KGLM.from_pretrained(tmp_path / "copy").tuned == TUNED
    loaded.model.tuned = {}
    tiny_checkpoint.write(checkpoint, loaded.model, loaded.orthography)
    assert not (checkpoint / tuning.FILE_NAME).exists()
    assert load_checkpoint(checkpoint).digest != loaded.digest


WRONG = {
    "format": (lambda c: c.update(format="2"), "its format is '2'"),
    "proposal": (
        lambda c: c["proposals"].update(best=c["proposals"]["smoothing"]),
        "proposal='best'",
    ),
    "names": (
        lambda c: c["proposals"]["smoothing"]["strengths"].pop("whole"),
        "smoothing has the strengths scores, start, whole, longer, not scores, start",
    ),
    "range": (
        lambda c: c["proposals"]["smoothing"]["strengths"].update(scores=0.0),
        r"smoothing: scores is 0\.0: expected a number of 0\.1 to 10",
    ),
    "type": (
        lambda c: c["proposals"]["smoothing"]["strengths"].update(scores="1"),
        "scores is '1'",
    ),
    "texts": (
        lambda c: c["proposals"]["smoothing"].update(texts=["the fox"]),
        "16 hex digits",
    ),
    "fields": (lambda c: c["proposals"]["smoothing"].pop("texts"), "texts"),
    "list": (lambda c: c.update(proposals=[]), "items"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_tuning_of_something_else_is_refused(checkpoint, what):
    path = checkpoint / tuning.FILE_NAME
    content = json.loads(path.read_text())
    change, message = WRONG[what]
    change(content)
    path.write_text(json.dumps(content))
    manifest.write(checkpoint)
    with pytest.raises(CheckpointError, match=f"(?s)tuning.json does not .*{message}"):
        load_checkpoint(checkpoint)
    with pytest.raises(ValueError, match=r"tuning\.json does not say how"):
        KGLM.from_pretrained(checkpoint)
