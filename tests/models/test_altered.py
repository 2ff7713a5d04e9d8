"""Whatever is changed in a checkpoint: it is refused in one line, or no number moves.

Single bits, lost and foreign files are the manifest's; values of another type or out of
their range are refused whatever the manifest says.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lm_latent_eval
from lm_latent_eval import manifest
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.checkpoint import CheckpointError
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.recurrent_lm import RNNConfig, RNNLanguageModel
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.models.srnn import SentenceRNN, SRNNConfig
from lm_latent_eval.scoring.model import LatentModel
from tests import tiny_checkpoint
from tests.models.lrlm.test_harness import model as relation_model
from tests.tiny_models import randomised

WORDS = {
    "vocab_size": tiny_checkpoint.tokenizer().vocab_size,
    "num_words": tiny_checkpoint.tokenizer().num_words,
    "num_unknown_types": tiny_checkpoint.UNKNOWN_TYPES,
}
SIZE = {"hidden_size": 5, "num_layers": 2}
MODELS: dict[str, Callable[[], Any]] = {
    "entitynlm": lambda: EntityNLM(
        EntityNLMConfig(**WORDS, **SIZE, embedding_dim=4, max_mention_length=2)
    ),
    "kglm": tiny_checkpoint.kglm,
    "lrlm": lambda: relation_model("lrlm"),
    "lstm": tiny_checkpoint.lstm,
    "nklm": lambda: relation_model("nklm"),
    "rnn": lambda: RNNLanguageModel(
        RNNConfig(**WORDS, **SIZE, embedding_dim=4, class_starts=[0, 5])
    ),
    "rnng": lambda: RNNG(RNNGConfig(**WORDS, **SIZE, proposal_size=3, max_words=9)),
    "srnn": lambda: SentenceRNN(
        SRNNConfig(vocab_size=WORDS["vocab_size"], hidden_size=3)
    ),
}
TEXT = "the fox saw Ada ."


def write(name: str, directory: Path) -> Path:
    model = randomised(MODELS[name]().double(), 3, 0.7).eval()
    writing = None if name == "srnn" else tiny_checkpoint.orthography()
    return tiny_checkpoint.write(directory, model, writing)


def number(directory: Path) -> float:
    """Return log p of a text with an unknown word, of fixed draws."""
    model = LatentModel(checkpoint.load_checkpoint(directory))
    closed = model.checkpoint.orthography is None
    unknown = "" if closed else " zebra"
    [estimate] = model.log_likelihood([TEXT + unknown], num_samples=3)
    return estimate.log_evidence


def outcome(directory: Path) -> float | None:
    """Return that number, or None if it is refused as it has to be."""
    try:
        return number(directory)
    except CheckpointError as err:
        assert "\n" not in str(err), "one line"
        assert str(directory) in str(err), "which names what is wrong"
        return None


SLOW = ("entitynlm", "lrlm", "nklm")
"""Whose numbers take long; their configurations are checked as the others are."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(m, marks=[pytest.mark.nightly] * (m in SLOW)) for m in MODELS],
)
def saved(request, tmp_path_factory) -> Path:
    return write(request.param, tmp_path_factory.mktemp(request.param) / "saved")


@pytest.fixture(scope="module")
def kglm(tmp_path_factory) -> Path:
    return write("kglm", tmp_path_factory.mktemp("model") / "kglm")


@pytest.fixture
def copy(kglm, tmp_path) -> Path:
    return Path(shutil.copytree(kglm, tmp_path / "copy"))


# -- what the manifest sees -----------------------------------------------------------


def flips(path: Path, number: int) -> Iterator[None]:
    """Flip single bits of a file, one at a time, the first and last among them."""
    content = path.read_bytes()
    draw = random.Random(path.name)
    last = 8 * len(content) - 1
    for place in [0, last, *(draw.randint(0, last) for _ in range(number - 2))]:
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        yield
    path.write_bytes(content)


@pytest.mark.parametrize("where", ["kglm", "demo"])
def test_no_changed_bit_moves_a_number(where, tmp_path, kglm):
    folder = Path(
        shutil.copytree({"kglm": kglm, "demo": CHECKPOINT}[where], tmp_path / "copy")
    )
    original = number(folder)
    for path in sorted(folder.iterdir()):
        found = [outcome(folder) for _ in flips(path, 15)]
        if path.name == manifest.FILE_NAME:  # white space in it means nothing
            assert {*found} <= {None, original}
            assert found.count(None) > 7
        else:
            assert found == [None] * 15, path.name
    assert number(folder) == original, "premise: put back"


