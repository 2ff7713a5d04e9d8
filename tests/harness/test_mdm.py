"""``latent_mdm`` in lm-eval: its own tasks, unchanged, and what is refused."""

import logging
from functools import partial

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

import lm_latent_eval
from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.report.export.statement import Statement
from lm_latent_eval.report.units import Run
from lm_latent_eval.scoring import records
from tests import tiny_causal
from tests.harness.test_contract import mdm
from tests.stock_tasks import PAIRS, assert_the_scorer_says_so_alone, evaluated
from tests.tiny_checkpoint import conditional, generation, rolling
from tests.wrappers.mdm import tiny

TEXTS = ("Ada saw the fox", "the fox saw Ada . a Bo saw the", "", "Bo", "the fox")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny BERT in float64, with its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    mdm(folder)
    return folder


def opened(folder, **how):
    return LatentMDM(pretrained=str(folder), device="cpu", **how)


@pytest.fixture(scope="module")
def backend(directory):
    return partial(opened, directory)


@pytest.mark.usefixtures("stock_data")
@pytest.mark.parametrize(
    ("how", "bound"),
    [
        ({"estimator": "elbo"}, "strict lower"),
        ({"estimator": "is"}, "stochastic lower"),
        ({"block_length": 4}, "exact"),
    ],
    ids=str,
)
def test_stock_tasks_run_unmodified(backend, how, bound, tmp_path):
    lm = backend(num_samples=16, **how)
    results = evaluated(lm, out=tmp_path)
    assert_the_scorer_says_so_alone(results, lm._scorer, 1e-9)
    assert results["results"]["wikitext"]["word_perplexity,none"] > 1
    ours = results["config"]["latent_eval"]
    estimator = how.get("estimator", "auto")
    assert ours["estimator"] == estimator
    assert ours["mass"] == "no distribution over lengths"
    assert ours["process"] == lm.fingerprint["process"]
    assert ours["questions"] == len(PAIRS)
    assert 0 <= ours["questions_within_monte_carlo_error"] <= ours["questions"]
    # At most four tokens, whose sets of masks are all read.
    assert ours["bound_of_log_likelihood"][bound] > 0
    # Records can be exported: they say what their estimator depends on.
    for path in tmp_path.rglob("record_*.parquet"):
        said = Statement.of(Run.of(*records.read(path))).note
        assert f"estimator={estimator}, num_samples=16" in said


# -- bad input -----------------------------------------------------------------------


def test_networks_that_cannot_be_and_room_are_named(backend, tmp_path):
    config = GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=1, n_positions=20)
    causal = tmp_path / "causal"
    tiny_causal.save(causal, tiny.tokenizer(), GPT2LMHeadModel(config))
    tiny_causal.save(tmp_path, tiny.tokenizer(mask=False), tiny.network().model)
    for refused, said in (
        (lambda: opened(causal), "a gpt2 is a causal model"),
        (
            lambda: lm_latent_eval.load(causal, model="mdm", device="cpu"),
            "type gpt2 is none for AutoModelForMaskedLM",
        ),
        (lambda: backend(mask_token="<m>"), "mask_token='<m>': the tokenizer has no"),
        (lambda: backend(max_length=3), "max_length=3: no room for a text"),
        (lambda: opened(tmp_path), "has a token that masks: give mask_token"),
    ):
        with pytest.raises(ValueError, match=said):
            refused()
    (one,), (other,) = (
        opened(tmp_path, mask_token=mask).loglikelihood_rolling(rolling("Ada saw"))
        for mask in ("[MASK]", 1)
    )
    assert one == other


def test_texts_that_have_no_probability_are_named(backend):
    lm = backend()
    with pytest.raises(ValueError, match=r"task/0 .*an empty target"):
        lm.loglikelihood_rolling(rolling("  "))
    with pytest.raises(ValueError, match=r"task/0 .*the token that masks"):
        lm.loglikelihood_rolling(rolling("the [MASK]"))
    with pytest.raises(ValueError, match=r"task/0 .*exact reads all 2\^17 - 1 sets"):
        backend(estimator="exact").loglikelihood_rolling(rolling("the fox " * 8 + "a"))
    assert lm.loglikelihood(conditional(("Ada", "")))[0][0] == 0.0


@pytest.mark.parametrize("context", ["the", "the fox saw " * 9])
def test_what_is_too_long_to_write_is_shortened(backend, caplog, context):
    """As tasks ask that were made for larger windows: 256 tokens, say."""
    lm = backend()
    with caplog.at_level(logging.WARNING):
        [text] = lm.generate_until(generation(context, max_gen_toks=256))
    assert "max_gen_toks=256: the network has room for 18 tokens" in caplog.text
    assert "--gen_kwargs max_gen_toks=N" in caplog.text
    given = min(len(context.split()), 9)
    caplog.clear()
    [short] = lm.generate_until(generation(context, max_gen_toks=18 - given))
    assert not caplog.text
    if given < 9:  # of a longer context more is given where less is written
        assert text == short
    assert text


def test_a_path_is_exact(backend):
    [path] = backend(unmasking="left_to_right").loglikelihood_rolling(rolling("a fox"))
    assert str(path.estimate.bound) == "exact" and path.estimate.stderr == 0
