"""Answers, intervals and files of thoughts, beside sums over every thought."""

import math

import pytest
import torch

from lm_latent_eval.estimators import Bound, certified_log_likelihood
from lm_latent_eval.ledger.journal import UNFINISHED, Journal
from lm_latent_eval.wrappers.cot import model as scoring
from lm_latent_eval.wrappers.cot.drawing import WEIGHTS_AT_MOST, looks
from lm_latent_eval.wrappers.cot.prompts import Ending
from lm_latent_eval.wrappers.cot.thinking import Thinker
from lm_latent_eval.wrappers.cot.thoughts import (
    FORMAT,
    Thought,
    journal,
    read_unfinished,
    row_of,
    thoughts_of,
)
from tests.means import weights_are_of
from tests.wrappers.cot import tiny
from tests.wrappers.cot.tiny import ANSWERS, QUESTION, asked

DRAWN = 4096
TRIALS = 30
OPTIONS = {"close": "forced"}


@pytest.fixture(scope="module")
def network():
    return tiny.network()


def run(network, queries, **options):
    """Return answers in their order, and thoughts by question."""
    scorer = tiny.scorer(network, 512, **options)
    kept = tiny.keeping(scorer)
    answers = sorted(scorer.score_continuations(queries), key=lambda a: a.index)
    return answers, {thoughts.name: thoughts for thoughts in kept}


@pytest.mark.parametrize("close", ["natural", "forced"])
@pytest.mark.parametrize("heat", [1.0, 1.7])
def test_all_thoughts_read_sum_to_the_truth(network, close, heat):
    """No draw is in it: what is read of a thought and of its answers is right."""
    scorer = tiny.scorer(network, close=close, model_temperature=heat)
    prompt = [*network.tokenizer.encode(QUESTION), tiny.THINK]
    ends = scorer.marks.ending
    thoughts = [Thought(z, ends(z) or Ending.TRUNCATED) for z in tiny.every_thought()]
    log_p = tiny.log_p(network, [(prompt, t.tokens) for t in thoughts], heat)
    total = sum(map(math.exp, log_p))
    assert total == pytest.approx(1, abs=1e-12), "premise: these are all"
    [question] = scorer._questions(asked())
    read = scorer._thinker.answer(question, thoughts)
    totals = (read.log_p + read.log_p_answers).exp().sum(-1).tolist()
    wanted = [tiny.exact(network, QUESTION, a, close, heat) for a in ANSWERS]
    assert totals == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
@pytest.mark.parametrize("close", ["natural", "forced"])
def test_draws_are_unbiased(network, proposal, close):
    how = {"proposal": proposal, "close": close, "num_samples": DRAWN}
    answers, _ = run(network, asked(), **how)
    for answer, text in zip(answers, ANSWERS, strict=True):
        estimate = answer.estimate
        exact = tiny.exact(network, QUESTION, text, close)
        weights_are_of(math.log(exact), estimate.log_weights)
        assert estimate.bound is Bound.STOCHASTIC_LOWER
        assert estimate.stderr is None and estimate.num_samples == DRAWN


def test_hints_are_weighed_as_the_mixture_says(network):
    """Log q of every thought that is drawn, summed over prompts by another reading."""
    _, kept = run(network, asked(), proposal="hinted", num_samples=200)
    [thoughts] = kept.values()
    cut = network.tokenizer.encode
    prompts = [[*cut(f"{a} {QUESTION}"), tiny.THINK] for a in ANSWERS]
    own = [*cut(QUESTION), tiny.THINK]
    pairs = [[(p, t.tokens) for t in thoughts.drawn] for p in (own, *prompts)]
    log_p = [tiny.log_p(network, of_prompt) for of_prompt in pairs]
    p, *hinted = torch.tensor(log_p, dtype=torch.float64).exp()
    q = p / 2 + sum(hinted) / 2 / 3
    torch.testing.assert_close(thoughts.log_q, q.log(), rtol=0, atol=1e-9)
    assert bool((thoughts.log_ratios <= math.log(2) + 1e-12).all()), "bounded weights"
    assert bool((thoughts.log_ratios < 0).any())


