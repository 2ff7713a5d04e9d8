"""Narrow types are let through where draws lose more than they do, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lm_latent_eval
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests.wrappers.mdm import tiny as tiny_mdm


def in_float32(network: Network) -> Network:
    return replace(network, model=network.model.float())


def test_narrow_types_of_latent_models_are_refused():
    for dtype in ("float16", "torch.bfloat16"):
        with pytest.raises(ValueError, match=r"float16: its rounding moves .* float32"):
            lm_latent_eval.load(CHECKPOINT, dtype=dtype)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (LatentTokens, {}),
        (LatentTokens, {"estimator": "canonical"}),
        (LatentCoT, {}),
        (LatentMDM, {"estimator": "auto"}),
        (LatentMDM, {"estimator": "exact"}),
    ],
)
def test_mixed_precision_is_refused_before_anything_is_loaded(backend, options):
    with pytest.raises(
        ValueError, match=r"mixed_precision_dtype=bfloat16: .* leave it out"
    ):
        backend(pretrained="nowhere", mixed_precision_dtype="bfloat16", **options)


@pytest.mark.parametrize("estimator", ["elbo", "is"])
def test_what_is_rounded_is_not_called_exact(estimator):
    """A text of one token has one order, and short ones have few sets of masks."""
    network = in_float32(tiny_mdm.network())
    texts = ["Ada", "the fox"][: 2 if estimator == "elbo" else 1]
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]

    def bounds(network):
        scorer = MaskedDiffusion(network).scorer({"estimator": estimator}, quiet=True)
        estimates = [answer.estimate for answer in scorer.score_texts(queries)]
        return [(e.bound, e.stderr) for e in estimates]

    sure = {Bound.EXACT, Bound.STRICT_LOWER}
    assert all(bound in sure and error == 0 for bound, error in bounds(network))
    mixed = replace(network, mixed_precision=torch.bfloat16)
    assert bounds(mixed) == [(Bound.NONE, None)] * len(texts)


def test_mixed_precision_is_what_masked_networks_compute_in(tmp_path):
    network = in_float32(tiny_mdm.network())
    network.model.save_pretrained(tmp_path)
    network.tokenizer.save_pretrained(tmp_path)
    mixed = {"device": "cpu", "mixed_precision_dtype": "bfloat16", "max_length": 20}
    lm = LatentMDM(pretrained=tmp_path, num_samples=8, **mixed)
    assert lm.fingerprint["dtype"] == "torch.bfloat16"
    query = [Query(0, "text/0", "the fox saw Ada")]
    [answer] = lm._scorer.score_texts(query)
    mixed = replace(network, mixed_precision=torch.bfloat16)
    [expected] = MaskedDiffusion(mixed).scorer({"num_samples": 8}).score_texts(query)
    [exact] = MaskedDiffusion(network).scorer({"num_samples": 8}).score_texts(query)
    found = answer.estimate.log_evidence
    assert found == expected.estimate.log_evidence != exact.estimate.log_evidence
