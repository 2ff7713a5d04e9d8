"""Thoughts that a server draws and scores, over real HTTP."""

import math

import numpy as np
import pytest

from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.wrappers.cot.model import ThinkingLM
from lm_latent_eval.wrappers.cot.server import (
    LIKELIEST,
    NEUTRAL,
    SAMPLERS,
    Completion,
    Honesty,
    Positions,
    ServedNetwork,
    Server,
    ServerError,
)
from tests import tiny_causal
from tests.wrappers.cot import tiny
from tests.wrappers.cot.completions_server import Tampering, serving
from tests.wrappers.cot.tiny import asked


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("served"), tiny.network()
    return found, str(tiny_causal.save(folder, found.tokenizer, found.model))


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr("lm_latent_eval.wrappers.cot.server.WAITS", (0.01, 0.01, 0.01))


def served(url, folder, *, timeout=30.0, **options):
    opened = ServedNetwork.open(url, folder, timeout=timeout)
    return ThinkingLM(opened).scorer({**tiny.OPTIONS, **options})


@pytest.mark.parametrize("proposal", ["prior", "hinted"])
@pytest.mark.parametrize("close", ["natural", "forced"])
def test_a_server_says_what_the_network_says(network, proposal, close):
    """Its thoughts, read by the network itself: all numbers agree."""
    options = {"proposal": proposal, "close": close, "num_samples": 24}
    with serving(network[0]) as (url, server):
        scorer = served(url, network[1], **options)
        kept = tiny.keeping(scorer)
        answers = list(scorer.score_continuations(asked()))
    [thoughts] = kept
    own = tiny.scorer(network[0], **options)
    [question] = own._questions(asked())
    again = own._thinker.answer(question, thoughts.drawn)
    assert thoughts.log_p.tolist() == pytest.approx(again.log_p.tolist(), abs=1e-9)
    assert thoughts.log_q.tolist() == pytest.approx(again.log_q.tolist(), abs=1e-9)
    for row, wanted in zip(thoughts.log_p_answers, again.log_p_answers, strict=True):
        assert row.tolist() == pytest.approx(wanted.tolist(), abs=1e-9)
    assert not any(thoughts.greedy), "a server does not tell"
    for answer in answers:
        estimate = answer.estimate
        assert estimate.at_least <= estimate.log_evidence <= estimate.at_most + 1e-12
    drawing = [body for body in server.bodies if "n" in body]
    assert sum(body["n"] for body in drawing) == 24
    for body in server.bodies:
        assert {name: body[name] for name in NEUTRAL} == NEUTRAL


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        *(
            pytest.param(
                {"heat": heat, "processed": processed},
                "the model's own dist|draws from",
                marks=pytest.mark.nightly if seldom else (),
            )
            for heat, processed, seldom in (
                (0.5, False, False),
                (1.6, False, True),
                (0.5, True, True),
                (1.6, True, False),
            )
        ),
        ({"top_k": 3}, "the model's own dist.*top_k"),
        ({"repeats": True}, "one thought 64 times"),
        ({"longest": 1}, "stops by a rule of its own"),
        ({"lacks": "token_ids"}, "does not return token_ids"),
        ({"lacks": "logprobs"}, "log-probabilities of draws"),
        ({"lacks": "prompt_logprobs"}, "log-probabilities of prompts"),
        ({"writes": "another"}, r"t/0 .*writes token \d+ as 'another', and .*another"),
        ({"lacks": "max_model_len"}, "how long a prompt may be"),
        ({"failures": [400]}, r"refused \(400: as the test wants it\)"),
        ({"failures": [500] * 99}, r"no answer in 4 tries \(500: as the test"),
        ({"pause": 0.5}, r"no answer in 4 tries \(timed out"),
    ],
    ids=str,
)
def test_a_server_that_is_not_honest_or_fails_is_told(network, soon, tampering, said):
    drawn = 1500 if {"heat", "top_k"} & {*tampering} else 64
    how = {"num_samples": drawn}
    how |= {"timeout": 0.1} if "pause" in tampering else {}
    kind = ServerError if {"failures", "pause"} & {*tampering} else ValueError
    with (
        serving(network[0], Tampering(**tampering)) as (url, _),
        pytest.raises(kind, match=said),
    ):
        list(served(url, network[1], **how).score_continuations(asked()))


@pytest.mark.parametrize(
    "choice",
    [
        "text",
        {"index": None},
        {"index": 0, "token_ids": ["the"], "prompt_logprobs": [None, 3]},
        *(
            {
                "token_ids": [1],
                "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [top]},
                "prompt_logprobs": [None, row],
            }
            for top, row in [
                (None, [[-1.0, 2, None]]),  # as SGLang's
                ({}, {"2": -1.0}),
                ([-1.0], {"two": {"logprob": -1.0}}),
            ]
        ),
    ],
    ids=str,
)
def test_odd_answers_are_named(monkeypatch, choice):
    reply = {"choices": [choice]}
    monkeypatch.setattr("lm_latent_eval.wrappers.cot.server._asked", lambda *_: reply)
    server = Server("http://there", "m", "m", None, 1.0)
    with pytest.raises(ServerError, match=r"^http://there does not return "):
        server.draw([1], 1, seed=0, most_tokens=1, stops=[])
    with pytest.raises(ServerError, match=r"^http://there does not return "):
        server.score([[1, 2]])