@pytest.mark.nightly
def test_certificates_hold(network):
    """Each fails with probability 5 % at most: so many trials, five deviations."""
    trials, at_most = 400, 0.05
    answers, _ = run(network, asked(trials, ANSWERS[1:2]), **OPTIONS, num_samples=2)
    truth = math.log(tiny.exact(network, QUESTION, ANSWERS[1], "forced"))
    one = torch.tensor([a.estimate.log_evidence for a in answers])
    above = sum(certified_log_likelihood(x[None], 1 - at_most) > truth for x in one)
    spread = math.sqrt(trials * at_most * (1 - at_most))
    assert above <= trials * at_most + 5 * spread
    # Markov's bound at a level where estimates do exceed the truth, so it can fail.
    half = sum(certified_log_likelihood(x[None], 0.2) > truth for x in one)
    assert 0 < half <= trials * 0.8 + 5 * math.sqrt(trials * 0.16)
    assert len({a.stream for a in answers}) == trials


def test_greedy_is_the_argmax_of_the_marginals(network):
    """Against marginals of every continuation so far, all thoughts summed over."""
    words = [f" {word}" for word in tiny.WORDS]
    first = max(words, key=lambda w: tiny.exact(network, QUESTION, w, "forced"))
    pairs = [first + word for word in words]
    p = [tiny.exact(network, QUESTION, pair, "forced") for pair in pairs]
    second = pairs[p.index(max(p))]
    other = next(word for word in words if word != first)
    texts = (first, second, other, other + words[0])
    how = {"proposal": "hinted", "num_samples": DRAWN}
    answers, _ = run(network, asked(answers=texts), **OPTIONS, **how)
    assert [a.is_greedy for a in answers] == [True, True, False, False]


# -- thoughts until a question is decided ---------------------------------------------


@pytest.mark.parametrize(
    "proposal", ["prior", pytest.param("hinted", marks=pytest.mark.nightly)]
)
def test_stopped_draws_have_intervals_and_choices_that_hold(network, proposal):
    """Against sums over all thoughts, which are known."""
    options = {"proposal": proposal, "close": "forced", "num_samples": 32}
    answers, thoughts = run(network, asked(TRIALS), **options, until="decided")
    truth = [math.log(tiny.exact(network, QUESTION, a, "forced")) for a in ANSWERS]
    outside = [0] * len(ANSWERS)
    for n, answer in enumerate(answers):
        row = n % len(ANSWERS)
        estimate = answer.estimate
        assert estimate.bound is Bound.NONE, "stopped by looking"
        assert estimate.at_least <= estimate.log_evidence <= estimate.at_most
        outside[row] += not estimate.at_least <= truth[row] <= estimate.at_most
    choices = [t.choice(WEIGHTS_AT_MOST[proposal]) for t in thoughts.values()]
    best = truth.index(max(truth))
    wrong = sum(c.decided is not None and c.best != best for c in choices)
    allowed = TRIALS * 0.05 + 5 * math.sqrt(TRIALS * 0.05 * 0.95)
    assert max(*outside, wrong) <= allowed
    sizes = [len(t.drawn) for t in thoughts.values()]
    assert {*sizes} <= {*looks(32)}
    for choice, size in zip(choices, sizes, strict=True):
        assert size == 32 or choice.decided <= size
    assert any(c.decided for c in choices), "premise: something is decided"


def test_a_decision_is_among_all_options_whichever_are_asked(network):
    how = {"until": "decided", "num_samples": 64}
    scorer = tiny.scorer(network, close="forced", **how)
    scorer.shown = {("t/0", QUESTION): ANSWERS}
    kept = tiny.keeping(scorer)
    [answer] = scorer.score_continuations(asked(1, ANSWERS[1:2]))
    assert {*kept[0].answers} == {*ANSWERS} and answer.estimate.bound is Bound.NONE
    # A target by itself has all its thoughts.
    [answer], kept = run(network, asked(answers=ANSWERS[:1]), **how)
    assert [len(thoughts.drawn) for thoughts in kept.values()] == [64]
    assert answer.estimate.bound is Bound.STOCHASTIC_LOWER


def test_a_weight_above_its_bound_names_question_and_draw(network, monkeypatch):
    monkeypatch.setitem(scoring.WEIGHTS_AT_MOST, "prior", 1e-3)
    with pytest.raises(ValueError, match=r"t/0.*: draw \d+ of row 0 weighs .*0\.001"):
        run(network, asked(), close="forced", num_samples=4)


