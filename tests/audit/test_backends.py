"""Audits of real backends on tiny models: what holds, and what is named."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval import cli
from lm_latent_eval.audit import verdict
from lm_latent_eval.audit.run import audit
from lm_latent_eval.audit.session import Plan, Requester, Session
from lm_latent_eval.audit.verdict import Kind, Verdict
from lm_latent_eval.harness.audit import Model, kind_of, run_tasks
from tests import tiny_causal, tiny_checkpoint, tiny_models
from tests.harness.conftest import described_once  # noqa: F401
from tests.stock_tasks import Told, tasks
from tests.wrappers.cot import tiny as causal
from tests.wrappers.mdm import tiny as masked

WORDS = ("the fox saw Ada .", "Bo saw the fox", "Ada saw Bo . the fox saw Ada")
TOKENS = ("a b c a b", "b c a a b", "c c a b a b a")
SMALL = Plan().times(0.2)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A causal network of three words and three marks."""
    folder, found = tmp_path_factory.mktemp("causal"), causal.network()
    return str(tiny_causal.save(folder, found.tokenizer, found.model))


def audited(name, texts, plan=SMALL, *, kind=None, options=(), only=(), **arguments):
    model = Model.open(name, {"device": "cpu", **arguments})
    how = {"complete": bool(options), "begin": lambda: torch.manual_seed(0)}
    how["precision"] = model.precision
    asked = Requester(model)
    session = Session(asked, kind or kind_of(name), plan, texts, options, **how)
    return audit(session, model=name, only=only)


def of(found, item):
    [one] = [one for one in found.findings if one.item is item]
    return one


def failing(found):
    return {one.item for one in found.findings if one.verdict is Verdict.FAILS}


def test_hf_holds_at_borders_of_tokens(network):
    found = audited("hf", TOKENS, Plan(), pretrained=network, dtype="float64")
    assert not found.failed
    for item in (
        verdict.SIGN,
        verdict.FOLLOWS,
        verdict.BORDERS,
        verdict.SAMPLES,
    ):
        assert of(found, item).verdict is Verdict.HOLDS
    # lm-eval puts a start token before a text, and none before a context.
    assert verdict.START in failing(found)
    assert of(found, verdict.ERRORS).detail == "it prints none"


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)]
)
def test_half_precision_is_no_fault_of_hf(network, dtype, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TOKENS))
    arguments = ["audit", "--model", "hf", "--model_args"]
    arguments += [f"pretrained={network},dtype={dtype},logits_cache=False"]
    arguments += ["--data", str(tmp_path / "texts.txt"), "--device", "cpu"]
    arguments += ["--requests", "500"]
    assert cli.main(arguments) == 0
    assert f"computed in {dtype}: two scores of -10 may be" in capsys.readouterr().out
    # A tolerance that is given is all.
    arguments += ["--tolerance", "0.001", "--only", "chain", "--json"]
    assert cli.main(arguments) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == dtype and found["hidden"] is None


def test_the_precision_is_the_coarsest_that_a_backend_shows(
    network, lstm_directory, tmp_path
):
    def precision(name, **arguments):
        return Model.open(name, {"device": "cpu", **arguments}).precision

    how = {"pretrained": network, "dtype": "float32"}
    assert precision("hf", **how) == "float32"
    assert precision("hf", **how, mixed_precision_dtype="float16") == "float16"
    assert precision("latent_tokens", pretrained=network, dtype="bfloat16") == (
        "bfloat16"
    )
    assert precision("latent_lstm", pretrained=str(lstm_directory)) == "float64"
    models = [{"name": t, "args": {"dtype": t}} for t in ("float64", "float16")]
    (tmp_path / "mixture.json").write_text(json.dumps({"models": models}))
    mixture = {"mixture": str(tmp_path / "mixture.json"), "pretrained": network}
    assert precision("latent_mixture", **mixture) == "float16"
    # An engine of vLLM keeps its network to itself, a server says nothing.
    config = SimpleNamespace(dtype=torch.bfloat16)
    engine = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))
    assert Model(SimpleNamespace(model=engine)).precision == "bfloat16"
    assert Model(SimpleNamespace(model="served")).precision is None


def test_a_model_opens_where_lm_eval_opens_it(network):
    opened = Model.open("hf", {"pretrained": network})
    where = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert str(opened.lm.device) == where


def test_its_tokens_total_1(network):
    listed = [" a", " b", " c", " <end>", " <think>", " </think>"]
    how = {"pretrained": network, "dtype": "float64", "only": ["normalization"]}
    whole = audited("hf", TOKENS, options=listed, **how)
    assert of(whole, verdict.COMPLETE).verdict is Verdict.HOLDS
    part = of(audited("hf", TOKENS, options=listed[:-1], **how), verdict.COMPLETE)
    assert part.verdict is Verdict.FAILS and part.witness["total"] < 0.99


