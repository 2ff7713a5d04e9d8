"""A study of a tiny checkpoint against single runs of the scorer."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from lm_latent_eval.estimators import corpus_perplexity, instance_perplexity
from lm_latent_eval.models.checkpoint import load_checkpoint, save
from lm_latent_eval.scoring.likelihoods import WholeTexts
from lm_latent_eval.scoring.model import LatentModel
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.study.plan import StudyPlan
from lm_latent_eval.study.rows import read
from lm_latent_eval.study.run import ROWS_FILE, Study
from lm_latent_eval.study.totals import Draws, ledger
from tests import tiny_checkpoint
from tests.models.rnng import reference
from tests.rounding import agree

TEXTS = ("the fox saw Ada .", "Bo saw the fox .", "the fox .", "Ada saw Bo .", "fox")
PLAN = {"num_samples": 20, "replicate": 4, "beam_widths": (1, 3)}
PLAN |= {"temperatures": (1.0, 2.0)}


@pytest.fixture(scope="module")
def checkpoint(kglm_directory):
    return load_checkpoint(kglm_directory)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def study(checkpoint, data, output, limit=None, **changes) -> Study:
    plan = StudyPlan.of(checkpoint.model.proposal_names, None, **PLAN | changes)
    return Study(checkpoint, data, plan, output, limit=limit, quiet=True)


@cache
def estimates(checkpoint, texts=TEXTS, **options):
    return LatentModel(checkpoint).log_likelihood(texts, **options)


def test_every_row_is_what_a_run_of_its_own_says(checkpoint, data, tmp_path):
    found = study(checkpoint, data, tmp_path / "study").run()
    num_proposals = len(checkpoint.model.proposal_names)
    sizes = (1, 2, 4, 5, 10, 20)
    assert len(found) == (num_proposals + 1) * 2 * len(sizes) + 2
    for row in found:
        how = {"num_samples": row["num_samples"], "proposal": row["proposal"]}
        how |= {"temperature": row["temperature"], "estimator": row["estimator"]}
        single = estimates(checkpoint, **how)
        tokens = sum(estimate.num_tokens for estimate in single)
        log_p = torch.tensor([e.log_evidence for e in single], dtype=torch.float64)
        expected = instance_perplexity(log_p, tokens)
        if row["level"] == "corpus":
            log_w = [torch.tensor(e.log_weights, dtype=torch.float64) for e in single]
            expected = corpus_perplexity(log_w, tokens)
        assert row["perplexity"] == pytest.approx(expected, rel=1e-8), row
        assert row["tokens"] == tokens


def draws(output) -> dict[object, object]:
    """The weight of every draw, by setting, text and sentence."""
    return {
        (found.part, found.key): (found.row, np.frombuffer(found.numbers).tolist())
        for found in ledger(output).read()[1]
    }


@pytest.mark.parametrize(
    "after", [7, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 3, 23))]
)
def test_an_interrupted_study_goes_on(checkpoint, data, tmp_path, monkeypatch, after):
    """And one that reads its corpus a part at a time says what one at once does."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    study(checkpoint, data, whole).run()
    monkeypatch.setattr("lm_latent_eval.study.run.TEXTS_AT_ONCE", 2)
    monkeypatch.setattr("lm_latent_eval.study.totals.ROWS_AT_ONCE", 50)
    weighed, most, plain = [], after, WholeTexts.draw

    def draw(self, method, texts):
        """Stop after some texts, like a machine that is switched off."""
        for found in plain(self, method, texts):
            if len(weighed) == most:
                raise KeyboardInterrupt
            weighed.append(found)
            yield found

    monkeypatch.setattr(WholeTexts, "draw", draw)
    again = study(checkpoint, data, cut)
    with pytest.raises(KeyboardInterrupt):
        again.run()
    assert len(draws(cut)) == len(weighed) == after
    most = math.inf
    study(checkpoint, data, cut).run()
    settings = len(again.plan.settings())
    assert len(weighed) == len(TEXTS) * settings, "none twice"
    assert agree(read(cut / ROWS_FILE), read(whole / ROWS_FILE))
    assert agree(draws(cut), draws(whole))


