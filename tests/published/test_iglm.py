"""IgLM, a GPT-2 of antibody sequences, through ``latent_tokens`` and ``hf``.

Its licence is for non-commercial use: ``make published NONCOMMERCIAL=1`` installs it.
"""

from __future__ import annotations

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer

from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from tests.published.folders import HEAVY, IGLM, LIGHT, antibody, spaced
from tests.tiny_checkpoint import conditional

pytestmark = pytest.mark.nightly
CHAINS = {"[HEAVY]": HEAVY, "[LIGHT]": LIGHT}


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
        *((LatentTokens, {"estimator": e}) for e in ("canonical", "exact", "mixed")),
        (HFLM, {"batch_size": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_log_p_is_what_the_package_says(named, asked, wanted, backend, options):
    start = {"add_bos_token": False, "prefix_token_id": 2}
    lm = backend(pretrained=named[1], device="cpu", **start, **options)
    found = [float(log_p) for log_p, _ in lm.loglikelihood(asked)]
    assert found == pytest.approx(wanted, rel=1e-5)