def test_hf_mistakes_a_text_that_is_cut_elsewhere_in_the_same_call(network):
    """lm-eval 0.4.13's cache of logits takes two cuts of one text for one request."""

    def cut(**more):
        how = {"pretrained": network, "dtype": "float64", **more}
        found = audited("hf", TOKENS, Plan(), only=["sameness"], **how)
        assert not found.failed
        return of(found, verdict.CUT)

    wrong = cut()
    assert wrong.verdict is Verdict.FAILS
    alone, beside = (one["log_p"] for one in wrong.witness["requests"])
    assert abs(alone - beside) > 0.01
    assert cut(logits_cache=False).verdict is Verdict.HOLDS


@pytest.mark.parametrize("spelled", [False, True])
def test_words_of_an_lstm(lstm_directory, tmp_path, spelled):
    folder = lstm_directory
    if spelled:
        writing = tiny_checkpoint.orthography()
        folder = tiny_checkpoint.write(tmp_path, tiny_checkpoint.lstm(), writing)
    found = audited("latent_lstm", WORDS, pretrained=str(folder))
    assert not found.failed
    charged = of(found, verdict.CHARGED)
    assert (charged.verdict is Verdict.HOLDS) is spelled
    if not spelled:
        assert "unknown words" in charged.detail and "white space" in charged.detail
    assert of(found, verdict.COUNTS).verdict is Verdict.HOLDS


def test_masked_diffusion_has_no_chain_rule(tmp_path):
    found = masked.network("bert", framed=True)
    tiny_causal.save(tmp_path, found.tokenizer, found.model)
    parts, how = ["normalization", "causality", "chain"], {"pretrained": str(tmp_path)}
    result = audited("latent_mdm", WORDS, only=parts, **how)
    assert not result.failed
    assert {verdict.BORDERS, verdict.FOLLOWS} <= failing(result)
    # What claims to be of tokens must have one.
    again = audited("latent_mdm", WORDS, kind=Kind.TOKENS, only=["chain"], **how)
    assert verdict.BORDERS in {one.item for one in again.alarms}


def test_a_mixture_is_of_answers(network, tmp_path):
    """What is given moves no weight of a component, so that there is no chain rule."""
    (tmp_path / "mixture.yaml").write_text("prompts: ['{context}', 'c b{context}']")
    how = {"pretrained": network, "dtype": "float64"}
    how["mixture"] = str(tmp_path / "mixture.yaml")
    found = audited("latent_mixture", TOKENS, **how)
    assert not found.failed
    assert verdict.BORDERS in failing(found)


# -- scores that are no probabilities -------------------------------------------------


def test_a_sentence_rnn_is_no_likelihood(tmp_path, capsys):
    vocabulary = tiny_checkpoint.tokenizer().vocab_size
    folder = tiny_checkpoint.write(tmp_path, tiny_models.srnn(1, vocabulary, 4))
    arguments = ["audit", "--model", "latent_srnn", "--model_args"]
    assert cli.main([*arguments, f"pretrained={folder}", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {item["verdict"] for item in found["items"]} == {"undetermined"}
    assert any("without normalising" in item["said"] for item in found["items"])


# -- what results divide by -----------------------------------------------------------


@pytest.mark.parametrize("share", [1, 1.02])
def test_denominators_of_results_are_counted(spelled_directory, tmp_path, share):
    lines = (json.dumps({"text": text}) for text in WORDS)
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    (tmp_path / "task.yaml").write_text(
        f"""\
task: audited_rates
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path}/texts.jsonl}}
  cache_dir: {tmp_path}/cache
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
process_results: !function counting.rates
metric_list:
  - metric: bits_per_byte
    aggregation: bits_per_byte
    higher_is_better: false
"""
    )
    counted = f"(results[0], len(doc['text'].encode()) * {share})"
    code = f"def rates(doc, results):\n    return {{'bits_per_byte': {counted}}}\n"
    (tmp_path / "counting.py").write_text(code)
    model = Model.open("latent", {"pretrained": str(spelled_directory)})
    run = run_tasks(model, ["audited_rates"], tasks(str(tmp_path)), limit=8)
    assert run.texts == WORDS and run.requests == len(WORDS)
    assert [one.pair for one in run.answered] == [("", text) for text in WORDS]
    assert all(one.is_text for one in run.answered)
    [finding] = run.findings
    number = sum(len(text.encode()) for text in WORDS)
    if share != 1:
        assert finding.verdict is Verdict.FAILS
        assert finding.witness["divided_by"] == pytest.approx(number * share)
        return
    assert finding.verdict is Verdict.HOLDS
    assert finding.detail == f"bits_per_byte of audited_rates: {number} bytes"
    # Of texts that are certain, or ruled out, any number would give the rate.
    for log_p in (0.0, -math.inf):
        model = Model(Told(dict.fromkeys(WORDS, log_p).get))
        run = run_tasks(model, ["audited_rates"], tasks(str(tmp_path)), limit=8)
        assert run.findings == ()