def test_no_lost_and_no_foreign_file_moves_a_number(copy):
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(CheckpointError, match=rf"{path.name} is missing"):
            checkpoint.load_checkpoint(copy)
        path.write_bytes(content)
    for name in ("spelling.safetensors", "spacing.json"):
        (copy / name).unlink()
    with pytest.raises(CheckpointError, match=r"spacing\.json is missing, though man"):
        checkpoint.load_checkpoint(copy)
    manifest.write(copy)
    before = number(copy)
    tiny_checkpoint.orthography().save(copy)
    with pytest.raises(
        CheckpointError,
        match=rf"spacing\.json .* does not list it; .*`lm-latent-eval manifest {copy}`",
    ):
        checkpoint.load_checkpoint(copy)
    manifest.write(copy)
    assert number(copy) != before, "premise: they matter"


# -- what rules see -------------------------------------------------------------------

OTHERS: tuple[Any, ...] = (None, True, False, -1, 0, 1.5, 30.0, 10**30, "x", "", [], {})


def of_another_kind(value: Any) -> Iterator[Any]:
    """Yield values that cannot be meant where this one stands."""
    for other in OTHERS:
        valid = other == 0 if type(value) is int else not isinstance(value, str)
        if type(other) is not type(value) or not valid:
            yield other
    if isinstance(value, list):
        yield from ([None], [True], [-1], [10**9], ["x"], [[0]], [*value, *value[:1]])


def test_no_value_of_another_kind_moves_a_number(saved, tmp_path):
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    original = number(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    refused = tried = 0
    for name, value in config.items():
        for other in (*of_another_kind(value), "a missing value"):
            changed = config | {name: other}
            if other == "a missing value":
                del changed[name]
            path.write_text(json.dumps(changed))
            manifest.write(folder)
            found = outcome(folder)
            assert found in (None, original), (name, other)
            tried, refused = tried + 1, refused + (found is None)
    assert refused > 0.85 * tried


KEYS = [
    *({"dtype": dtype} for dtype in (3, "x", "load", "int64", "auto")),
    *(
        {"torch_dtype": "x"},
        {"return_dict": 3},
        {"id2label": 7},
        {"id2label": {"x": 1}},
    ),
    *({"tie_word_embeddings": True}, {"problem_type": 3}, {"cutof": 5}),
    *({"quantization_config": {}}, {"auto_map": {}}, {"use_cache": 3}),
]


@pytest.mark.parametrize("more", KEYS, ids=str)
def test_no_further_value_moves_a_number(kglm, copy, more):
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    manifest.write(copy)
    harmless = more == {"tie_word_embeddings": True}
    assert outcome(copy) == (number(kglm) if harmless else None)


def test_a_value_out_of_range_is_named(copy):
    path = copy / "config.json"
    config = json.loads(path.read_text())
    for name, value, message in [
        ("cutoff", True, r"cutoff is True: expected a whole number of 1 <= n"),
        ("cutoff", 1001, r"cutoff is 1001: expected a whole number of 1 <= n <= 1000"),
        ("special_entities", -1, r"special_entities is -1: .* 1 <= n <= 3"),
        ("special_entities", None, r"special_entities is None: .* 1 <= n <= 3"),
        ("special_entities", 4, r"special_entities is 4: .* 1 <= n <= 3"),
        ("num_words", 7, r"num_words is 7: .* 8 <= n"),
        ("num_words", 11, r"num_words is 11, but 10 words are in the vocabulary"),
        ("never_uttered", [0, 8], r"never_uttered is \[0, 8\]: .* 0 <= n < 8"),
        ("proposals", ["prior"], r"each one of peeking, nonpeeking, smoothing"),
        ("hidden_size", 10**6, r"is \(.*\) but config\.json asks for \(.*00000"),
        ("num_layers", 10**9, r"num_layers is 1000000000: .* 1 <= n <= 1000"),
    ]:
        path.write_text(json.dumps(config | {name: value}))
        manifest.write(copy)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load_checkpoint(copy)
    with pytest.raises(ValueError, match="cutoff is True"):
        KGLMConfig(cutoff=True)


DTYPES = [
    *(torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn),
    torch.float32,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("file", ["model", "spelling"])
def test_weights_of_another_type_are_refused(copy, file, every, dtype):
    path = copy / f"{file}.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    names = sorted(weights.keys() - {"log_outside"})
    changed = {n: weights[n].to(dtype) for n in (names if every else names[1:2])}
    with safe_open(path, "pt") as opened:
        save_file(weights | changed, path, opened.metadata())
    manifest.write(copy)
    if every and dtype == torch.float32:
        assert number(copy) < 0, "premise: another type will do, for all of them"
        return
    with pytest.raises(CheckpointError, match=rf"{path}.*'\S+' is {dtype}[,;]"):
        checkpoint.load_checkpoint(copy)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e5m2, torch.complex128])
