"""Narrow types are let through where draws lose more than they do, and only there."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import lm_latent_eval
from lm_latent_eval import demo
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.wrappers.cot import LatentCoT
from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm


def in_float32(network: Network) -> Network:
    return replace(network, model=network.model.float())


def of_mdm(network, **options):
    # Of a few tokens all masks are read, and nothing is drawn.
    texts = [f"the fox saw {name} . " * 3 + "a fox" for name in ("Ada", "Bo", "a")]
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(texts)]
    return MaskedDiffusion(network).scorer(options, quiet=True).score_texts(queries)


def of_cot(network):
    queries = [Query(n, f"text/{n}", answer, "a b") for n, answer in enumerate("abc")]
    return tiny_cot.scorer(network).score_continuations(queries)


def of_tokens(network, **options):
    queries = [Query(n, f"t/{n}", text) for n, text in enumerate(["abab", "aabbab"])]
    found = SegmentedLM(network).scorer(options, quiet=True).score_texts(queries)
    return sorted(found, key=lambda answer: answer.index)


def moved(scoring, network, dtype) -> tuple[float, float]:
    """Return by how much a type moves estimates, and the errors of their draws.

    Root mean squares over texts, nats.
    """
    wide, narrow = (
        sorted(scoring(one), key=lambda answer: answer.index)
        for one in (network, replace(network, mixed_precision=dtype))
    )
    pairs = [(a.estimate, b.estimate) for a, b in zip(wide, narrow, strict=True)]
    apart = [a.log_evidence - b.log_evidence for a, b in pairs]
    drawn = [a.draws_stderr for a, _ in pairs]
    return math.hypot(*apart), math.hypot(*drawn)


@pytest.mark.parametrize(
    ("scoring", "tiny", "dtype"),
    [
        (of_mdm, tiny_mdm, torch.bfloat16),
        (partial(of_mdm, estimator="is"), tiny_mdm, torch.bfloat16),
        (of_cot, tiny_cot, torch.float16),
    ],
)
def test_draws_lose_more_where_narrow_types_are_let_through(scoring, tiny, dtype):
    rounding, drawing = moved(scoring, in_float32(tiny.network()), dtype)
    assert 0 < rounding < drawing


def test_segmentations_are_summed_more_exactly():
    """All segmentations of such short strings are found: draws lose nothing."""
    network = in_float32(tiny_causal.network(tiny_causal.letters()))
    rounding, _ = moved(of_tokens, network, torch.float16)
    assert rounding > 1e-4
    one, other = (of_tokens(network, seed=seed) for seed in (0, 1))
    for a, b in zip(one, other, strict=True):
        assert abs(a.estimate.log_evidence - b.estimate.log_evidence) < 1e-4


@pytest.mark.nightly
def test_latents_are_estimated_more_exactly():
    """Weights that are rounded so move the demonstration's texts more than seeds do."""
    model = lm_latent_eval.load(CHECKPOINT, device="cpu")
    texts = demo.texts("test")[:5]

    def found(seed=0):
        estimates = model.log_likelihood(texts, seed=seed)
        return torch.tensor([estimate.log_evidence for estimate in estimates])

    one, other = found(), found(seed=1)
    for parameter in model.checkpoint.model.parameters():
        parameter.data = parameter.data.half().float()
    assert (found() - one).abs().median() > (other - one).abs().median()


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
