"""Odd texts are scored, and odd settings refused in one clear sentence."""

from __future__ import annotations

import logging
import math
import resource
import sys
from pathlib import Path

import pytest
import torch
from lm_eval._cli.harness import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig

from lm_latent_eval import manifest
from lm_latent_eval.harness.backend import LM_EVAL_BATCH_SIZE
from lm_latent_eval.harness.backends import LatentKGLM, LatentLSTM
from lm_latent_eval.models.checkpoint import CheckpointError
from lm_latent_eval.scoring.options import parse_device
from tests import tiny_checkpoint
from tests.tiny_checkpoint import conditional, generation, rolling

# -- texts ----------------------------------------------------------------------------

WORDS = {
    "": 0,
    " \n\t ": 0,
    "fox": 1,
    "zebra": 1,
    "zebra okapi gnu": 3,
    "the\0fox": 3,
    "\0": 1,
    "the 🦊 saw 👩‍👩‍👧": None,
    "naïve café ﷺ": 3,
    "\ud800 the": 2,
    "<unk> fox": 2,
    "<s> </s> <pad>": None,
    "x" * 10_000: 1,
    ". " * 300: 300,
}
"""Text -> its words, where there is no doubt about them."""


@pytest.mark.parametrize("estimator", ["is", "beam"])
def test_any_string_is_scored(backend, estimator):
    lm = backend(estimator=estimator, num_samples=5)
    answers = lm.loglikelihood_rolling(rolling(*WORDS))
    for answer, number in zip(answers, WORDS.values(), strict=True):
        assert -math.inf < answer < 0
        if number is not None:
            assert answer.estimate.num_tokens == number + 1  # and the end
    pairs = [("Ada saw", f" {text}") for text in WORDS]
    pairs += [(text, " the fox") for text in WORDS]
    for answer, _ in lm.loglikelihood(conditional(*pairs)):
        assert -math.inf < answer <= 0
    for text in lm.generate_until(generation(*WORDS, max_gen_toks=2)):
        assert isinstance(text, str)


def test_no_string_is_the_end_of_a_text(backend):
    """Names of special words in a text are not those words."""
    lm = backend(estimator="beam", num_samples=3000)
    (answer,) = lm.loglikelihood_rolling(rolling("</s>"))
    assert answer.estimate.num_tokens > 2
    ((answer, greedy),) = lm.loglikelihood(conditional(("the", " <unk>")))
    assert not greedy


def test_no_requests_no_answers(backend):
    lm = backend()
    assert lm.loglikelihood_rolling([]) == []
    assert lm.loglikelihood([]) == []
    assert lm.generate_until([]) == []
    assert lm.get_model_info()["latent_eval"]["requests"] == 0