# -- thoughts are kept, read again and gone on with ------------------------------------


QUESTIONS = ("a b", "c", "b b c a", "a c", "", "c c c")
FEW = {"num_samples": 12, "close": "forced"}


def numbers(scorer, queries):
    return {
        (queries[a.index].name, queries[a.index].text): a.estimate.log_weights
        for a in scorer.score_continuations(queries)
    }


def same(one, other):
    assert one.keys() == other.keys()
    for key, weights in one.items():
        assert weights == pytest.approx(other[key], rel=1e-12)


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
def test_what_was_thought_before_is_not_thought_again(network, proposal, monkeypatch):
    every = asked(questions=QUESTIONS)
    some = asked(answers=[ANSWERS[0], ANSWERS[2]], questions=QUESTIONS)
    first, again = (tiny.scorer(network, proposal=proposal, **FEW) for _ in range(2))
    kept, wanted = tiny.keeping(first), numbers(first, every)
    again.shown = {(f"t/{n}", q): ANSWERS for n, q in enumerate(QUESTIONS)}
    again.known = {(t.name, t.question): t for t in kept}
    monkeypatch.setattr(Thinker, "draw", lambda *_: pytest.fail("drew"))
    # Hints show all answers, so the number of one is the same whichever are asked.
    for queries in (every, some):
        found = numbers(again, queries)
        assert len(found) == len(queries)
        same(found, {key: wanted[key] for key in found})
    # Thoughts after other hints are others, and other answers are not known.
    again.shown = {}
    for queries in [some] * (proposal == "hinted") + [asked(answers=[" b b"])]:
        with pytest.raises(pytest.fail.Exception):
            numbers(again, queries)


def test_two_tokens_can_close_a_thought(network):
    options = {"close": "forced", "think_end": "a </think>", "max_think_tokens": 6}
    _, kept = run(network, asked(questions=["a"]), **options, num_samples=200)
    thoughts, mark = kept["t/0"], (tiny.WORDS.index("a"), tiny.CLOSE)
    for thought in thoughts.drawn:
        places = range(2, len(thought.tokens) + 1)
        ends = [n for n in places if thought.tokens[n - 2 : n] == mark]
        assert bool(ends) == (thought.ending == "closed")
        assert not ends or ends == [len(thought.tokens)]
    assert {t.ending for t in thoughts.drawn} == {"closed", "truncated", "ended"}


# -- files ----------------------------------------------------------------------------


def test_what_was_thought_is_read_back(network, tmp_path):
    """Answers without a probability, too."""
    _, kept = run(network, asked(questions=QUESTIONS), num_samples=12)
    assert any((t.log_p_answers == -torch.inf).any() for t in kept.values()), "premise"
    path = tmp_path / f"thoughts_{UNFINISHED}"
    settings = tiny.scorer(network, num_samples=12).fingerprint
    with journal(path, settings) as keep:
        for thoughts in kept.values():
            keep("t", thoughts)
    for found in read_unfinished([path]):
        wanted = kept[found.name]
        assert found.log_weights.equal(wanted.log_weights)
        assert (found.drawn, found.answers) == (wanted.drawn, wanted.answers)
        assert (found.hints, found.greedy) == (wanted.hints, wanted.greedy)


def test_a_row_that_is_no_question_is_named(network, tmp_path):
    _, kept = run(network, asked(answers=[" c"], questions=["a "]), **FEW)
    right = row_of(kept["t/0"])
    for name in right:
        with pytest.raises(ValueError, match="it is of no thoughts"):
            thoughts_of({key: value for key, value in right.items() if key != name})
    path = tmp_path / f"thoughts_{UNFINISHED}"
    settings = tiny.scorer(network, **FEW).fingerprint
    with Journal(path, "", FORMAT).going_on(settings, None) as rows:
        rows.add(right | {"log_p": [0.5]})
    with pytest.raises(ValueError, match=r"line 2 is not .*it is of no thoughts"):
        read_unfinished([path])


def test_other_ends_of_texts_are_another_run(network, monkeypatch):
    before, more = tiny.scorer(network).fingerprint, [tiny.END, tiny.WORDS.index("a")]
    assert before["stops"] == [tiny.END]
    monkeypatch.setattr(network.model.generation_config, "eos_token_id", more)
    assert tiny.scorer(network).fingerprint == {**before, "stops": more}
