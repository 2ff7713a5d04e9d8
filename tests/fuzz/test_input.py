"""Any input of a user: a result, or one line that says what is wrong with it.

Arguments as they are typed, files that are given to a command, texts.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_latent_eval.harness.backends import LatentKGLM
from tests.fuzz.law import Refused, command, finite, outcome, share
from tests.tiny_checkpoint import COPIED, UTTERED, rolling

# -- odd texts ---------------------------------------------------------------------

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


# -- arguments -------------------------------------------------------------------------

TEXT = "the fox saw Ada ."
OPTIONS = (
    *("proposal", "estimator", "num_samples", "temperature", "seed", "unk", "dtype"),
    *("bounds", "batch_size", "revision", "num_sample", "é"),
)
VALUES = st.one_of(
    st.sampled_from(
        (
            *("2", "3.0", "1e1", "1_0", "+4", " 5", "007", "0x10", "-1", "0.5"),
            *("1e-300", "1e400", "nan", "inf", "None", "true", "", "[]", "'", "\0"),
            *("1;2", "%s", "../..", "auto", "auto:x", "bean", "beam", "prior"),
            *("closed", "torch.float64", "int8", "١٢", "10" * 200),
            *(2**63, 10**30, -0.0, 1.5, math.inf, math.nan, None, [1], {"a": 1}),
        )
    ),
    st.integers(-3, 10),
    st.text(max_size=6),
)
"""What a command line, JSON and Python can put where a number or a name is expected."""


@share(1.5)
@given(
    arguments=st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=3),
    typed=st.booleans(),
)
def test_any_model_args(folders, arguments, typed):
    """In the one string of a command line, or as Python has them."""
    given = {"pretrained": folders["kglm_spelled"], "num_samples": 2} | arguments
    more = {"batch_size": None, "max_batch_size": None, "device": "cpu"}

    def score():
        if typed:
            text = ",".join(f"{key}={value}" for key, value in given.items())
            backend = LatentKGLM.create_from_arg_string(text, more)
        else:
            backend = LatentKGLM.create_from_arg_obj(given, more)
        return backend.loglikelihood_rolling(rolling(TEXT))

    found = outcome(score)
    if not isinstance(found, Refused):
        finite("a score", *found)


# -- files -----------------------------------------------------------------------------

TRAIN = "--data {file} --dev {file} --output {out}"
COMMANDS = (
    "explain {folder}",
    *(f"train {name} {TRAIN}" for name in ("kglm", "lrlm", "entitynlm", "rnng")),
    *(f"train lstm {more} {TRAIN}" for more in ("", "--vocabulary {file}")),
    "train spelling {folder} --data {file}",
    "estimate {folder} --data {file}",
    "estimate {file} --data {file}",
    "distort measure one={folder} --corpus {folder} --output {out}",
    "distort sample --language {file} --num-sequences 2 --output {out}",
    "convert rnng --model {file} --output {out}",
    "convert kglm --archive {file} --output {out}",
    "convert entitynlm --archive {folder} --output {out}",
)
CONTENTS = {
    "nothing": b"",
    "bytes": bytes(range(256)),
    "an empty object": b"{}\n",
    "numbers": b"[1, 2, 3]\n",
    "a deep list": b"[" * 100_000,
    "half a tree": b"(S (NP the fox)\n",
    "a name twice": b'{"text": "a", "tokens": ["a"], "text": "b", "tokens": ["b"]}\n',
    "lists of lists": b'{"text": ["a"], "tokens": [["a"]], "mentions": []}\n',
    "a NUL": b"Ada\0met Bo .\n",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_files_that_a_command_does_not_expect(folders, tmp_path, line):
    path = tmp_path / "file.jsonl"
    names = {"file": path, "folder": folders["kglm"], "out": tmp_path / "out"}
    for which, content in CONTENTS.items():
        path.write_bytes(content)
        found = command(*(part.format(**names) for part in line.split()))
        assert isinstance(found, Refused), which


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
