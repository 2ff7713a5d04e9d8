"""Which estimator a text's budget goes to, and that nothing else decides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.inference import ImportanceSampling
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring.budget import GROWN, Auto
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query

NOTHING = [-math.inf] * PASSES


def text(words: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(words=[4] * words, query=SimpleNamespace(index=index))


def row(wide: float, narrow: float, pilot: Sequence[float] = NOTHING) -> torch.Tensor:
    """Return weights of passes that found nothing, of two beams, a pilot, a mark."""
    parts = [*NOTHING, wide, narrow, *pilot, -math.inf]
    return torch.tensor(parts, dtype=torch.float64)


@pytest.mark.parametrize(
    ("number", "levels"),
    [
        (100, [(400, 100), (1600, 1600), (6400, 1600)]),
        (30, [(400, 30), (1600, 480), (1920, 480)]),
        (7, [(400, 10), (1600, 160)]),
    ],
)
def test_it_widens_while_that_pays(number, levels):
    auto, texts = Auto.of(number), [text(9), text(500)]
    [(method, group)] = auto.spend(texts, lambda *_: pytest.fail("a pilot"))
    assert group == texts
    assert method == auto.method
    for beam, passes in levels:
        assert method == DiscreteFilter(beam, passes)
        assert auto.replacement(method, row(-7.0, -7.0 - GROWN / 2)) is None
        assert auto.replacement(method, row(-math.inf, -math.inf)) is None
        much = [-7.0 - math.log(GROWN / 2)] * PASSES
        assert auto.replacement(method, row(-7.0, -8.0, much)) is None, (
            "half of what counts"
        )
        assert auto.pilot == 0
        last, method = method, auto.replacement(method, row(-7.0, -7.0 - 2 * GROWN))
    assert method is None, "the widest"
    assert auto.replacement(last, row(-7.0, -9.0)) is None


def test_passes_are_widened_where_a_pilot_is_uneven():
    auto, uneven = Auto.of(100), row(-7.0, -7.0, [-3.0, -5.0, -5.0, -5.0, -5.0])
    [(method, _)] = auto.spend([text(9)], lambda *_: pytest.fail("a pilot"))
    wider = auto.replacement(method, uneven)
    assert wider == DiscreteFilter(1600, 1600)
    assert auto.replacement(wider, uneven) is None, "the passes are as wide as they get"


def test_what_passes_find_decides_nothing():
    auto = Auto.of(100)
    [(method, _)] = auto.spend([text(9)], lambda *_: pytest.fail("a pilot"))
    for beams in ((-7.0, -7.0), (-7.0, -7.5)):
        decided = set()
        for found in (-math.inf, -7.0, 3.0):
            weights = row(*beams)
            weights[:PASSES] = found
            decided.add(auto.replacement(method, weights))
        assert len(decided) == 1


@pytest.fixture(scope="module")
def checkpoint(kglm_directory):
    return load_checkpoint(kglm_directory, device="cpu")


def scored(checkpoint, texts, batch_size=None, **options):
    options = ScoringOptions.parse(**{"num_samples": 100} | options)
    scorer = Scorer(checkpoint, options, batch_size=batch_size, quiet=True)
    queries = [Query(n, name, string) for n, (name, string) in enumerate(texts)]
    answers = {a.index: a for a in scorer.score_texts(queries)}
    return [answers[n] for n in range(len(queries))]


def test_company_decides_nothing(checkpoint):
    texts = [
        ("a", "Ada saw the fox . " * 20),
        ("b", "the"),
        ("c", "the fox saw Ada and zebra . " * 15),
        ("d", "Ada . " * 40),
    ]
    together = scored(checkpoint, texts, num_samples=25)
    widths = [answer.estimate.num_samples for answer in together]
    assert len({*widths}) > 1, f"premise: {widths}"
    spent = {400: 400 + 25 + 100 + 5}
    spent[1600] = spent[400] + 1600 + 400 + 400 + 100
    assert [answer.evaluations for answer in together] == [spent[w] for w in widths]
    backwards = scored(checkpoint, texts[::-1], batch_size=1, num_samples=25)[::-1]
    for one, other in zip(together, backwards, strict=True):
        a, b = one.estimate, other.estimate
        assert a.num_samples == b.num_samples
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-9)


def test_the_options_of_a_context_are_widened_together(checkpoint, monkeypatch):
    scorer = Scorer(checkpoint, ScoringOptions.parse(num_samples=25), quiet=True)
    long = "Ada saw the fox . " * 20
    asked = [(long, " Ada"), (long, " the fox saw Ada"), ("the", " fox"), ("Bo", "")]
    queries = [
        Query(n, f"task/{context[:4]}", string, context)
        for n, (context, string) in enumerate(asked)
    ]

    def widths() -> list[int]:
        answers = {a.index: a for a in scorer.score_continuations(queries)}
        return [answers[n].estimate.num_samples for n in range(len(queries))]

    rows = []

    def pays(method, log_w, least):
        """Ask for more where the first option of the long context is weighed."""
        rows.append(log_w)
        return len(rows) == 1

    monkeypatch.setattr(DiscreteFilter, "pays", pays)
    assert widths() == [1600, 1600, 400, 400]


def test_a_pilot_for_a_target_is_counted(checkpoint):
    [answer] = scored(
        checkpoint, [("a", "Ada saw the fox .")], estimator="is", target_stderr=0.2
    )
    assert answer.evaluations == 100 + answer.estimate.num_samples


def test_the_pilots_draws_are_not_those_of_the_estimate(checkpoint):
    options = ScoringOptions.parse(num_samples=100)
    scorer = Scorer(checkpoint, options, quiet=True)
    [some] = scorer.cut.whole(Query(0, "a", "Ada saw the fox . " * 20))
    draw = ImportanceSampling(20)
    rows = [next(scorer.whole_texts.draw(draw, [some], p))[1] for p in ("pilot", "")]
    assert not torch.equal(*rows)


def test_an_upper_bound_takes_draws_of_its_own(checkpoint):
    queries = [Query(0, "a", "Ada saw the fox")]
    how = {"num_samples": 100, "estimator": "mixed"}
    [one] = Scorer(checkpoint, ScoringOptions.parse(**how), quiet=True).score_texts(
        queries
    )
    both = ScoringOptions.parse(bounds="both", **how)
    [two] = Scorer(checkpoint, both, quiet=True).score_texts(queries)
    assert one.estimate.upper is None
    assert two.estimate.log_evidence == one.estimate.log_evidence
    assert (one.evaluations, two.evaluations) == (100, 200)
    assert two.estimate.upper > two.estimate.log_evidence - 1
    assert two.estimate.upper != two.estimate.log_evidence
