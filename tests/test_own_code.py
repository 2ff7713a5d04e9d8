"""Folders of transformers with code of their own: nobody runs it unasked."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

import lm_latent_eval
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.tokenizer import load_tokenizer
from lm_latent_eval.distortion.learners.architectures import PretrainedStart
from lm_latent_eval.distortion.learners.token_ids import TokenIds
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.scoring.string_scorers import string_scorer
from tests.harness.test_wrapper_arguments import MARKER, plain, write_own_code

TOKENIZER = """
from transformers import PreTrainedTokenizerFast


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def build(folder):
    ids = TokenIds("tiny", 7, 0, 1, load_tokenizer(folder))
    return PretrainedStart(folder).build(ids, 8, seed=0)


OPEN = {
    "a function of strings": string_scorer,
    "a causal language": lambda folder: CausalLanguage.load(folder),
    "a start of training": build,
    "tokens": lambda folder: lm_latent_eval.load(folder, model="tokens"),
    "thoughts": lambda folder: lm_latent_eval.load(folder, model="cot"),
    "masks": lambda folder: lm_latent_eval.load(folder, model="mdm"),
    "lm-eval": lambda folder: LatentTokens(pretrained=str(folder), device="cpu"),
}
OF_TOKENIZERS = {
    "sequences": load_tokenizer,
    "a vocabulary": TokenIds.read,
    "lm-eval's option": lambda folder: LatentTokens(
        pretrained=str(plain(folder / "plain")), tokenizer=str(folder), device="cpu"
    ),
}
"""Those that open a tokenizer alone."""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The file that code of a folder leaves; asking at the terminal is a failure."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    return tmp_path / "ran"


def with_own_tokenizer(folder, ran, *, alone):
    """Write a plain network whose tokenizer leaves a file when it is imported.

    ``alone``: nothing but its code can read its vocabulary.
    """
    plain(folder)
    (folder / "own.py").write_text(MARKER.format(str(ran)) + TOKENIZER)
    path = folder / "tokenizer_config.json"
    more = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}}
    more["tokenizer_class"] = "OwnTokenizer"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    if alone:
        (folder / "tokenizer.json").rename(folder / "own.json")
    return folder


@pytest.mark.parametrize("name", OPEN)
def test_code_of_a_network_is_not_run(tmp_path, ran, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_own_code(folder, "mdm" if name == "masks" else "tokens", ran)
    with pytest.raises(ValueError, match=r"custom code|trust_remote_code"):
        OPEN[name](folder)
    assert not ran.exists()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", [*(n for n in OPEN if n != "masks"), *OF_TOKENIZERS])
def test_code_of_a_tokenizer_is_not_run(tmp_path, ran, name, alone):
    """transformers reads ``tokenizer.json`` instead, or there is no tokenizer."""
    folder = with_own_tokenizer(tmp_path, ran, alone=alone)
    with suppress(ValueError):
        (OPEN | OF_TOKENIZERS)[name](folder)
    assert not ran.exists()


def test_code_of_a_tokenizer_runs_when_it_is_trusted(tmp_path, ran):
    folder = with_own_tokenizer(tmp_path, ran, alone=False)
    LatentTokens(pretrained=str(folder), device="cpu", trust_remote_code=True)
    assert ran.exists(), "premise: loading it would show"
