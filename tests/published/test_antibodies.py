"""Models of antibody sequences: AntiBERTy, a BERT, and IgLM, a GPT-2.

The one through ``latent_mdm``, the other through ``latent_tokens`` and ``hf``. IgLM's
licence is for non-commercial use: ``make published NONCOMMERCIAL=1`` installs it.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, BertConfig

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from tests.published.folders import ANTIBERTY, HEAVY, IGLM, LIGHT, antibody, spaced
from tests.tiny_checkpoint import conditional

pytestmark = pytest.mark.nightly
CHAINS = {"[HEAVY]": HEAVY, "[LIGHT]": LIGHT}


@pytest.fixture(scope="module")
def folder(published, tmp_path_factory):
    models = published(ANTIBERTY)
    return antibody(models, "AntiBERTy_md_smooth", tmp_path_factory.mktemp("antiberty"))


@pytest.fixture(scope="module")
def opened(folder):
    def make(**options):
        return LatentMDM(pretrained=str(folder), device="cpu", **options)

    return make


@pytest.fixture
def scores(folder, monkeypatch):
    """The package's own model: log-probabilities of a place, the mask aside."""
    import antiberty

    # With transformers 5 its runner loads neither the weights nor the vocabulary.
    monkeypatch.setattr(antiberty.AntiBERTy, "init_weights", lambda _: None)
    model = antiberty.AntiBERTy(BertConfig.from_pretrained(folder)).eval()
    weights = torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)
    assert not model.load_state_dict(weights, strict=False).missing_keys
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    @torch.no_grad()
    def log_p(residues: list[str], place: int, residue: str) -> float:
        text = " ".join("[MASK]" if r == "_" else r for r in residues)
        tokens = tokenizer(text, return_tensors="pt").input_ids
        logits = model(input_ids=tokens).prediction_logits[0, place + 1]
        logits[tokenizer.mask_token_id] = -math.inf
        return logits.double().log_softmax(-1)[tokenizer.vocab[residue]].item()

    return log_p


@pytest.mark.parametrize(
    ("given", "end", "options", "rounding"),
    [(60, 61, {}, 1e-4), (100, 104, {"estimator": "exact"}, 1e-3)],
)
def test_log_p_is_that_of_the_package_over_all_orders(
    opened, scores, given, end, options, rounding
):
    """Of one residue there is one order, so that anything is exact."""
    asked = conditional((spaced(HEAVY[:given]), f" {spaced(HEAVY[given:end])}"))
    [(found, _)] = opened(**options).loglikelihood(asked)
    of_orders = []
    for order in itertools.permutations(range(given, end)):
        residues, total = [*HEAVY[:given], *"_" * (end - given)], 0.0
        for place in order:
            total += scores(residues, place, HEAVY[place])
            residues[place] = HEAVY[place]
        of_orders.append(total)
    wanted = torch.tensor(of_orders).logsumexp(0).item() - math.log(len(of_orders))
    assert found == pytest.approx(wanted, abs=rounding)


# -- IgLM ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["IgLM-S", "IgLM"])
def named(request, published, tmp_path_factory):
    models = published(IGLM)
    folder = antibody(models, request.param, tmp_path_factory.mktemp("iglm"))
    return request.param, str(folder)


@pytest.fixture
def asked():
    return conditional(
        *[
            (f"{chain}[HUMAN]", f" {spaced(residues)}[SEP]")
            for chain, residues in CHAINS.items()
        ]
    )


@pytest.fixture
def wanted(named):
    """The package's own numbers: its mean log-probability, times the tokens."""
    import iglm

    model = iglm.IgLM(model_name=named[0])
    # Its own reads no vocabulary with transformers 5, and takes every word for unknown.
    model.tokenizer = AutoTokenizer.from_pretrained(named[1], trust_remote_code=False)
    return [
        model.log_likelihood(residues, chain, "[HUMAN]") * (len(residues) + 1)
        for chain, residues in CHAINS.items()
    ]


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        *((LatentTokens, {"estimator": e}) for e in ("canonical", "exact", "dpf")),
        (HFLM, {"batch_size": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_log_p_is_what_the_package_says(named, asked, wanted, backend, options):
    start = {"add_bos_token": False, "prefix_token_id": 2}
    lm = backend(pretrained=named[1], device="cpu", **start, **options)
    found = [float(log_p) for log_p, _ in lm.loglikelihood(asked)]
    assert found == pytest.approx(wanted, rel=1e-5)
