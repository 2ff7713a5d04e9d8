"""Arguments as users type them: a result, or one line that names the argument."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM
from tests.fuzz.law import Refused, command, finite, outcome, share
from tests.fuzz.strategies import VALUES
from tests.tiny_checkpoint import rolling

TEXT = "the fox saw Ada ."
FEW = 1000
"""Samples that a test can afford."""
SPELLED = st.sampled_from(
    (
        *("0", "1", "2", "3.0", "1e1", "1e3", "1_0", "+4", " 5", "007", "0x10"),
        *("-1", "-0", "0.5", "1e-3", "1e-300", "1.0000001", "1e300", "1e400"),
        *("nan", "inf", "-inf", "None", "none", "null", "true", "False", "yes"),
        *("", "[]", "{}", "()", "''", "\0", "1 2", "1;2", "%s", "../..", "~", "é"),
        *("is", "beam", "smc", "exact", "bean", "IS", "prior", "peeking", "lookahead"),
        *("closed", "penalized", "spelled", "auto", "auto:4", "auto:x", "float64"),
        *("float32", "bfloat16", "torch.float64", "int8", "cpu", "cuda:99", "gpu"),
        *("٣", "10" * 200),
    )
)
OPTIONS = (
    *("proposal", "estimator", "num_samples", "temperature", "seed", "unk"),
    *("target_stderr", "max_samples", "dtype"),
)
UNKNOWN = ("num_sample", "revision", "é")


def affordable(given: dict[str, object]) -> bool:
    """Whether no test would wait for it."""

    def number(name: str, default: float) -> float:
        try:
            return float(given.get(name, default))
        except (ValueError, TypeError):
            return default

    most = number("num_samples", 2)
    if "target_stderr" in given:
        most = max(most, number("max_samples", math.inf))
    return not FEW < most < math.inf


def finite_or_refused(build) -> None:
    """Score a text with a backend."""
    ask = rolling(TEXT)
    found = outcome(lambda: float(build().loglikelihood_rolling(ask)[0]))
    if not isinstance(found, Refused):
        finite("a score", found)


@share(2)
@given(
    arguments=st.dictionaries(
        st.sampled_from(OPTIONS + UNKNOWN), SPELLED, max_size=3
    ).filter(affordable),
    batch_size=st.one_of(st.none(), SPELLED),
)
def test_any_model_args(folders, arguments, batch_size):
    given = {"pretrained": folders["kglm_spelled"], "num_samples": "2"} | arguments
    text = ",".join(f"{key}={value}" for key, value in given.items())
    more = {"batch_size": batch_size, "max_batch_size": None, "device": "cpu"}
    finite_or_refused(lambda: LatentKGLM.create_from_arg_string(text, more))


@share(2)
@given(
    settings=st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=3).filter(
        affordable
    )
)
def test_any_settings_of_python(folders, settings):
    few = {"num_samples": 2} | settings
    finite_or_refused(lambda: LatentKGLM(pretrained=folders["kglm_spelled"], **few))


TRAIN = ("--data", "{file}", "--dev", "{file}", "--output", "{out}")
COMMANDS = (
    ("explain", "{folder}"),
    ("study", "--pretrained", "{folder}", "--data", "{file}", "--output", "{out}"),
    ("study", "--output", "{out}", "--report", "{folder}"),
    *(("train", name, *TRAIN) for name in ("kglm", "lrlm", "entitynlm", "lstm")),
    ("train", "rnng", *TRAIN),
    ("train", "lstm", "--vocabulary", "{file}", *TRAIN),
    ("train", "spelling", "{folder}", "--data", "{file}"),
    ("estimate", "{folder}", "--data", "{file}"),
    ("distort", "productivity", "--data", "{file}", "--output", "{out}"),
    ("distort", "tokenizer", "--data", "{file}", "--output", "{out}"),
    ("convert", "rnng", "--model", "{file}", "--output", "{out}"),
    ("convert", "kglm", "--archive", "{file}", "--output", "{out}"),
    ("convert", "entitynlm", "--archive", "{folder}", "--output", "{out}"),
    ("estimate", "{file}", "--data", "{file}"),
    ("estimate", "{out}", "--data", "{file}"),
    ("distort", "measure", "errors", "one={folder}", "--output", "{out}"),
    ("distort", "trees", "--corpus", "{folder}", "--output", "{out}.ptb"),
    ("distort", "study", "--plan", "{file}", "--output", "{out}"),
    (
        *("distort", "score", "--learner", "{folder}", "--corpus", "{folder}"),
        *("--output", "{out}"),
    ),
    (
        *("distort", "sample", "--language", "{file}", "--num-sequences", "2"),
        *("--output", "{out}"),
    ),
)
CONTENTS = {
    "nothing": b"",
    "bytes": bytes(range(256)),
    "an empty object": b"{}\n",
    "numbers": b"[1, 2, 3]\n",
    "a deep list": b"[" * 100_000,
    "a table": b"a\tb\n1\t2\n",
    "half a tree": b"(S (NP the fox)\n",
    "a mark": b"\xef\xbb\xbf",
    "a name twice": b'{"text": "a", "tokens": ["a"], "text": "b", "tokens": ["b"]}\n',
    "lists of lists": b'{"text": ["a"], "tokens": [["a"]], "mentions": []}\n',
    "a NUL": b"Ada\0met Bo .\n",
}


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_files_that_a_command_does_not_expect(folders, tmp_path, line):
    path = tmp_path / "file.jsonl"
    names = {"file": path, "folder": folders["kglm"], "out": tmp_path / "out"}
    for which, content in CONTENTS.items():
        path.write_bytes(content)
        found = command(*(part.format(**names) for part in line))
        assert isinstance(found, Refused), which