def test_types_that_nobody_computes_in(kglm, dtype):
    with pytest.raises(ValueError, match=rf"dtype={dtype}: expected one of float16"):
        checkpoint.load_checkpoint(kglm, dtype=dtype)
    with pytest.raises(ValueError, match=r"dtype='\w+': expected one of float32"):
        lm_latent_eval.load(kglm, dtype=dtype)


SPACING = [
    *(None, 3, [], {}, ["a", "a", " "], ["a", "a", " ", 1, 1]),
    *(["a", "a", " ", n] for n in (True, 0, -1, 1.0, None, "1")),
    *(["", "a", " ", 1], ["ab", "a", " ", 1], [None, "a", " ", 1], [7, "a", " ", 1]),
    *(["a", "a", "x", 1], ["a", "a", None, 1]),
]


def test_rows_of_white_space_are_of_their_kind(copy):
    path = copy / "spacing.json"
    rows = json.loads(path.read_text())
    for row in [*SPACING, rows[0]]:
        path.write_text(json.dumps([*rows, row]))
        manifest.write(copy)
        with pytest.raises(CheckpointError, match=r"spacing\.json is not a readable"):
            checkpoint.load_checkpoint(copy)


def test_sizes_of_spelling_are_of_their_kind(copy):
    path = copy / "spelling.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    with safe_open(path, "pt") as opened:
        shape = json.loads(opened.metadata()["shape"])
    changes: list[Any] = [{"alphabet": other} for other in (None, 3, "", "0", "zz")]
    changes += [{"hidden_size": other} for other in (None, True, 4.0, "4", 0, -4)]
    changes += [{"embedding_dim": None}, {"more": 1}]
    outside = [torch.tensor(x, dtype=torch.float64) for x in (0.5, float("nan"))]
    for change in [*changes, *outside, torch.tensor(-0.5)]:
        here = shape | change if isinstance(change, dict) else shape
        there = {} if isinstance(change, dict) else {"log_outside": change}
        save_file(weights | there, path, {"shape": json.dumps(here)})
        manifest.write(copy)
        with pytest.raises(CheckpointError, match="not a readable spelling model"):
            checkpoint.load_checkpoint(copy)


PADDING = {
    **{"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None},
    **{"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"},
}
TRUNCATION = {
    **{"direction": "Right", "max_length": 2},
    **{"strategy": "LongestFirst", "stride": 0},
}
ADDED = {
    **{"id": 10, "content": "zebra", "special": False, "normalized": False},
    **{"single_word": False, "lstrip": False, "rstrip": False},
}
VOCABULARIES: list[tuple[str, Any]] = [
    *(("vocab", {"fox": n}) for n in (4, 99, -1, True, None, 5.5)),
    *(("unk_token", word) for word in ("the", "no word", None, 3)),
    *(("padding", PADDING), ("truncation", TRUNCATION), ("added_tokens", [ADDED])),
]


@pytest.mark.parametrize(("name", "value"), VOCABULARIES, ids=str)
def test_a_vocabulary_cuts_and_numbers_words_as_ours_do(copy, name, value):
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    if name == "vocab":
        content["model"]["vocab"] |= value
    else:
        (content if name in content else content["model"])[name] = value
    path.write_text(json.dumps(content))
    manifest.write(copy)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        checkpoint.load_checkpoint(copy)


@pytest.mark.parametrize("file", ["config.json", "spacing.json"])
def test_a_file_that_is_nested_without_end_is_named(copy, file):
    (copy / file).write_text("[" * 100_000)
    manifest.write(copy)
    with pytest.raises(CheckpointError, match=rf"{file} .*nested too deeply"):
        checkpoint.load_checkpoint(copy)
