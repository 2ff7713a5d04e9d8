"""What files of others may not do: lead out of a folder, have no end, run code.

Each of these is a statement of SECURITY.md (``tests/test_security.py``).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lm_latent_eval
from lm_latent_eval.cli import main
from lm_latent_eval.convert.pickles import load_pickle
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.language import load_tokenizer
from lm_latent_eval.files import beside, safe_name
from lm_latent_eval.harness.wrappers.tokens import LatentTokens
from lm_latent_eval.metric_functions.strings import string_scorer
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.text.orthography import Spacing
from tests import kglm_archives
from tests.allennlp_archive import files, write_directory
from tests.harness.test_wrapper_arguments import MARKER, plain, write_own_code
from tests.limits import little
from tests.report.test_compare import questions
from tests.report.test_compare import write as write_record
from tests.report.test_export import BENCHMARK, SETTINGS

# -- names that lead elsewhere ---------------------------------------------------------

HOSTILE = ("../../../victim", "{}/victim", "..\\victim", "..", "", "C:x")


@given(st.text(), st.text())
def test_a_safe_name_is_one_part_of_a_path_and_no_other_s(name, other):
    safe = safe_name(name)
    assert Path("folder", safe).parent == Path("folder")
    assert safe.strip(".") and not set(safe) & set('/\\:*?"<>|\0')
    assert len(safe.encode()) <= 128
    assert safe_name(safe) == safe
    assert (safe == safe_name(other)) == (name == other)


def test_usual_names_stay():
    for usual in ("wikitext", "blimp_adjunct-island.v2", "日本語"):
        assert safe_name(usual) == usual


@pytest.mark.parametrize(
    "name", ["../victim", "..", "", "a/b", "/dev/zero", "a\0b", None, 3, ["a"]]
)
def test_a_file_names_others_in_its_own_folder_alone(tmp_path, name):
    path = tmp_path / "results.json"
    assert beside(path, "a.parquet") == tmp_path / "a.parquet"
    with pytest.raises(ValueError, match=r"results\.json names .* no file beside it"):
        beside(path, name)


def results(folder: Path, task: str, record: str = "record.parquet") -> Path:
    """A result folder of one task, which is called what it likes."""
    folder.mkdir()
    settings = SETTINGS | {"configs": {task: BENCHMARK["q"]}}
    found = questions([True] * 6 + [False] * 2)
    write_record(type(found)(task, settings, found.answers), folder / "record.parquet")
    content = {
        "config": {"latent_eval": {"records": {task: record}}},
        "configs": {task: BENCHMARK["q"]},
    }
    (folder / "results_1.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("task", HOSTILE)
def test_exports_write_below_their_output(tmp_path, task):
    found = results(tmp_path / "results", task.format(tmp_path))
    before, output = {*tmp_path.rglob("*")}, tmp_path / "output"
    whose = ["--model-id", "us/model", "--organization", "Us", "--relationship"]
    forms = {"hf-eval-results": [], "every-eval-ever": [*whose, "other"]}
    for to, options in forms.items():
        argv = ["export", str(found), "--to", to, "--output", str(output), *options]
        assert main(argv) == 0
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert len(new) == 3, "of one form a file, of the other two"
    assert all(output in path.parents for path in new)


def test_results_read_no_record_from_elsewhere(tmp_path, refused):
    (tmp_path / "victim.parquet").write_bytes(b"secret")
    for record in ("../victim.parquet", str(tmp_path / "victim.parquet")):
        found = results(tmp_path / f"from {record.count('/')}", "q", record)
        assert "which is no file beside it" in refused("recompute", found)


# -- files without an end --------------------------------------------------------------

PUT = {"/dev/zero": lambda path: path.symlink_to("/dev/zero"), "a pipe": os.mkfifo}
"""A link to ``/dev/zero`` has no end; a pipe that nobody writes to, no beginning."""


@pytest.fixture(params=PUT)
def endless(request):
    """Return what puts something endless in the place of a file."""
    if not Path("/dev/zero").is_char_device():
        pytest.skip("there is no /dev/zero")

    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        PUT[request.param](path)

    return replace


def test_files_of_a_checkpoint(tmp_path, spelled_directory, endless):
    names = sorted(path.name for path in spelled_directory.iterdir())
    assert {"config.json", "manifest.json", "model.safetensors", "spacing.json"} <= {
        *names
    }, "premise"
    for name in names:
        folder = tmp_path / name
        shutil.copytree(spelled_directory, folder)
        endless(folder / name)
        with little(), pytest.raises(ValueError, match=name):
            load_checkpoint(folder)
    said = r"spacing\.json.* not a regular file"
    with little(), pytest.raises(ValueError, match=said):
        Spacing.load(tmp_path / "spacing.json")


@pytest.mark.parametrize(
    "name", ["results_1.json", "record.parquet", "samples_q_1.jsonl"]
)
def test_files_of_a_result(tmp_path, endless, refused, name):
    folder = results(tmp_path / "results", "q")
    if name.startswith("samples"):
        content = {"config": {"model": "hf"}, "configs": {"q": {}}}
        (folder / "results_1.json").write_text(json.dumps(content))
    endless(folder / name)
    with little():
        assert name in refused("recompute", folder)


def test_pickles_and_archives(tmp_path, endless, refused):
    endless(tmp_path / "data.pkl")
    said = r"data\.pkl is .*not a regular file"
    with little(), pytest.raises(ValueError, match=said):
        load_pickle(tmp_path / "data.pkl")
    contents, output = files(*kglm_archives.golden_archive("B")), tmp_path / "out"
    archive = write_directory(tmp_path / "archive", contents)
    for path in [path for path in archive.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        endless(path)
        with little():
            refused("convert", "kglm", "--archive", archive, "--output", output)
        path.unlink()
        path.write_bytes(content)
    for model in (("kglm", "--archive"), ("rnng", "--model"), ("lda", "--tables")):
        argv = ["convert", *model, tmp_path / "data.pkl", "--output", output]
        with little():
            assert "data.pkl" in refused(*argv)


# -- folders of transformers with code of their own ------------------------------------

TOKENIZER = """
from transformers import PreTrainedTokenizerFast


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


OPEN = {
    "a function of strings": string_scorer,
    "a causal language": lambda folder: CausalLanguage.load(folder),
    "tokens": lambda folder: lm_latent_eval.load(folder, model="tokens"),
    "thoughts": lambda folder: lm_latent_eval.load(folder, model="cot"),
    "masks": lambda folder: lm_latent_eval.load(folder, model="mdm"),
    "lm-eval": lambda folder: LatentTokens(pretrained=str(folder), device="cpu"),
}
OF_TOKENIZERS = {
    "sequences": load_tokenizer,
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