def test_draws_of_another_number_are_refused(tmp_path):
    """By whoever edits a row and knows its digest."""
    text = Text(Query(0, "text/0", "a"), 0, [], [], [1], [0.0], 0.0, 0, 0)
    with ledger(tmp_path).going_on({}, None) as rows:
        assert [*Draws(rows, "is", 3).append([(text, torch.zeros(3))])] == [text]
        with pytest.raises(ValueError, match=r"row 1 .*no row of K log-weights"):
            [*Draws(rows, "is", 4).read()]
        rows.add("beam", (0, 0), {"num_tokens": "1"}, bytes(8))
        with pytest.raises(ValueError, match=r"row 2 .*no row of K log-weights"):
            [*Draws(rows, "beam", 1).read()]
        rows.add("is", (0, "0"), {}, bytes(24))
        with pytest.raises(ValueError, match="is is of no sentences"):
            Draws(rows, "is", 3).keys()


def test_other_settings_are_refused(checkpoint, data, tmp_path):
    output = tmp_path / "study"
    study(checkpoint, data, output, limit=2).run()
    with pytest.raises(
        ValueError, match=r"another study .*num_samples is 20 there and 30"
    ):
        study(checkpoint, data, output, limit=2, num_samples=30).run()
    with pytest.raises(ValueError, match=r"another study .*texts is "):
        study(checkpoint, data, output, limit=3).run()


def test_what_cannot_be_scored_claims_no_folder(spelled_directory, tmp_path):
    checkpoint, data = load_checkpoint(spelled_directory), tmp_path / "texts.txt"
    data.write_text("the fox .\nthe <unk> fox .\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"text/1 .*literal <unk>"):
        study(checkpoint, data, tmp_path / "study").run()
    with pytest.raises(ValueError, match="unk='nonsense'"):
        study(checkpoint, data, tmp_path / "study", unk="nonsense").run()
    assert not (tmp_path / "study").exists()
    study(checkpoint, data, tmp_path / "study", unk="closed").run()


def test_sentences_are_estimated_one_by_one(tmp_path):
    rnng = reference.tiny(vocab_size=tiny_checkpoint.tokenizer().vocab_size)
    folder = tmp_path / "rnng"
    save(rnng, tiny_checkpoint.tokenizer(), folder, rnng.state_dict())
    checkpoint = load_checkpoint(folder)
    data = tmp_path / "texts.txt"
    texts = ("The fox saw the fox. The fox saw.", "The fox.")
    data.write_text("\n".join(texts), encoding="utf-8")
    found = study(checkpoint, data, tmp_path / "study").run()
    last = next(r for r in found if r["level"] == "instance" and r["num_samples"] == 20)
    single = estimates(checkpoint, texts, estimator="is", num_samples=20)
    assert last["texts"] == 3
    total = math.fsum(estimate.log_evidence for estimate in single)
    assert last["log_likelihood"] == pytest.approx(total, rel=1e-8)


# -- plans ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"tempered": ["peking"]}, "did you mean peeking"),
        ({"replicate": 2000}, "a replicate of 2000 samples: expected 1 to 1000"),
        ({"temperatures": (0.5, 2.0)}, "must include 1"),
        ({"temperatures": (1.0, -1.0)}, "temperature=-1.0"),
        ({"num_samples": 0}, "num_samples=0: expected a whole number"),
        ({"temperatures": (1.0, 1.0000001)}, "is-peeking-1 twice"),
        ({"beam_widths": (0,)}, "num_samples=0"),
    ],
)
def test_impossible_plans_are_refused(choices, message):
    tempered = choices.pop("tempered", None)
    with pytest.raises(ValueError, match=message):
        StudyPlan.of(["peeking", "prior"], tempered, **choices)
