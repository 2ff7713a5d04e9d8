"""Laws of mixtures: sums, permutations, totals; draws against the exact sum."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from lm_latent_eval.estimators import (
    Bound,
    Estimate,
    MissedSupportError,
    probability_interval,
)
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mixtures import files
from lm_latent_eval.wrappers.mixtures.carriers import Question, carriers, table
from lm_latent_eval.wrappers.mixtures.factors import Listing, Orders
from lm_latent_eval.wrappers.mixtures.scorer import ComponentAnswer, MixtureScorer
from tests.means import mean_is
from tests.wrappers import asking

ASKED = "Which barks?\nA. a cat\nB. a dog\nC. a hen\nAnswer:"

ANSWERS = (" A", " B", " C")

ROUNDING = 1e-12
"""Of sums of a few float64 numbers of about 1."""


def log_p(context: str, text: str) -> float:
    """A lopsided distribution over three answers, another one after every context."""
    logits = [
        6 * hashlib.sha256(f"{context}|{answer}".encode()).digest()[0] / 255
        for answer in ANSWERS
    ]
    total = math.log(sum(map(math.exp, logits)))
    return logits[ANSWERS.index(text)] - total


def model(name):
    """Return a model; another name, another distribution after the same context."""
    return lambda asked: [
        ComponentAnswer(log_p(f"{each.context}{name}", each.text), 1, False)
        for each in asked
    ]


def scorer(folder, content, **more):
    path = folder / "mixture.yaml"
    path.write_text(yaml.safe_dump(content))
    read = files.read(path, **more)
    names = [each.name for each in read.models] or [""]
    return MixtureScorer(read, {name: model(name) for name in names}, {}, {})


def answers(found, context=ASKED, name="task/0"):
    queries = [Query(n, name, text, context) for n, text in enumerate(ANSWERS)]
    return sorted(found.score_continuations(queries), key=lambda answer: answer.index)


def numbers(found, **more):
    return [answer.estimate.log_evidence for answer in answers(found, **more)]


PROMPTS = [
    {"name": "plain", "text": "{context}", "weight": 1},
    {"name": "polite", "text": "Please.\n{context}", "weight": 2},
    {"name": "after", "text": "{context}\nSay:", "weight": 0.5},
]


@pytest.fixture
def everything():
    """A mixture with a factor of every kind."""
    texts = [{"text": "Dogs bark.", "weight": 3}, "Hens lay eggs."]
    return {
        "prompts": PROMPTS,
        "permutations": "all",
        "documents": {"retrieved": [{"context": ASKED, "documents": texts}]},
        "models": [{"name": "one", "weight": 3}, {"name": "two"}],
    }


def test_a_mixture_is_the_sum_that_it_says(tmp_path, everything):
    found = answers(scorer(tmp_path, everything))
    options = ["a cat", "a dog", "a hen"]
    documents = (("Dogs bark.", 0.75), ("Hens lay eggs.", 0.25))
    models = (("one", 0.75), ("two", 0.25))
    total = dict.fromkeys(ANSWERS, 0.0)
    for order, (document, share), prompt, (name, of) in itertools.product(
        itertools.permutations(range(3)), documents, PROMPTS, models
    ):
        listed = "\n".join(f"{'ABC'[n]}. {options[o]}" for n, o in enumerate(order))
        inner = f"{document}\n\nWhich barks?\n{listed}\nAnswer:"
        context = prompt["text"].replace("{context}", inner)
        weight = prompt["weight"] / 3.5 * share / 6 * of
        for option, answer in enumerate(ANSWERS):
            asked = ANSWERS[order.index(option)]
            total[answer] += weight * math.exp(log_p(context + name, asked))
    for answer, text in zip(found, ANSWERS, strict=True):
        p = math.exp(answer.estimate.log_evidence)
        assert p == pytest.approx(total[text], rel=ROUNDING)
        assert answer.estimate.bound is Bound.EXACT
        assert len(answer.parts.log_p) == 3 * 6 * 2 * 2
    assert sum(total.values()) == pytest.approx(1, rel=ROUNDING)


@pytest.mark.parametrize("draws", [None, 5])
def test_permuting_components_moves_nothing(tmp_path, everything, draws):
    turned = json.loads(json.dumps(everything))
    for name in ("prompts", "models"):
        turned[name].reverse()
    turned["documents"]["retrieved"][0]["documents"].reverse()
    for content in (everything, turned):
        content.update({} if draws is None else {"draws": draws})
    one, other = scorer(tmp_path, everything), scorer(tmp_path, turned)
    assert numbers(one) == numbers(other)
    assert one.fingerprint == other.fingerprint


def test_draws_are_of_the_weights_and_their_intervals_hold(tmp_path):
    """Questions of one text: the mean is the sum, and intervals miss it seldom."""
    content = {"prompts": PROMPTS, "permutations": "all"}
    exact = numbers(scorer(tmp_path, content))
    every = answers(scorer(tmp_path, content | {"draws": 18}))
    assert [a.estimate.log_evidence for a in every] == exact
    assert all(a.estimate.bound is Bound.EXACT for a in every)
    drawn = scorer(tmp_path, content | {"draws": 12})
    total = math.fsum(map(math.exp, numbers(drawn)))
    assert total == pytest.approx(1, rel=ROUNDING), "by the same draws"
    rows = []
    for n in range(400):
        plan = drawn._plan(Query(n, f"task/{n}", " A", ASKED), whole=False)
        asked = [plan.requests[component][1] for component in plan.chosen]
        rows.append([log_p(each.context, each.text) for each in asked])
    log_w = torch.tensor(rows).double()
    mean_is(log_w.exp().mean(1), math.exp(exact[0]), 0.02)
    at_least, at_most = probability_interval(log_w)
    inside = (at_least <= exact[0]) & (exact[0] <= at_most)
    assert inside.double().mean() >= 0.95
    found = answers(drawn, name="task/3")[0]
    assert [*found.parts.log_p] == rows[3]
    ends = found.estimate.at_least, found.estimate.at_most
    assert ends == pytest.approx((at_least[3].item(), at_most[3].item()), rel=1e-6)


def test_orders_are_of_the_last_list_and_move_labels_alone():
    asked = Listing.of("Examples:\nA. x\nB. y\nAnswer: A\n\n" + ASKED)
    assert asked.labels == ("A", "B", "C")
    cyclic = Orders("cyclic").variants(ASKED)
    assert [v.name for v in cyclic] == ["A B C", "B C A", "C A B"]
    assert [v.rewrite(ASKED, " a dog")[1] for v in cyclic] == [" a dog"] * 3


@pytest.mark.parametrize(
    ("context", "text", "why"),
    [
        ("Which barks?\nAnswer:", " A", "lists no options"),
        (ASKED, " D", "' D' is no label"),
        ("1. 2\n2. 1\nAnswer:", " 2", "both a label and an option"),
    ],
)
def test_what_has_no_other_order_is_refused(tmp_path, context, text, why):
    found = scorer(tmp_path, {"permutations": "all"})
    with pytest.raises(ValueError, match=f"text/0 .*{why}"):
        asking.answers(found, text, context=context)
    with pytest.raises(ValueError, match="no context that order could"):
        asking.answers(found, "a")


def test_an_answer_without_a_context_is_asked_of_models_alone(tmp_path):
    models = [{"name": "one", "weight": 3}, {"name": "two"}]
    found = scorer(tmp_path, {"permutations": "all", "models": models})
    [answer] = found.score_continuations([Query(0, "task/0", " A", "")])
    p = 0.75 * math.exp(log_p("one", " A")) + 0.25 * math.exp(log_p("two", " A"))
    assert answer.estimate.log_evidence == pytest.approx(math.log(p))
    assert answer.parts.factors == ("model",)


def test_errors_of_components_count_by_their_shares(tmp_path):
    exact = scorer(tmp_path, {"prompts": PROMPTS})
    drawn = _answered(exact.mixture, [0.5, 1.5])
    for one, other in zip(answers(exact), drawn, strict=True):
        assert other.estimate.log_evidence == pytest.approx(one.estimate.log_evidence)
        assert other.estimate.bound is Bound.STOCHASTIC_LOWER
        assert other.estimate.stderr is None
        rows = Question(0, [""], [other], None).rows()
        share = math.hypot(*np.exp(rows.log_weight + rows.log_p - rows.log_likelihood))
        each = math.sqrt(0.5**2 + 0.5**2) / 2  # of the mean of 0.5 and 1.5, by draws
        assert other.estimate.draws_stderr == pytest.approx(share * each)


def test_draws_of_one_component_err_alike(tmp_path):
    """It is asked once, and has one answer."""
    prompts = [{"name": "one", "text": "{context}", "weight": 1}]
    read = scorer(tmp_path, {"prompts": prompts, "draws": 50}).mixture
    [own, *_] = _answered(read, [0.5, 1.5])
    assert own.estimate.draws_stderr == pytest.approx(math.sqrt(0.5) / 2)


@pytest.mark.parametrize("more", [{}, {"draws": 2}])
def test_a_mixture_of_averages_of_logarithms_bounds_nothing(tmp_path, more):
    """Those of components are right on average, and that of their sum is too high."""

    def noisy(move):
        def estimated(each):
            log_joint = torch.tensor([log_p(each.context, each.text) + move])
            found = Estimate.from_beam(log_joint.double(), num_tokens=1)
            found = replace(found, bound=Bound.ESTIMATED_LOWER, stderr=1.0)
            return ComponentAnswer(found.log_evidence, 1, False, Answer(0, found))

        return lambda some: [*map(estimated, some)]

    names = ["one", "two", "three"]
    models = [{"name": name, "base": "hf"} for name in names]
    read = scorer(tmp_path, {"models": models, **more}).mixture
    found = [
        answers(MixtureScorer(read, dict(zip(names, asked, strict=True)), {}, {}))[0]
        for asked in itertools.product([noisy(-1.0), noisy(1.0)], repeat=3)
    ]
    mean = np.mean([answer.estimate.log_evidence for answer in found])
    assert mean > log_p(ASKED, ANSWERS[0]) + 0.1
    assert {answer.estimate.bound for answer in found} == {Bound.NONE}
    assert {answer.estimate.stderr for answer in found} == {None}
    alone = scorer(tmp_path, {"models": models[:1]}).mixture
    [own, *_] = answers(MixtureScorer(alone, {"one": noisy(1.0)}, {}, {}))
    assert own.estimate.bound is Bound.ESTIMATED_LOWER


def _answered(read, weights):
    """Answer by an estimate from two weights, or by that nothing was found."""

    def estimated(each):
        if weights is None:
            return ComponentAnswer(-math.inf, 1, False, missed=True)
        log_w = torch.tensor(weights).double().log() + log_p(each.context, each.text)
        answer = Answer(0, Estimate.from_log_weights(log_w, num_tokens=1))
        return ComponentAnswer(answer.estimate.log_evidence, 1, False, answer)

    names = [each.name for each in read.models] or ["base"]
    asked = {name: model(name) for name in names}
    asked[names[0]] = lambda some: [*map(estimated, some)]
    return answers(MixtureScorer(read, asked, {}, {}))


def test_a_component_of_which_nothing_was_found_is_no_exact_zero(tmp_path):
    models = [{"name": "one", "base": "hf"}, {"name": "two", "base": "hf"}]
    read = scorer(tmp_path, {"models": models}).mixture
    for answer in _answered(read, None):
        assert answer.estimate.bound is Bound.STOCHASTIC_LOWER
        assert answer.estimate.stderr is None
        assert answer.estimate.draws_stderr == math.inf
        assert not answer.parts.exact


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (0.1, ValueError, r"task/0 .*component after has a log p of 0.1"),
        (-math.inf, MissedSupportError, r"task/0.*none of 3 components"),
    ],
)
def test_what_is_no_probability_of_an_answer_is_named(tmp_path, given, error, said):
    read = scorer(tmp_path, {"prompts": PROMPTS}).mixture
    every = [ComponentAnswer(given, 1, False)]
    wrong = MixtureScorer(read, {"base": lambda asked: every * len(asked)}, {}, {})
    with pytest.raises(error, match=said):
        answers(wrong)


def test_accuracies_are_of_the_components_own_choices(tmp_path):
    contexts = [ASKED, ASKED.replace("barks", "mews"), ASKED.replace("barks", "lays")]
    mixture = scorer(tmp_path, {"prompts": PROMPTS, "permutations": "cyclic"})
    questions = []
    for n, context in enumerate(contexts):
        found = answers(mixture, context=context, name=f"task/{n}")
        questions.append(Question(n, ANSWERS, found, (n == 0, n == 1, n == 2)))
    said = carriers(questions, table(questions))
    # Of three orders of each prompt: after, plain, polite.
    chosen = np.array([q.accuracies() for q in questions]).reshape(3, 3, 3)
    assert 0 < chosen.mean() < 1, "premise: some are right"
    for number, question in enumerate(questions):
        parts = question.parts[question.carried]
        of_order = sorted({names[0] for names in parts.names})
        for place, names in enumerate(parts.names):
            log_p = [each.log_p[place] for each in question.parts]
            right = log_p.index(max(log_p)) == number
            at = of_order.index(names[0]), ["after", "plain", "polite"].index(names[1])
            assert chosen[number][at] == right
    told = {row["name"]: row["accuracy"] for row in said["factors"]["prompt"]}
    expected = pytest.approx([*chosen.mean((0, 1))])
    assert [told[name] for name in ("after", "plain", "polite")] == expected
    assert set(said["factors"]) == {"prompt", "order"}


def test_shares_of_what_is_drawn_total_one(tmp_path):
    mixture = scorer(tmp_path, {"prompts": PROMPTS, "draws": 2})
    questions = [
        Question(n, [" A"], [answers(mixture, name=f"task/{n}")[0]], None)
        for n in range(8)
    ]
    rows = carriers(questions, table(questions))["factors"]["prompt"]
    assert {row["questions"] for row in rows} != {8}, "premise: not all are drawn"
    for name in ("weight", "carries"):
        assert sum(row[name] for row in rows) == pytest.approx(1)
