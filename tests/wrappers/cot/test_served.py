"""Thoughts that a server draws and scores, over real HTTP."""

import pytest

from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.networks.served import NEUTRAL, ServedNetwork, Server, ServerError
from lm_latent_eval.wrappers.cot.model import ThinkingLM
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
    monkeypatch.setattr("lm_latent_eval.networks.served.WAITS", (0.01, 0.01, 0.01))


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
        ({"repeats": True}, "one thought 64 times"),
        ({"longest": 1}, "stops by a rule of its own"),
        ({"lacks": "token_ids"}, "does not return token_ids"),
        ({"lacks": "logprobs"}, "log-probabilities of what it draws"),
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
    how = {"num_samples": 1500} if "heat" in tampering else {"num_samples": 64}
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
    monkeypatch.setattr("lm_latent_eval.networks.served._asked", lambda *_: reply)
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
        with pytest.raises(ValueError, match="model_temperature=2: a server"):
            served(url, network[1], model_temperature=2.0)
        with pytest.raises(ValueError, match=r"t/0.*whether a target is greedy"):
            [*served(url, network[1]).score_continuations(asked()[:1])]
        with pytest.raises(ValueError, match="dtype: with base_url the server"):
            LatentCoT(
                pretrained=network[1], base_url=url, dtype="float32", **tiny.MARKS
            )
