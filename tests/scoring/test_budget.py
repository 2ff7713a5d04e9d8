"""Which estimator a text's budget goes to, and that nothing else decides it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.inference import ImportanceSampling, Mixed, ParticleFilter
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring.budget import SHORT, Auto, Fixed
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query


def text(words: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(words=[4] * words, query=SimpleNamespace(index=index))


def weights(found: list[float], outside: list[float]) -> torch.Tensor:
    """Of a pilot of 20: ten draws, and what ten places of a beam hold."""
    rows = torch.tensor(
        [*outside, *[0.0] * (10 - len(outside)), *found, *[0.0] * (10 - len(found))]
    )
    return rows.double().log()


PILOTS = {
    "all is found": weights([0.7, 0.3], []),
    "even draws": weights([1e-6], [1.0, 0.9, 0.8, 1.1, 1.0, 0.9, 1.0, 1.2, 1.0, 1.0]),
    "one draw has it all": weights([1e-6], [5.0]),
    "one draw has as much as was found": weights([1.0], [1.0]),
}


def test_the_pilot_decides():
    asked = []

    def weigh(method, texts, purpose):
        asked.append((method, purpose, [t.query.index for t in texts]))
        yield from zip(texts, PILOTS.values(), strict=True)

    long = [text(SHORT + 1, n) for n in range(4)]
    auto = Auto(100, filters=True, wide=True)
    groups = dict(auto.spend([text(SHORT, 9), *long], weigh))
    assert asked == [(Mixed(20), "pilot", [0, 1, 2, 3])]
    assert {
        method: [t.query.index for t in some] for method, some in groups.items()
    } == {
        Mixed(250, drawn=50, pilot=10): [9],
        Mixed(80): [0, 3],
        ImportanceSampling(80): [1],
        ParticleFilter(80): [2],
    }


@pytest.mark.parametrize(
    ("number", "filters", "method"),
    [
        (1, True, ImportanceSampling(1)),
        (2, True, Mixed(2)),
        (59, True, Mixed(59, pilot=6)),
        (100, False, Mixed(100, pilot=10)),
    ],
)
def test_no_pilot_of_a_long_text_where_there_is_nothing_to_decide(
    number, filters, method
):
    def weigh(*_):
        pytest.fail("a pilot")

    texts = [text(500)]
    groups = list(Auto(number, filters, wide=True).spend(texts, weigh))
    assert groups == [(method, texts)]
    short = [text(SHORT)]
    narrow = list(Auto(number, filters).spend(short, weigh))
    assert narrow == [(method, short)], "a search that does not read ahead"


@pytest.mark.parametrize(
    ("number", "method", "again"),
    [
        (1, ImportanceSampling(1), None),
        (2, Mixed(5, drawn=1), Mixed(8)),
        (59, Mixed(150, drawn=30, pilot=6), Mixed(240)),
        (100, Mixed(250, drawn=50, pilot=10), Mixed(400)),
    ],
)
def test_a_short_text_is_searched_wide_at_once(number, method, again):
    """What is scored anew is drawn more often, beside the same beam."""
    auto, texts = Auto(number, filters=True, wide=True), [text(SHORT)]
    [(given, group)] = auto.spend(texts, lambda *_: pytest.fail("a pilot"))
    assert (given, group) == (method, texts)
    if again:
        assert again.search == method.search
        assert again.sampling.num_samples == 4 * method.sampling.num_samples
        missed = searched(
            [-9.0] * method.sampling.num_samples,
            [0.0] * method.search.num_samples,
            [-99.0] * method.search.num_samples,
        )
        assert auto.instead(method, missed) == again


@pytest.mark.parametrize("number", [63, 70, 99, 100, 101, 1234])
def test_filters_can_be_divided_and_tell_their_error(number):
    def weigh(method, texts, purpose):
        size = method.num_samples - method.num_samples // 2
        places = size + 2 * (method.num_samples // 2)
        log_w = torch.full((places,), -math.inf, dtype=torch.float64)
        log_w[0], log_w[size] = 0.0, -20.0
        yield texts[0], log_w

    [(method, _)] = Auto(number, filters=True).spend([text(500)], weigh)
    assert isinstance(method, ParticleFilter)
    assert method.filters >= 5
    assert number * 0.6 <= method.num_samples <= number * 0.8 + 1


@pytest.fixture(scope="module")
def checkpoint(kglm_directory):
    return load_checkpoint(kglm_directory, device="cpu")


def scored(checkpoint, texts, batch_size=None, **options):
    options = ScoringOptions.parse(num_samples=100, **options)
    scorer = Scorer(checkpoint, options, batch_size=batch_size, quiet=True)
    queries = [Query(n, name, string) for n, (name, string) in enumerate(texts)]
    answers = {a.index: a for a in scorer.score_texts(queries)}
    return [answers[n] for n in range(len(queries))]


def test_company_decides_nothing(checkpoint):
    texts = [
        ("a", "Ada saw the fox . " * 20),
        ("b", "the fox"),
        ("c", "the fox saw Ada and zebra . " * 15),
        ("d", "Ada . " * 40),
    ]
    together = scored(checkpoint, texts)
    assert len({answer.estimate.estimator for answer in together}) > 1, "premise"
    spent = [100, 250, 100, 100]
    assert [answer.evaluations for answer in together] == spent, "pilots included"
    backwards = scored(checkpoint, texts[::-1], batch_size=1)[::-1]
    for one, other in zip(together, backwards, strict=True):
        a, b = one.estimate, other.estimate
        assert (a.estimator, a.num_samples) == (b.estimator, b.num_samples)
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-9)


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


def searched(outside, found, log_q):
    """A row of weights: of draws, of what was found, and of that when it is drawn."""
    log_w = torch.tensor([*outside, *found], dtype=torch.float64)
    log_p = log_w[len(outside) :]
    return torch.cat([log_w, log_p - torch.tensor(log_q, dtype=torch.float64)])


@pytest.mark.parametrize("outside", [[-9.0] * 50, [3.0, *[-math.inf] * 49]])
def test_what_draws_are_likely_to_miss_is_given_more_of_them(outside):
    """The search decides: whatever was drawn, the decision is the same."""
    auto, method = Auto(100, filters=False), Mixed(100)
    found = [-1.0, -2.0, *[-20.0] * 48]
    seen = searched(outside, found, [-0.5, -1.0, *[-20.0] * 48])
    assert auto.instead(method, seen) is None
    missed = searched(outside, found, [-30.0, -1.0, *[-20.0] * 48])
    assert auto.instead(method, missed) == Mixed(400)
    room = [-1.0, -2.0, *[-math.inf] * 48]
    everything = searched(outside, room, [-30.0, -1.0, *[0.0] * 48])
    assert auto.instead(method, everything) is None, "there is nothing more"
    unknown = missed.clone()
    unknown[100:] = math.nan
    assert auto.instead(method, unknown) is None, "nobody asked"
    assert auto.instead(ImportanceSampling(100), missed[:100]) is None
    assert Fixed(method).instead(method, missed) is None


def test_draws_that_decide_are_not_those_of_the_estimate():
    """The first ten say how little of p(x) was found, and the others what p(x) is."""
    auto, method = Auto(100, filters=False), Mixed(100, pilot=10)
    found, log_q = [-9.0] * 50, [-9.0] * 50
    alone = searched([-20.0] * 50, found, [-18.0] * 50)
    assert auto.instead(method, alone) == Mixed(400), "all there is, and not seen"
    much = searched([0.0] * 10 + [-20.0] * 40, found, log_q)
    assert auto.instead(method, much) is None
    rest = searched([-20.0] * 10 + [0.0] * 40, found, log_q)
    estimates = [method.estimate(row, 5) for row in (alone, much, rest)]
    by_hand = Mixed(80).estimate(torch.cat([rest[10:50], rest[50:]]), 5)
    assert estimates[2].log_evidence == pytest.approx(by_hand.log_evidence)
    assert estimates[2].draws_stderr == pytest.approx(by_hand.draws_stderr)
    assert len(estimates[0].log_weights) == 40
    assert estimates[1].log_evidence == pytest.approx(estimates[0].log_evidence)


def test_what_a_text_is_given_does_not_depend_on_its_draws(checkpoint):
    options = ScoringOptions.parse(num_samples=4)
    queries = [Query(n, f"{n}", "Ada saw the fox") for n in range(20)]
    scorer = Scorer(checkpoint, options, quiet=True)
    answers = [*scorer.score_texts(queries)]
    assert {a.estimate.num_samples for a in answers} == {16}, "premise: more is asked"
    assert {a.evaluations for a in answers} == {10 + 16}
    assert len({a.estimate.log_evidence for a in answers}) > 1


def test_an_upper_bound_takes_draws_of_its_own(checkpoint):
    queries = [Query(0, "a", "Ada saw the fox")]
    how = {"num_samples": 20, "estimator": "mixed"}
    [one] = Scorer(checkpoint, ScoringOptions.parse(**how), quiet=True).score_texts(
        queries
    )
    both = ScoringOptions.parse(bounds="both", **how)
    [two] = Scorer(checkpoint, both, quiet=True).score_texts(queries)
    assert one.estimate.upper is None
    assert two.estimate.log_evidence == one.estimate.log_evidence
    assert (one.evaluations, two.evaluations) == (20, 40)
    assert two.estimate.upper > two.estimate.log_evidence - 1
    assert two.estimate.upper != two.estimate.log_evidence
