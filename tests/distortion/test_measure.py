"""Scores of a corpus and of altered sequences, their statistics, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.distortion import measure
from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.edits import (
    LANGUAGE,
    PERTURBED,
    RANDOM,
    Altered,
    Perturbation,
    random_sequence,
)
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.languages.loading import language_of
from lm_latent_eval.distortion.measure import (
    Errors,
    Measured,
    error_map,
    errors_by_length,
    score,
    shown,
    table,
)
from lm_latent_eval.distortion.statistics import ErrorCurve, JointHistogram
from lm_latent_eval.estimators import Bound, bootstrap_interval
from lm_latent_eval.scoring.log_likelihoods import LogLikelihoods
from tests.distortion.tiny import REGULAR, draw, gpt2, pcfg, regular
from tests.means import normal, uniform

LENGTH = 6


@dataclass
class Guess:
    """A model whose numbers say which tokens they are of, and that keeps the names."""

    bound: Bound = Bound.STOCHASTIC_LOWER
    stderr: float = 0.5
    names: list[str] = field(default_factory=list)

    def score(self, sequences, names, /) -> LogLikelihoods:
        self.names += names
        numbers = torch.tensor([-sum(ids) / 1000 for ids in sequences]).double()
        return LogLikelihoods(numbers, torch.full_like(numbers, self.stderr))

    def settings(self):
        return {"kind": "guess"}


@pytest.fixture(params=[pcfg, regular])
def corpus(request, tmp_path):
    how = {"language": request.param(), "max_length": LENGTH}
    return draw(tmp_path / "corpus", 40, first=3, **how)


# -- scores --------------------------------------------------------------------------


def test_a_corpus(corpus):
    guess = Guess()
    found, known = score(guess, corpus, num_sequences=30), corpus.read(range(3, 33))
    ended = [ids[-1] == 1 for ids in known.sequences]
    assert found["index"].tolist() == [*range(3, 33)]
    assert found.true_log_p.tolist() == known.log_p.tolist()
    assert found.ended.tolist() == ended
    assert len({*ended}) == 2, "premise"
    assert found.num_tokens.tolist() == [*map(len, known.sequences)]
    expected = Guess().score(known.sequences, [])
    assert found.model_log_p.tolist() == expected.log_p.tolist()
    assert found.stderr.tolist() == expected.stderr.tolist()
    assert guess.names == [f"text/{index}" for index in range(3, 33)]
    with pytest.raises(ValueError, match=r"num_sequences=41: .* has 40"):
        score(Guess(), corpus, num_sequences=41)
    with pytest.raises(ValueError, match=r"text/3: its estimate has no standard error"):
        score(Guess(stderr=math.inf), corpus)


def test_altered_sequences(corpus, monkeypatch):
    monkeypatch.setattr(measure, "_ROWS_AT_ONCE", 17)
    language, guess = language_of(corpus), Guess()
    altered = Altered(corpus, language, perturb=2, random=True, seed=7)
    found = score(guess, corpus, altered=altered)
    assert len({*guess.names}) == len(guess.names) == len(found) == 40 * 4
    perturbation = Perturbation([2, 3, 4], 1, LENGTH)
    numbers = {"max_length": LENGTH, "seed": 7}
    (kinds,) = (found.groupby(["kind", "edits"]).size().to_dict(),)
    assert kinds == dict.fromkeys(
        [(LANGUAGE, 0), (PERTURBED, 1), (PERTURBED, 2), (RANDOM, 0)], 40
    )
    for row in found.itertuples():
        (ids,) = corpus.read(range(row.index, row.index + 1)).sequences
        if row.kind == RANDOM:
            new = random_sequence([2, 3, 4], 1, index=row.index, **numbers)
        else:
            new = perturbation.steps(ids, 2, seed=7, index=row.index)[row.edits]
        assert row.num_tokens == len(new)
        assert row.ended == (new[-1] == 1)
        expected = language.log_p([new])[0].item()
        assert row.true_log_p == pytest.approx(expected, rel=1e-12)
        assert row.model_log_p == Guess().score([new], []).log_p
    assert (found.true_log_p == -math.inf).any(), "premise: of no language"


# -- statistics ----------------------------------------------------------------------

TRUE = 4 * uniform(400, 3, seed=0).log().sum(-1) - 5
"""Log-probabilities as a language has them: few frequent, many rare."""
MODEL = 1.1 * TRUE - normal(400, seed=1, sd=0.2).abs()


def scores(true=TRUE, model=MODEL, **changes: Any) -> pd.DataFrame:
    columns = {
        "kind": LANGUAGE,
        "index": range(len(true)),
        "edits": 0,
        "num_tokens": (1 - true.clamp(min=-30)).long(),
        "ended": True,
        "true_log_p": true.double(),
        "model_log_p": model.double(),
        "stderr": 0.0,
    }
    return pd.DataFrame(columns | changes)


def measured(rows: pd.DataFrame, num_bins: int = 10, **of: Any) -> Measured:
    return Measured.of(Guess(**{"bound": Bound.EXACT} | of), rows, num_bins)


def assert_same(curve: ErrorCurve | None, expected: ErrorCurve) -> None:
    assert curve is not None
    pd.testing.assert_frame_equal(curve.bins, expected.bins)
    assert replace(curve, bins=None) == replace(expected, bins=None)


def test_statistics_are_those_of_the_columns():
    num_tokens = torch.tensor(scores().num_tokens)
    found = measured(pd.concat([scores(), scores(model=TRUE + 1, kind=RANDOM)]))
    assert_same(found.curve, ErrorCurve.of(TRUE, MODEL, num_bins=10))
    assert_same(found.random, ErrorCurve.of(TRUE, TRUE + 1, num_bins=10))
    assert found.histogram == JointHistogram.of(TRUE, MODEL, num_bins=10)
    assert found.map is None
    tenths = ErrorCurve.of(TRUE, MODEL, bins="count", num_bins=10)
    assert_same(found.tenths, tenths)
    one = ErrorCurve.of(TRUE, MODEL, bins="count", num_bins=1)
    [whole] = one.bins.itertuples()
    tokens = int(num_tokens.sum())
    ours, random = found.summaries
    assert ours == {
        "kind": LANGUAGE,
        "edits": 0,
        "num_sequences": 400,
        "mean_error": one.mean_error,
        "lower": whole.lower,
        "upper": whole.upper,
        "estimator_bias": 0,
        "share_underestimated": tenths.share_underestimated,
        "rarest_tenth": tenths.bins.mean_error.iloc[0],
        "most_probable_tenth": tenths.bins.mean_error.iloc[-1],
        "perplexity": pytest.approx(math.exp(-MODEL.sum() / tokens), rel=1e-12),
        "language_perplexity": pytest.approx(math.exp(-TRUE.sum() / tokens), rel=1e-12),
        "impossible": 0,
        "ruled_out": 0,
        "cut": 0,
    }
    assert random["mean_error"] == pytest.approx(1)
    rows = shown(table({"mine": found})).splitlines()
    assert f"{whole.mean_error:.3f} ({whole.lower:.3f} .. {whole.upper:.3f})" in rows[1]


def test_perturbed():
    edits = torch.arange(3).repeat(100)
    true = TRUE[:100].repeat_interleave(3) - 2.0 * edits
    model = true - 1.0 + edits
    true[4] = -torch.inf  # impossible after one perturbation
    model[8] = -torch.inf  # ruled out after two
    kinds = [LANGUAGE, PERTURBED, PERTURBED] * 100
    found = measured(scores(true, model, edits=edits, kind=kinds))
    assert found.map.equals(error_map(scores(true, model, edits=edits)))
    means = [row["mean_error"] for row in found.summaries]
    assert means == pytest.approx([-1, 0, 1], abs=1e-12)
    assert [row["impossible"] for row in found.summaries] == [0, 1, 0]
    assert [row["ruled_out"] for row in found.summaries] == [0, 0, 1]


def test_cells_by_brute_force():
    """With every kind of zero probability among the sequences, and edges of ranges."""
    true, (never, out) = -60 * uniform(400, seed=0), uniform(2, 400, seed=3) < 0.2
    true[::9] = true[::9].round()
    model = (true + normal(400, seed=1, sd=5)).clamp(max=0)
    true, model = true.masked_fill(never, -math.inf), model.masked_fill(out, -math.inf)
    edits = (4 * uniform(400, seed=2)).long()
    inside = {}
    for t, m, e in zip(*(c.tolist() for c in (true, model, edits)), strict=True):
        if math.isfinite(t) and math.isfinite(m):
            inside.setdefault((e, math.floor(t)), []).append(m - t)
    cells = error_map(scores(true, model, edits=edits))
    assert len(cells) > 30, "premise"
    assert [*zip(cells.edits, cells.lowest, cells.highest, strict=True)] == [
        (e, k, k + 1) for e, k in sorted(inside)
    ]
    found = [inside[cell] for cell in sorted(inside)]
    assert cells["count"].tolist() == [*map(len, found)]
    means = [sum(errors) / len(errors) for errors in found]
    assert cells.mean_error.tolist() == pytest.approx(means, rel=1e-12, abs=1e-12)


def test_lengths_by_brute_force():
    """Where long sequences are worse than their length explains."""
    num_tokens = (1 + 11 * uniform(300, seed=0).square()).int()
    true, noise = -3.0 * num_tokens.double(), normal(300, seed=1)
    error = -0.05 * num_tokens**2 + noise
    token_error = (error / num_tokens).mean().item()
    counts = num_tokens.bincount().tolist()
    kept = [n for n, count in enumerate(counts) if count > 10]
    assert 0 < len(kept) < len(counts) - 1, "premise"

    rows = scores(true, true + error, num_tokens=num_tokens)
    found = errors_by_length(Errors.of(rows))

    assert found.num_tokens.tolist() == kept
    for each in found.itertuples():
        members = error[num_tokens == each.num_tokens]
        assert each.count == len(members)
        assert each.mean_error == pytest.approx(members.mean().item())
        assert each.expected == pytest.approx(each.num_tokens * token_error)
        ends = bootstrap_interval(members, seed=(0, each.num_tokens))
        assert (each.lower, each.upper) == pytest.approx(ends)


def test_an_estimate_may_be_above_one():
    model = MODEL.clone()
    model[0] = 0.002
    found = measured(scores(model=model, stderr=0.01), bound=Bound.STOCHASTIC_LOWER)
    assert found.curve.estimator_bias == pytest.approx(-(0.01**2) / 2)


def test_a_beam_has_an_unknown_bias():
    rows = table({"beam": measured(scores(), bound=Bound.STRICT_LOWER)})
    assert rows.estimator_bias.isna().all()
    assert "unknown" in shown(rows)


@pytest.mark.parametrize("number", [1, 10, 11, 40])
def test_few_sequences_have_no_mean(number):
    found = measured(scores(TRUE[:number], MODEL[:number]), num_bins=50)
    assert (found.curve is None) == (number < 11) == (found.tenths is None)
    assert ("mean_error" in found.summaries[0]) == (number >= 11)
    assert f"{number} language" in shown(table({"mine": found}))


def test_what_has_no_error_is_counted():
    true, model = TRUE.clone(), MODEL.clone()
    true[:3] = -torch.inf
    model[2:7] = -torch.inf
    ended = torch.ones(400, dtype=torch.bool)
    ended[100:102] = False
    rows = scores(true, model, ended=ended, num_tokens=1)
    found = Errors.of(rows)
    assert (found.impossible, found.ruled_out, len(found.rows)) == (3, 4, 393)
    curve = ErrorCurve.of(TRUE[7:], MODEL[7:], num_bins=10)
    assert_same(found.curve(num_bins=10), curve)
    head, row = shown(table({"mine": measured(rows)})).splitlines()
    assert head.split()[-4:] == ["impossible", "ruled", "out", "cut"]
    assert row.split()[-3:] == ["3", "4", "2"]
    assert "impossible" not in shown(table({"mine": measured(scores())}))
    nothing = measured(scores(true[:2], model[:2]))
    assert nothing.curve is nothing.histogram is None and nothing.lengths.empty


# -- the command ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A hidden Markov model, a corpus of it, and a causal LM of the same words."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "walk.json").write_text(json.dumps(REGULAR))
    sample = ["--language", f"{folder}/walk.json", "--output", f"{folder}/corpus"]
    numbers = ["--num-sequences", "60", "--max-length", "8"]
    assert main(["distort", "sample", *sample, *numbers]) == 0
    gpt2(torch.float32, vocab_size=5).save_pretrained(folder / "learner")
    word_tokenizer(REGULAR["words"]).save_pretrained(folder / "learner")
    return folder


def run(folder, *options, names=("one", "two")):
    given = [f"{name}={folder}/learner" for name in names]
    given += ["--corpus", f"{folder}/corpus", "--device", "cpu"]
    return main(["distort", "measure", *given, *options])


@pytest.mark.usefixtures("svg_alone")
def test_the_command(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, "--perturb", "2", "--random", "--output", str(out)) == 0
    rows = pd.read_csv(out / "scores.csv")
    assert rows.groupby(["model", "kind"]).size().to_dict() == {
        (model, kind): number
        for model in ("one", "two")
        for kind, number in ((LANGUAGE, 60), (PERTURBED, 120), (RANDOM, 60))
    }
    known = Corpus.open(folder / "corpus").read(range(60)).log_p
    language = rows[(rows.model == "one") & (rows.kind == LANGUAGE)]
    assert language.true_log_p.tolist() == pytest.approx(known.tolist())
    numbers = json.loads((out / "numbers.json").read_text())
    assert [*numbers] == ["one", "two"]
    error = language.model_log_p - language.true_log_p
    assert numbers["one"]["curve"]["mean_error"] == pytest.approx(error.mean())
    assert pd.read_csv(out / "table.csv").mean_error[0] == pytest.approx(error.mean())
    assert "60 language" in capsys.readouterr().out
    svg = (out / "figures.svg").read_text()
    assert "perturbations" in svg and "<!-- two -->" in svg


@pytest.mark.usefixtures("svg_alone")
def test_what_cannot_be_measured(folder, tmp_path, capsys):
    for options, message in (
        (("--perturb", "-1"), "perturb=-1: expected a whole number of at least 0"),
        (("--random", "--language", "agreement"), "was not drawn from this"),
        (("--num-sequences", "61"), "has 60"),
        (("--num-bins", "0"), "num_bins=0: expected a whole number of at least 1"),
    ):
        assert run(folder, "--output", f"{tmp_path}/out", *options) == 2
        assert message in capsys.readouterr().err
    for names, message in (
        (("one", "one"), "one names two models"),
        (("",), "expected NAME=MODEL"),
    ):
        assert run(folder, "--output", f"{tmp_path}/out", names=names) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
