"""Very long texts are scored, and odd settings refused in one clear sentence."""

import logging
import math
import resource
import sys

import pytest
import torch
from lm_eval._cli.harness import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig

from lm_latent_eval.harness.backend import LM_EVAL_BATCH_SIZE
from lm_latent_eval.harness.backends import LatentKGLM, LatentLSTM
from lm_latent_eval.inference.particles import log_joint
from tests.tiny_checkpoint import conditional, generation, rolling

# -- texts ----------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "number"), [("kglm", 10_000), ("lstm", 100_000)])
def test_a_very_long_text_is_one_document(backend, lstm_directory, name, number):
    """Not cut, and in the memory of a piece: ten times the words take little more."""
    # ru_maxrss counts kilobytes, but bytes on macOS.
    megabyte = 1 << 20 if sys.platform == "darwin" else 1 << 10
    if name == "kglm":
        lm = backend(num_samples=1, proposal="peeking")
    else:
        lm = LatentLSTM(pretrained=lstm_directory)
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
    ("temperature", 1e4): "temperature=10000.0: .* number from 0.001 to 1000",
    ("estimator", "bean"): r"estimator=.bean.: .* \(did you mean beam\?\)",
    ("proposal", "peking"): "proposal='peking'.*peeking",
    ("unk", "open"): "unk='open': expected one of spelled, penalized, closed",
    ("unk", "spelled"): "unk=spelled needs .* character model.* use unk=penalized",
    ("batch_size", "big"): "batch_size='big': expected a whole number.*, or auto:",
    ("dtype", "float46"): r"dtype='float46'.*did you mean float64\?",
    ("dtype", "torch.bfloat16"): "float16: its rounding moves .* float32",
    ("device", "gpu0"): "device='gpu0': not the name of a device",
    ("num_sample", 5): "'num_sample' is not an argument of latent_kglm.*num_samples",
}


def test_a_wrong_setting_names_itself_and_the_remedy(backend):
    for (name, value), message in WRONG.items():
        with pytest.raises(ValueError, match=message) as caught:
            backend(**{name: value})
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="pretrained= is empty: name a directory"):
        LatentKGLM(pretrained="")  # as --model_args pretrained=$UNSET


@pytest.mark.parametrize(
    ("arguments", "given", "texts"),
    [
        ({}, 1, None),  # what lm-eval passes on where nobody has asked
        ({}, "1", 1),  # what its command line has read
        ({"batch_size": 1}, 1, 1),
        ({"batch_size": "auto"}, "5", None),
    ],
)
def test_one_text_at_a_time_is_nobodys_default(kglm_directory, arguments, given, texts):
    said = {"pretrained": kglm_directory, "num_samples": 3, **arguments}
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


def test_words_have_no_chat_template(backend):
    lm = backend(num_samples=3)
    assert lm.chat_template(False) == ""
    for ask in (
        lambda: lm.chat_template(True),
        lambda: lm.apply_chat_template([{"role": "user", "content": "Ada"}]),
    ):
        with pytest.raises(ValueError, match=r"latent_kglm.*plain texts.*Leave it out"):
            ask()


def test_a_device_that_is_not_there_is_the_cpu(backend, caplog):
    """lm-eval itself asks for its first GPU where its user names none."""
    with caplog.at_level(logging.INFO):
        lm = backend(device="cuda:0", num_samples=3)
        used = "cuda" if torch.cuda.is_available() else "cpu"
        assert lm.checkpoint.model.device.type == used
        assert "cuda" not in caplog.text
        lm = backend(device="cuda:99", num_samples=3)
    assert lm.device == lm.checkpoint.model.device == torch.device("cpu")
    assert "device=cuda:99 is not there; using the CPU" in caplog.text
    assert lm.get_model_info()["model_device"] == "cpu"


# -- numbers that are none -----------------------------------------------------------


@pytest.mark.parametrize("estimator", ["is", "smc"])
@pytest.mark.parametrize(
    ("log_p", "said"), [(-math.inf, "misses the model's support"), (math.nan, "nan")]
)
def test_no_probability_is_an_error(backend, monkeypatch, estimator, log_p, said):
    """Never -inf, never 0: an error that names the document."""
    lm = backend(num_samples=5, estimator=estimator)
    monkeypatch.setattr(
        "lm_latent_eval.inference.importance.log_joint",
        lambda *to: log_joint(*to).fill_(log_p),
    )
    with pytest.raises(ValueError, match=rf"task/0 \('the fox'\).*{said}"):
        lm.loglikelihood_rolling(rolling("the fox"))
    with pytest.raises(ValueError, match=rf"task/0 \('the \|  fox'\).*{said}"):
        lm.loglikelihood(conditional(("the", " fox")))
    with pytest.raises(ValueError, match=r"task/0 .*misses the model's support"):
        lm.generate_until(generation("the fox", max_gen_toks=2))
