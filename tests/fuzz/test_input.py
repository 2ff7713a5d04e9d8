"""Any input of a user: a result, or one line that says what is wrong with it.

Arguments as they are typed, files that are given to a command, texts.
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.text.corpora import read_texts
from tests.fuzz.law import Refused, command, finite, outcome, share
from tests.tiny_checkpoint import COPIED, UTTERED, rolling

# -- odd values and odd texts ----------------------------------------------------------

WORDS = (*UTTERED, *COPIED, "zebra", "U.S.", "don't", "1,000")
ODD = (
    *("<unk>", "</s>", "<s>", "<pad>", "@@START@@", "@@END@@", "@@UNKNOWN@@"),
    *("@@PADDING@@", "@@NEWLINE@@", "(S (NP the fox))", "-LRB-", "NaN", "\\N"),
    *('{"text": "the fox"}', "[]", "--output", "%s", "{0}"),
    *("\0", "\ufeff", "\u2028", "\x85", "\x1b[31m", "\x7f", "\u200b", "\u202e"),
    *("\ud800", "\udfff\ud800", "\U0010ffff", "\ufffe", "👩‍👩‍👧", "ﷺ", "İ", "ß"),
    *("e" + "\u0301" * 200, "x" * 700, "ы" * 700, "." * 12, "’s’s", "_" * 9),
    *("\r\n", "\r", "\n", "\t", "\v\f", "\xa0", "\u3000"),
)
UNICODE = st.text(st.characters(exclude_categories=()), max_size=8)
"""Any code points, the lone halves of pairs among them."""
PIECE = st.one_of(st.sampled_from(WORDS), st.sampled_from(ODD), UNICODE)

TEXTS = st.lists(
    st.tuples(PIECE, st.sampled_from((" ", " ", " ", "", "\n", "  "))), max_size=5
).map(lambda pieces: "".join(piece + gap for piece, gap in pieces))
"""Texts of known, unknown and impossible words."""

NUMBERS = st.one_of(
    st.sampled_from((0, 1, 2, 3, 10, -1, 2**31, 2**63, 10**9, 10**30)),
    st.sampled_from((0.0, -0.0, 0.5, 1.0, 1e3, 1.5, 1e-3, 1e300, 5e-324)),
    st.sampled_from((math.inf, -math.inf, math.nan)),
    st.integers(),
    st.floats(),
)
SPELLED = st.sampled_from(
    (
        *("0", "1", "2", "3.0", "1e1", "1e3", "1_0", "+4", " 5", "007", "0x10"),
        *("-1", "-0", "0.5", "1e-3", "1e-300", "1.0000001", "1e300", "1e400"),
        *("nan", "inf", "-inf", "None", "none", "null", "true", "False", "yes"),
        *("", "[]", "{}", "()", "''", "\0", "1 2", "1;2", "%s", "../..", "~", "é"),
        *("is", "beam", "smc", "exact", "bean", "IS", "prior", "peeking", "lookahead"),
        *("closed", "penalized", "spelled", "auto", "auto:4", "auto:x", "float64"),
        *("float32", "bfloat16", "torch.float64", "int8", "cpu", "cuda:99", "gpu"),
        *("٣", "١٢", "10 ", "10" * 200),
    )
)
SCALARS = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    SPELLED,
    st.text(max_size=6),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
)
"""What JSON and Python can put where a number or a name is expected."""


# -- arguments -------------------------------------------------------------------------

TEXT = "the fox saw Ada ."
FEW = 1000
"""Samples that a test can afford."""
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


@share(3)
@given(
    arguments=st.dictionaries(
        st.sampled_from(OPTIONS + UNKNOWN), SPELLED | VALUES, max_size=3
    ).filter(affordable),
    batch_size=st.one_of(st.none(), SPELLED),
    typed=st.booleans(),
)
def test_any_model_args(folders, arguments, batch_size, typed):
    """In the one string of a command line, or as Python has them."""
    given = {"pretrained": folders["kglm_spelled"], "num_samples": "2"} | arguments
    more = {"batch_size": batch_size, "max_batch_size": None, "device": "cpu"}

    def score() -> float:
        if typed:
            text = ",".join(f"{key}={value}" for key, value in given.items())
            backend = LatentKGLM.create_from_arg_string(text, more)
        else:
            backend = LatentKGLM.create_from_arg_obj(given, more)
        return float(backend.loglikelihood_rolling(rolling(TEXT))[0])

    found = outcome(score)
    if not isinstance(found, Refused):
        finite("a score", found)


# -- files -----------------------------------------------------------------------------

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


NAMES = ("a.txt", "a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.jsonl.txt", "a")


JSON = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("text", "tokens", "id")), inner, max_size=3),
    ),
    max_leaves=5,
)


@share(2)
@given(
    content=st.binary(max_size=80) | JSON.map(lambda v: json.dumps(v).encode() + b"\n"),
    name=st.sampled_from(NAMES),
)
def test_any_bytes_are_texts_or_refused(tmp_path_factory, content, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    found = outcome(lambda: read_texts(path))
    if isinstance(found, Refused):
        return
    assert all(isinstance(text, str) for text in found)
    if name.lower().endswith(("jsonl", "json")):
        assert content.lstrip(b"\xef\xbb\xbf \n\t").startswith(b"{"), "scored as prose"


# -- texts -----------------------------------------------------------------------------


# A model of strings, one of words and one of sentences.
@pytest.mark.parametrize("name", ["kglm_spelled", "lstm", "rnng"])
@share(0.2)
@given(text=TEXTS, other=TEXTS, context=st.none() | TEXTS)
def test_a_text_is_scored_alike_in_any_company(opened, name, text, other, context):
    def score(*texts):
        # Another context: options of the same one are compared, and widened, together.
        contexts = [context, f"{context} {other} the"][: len(texts)]
        given = {} if context is None else {"contexts": contexts}
        scored = opened[name].log_likelihood([*texts], num_samples=3, **given)
        return scored[0].log_evidence, scored[0].draws_stderr

    alone = outcome(lambda: score(text))
    if isinstance(alone, Refused):
        return
    finite("a text", alone[0], alone[1] if alone[1] < math.inf else 0.0)
    together = outcome(lambda: score(text, other))
    if not isinstance(together, Refused):  # the other one was
        assert together[0] == pytest.approx(alone[0], rel=1e-9, abs=1e-9)