def test_failures_that_pass_move_nothing(network, soon):
    with serving(network[0]) as (url, _):
        scorer = served(url, network[1], num_samples=8, close="forced")
        wanted = list(scorer.score_continuations(asked()))
    tampering = Tampering(failures=[503, 0, 429])
    with serving(network[0], tampering) as (url, _):
        scorer = served(url, network[1], num_samples=8, close="forced")
        assert list(scorer.score_continuations(asked())) == wanted
    assert not tampering.failures


def test_what_a_server_cannot_do_and_other_folders_are_told(network):
    with serving(network[0]) as (url, _):
        with pytest.raises(ValueError, match="no tokenizer"):
            served(url, "/nowhere")
        with pytest.raises(ServerError, match="base_url=localhost:8: expected an addr"):
            served("localhost:8", network[1])
        with pytest.raises(ValueError, match="model_temperature=2: a server"):
            served(url, network[1], model_temperature=2.0)
        with pytest.raises(ValueError, match=r"t/0.*whether a target is greedy"):
            [*served(url, network[1]).score_continuations(asked()[:1])]
        with pytest.raises(ValueError, match="dtype: with base_url the server"):
            LatentCoT(
                pretrained=network[1], base_url=url, dtype="float32", **tiny.MARKS
            )


# -- what draws show -------------------------------------------------------------------

PEAKED = np.array([0.977, 0.012, 0.005, 0.002, 0.002, *[0.002 / 15] * 15])
"""A place where the likeliest token has 97.7 %; two tokens tie."""
FLAT = np.array([0.4, 0.3, 0.1, 0.08, 0.05, 0.04, *[0.03 / 14] * 14])


def row_of(p, token):
    """The likeliest tokens as a server returns them, and the one that it drew."""
    best = {n: math.log(p[n]) for n in np.argsort(-p, kind="stable")[:LIKELIEST]}
    return best | {token: math.log(p[token])}


def drawn(p, q, number, seed=0):
    """A completion of tokens drawn by q that a server gives the probabilities p."""
    tokens = np.random.default_rng(seed).choice(len(p), number, p=q / q.sum()).tolist()
    log_p = tuple(math.log(p[token]) for token in tokens)
    return Completion(tuple(tokens), log_p, tuple(row_of(p, t) for t in tokens), "")


@pytest.mark.parametrize("p", [PEAKED, FLAT], ids=["peaked", "flat"])
@pytest.mark.parametrize("before", [(), (0, 3), (7, 7, 1)])
def test_no_bet_gains_on_average_of_honest_draws(p, before):
    """Summed over every token that may come next, given those before it."""
    expected = dict.fromkeys(SAMPLERS, 0.0)
    for token in range(len(p)):
        said = tuple(row_of(p, t) for t in (*before, token))
        completion = Completion((*before, token), (0.0,) * len(said), said, "")
        places = Positions.of(completion, [2])
        for name, weights in SAMPLERS.items():
            q = weights(places)[-1]
            column = places.drawn[-1]
            gain = q[column] / q.sum() / places.p[-1, column]
            expected[name] += p[token] * gain
    assert max(expected.values()) <= 1 + 1e-9
    assert min(expected.values()) > 0.5, "premise: bets win at times"


def penalised(p, penalty):
    """Divide the logits of what was seen, the two likeliest tokens: 20 at most."""
    logits = np.log(p) - np.log(p).max() + 20
    logits[:2] /= penalty
    return np.exp(logits - logits.max())


OTHERS = {
    "temperature 0.6": PEAKED ** (1 / 0.6),
    "temperature 0.9": PEAKED ** (1 / 0.9),
    "temperature 0.95": PEAKED ** (1 / 0.95),
    "temperature 1.05": PEAKED ** (1 / 1.05),
    "top_k 3": PEAKED * (np.arange(20) < 3),
    "top_k 5": PEAKED * (np.arange(20) < 5),
    "top_p 0.98": PEAKED * (np.arange(20) < 2),
    "penalty 1.02": penalised(PEAKED, 1.02),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_samplers_are_noticed_where_the_likeliest_token_has_97_7_percent(name):
    """And no honest one, of as many tokens."""
    number, honesty = 400_000, Honesty()
    with pytest.raises(ServerError, match=r"own distribution: its [\d,]+ tokens"):
        for n in range(20):
            honesty.add(drawn(PEAKED, OTHERS[name], number // 20, seed=n), [0, 1])
    honest, before = Honesty(), honesty.num_tokens
    for n in range(before // (number // 20)):
        honest.add(drawn(PEAKED, PEAKED, number // 20, seed=n), [0, 1])
    assert honest.num_tokens == before


def test_what_power_is_left_is_said():
    """What so many tokens should show is what they do show."""
    few, many = Honesty(), Honesty()
    few.add(drawn(PEAKED, PEAKED, 300), [0])
    many.add(drawn(PEAKED, PEAKED, 10_000), [0])
    assert few.noticed.keys() == many.noticed.keys() == SAMPLERS.keys()
    assert few.noticed["temperature 0.3"] is few.noticed["top_k 3"] is False
    assert many.noticed["temperature 0.9"] is many.noticed["top_k 3"] is True
    assert many.noticed["temperature 0.95"] is False
    assert sum(many.noticed.values()) > sum(few.noticed.values())
