"""Audits of simulated scorers: clean ones pass, each fault is caught by name."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import pytest

from lm_latent_eval import cli
from lm_latent_eval.audit import verdict
from lm_latent_eval.audit.chain import chain_rule
from lm_latent_eval.audit.outputs import samples
from lm_latent_eval.audit.run import REFUSED, TRIED, audit, page
from lm_latent_eval.audit.sameness import sameness
from lm_latent_eval.audit.session import (
    TEXTS,
    TOLERANCE,
    Answered,
    OverBudgetError,
    Plan,
    Reply,
    Requester,
    Session,
)
from lm_latent_eval.audit.verdict import Kind, Verdict
from lm_latent_eval.harness import audit as audit_of_models
from lm_latent_eval.harness.audit import Model
from tests.audit import faulty
from tests.audit.faulty import audited

CASES = [(fault, s) for fault, (_, some) in faulty.FAULTS.items() for s in some]
WEAKEST = [
    # Of LLaDA's masks the middle: 128 a score take seconds.
    (fault, some[fault == "llada"], item)
    for fault, (item, some) in faulty.FAULTS.items()
]


def by_title(found):
    return {one.item.title: one for one in found.findings}


def test_a_clean_scorer_gets_the_verdicts_of_its_kind():
    found = audited(3)
    assert not found.failed
    said = {one.item: one.verdict for one in found.findings}
    named = {verdict.CODE_POINTS, verdict.INSIDE, verdict.CHARGED}
    untold = {verdict.COMPLETE, verdict.COUNTS, verdict.ERRORS, verdict.WITHHELD}
    untold.add(verdict.LARGE)  # pairs of words hold too little of p
    assert {item for item, v in said.items() if v is Verdict.FAILS} == named
    assert {item for item, v in said.items() if v is Verdict.UNDETERMINED} == untold
    assert "white space" in by_title(found)[verdict.CHARGED.title].detail
    shown = page(found).splitlines()
    assert len(shown) <= 12 and max(map(len, shown)) < 160
    assert shown[-2].startswith("holds: 17 items hold, 3 fail as words may, 5 are")
    [samples] = [line for line in shown if line.startswith("samples")]
    assert "p times 1.0" in samples and "a temperature of 0.8" in samples


class Closed:
    """Knows few words, and scores every other one as the unknown one."""

    def score(self, pairs):
        known = {" the": 0.5, " fox": 0.1}
        return [Reply(math.log(known.get(rest, 0.4))) for _, rest in pairs]

    def write(self, contexts, *, tokens, sample):
        return [" the"] * len(contexts)


class Windowed:
    """Words that contexts only confuse; windows may lose the token at their edge."""

    window = 50

    def __init__(self, lost):
        self.lost = lost
        counts = Counter(word for text in TEXTS for word in text.split())
        self.log_p = {w: math.log(n / counts.total()) for w, n in counts.items()}

    def count_tokens(self, text):
        return len(text.split())

    def cost(self, text):
        return [self.log_p.get(word, math.log(1e-4)) for word in text.split()]

    def score(self, pairs):
        confuses = [0.1 * self.count_tokens(context) for context, _ in pairs]
        return [
            Reply(sum(self.cost(rest)) - more)
            for (_, rest), more in zip(pairs, confuses, strict=True)
        ]

    def score_texts(self, texts):
        return [Reply(sum(map(self.of_window, *self.windows(t)))) for t in texts]

    def windows(self, text):
        costs = self.cost(text)
        starts = range(0, len(costs), self.window)
        return [costs[n : n + self.window] for n in starts], starts, [len(costs)] * 99

    def of_window(self, costs, start, length):
        forgotten = 1.0 * (start > 0)
        if self.lost == "first" and start:
            costs = costs[1:]
        if self.lost == "last" and start + self.window < length:
            costs = costs[:-1]
        return sum(costs) - forgotten

    def write(self, contexts, *, tokens, sample):
        return None


@pytest.mark.parametrize("lost", [None, "first", "last"])
def test_a_token_that_is_lost_at_the_edge_of_a_window_is_noticed(lost):
    """Although nothing long before a word helps to predict it."""
    session = Session(Requester(Windowed(lost)), Kind.TOKENS)
    [found] = [f for f in chain_rule(session) if f.item is verdict.EXCESS]
    if lost is None:
        assert found.verdict is Verdict.HOLDS and "50 tokens" in found.detail
    else:
        assert found.verdict is Verdict.FAILS
        assert found.detail.startswith("at the edge of a window of 50 tokens")


def test_unknown_words_are_one_word():
    session = Session(Requester(Closed()), Kind.WORDS)
    found = session.listed("It saw", " a fox", [" the"])
    assert sum(reply.p for _, reply in found) == pytest.approx(0.9)
    assert len(found) == 2


def test_what_would_only_see_larger_faults_is_undetermined():
    few = by_title(audited(3, Plan().times(0.1)))[verdict.SAMPLES.title]
    assert few.verdict is Verdict.UNDETERMINED
    assert float(few.sees.split()[2].rstrip(",")) > 1 and few.sees in few.detail


def seen(found) -> tuple[float, float]:
    """The smallest factor of p and the temperature that samples would have shown."""
    said = by_title(found)[verdict.SAMPLES.title].sees
    factor, temperature = re.findall(r"[\d.]+\d", said)
    return float(factor), float(temperature)


def test_a_run_sees_what_it_says():
    """Scores twice as far from the samples as the least that is seen are alarms."""
    for world in range(6):
        _, temperature = seen(audited(world))
        peaked = audited(world, fault="peaked", strength=2 * temperature - 1)
        assert verdict.SAMPLES in {one.item for one in peaked.alarms}


@pytest.mark.parametrize(
    ("audits", "noises", "most"),
    # More fail in 0.6 % of cases at most, and in 2.5 %.
    [
        (15, (0.02,), 3),
        pytest.param(1_000, (0.0, 0.02), 64, marks=pytest.mark.nightly),
    ],
)
def test_one_clean_audit_in_20_fails_at_most(audits, noises, most):
    """With Monte Carlo errors of so many nats."""
    found = (audited(w, noise=noises[w % len(noises)]) for w in range(audits))
    assert sum(each.failed for each in found) <= most


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("worlds", "most"),
    # As many as others, 1.1 %: more in 0.5 % of cases.
    [(range(3), 0), pytest.param(range(3, 100), 4, marks=pytest.mark.nightly)],
)
def test_rounding_of_half_precision_is_no_fault(worlds, most, half):
    """Its precision is seen by its answers alone."""
    found = [audited(w, half=half) for w in worlds]
    assert {each.precision for each in found} == {half}
    assert sum(each.failed for each in found) <= most
    assert f"computed in {half}: two scores of -10 may be" in page(found[0])
    assert found[0].as_dict()["hidden"] in page(found[0])


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("fault", "strength"), [("leak", 1.0), ("padding", 0.03), ("total", math.log(2))]
)
def test_faults_beyond_that_rounding_are_caught(fault, strength, half):
    found = audited(1, fault=fault, strength=strength, half=half)
    assert faulty.FAULTS[fault][0] in {one.item for one in found.alarms}


@pytest.mark.parametrize(
    ("fault", "strength", "item"), [*WEAKEST, ("total", math.log(2), verdict.LISTS)]
)
def test_each_fault_is_caught(fault, strength, item):
    found = audited(1, fault=fault, strength=strength)
    [finding] = [one for one in found.alarms if one.item is item]
    assert finding.witness, "what shows it"
    assert item is not verdict.LISTS or finding.witness["total"] > 1.05
    json.dumps(found.as_dict())


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "strength"), CASES)
def test_each_fault_is_caught_in_95_of_100_audits(fault, strength):
    found = [audited(w, fault=fault, strength=strength).failed for w in range(100)]
    assert sum(found) >= 95


class Tied:
    """Two options of equal p that are both greedy, as two passes may have it."""

    def __init__(self, p):
        self.p = p

    def score(self, pairs):
        return [Reply(math.log(self.p), is_greedy=n < 2) for n, _ in enumerate(pairs)]

    def write(self, contexts, *, tokens, sample):
        return [" neither"] * len(contexts)


@pytest.mark.parametrize(
    ("p", "precision", "expected"),
    [
        (0.4, "bfloat16", Verdict.HOLDS),
        (0.4, "float32", Verdict.FAILS),
        (0.7, "bfloat16", Verdict.FAILS),
    ],
)
def test_options_may_tie_in_half_precision(p, precision, expected):
    session = Session(Requester(Tied(p)), Kind.TOKENS, precision=precision)
    assert next(samples(session)).verdict is expected


def test_a_huge_number_for_the_impossible_rounds_as_others_do():
    least = Reply(-sys.float_info.max)  # float64's, as some backends answer
    assert Session(asking(), Kind.TOKENS).rounding(least, least) == TOLERANCE


def asking(**options):
    """Return what asks a clean scorer."""
    return Requester(Model.open(faulty.NAME, {"world": 0}), **options)


@pytest.mark.parametrize("kind", Kind)
def test_texts_of_one_word_leave_items_untold(kind):
    found = audit(Session(asking(), kind, Plan.within(300), ["ada", "bo"]))
    said = by_title(found)
    if kind in (Kind.TOKENS, Kind.WORDS):
        assert not found.failed
        assert said[verdict.BORDERS.title].verdict is Verdict.UNDETERMINED
    elif kind is Kind.STRINGS:  # the model knows no characters
        assert said[verdict.BORDERS.title].verdict is Verdict.FAILS


@dataclass(frozen=True)
class Unsure:
    """A backend that does not know its errors."""

    backend: Model
    changes: dict

    def score(self, pairs):
        return [replace(r, **self.changes) for r in self.backend.score(pairs)]

    def score_texts(self, texts):
        return [replace(r, **self.changes) for r in self.backend.score_texts(texts)]

    def reopened(self, **changes):
        return replace(self, backend=self.backend.reopened(**changes))

    def __getattr__(self, name):
        return getattr(self.backend, name)


COMPARED = ("normalization", "chain", "samples", "errors")


@pytest.mark.parametrize("lower", [False, True])
def test_where_errors_are_not_known_nothing_holds(lower):
    """But a lower bound of p that totals more than 1 is none."""
    arguments = {"world": 0, "fault": "total", "strength": math.log(2)}
    changes = {"stderr": math.inf, "is_lower_bound": lower}
    backend = Unsure(Model.open(faulty.NAME, arguments), changes)
    plan, texts = Plan.within(900), faulty.texts(0)
    found = audit(Session(Requester(backend), Kind.WORDS, plan, texts))
    some = [one for one in found.findings if one.item.part in COMPARED]
    some = [one for one in some if one.item is not verdict.SIGN]  # of all parts
    verdicts = {one.item: one.verdict for one in some if one.item is not verdict.GREEDY}
    assert Verdict.HOLDS not in {*verdicts.values()}
    failed = {item for item, said in verdicts.items() if said is Verdict.FAILS}
    assert (verdict.LISTS in failed) == lower


class Informed:
    """A backend whose scores know the documents of tasks."""

    def __init__(self, more):
        self.more = more

    def score(self, pairs):
        return [Reply(-1.0 - self.more) for _ in pairs]

    score_texts = score


@pytest.mark.parametrize("more", [0.0, 0.5])
def test_requests_of_tasks_are_asked_without_their_documents(more):
    answered = [Answered(n % 2 == 0, ("", f"{n}"), Reply(-1.0)) for n in range(4)]
    backend = Requester(Informed(more))
    [found] = [
        one
        for one in sameness(Session(backend, Kind.TOKENS, answered=answered))
        if one.item is verdict.WITHHELD
    ]
    assert found.verdict is (Verdict.FAILS if more else Verdict.HOLDS)


class Refusing:
    def score(self, pairs):
        raise ValueError("no continuations here")

    def score_texts(self, texts):
        raise ValueError("no texts here")

    def write(self, contexts, *, tokens, sample):
        raise NotImplementedError

    def reopened(self, **changes):
        raise ValueError("once is enough")


def test_who_answers_nothing_does_not_pass():
    found = audit(Session(Requester(Refusing()), Kind.TOKENS))
    assert found.failed and not found.alarms
    assert "no item can be judged" in page(found)
    assert {one.verdict for one in found.findings} == {Verdict.UNDETERMINED}
    assert any("no texts here" in one.detail for one in found.findings)


@pytest.mark.parametrize("requests", [300, 900, 2_000])
def test_no_more_is_asked_than_was_announced(requests):
    plan, said = Plan.within(requests), []
    session = Session(asking(), Kind.WORDS, plan, faulty.texts(0))
    found = audit(session, say=said.append)
    assert plan.total <= requests
    assert found.requests <= plan.total + 2 * TRIED
    assert f"{plan.total + 2 * TRIED:,} requests" in said[0] and "about" in said[0]
    refused = audit(Session(Requester(Refusing()), Kind.WORDS, plan))
    assert refused.requests <= REFUSED * (plan.total + 2 * TRIED)


def test_more_requests_than_allowed_are_refused():
    with pytest.raises(OverBudgetError, match="more than the 3 requests"):
        asking(most=3).score([("ada", " bo")] * 4)
    assert Reply(1e4).p == float("inf") and Reply(float("nan")).p == 0


# -- the command ----------------------------------------------------------------------


def command(tmp_path, *more, **arguments) -> list[str]:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(faulty.texts(1)))
    given = ",".join(f"{k}={v}" for k, v in {"world": 1, **arguments}.items())
    args = ["--model", faulty.NAME, "--model_args", given, "--data", str(data)]
    return ["audit", *args, "--kind", "words", *more]


def test_the_exit_status_says_whether_it_fails(tmp_path, capsys):
    assert cli.main(command(tmp_path, "--json")) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["verdict"] == "holds" and found["requests"] <= 2_000 + 2 * TRIED
    assert "requests" in err and "minutes" in err
    assert {item["part"] for item in found["items"]} == set(verdict.PARTS)

    assert cli.main(command(tmp_path, "--json", fault="leak", strength=1)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fails"
    [item] = [i for i in found["items"] if i["item"] == verdict.FOLLOWS.title]
    assert item["alarm"] and len(item["witness"]["requests"]) == 4

    again = item["command"].split()
    assert cli.main(again[1:]) == 1, "one command reproduces it"
    out = capsys.readouterr().out
    assert verdict.FOLLOWS.title in out and "--tolerance 0.5" in out


def test_an_interrupted_audit_says_that_nothing_is_kept(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lm_latent_eval.audit.run.audit", interrupted)
    assert cli.main(command(tmp_path)) == 130
    assert "nothing is kept: an audit begins anew" in capsys.readouterr().err


def test_a_closed_list_is_read_from_a_file(tmp_path, capsys, refused):
    path = tmp_path / "options.txt"
    path.write_text('" a"\n" b\n')
    assert "line 2" in refused(*command(tmp_path, "--options", str(path)))
    path.write_bytes(b'" a"\n\xe9\n')
    assert f"{path} is not UTF-8" in refused(*command(tmp_path, "--options", str(path)))
    marked = "\ufeff" + "\n".join(json.dumps(f" {word}") for word in faulty.WORDS)
    path.write_text(marked, encoding="utf-8")
    more = ["--options", str(path), "--complete", "--only", "normalization"]
    assert cli.main(command(tmp_path, *more)) == 1  # the end of a text is not in it
    assert "the complete list totals 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--complete"], "--complete says something about --options"),
        (["--only", "cause"], "expected one of normalization"),
        (["--kind", "word"], "did you mean words"),
        (["--requests", "7"], "the smallest audit takes"),
        (["--tolerance", "0"], "--tolerance='0'"),
        (["--tasks", "nope"], "--tasks nope: lm-eval knows no such task"),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, refused, monkeypatch, more, said):
    # Of lm-eval's own tasks none: it takes seconds to list them.
    few = partial(audit_of_models.TaskManager, include_defaults=False)
    monkeypatch.setattr(audit_of_models, "TaskManager", few)
    assert said in refused(*command(tmp_path, *more))
