"""Each statement of SECURITY.md, and the tests that hold it."""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import lm_latent_eval
from lm_latent_eval import manifest
from lm_latent_eval.models.checkpoint import load_checkpoint
from tests import tiny_checkpoint
from tests.conftest import PROJECT
from tests.test_ladder import imports

PAGE = (PROJECT / "SECURITY.md").read_text(encoding="utf-8")
ROOT = Path(lm_latent_eval.__file__).parent

LISTED = """\
held against `manifest.json`
    test_manifest.py::test_what_is_not_as_listed
    fuzz/test_hostile.py::test_damage_is_refused_or_moves_nothing
Nothing in them is run, and no value of a configuration imports anything
    test_security.py::test_a_configuration_imports_nothing
finds containers of plain data
    convert/test_pickles.py::test_what_plain_data_do_not_need_is_refused
    convert/test_pickles.py::test_a_pickle_gives_no_state_to_what_it_finds
Nothing in them is run or imported
    convert/test_pickles.py::test_calls_are_refused_in_every_protocol
    convert/test_pickles.py::test_what_plain_data_do_not_need_is_refused
    test_security.py::test_no_other_place_reads_pickles_or_runs_code
with placeholders for the classes of a model
    convert/test_pickles.py::test_code_in_a_file_of_torch_is_not_run
    convert/test_rnng.py::test_nothing_in_a_file_is_run
by NumPy without pickles
    convert/test_lda.py::test_code_in_tables_is_not_run
nothing is unpacked to disk
    convert/test_kglm_refused.py::test_an_archive_that_is_damaged_or_none_is_refused
JSON without double names
    text/test_corpora.py::test_a_bad_line_is_named
A broken one ends in one line that names file, line and field
    text/test_corpora.py::test_a_bad_line_is_named
    fuzz/test_hostile.py::test_results_that_are_changed_are_refused_or_shown
    report/test_sample_logs.py::test_an_odd_field_is_named_with_its_line
    scoring/test_files.py::test_an_edited_record_is_refused_by_its_line
plain values, no tags
    wrappers/mixtures/test_files.py::test_what_a_file_may_not_say_is_told
is not imported without `trust_retriever=True`
    wrappers/mixtures/test_files.py::test_a_function_retrieves_with_consent
columns have the types that we write
    test_parquet.py::test_a_column_that_is_another_is_named
a digest tells damage and edits
    test_parquet.py::test_an_edited_value_is_refused
    test_parquet.py::test_edited_metadata_are_refused
    test_parquet.py::test_a_damaged_file_is_refused_or_the_same
a row has a digest over its values and the run's settings
    test_ledger.py::test_a_line_that_was_edited_says_where
    test_ledger.py::test_any_flipped_bit_and_any_cut_is_refused_or_loses_the_end
    fuzz/test_hostile.py::test_damage_is_refused_or_moves_nothing
A last line without its end is dropped
    test_ledger.py::test_a_torn_last_line_is_dropped
a link is refused
    test_ledger.py::test_links_pipes_and_folders_are_refused
the file is made where nothing is, not even a link
    test_durable.py::test_a_planted_link_is_not_followed
a finished file one of all
    test_parquet.py::test_an_edited_value_is_refused
A file named after one lies below `--output`
    test_untrusted.py::test_exports_write_below_their_output
Markdown, HTML and CSV show them, and obey nothing in them
    report/test_tables.py::test_words_of_a_file_are_shown_and_not_obeyed
    report/test_export.py::test_a_card_shows_what_tasks_and_settings_say
    report/test_page.py::test_names_are_text_and_not_tags
not read and not waited for
    test_untrusted.py::test_files_of_a_checkpoint
    test_untrusted.py::test_files_of_a_result
    test_untrusted.py::test_pickles_and_archives
whoever can change a file can write its digests anew
    models/test_checkpoint.py::test_a_change_by_hand_is_accepted_by_its_manifest
    test_ledger.py::test_a_line_that_was_edited_says_where
with nothing else: other words
    harness/test_wrapper_arguments.py::test_code_of_a_folder_does_not_run
code in their folder is refused
    test_security.py::test_no_other_place_reads_pickles_or_runs_code
    test_untrusted.py::test_code_of_a_network_is_not_run
    test_untrusted.py::test_code_of_a_tokenizer_is_not_run
links in it are followed
    test_durable.py::test_a_link_goes_on_pointing_to_the_file
one line by which Python imports one module
    harness/test_bridge.py::test_the_pth_is_one_short_ascii_line
    harness/test_bridge.py::test_starting_python_imports_the_bridge_alone
keep Python from nothing
    harness/test_bridge.py::test_a_bridge_that_is_broken_or_gone
    harness/test_bridge.py::test_a_damaged_line_lets_python_start
    harness/test_bridge.py::test_what_ends_in_the_bridge_does_not_end_the_import
switches the registration off
    harness/test_bridge.py::test_the_switch_turns_it
"""
"""What the page says, and its tests below, by how their names begin."""
STATEMENTS = dict(re.findall(r"(?m)^(\S.*)\n((?: +.*\n)+)", LISTED))