@pytest.mark.parametrize(
    "name", [pytest.param("kglm", marks=pytest.mark.nightly), "lstm"]
)
def test_a_very_long_text_is_one_document(tiny, tiny_lstm, name):
    """Not cut, and in the memory of a piece: ten times the words take little more."""
    # ru_maxrss counts kilobytes, but bytes on macOS.
    megabyte = 1 << 20 if sys.platform == "darwin" else 1 << 10
    lm = (
        LatentKGLM(pretrained=tiny, estimator="is", num_samples=1, proposal="peeking")
        if name == "kglm"
        else LatentLSTM(pretrained=tiny_lstm)
    )
    number = 10_000 if name == "kglm" else 100_000
    lm.loglikelihood_rolling(rolling("the fox saw Ada " * (number // 40)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (answer,) = lm.loglikelihood_rolling(rolling("the fox saw Ada " * (number // 4)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / megabyte
    assert answer.estimate.num_tokens == number + 1
    assert -math.inf < answer < -number * 0.1
    assert grown < 200


# -- settings ------------------------------------------------------------------------

WRONG = {
    ("num_samples", 0): "num_samples=0: expected a whole number of at least 1",
    ("num_samples", "many"): "num_samples='many': expected a whole number",
    ("num_samples", True): "num_samples=True: expected a whole number",
    ("num_samples", "1.5"): "num_samples='1.5': expected a whole number",
    ("temperature", 1e4): "temperature=10000.0: .* number from 0.001 to 1000",
    ("temperature", "nan"): "temperature='nan': expected a positive number",
    ("seed", -1): "seed=-1: expected a whole number of at least 0",
    ("estimator", "bean"): r"estimator=.bean.: .* \(did you mean beam\?\)",
    ("estimator", "exact"): "estimator='exact': expected one of auto, mixed, dpf, is",
    ("proposal", "peking"): "proposal='peking'.*peeking",
    ("unk", "open"): "unk='open': expected one of spelled, penalized, closed",
    ("unk", "spelled"): "unk=spelled needs .* character model.* use unk=penalized",
    ("target_stderr", 0): "target_stderr=0: expected a positive number",
    ("batch_size", "big"): "batch_size='big': expected a whole number.*, or auto:",
    ("dtype", "float46"): r"dtype='float46'.*did you mean float64\?",
    ("device", "gpu0"): "device='gpu0': not the name of a device",
    ("num_sample", 5): "'num_sample' is not an argument of latent_kglm.*num_samples",
}


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_wrong_setting_names_itself_and_the_remedy(backend, name, value):
    with pytest.raises(ValueError, match=WRONG[name, value]) as caught:
        backend(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "given", "texts"),
    [
        ({}, 1, None),  # what lm-eval passes on where nobody has asked
        ({}, None, None),
        ({}, "auto", None),
        ({}, "1", 1),  # what its command line has read
        ({}, 7, 7),
        ({"batch_size": 1}, 1, 1),
        ({"batch_size": 3}, "5", 3),
        ({"batch_size": "auto"}, "5", None),
    ],
)
def test_one_text_at_a_time_is_nobodys_default(tiny, arguments, given, texts):
    said = {"pretrained": tiny, "num_samples": 3, **arguments}
    others = {"batch_size": given, "device": "cpu"}
    as_string = ",".join(f"{name}={value}" for name, value in said.items())
    for lm in (
        LatentKGLM.create_from_arg_obj(said, others),
        LatentKGLM.create_from_arg_string(as_string, others),
    ):
        assert lm._scorer.evaluation.batch_size == texts


def test_lm_eval_still_passes_a_number_on_where_nobody_asks():
    """And text where somebody does: that is how the two are told apart."""
    parser = HarnessCLI()._parser
    chosen = ["run", "--model", "latent_kglm", "--tasks", "latent_demo"]

    def passed_on(*more):
        return EvaluatorConfig.from_cli(parser.parse_args([*chosen, *more])).batch_size

    assert passed_on() == LM_EVAL_BATCH_SIZE
    assert passed_on("--batch_size", "1") == "1"


def test_words_have_no_chat_template(tiny):
    lm = LatentKGLM(pretrained=tiny, num_samples=3)
    assert lm.chat_template(False) == ""
    for ask in (
        lambda: lm.chat_template(True),
        lambda: lm.apply_chat_template([{"role": "user", "content": "Ada"}]),
    ):
        with pytest.raises(ValueError, match=r"latent_kglm.*plain texts.*Leave it out"):
            ask()


def test_a_device_that_is_not_there_is_the_cpu(tiny, caplog):
    absent = f"cuda:{torch.cuda.device_count() + 1}"
    with caplog.at_level(logging.WARNING):
        lm = LatentKGLM(pretrained=tiny, device=absent, num_samples=3)
    assert lm.device == torch.device("cpu")
    assert f"device={absent} is not there; using the CPU" in caplog.text
    assert lm.loglikelihood_rolling(rolling("the fox"))[0] < 0
    for other in ("meta", "xla"):
        with caplog.at_level(logging.WARNING):
            assert parse_device(other) == torch.device("cpu")
        assert f"device={other} is not there; using the CPU" in caplog.text


def test_nobody_is_told_of_a_device_that_nobody_asked_for(tiny, caplog):
    """lm_eval names its first GPU where its user named none."""
    with caplog.at_level(logging.INFO):
        lm = LatentKGLM(pretrained=tiny, device="cuda:0", num_samples=3)
    assert "cuda" not in caplog.text
    used = lm.checkpoint.model.device
    assert used.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert lm.get_model_info()["model_device"] == str(used)


# -- checkpoints ---------------------------------------------------------------------


def refused(folder, expected, backend=LatentKGLM):
    if Path(folder).is_dir():
        manifest.write(Path(folder))  # this is of what is looked at after it
    with pytest.raises(CheckpointError, match=expected) as caught:
        backend(pretrained=str(folder))
    assert str(folder) in str(caught.value)


def test_a_checkpoint_that_is_not_there(tmp_path):
    refused(tmp_path / "nothing", "no such directory.*lm-latent-eval train")


def test_a_checkpoint_of_another_model(tiny, tiny_lstm):
    refused(tiny_lstm, "holds a lstm model, not a kglm one: use --model latent_lstm")
    refused(tiny, "use --model latent_kglm", LatentLSTM)


def test_unk_penalized_needs_a_count(tmp_path):
    model = tiny_checkpoint.kglm()
    model.config.num_unknown_types = 0
    folder = str(tiny_checkpoint.write(tmp_path, model))
    assert LatentKGLM(pretrained=folder).fingerprint["unk"] == "closed"
    with pytest.raises(ValueError, match=r"num_unknown_types .* use unk=closed"):
        LatentKGLM(pretrained=folder, unk="penalized")


# -- proposals -----------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["is", "beam"])
def test_a_proposal_that_misses_the_support_is_an_error(
    backend, monkeypatch, estimator
):
    """Never -inf, never 0: an error that names the document."""
    lm = backend(num_samples=5, estimator=estimator)
    original = lm.checkpoint.model.log_joint

    def impossible(encoded, walks):
        return original(encoded, walks).fill_(-torch.inf)

    monkeypatch.setattr(lm.checkpoint.model, "log_joint", impossible)
    message = r"task/0 \('the fox'\).*misses the model's support"
    with pytest.raises(ValueError, match=message):
        lm.loglikelihood_rolling(rolling("the fox"))
    message = r"task/0 \('the \|  fox'\).*misses the model's support"
    with pytest.raises(ValueError, match=message):
        lm.loglikelihood(conditional(("the", " fox")))
    with pytest.raises(ValueError, match=r"task/0 .*misses the model's support"):
        lm.generate_until(generation("the fox", max_gen_toks=2))


def test_a_weight_that_is_no_number_is_an_error(backend, monkeypatch):
    lm = backend(num_samples=5)
    original = lm.checkpoint.model.log_joint
    monkeypatch.setattr(
        lm.checkpoint.model,
        "log_joint",
        lambda encoded, walks: original(encoded, walks).fill_(math.nan),
    )
    with pytest.raises(ValueError, match=r"task/0 \('the fox'\).*nan"):
        lm.loglikelihood_rolling(rolling("the fox"))
