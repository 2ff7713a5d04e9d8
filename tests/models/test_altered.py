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

from lm_latent_eval import manifest
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.checkpoint import CheckpointError
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.modeling import EntityNLM
from lm_latent_eval.models.rnn.modeling import RNNConfig, RNNLanguageModel
from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.srnn.modeling import SentenceRNN, SRNNConfig
from lm_latent_eval.scoring.model import LatentModel
from tests import tiny_checkpoint
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
    "lstm": tiny_checkpoint.lstm,
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
    model = LatentModel(checkpoint.load(directory))
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


@pytest.fixture(scope="module", params=MODELS)
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
            checkpoint.load(copy)
        path.write_bytes(content)
    for name in ("spelling.safetensors", "spacing.json"):
        (copy / name).unlink()
    with pytest.raises(CheckpointError, match=r"spacing\.json is missing, though man"):
        checkpoint.load(copy)
    manifest.write(copy)
    before = number(copy)
    tiny_checkpoint.orthography().save(copy)
    with pytest.raises(
        CheckpointError,
        match=rf"spacing\.json .* does not list it; .*`lm-latent-eval seal {copy}`",
    ):
        checkpoint.load(copy)
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
            if found is not None: print("XX", found==original, name, value, other, found, original)
            tried, refused = tried + 1, refused + (found is None)
    assert refused > 0.85 * tried
