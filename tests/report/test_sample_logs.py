"""Sample logs of other programs: numbers, or one line that says which field is not."""

from __future__ import annotations

import json

import pytest

from lm_latent_eval.report import sample_log

ASKED = {
    "gen_args_0": {"arg_0": "Ada saw", "arg_1": " the fox"},
    "gen_args_1": {"arg_0": "Ada saw", "arg_1": " Bo"},
}
CHOICE = {
    "doc_id": 3,
    "arguments": ASKED,
    "resps": [[["-2.5", "True"]], [["-4", "False"]]],
    "filter": "none",
    "acc": 1.0,
}


def read(path, *samples):
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return sample_log.read_answers(path)[0]


def test_answers_to_questions_are_read(tmp_path):
    others = [CHOICE | {"filter": "strict", "acc": 0.0}, CHOICE | {"doc_id": 4}]
    found = read(tmp_path / "log", CHOICE, *others)
    assert [(a.index, a.option) for a in found] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert [a.estimate.log_evidence for a in found[:2]] == [-2.5, -4]
    assert [(a.is_greedy, a.accuracy) for a in found[:2]] == [(True, 1), (False, 1)]
    assert (found[0].words, found[0].bytes) == (2, 8)
    unseen = read(tmp_path / "log", CHOICE | {"doc": {"score": float("nan")}})
    assert unseen == found[:2], "what nobody looks at may be anything"


ODD = {
    "doc_id|document": [None, [], [3], "3", 3.0, True, -1, 10**30, {}],
    "arguments|resps": [None, [], {}, {"a": 3}, {"a": {}, "b": {}}, ["a", "b"]],
    "resps|log_likelihood": [
        *(None, [], [[]], [[], []], [["True"], ["False"]], [[["-2"]], [["inf"]]]),
        *([[["-2"]], [["nan"]]], [[["-2"]], [[None]]], [[["-2"]], [[[1]]]]),
        *([[["-2", "maybe"]], [["-4"]]], [[["-2", []]], [["-4"]]]),
        *([[[-1e300]], [[-1.0]]], [[[10**400]], [[-1.0]]], {"a": 1, "b": 2}, [3, 4]),
    ],
    "acc|accuracy": ["yes", [1.0], {}, float("inf"), float("nan"), 1e300],
    "word_perplexity|words": [[-2, "x"], [-2, float("inf")], [-2, -5], [-2, None]],
    "bits_per_byte|bytes": [[-2, 10**30], [-2, {}], [-2, float("nan")]],
}
"""Field, and what else a message may call it -> values that are none."""
BROKEN = {
    "no JSON": "{",
    "a list": "[]",
    "a number": "3",
    "nested": "[" * 100_000,
    "twice": '{"doc_id": 0, "doc_id": 1}',
    "a document twice": json.dumps(CHOICE),
    "NUL": "\0",
    "half a pair": json.dumps(CHOICE | {"doc_id": "\ud800"}),
}


@pytest.mark.parametrize("names", ODD)
def test_an_odd_field_is_named_with_its_line(tmp_path, names):
    field = names.split("|")[0]
    for value in ODD[names]:
        with pytest.raises(ValueError, match=rf"log, line 2: ({names})") as caught:
            read(tmp_path / "log", CHOICE | {"doc_id": 0}, CHOICE | {field: value})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < len(str(tmp_path)) + 160


@pytest.mark.parametrize("kind", BROKEN)
def test_a_line_that_is_no_sample_is_named(tmp_path, kind):
    path = tmp_path / "log"
    path.write_text(f"{json.dumps(CHOICE)}\n{BROKEN[kind]}\n")
    with pytest.raises(ValueError, match=r"log, line 2: ") as caught:
        sample_log.read_answers(path)
    assert "\n" not in str(caught.value)