@cache
def names_in(file: str) -> list[str]:
    text = (PROJECT / "tests" / file).read_text(encoding="utf-8")
    return re.findall(r"^def (test_\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_there_and_so_are_its_tests(statement):
    assert statement in " ".join(PAGE.split()), "the page no longer says so"
    for test in STATEMENTS[statement].split():
        file, _, name = test.partition("::")
        assert any(each.startswith(name) for each in names_in(file)), f"{test} is gone"


def test_every_row_of_what_is_not_trusted_has_a_statement():
    table = PAGE.partition("## What is not trusted")[2].partition("##")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 13
    assert not [r for r in rows if not any(said in r for said in STATEMENTS)]


RUNS = {
    "pickle.load": (),
    "pickle.loads": (),
    "pickle.Unpickler": ("convert/pickles.py",),  # finds nothing of what is asked for
    "torch.load": ("ledger/files.py", "convert/pickles.py"),  # with weights_only
    "eval": (),
    "exec": (),
    "yaml.load": (),
    "yaml.unsafe_load": (),
    "__import__": (),
    "tar.extract": (),
    "tar.extractall": (),
    "shutil.unpack_archive": (),
}
"""What runs code of a file or unpacks it -> the places that may name it."""
LAST = {name.rpartition(".")[2] for name in RUNS}
OTHERS = {"joblib", "dill", "cloudpickle", "shelve", "marshal", "gensim"}
"""Modules that do, or did: none is imported."""


LOADS = {"from_pretrained", "from_config"}
"""Functions of transformers that ask at the terminal where a call leaves it open."""


GIVEN = {
    "trust_remote_code": {"trust_remote_code", "False"},
    "allow_pickle": {"False"},
    "weights_only": {"True"},
}
"""Options of calls that read files -> what they may be."""


def test_no_other_place_reads_pickles_or_runs_code():
    loading = 0
    examples = [*(PROJECT / "examples").rglob("*.py"), *PROJECT.glob("benchmarks/*.py")]
    for path in [*ROOT.rglob("*.py"), *examples]:
        ours, code = ROOT in path.parents, path.read_text(encoding="utf-8")
        where = str(path.relative_to(ROOT) if ours else path)
        if ours:
            assert not OTHERS & {name.split(".")[0] for name in imports(code)}, where
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute | ast.Name) and ours:
                last = node.id if isinstance(node, ast.Name) else node.attr
                if last in LAST:
                    named = ast.unparse(node)
                    assert where in RUNS.get(named, (where,)), f"{where} names {named}"
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                options = {k.arg: k.value for k in node.keywords}
                if ours:
                    for name in options.keys() & GIVEN.keys():
                        assert ast.unparse(options[name]) in GIVEN[name], where
                if ours and called == "load" and ast.unparse(node.func) == "torch.load":
                    assert "weights_only" in options, where
                own = called in LOADS and ast.unparse(node.func).startswith("super()")
                if called in LOADS and not own and "tests" not in path.parts:
                    assert "trust_remote_code" in options, where
                    loading += 1
    assert loading > 10, "premise: the calls are found"


CODE = "open({!r}, 'w').close()\nclass Model: ...\nclass Config: ...\n"
IMPORTS = {
    "code beside it": {
        "auto_map": {"AutoConfig": "wicked.Config", "AutoModel": "wicked.Model"}
    },
    "an architecture": {"architectures": ["wicked:Model"]},
    "a type": {"model_type": "wicked:Model"},
    "a type within modules": {"model_type": "wicked.Model"},
    "a transformers class": {"transformers_version": "wicked:Model"},
    "a configuration within": {"text_config": {"model_type": "wicked:Model"}},
    "a number's type": {"torch_dtype": "wicked.Model", "dtype": "wicked.Model"},
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_a_configuration_imports_nothing(tmp_path, monkeypatch, kind):
    """The directory has a new manifest, and can be imported from."""
    folder = tiny_checkpoint.write(tmp_path / "kglm", tiny_checkpoint.kglm())
    sprung = tmp_path / "sprung"
    (folder / "wicked.py").write_text(CODE.format(str(sprung)))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | IMPORTS[kind]))
    manifest.write(folder)
    try:
        load_checkpoint(folder)
    except ValueError as err:
        assert not re.search(r"\n", str(err))
    assert not sprung.exists()
    import wicked  # noqa: F401

    assert sprung.exists(), "premise: importing it would show"
    del sys.modules["wicked"]
