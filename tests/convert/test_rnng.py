"""Original checkpoints, rebuilt in their format, become checkpoints of ours."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lm_latent_eval.cli import main
from lm_latent_eval.convert.originals import OriginalError
from lm_latent_eval.convert.rnng import convert
from lm_latent_eval.models import MODELS
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.text.words import SPECIAL_WORDS
from tests.convert.hostile import Runs
from tests.limits import at_most
from tests.models.rnng import reference

pytestmark = pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
WORDS = dict(enumerate([*SPECIAL_WORDS, *(f"w{n}" for n in range(284))]))

CLASSES = {
    "models": ("RNNG", "SeqLSTM", "TreeLSTM"),
    "TreeCRF": ("ConstituencyTreeCRF",),
}

FUNCTION = "_get_thnn_function_backend"
BACKEND = f"""
class Backend:
    def __reduce__(self):
        return {FUNCTION}, ()
def {FUNCTION}():
    return Backend()
"""


def original(program, weights):
    """A model object like the original's, with weights and leftovers of a parse."""
    size, q = weights["emb.weight"].shape[1], 12
    rnng = program["RNNG"]()
    rnng.emb = nn.Embedding(*weights["emb.weight"].shape)
    rnng.dropout = nn.Dropout(0.5)
    rnng.stack_rnn = program["SeqLSTM"]()
    rnng.stack_rnn.linears = nn.ModuleList(
        nn.Linear(2 * size, 4 * size) for _ in range(2)
    )
    rnng.stack_rnn.dropout_layer = nn.Dropout(0.5)
    rnng.tree_rnn = program["TreeLSTM"]()
    rnng.tree_rnn.linear = nn.Linear(2 * size, 5 * size)
    rnng.vocab_mlp = nn.Sequential(nn.Dropout(0.5), nn.Linear(size, len(WORDS)))
    rnng.q_binary = nn.Sequential(
        nn.Linear(2 * q, 2 * q),
        nn.ReLU(),
        nn.LayerNorm(2 * q),
        nn.Dropout(0.5),
        nn.Linear(2 * q, 1),
    )
    rnng.action_mlp_p = nn.Sequential(nn.Dropout(0.5), nn.Linear(size, 1))
    rnng.q_leaf_rnn = nn.LSTM(size, q, bidirectional=True, batch_first=True)
    rnng.q_pos_emb = nn.Embedding(250, size)
    rnng.q_crf = program["ConstituencyTreeCRF"]()
    rnng.vocab_mlp[-1].weight = rnng.emb.weight
    # Parts of larger tensors, as a GPU leaves them.
    rnng.action_mlp_p[-1].weight = nn.Parameter(torch.zeros(3, size)[1:2])
    rnng.q_binary[0].weight = nn.Parameter(torch.zeros(2 * q, 2 * q).T)
    rnng.load_state_dict(weights)
    rnng.w_dim, rnng.scores = size, torch.ones(2, 3, 3)
    rnng.q_crf.alpha = [[torch.zeros(2)]]
    rnng.q_crf.spans = [[(np.int64(0), np.int64(2))]]
    # Attributes of modules in PyTorch 1.0.
    rnng._backend = program[FUNCTION]()
    rnng.q_binary[2].normalized_shape = torch.Size([2 * q])
    return rnng


@pytest.fixture
def checkpoint(monkeypatch):
    """What the original saves; of its modules there are names, and none of its code."""
    program = {}
    for name, classes in CLASSES.items():
        module = ModuleType(name)
        for each in classes:
            program[each] = type(each, (nn.Module,), {"__module__": name})
            setattr(module, each, program[each])
        monkeypatch.setitem(sys.modules, name, module)
    old = ModuleType("torch.nn.backends.thnn")
    monkeypatch.setitem(sys.modules, old.__name__, old)
    exec(BACKEND, vars(old))
    program[FUNCTION] = vars(old)[FUNCTION]
    weights = load_file(reference.FOLDER / "B.safetensors")
    return {
        "args": {"w_dim": 24, "save_path": "urnng.pt"},
        "model": original(program, weights),
        "word2idx": {w: i for i, w in WORDS.items()},
        "idx2word": WORDS,
    }


@pytest.mark.parametrize("ends", reference.ENDS)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_keeps_every_number(
    checkpoint, tmp_path, monkeypatch, zipped, ends
):
    path = tmp_path / "urnng.pt"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    for module in CLASSES:
        del sys.modules[module]
    monkeypatch.setitem(MODELS, "rnng", "lm_latent_eval.models.rnng.modeling:RNNG")
    arguments = ["--model", str(path), "--output", str(tmp_path / "out")]
    more = [] if ends == "eos" else ["--no-sentence-ends"]
    assert main(["convert", "rnng", *arguments, *more]) == 0

    ours = load_checkpoint(tmp_path / "out", expected="rnng", dtype=torch.float64)
    assert ours.tokenizer("w3 new w0").ids == [7, 1, 4]
    wanted = reference.model("B", ends)
    assert ours.model.config.sentence_ends == wanted.config.sentence_ends
    assert not ours.model.config.only_possible
    for name, weight in wanted.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weight), name
    s = reference.sentences("B")[8]
    trees = reference.trees([[t["actions"] for t in s["trees"]]], ends)
    batch = reference.batch([s["ids"]], ends)
    assert torch.equal(
        ours.model.log_joint(ours.model.encode(batch), trees),
        wanted.log_joint(wanted.encode(batch), trees),
    )


def test_nothing_in_a_file_is_run(checkpoint, tmp_path):
    path, sprung = tmp_path / "bomb.pt", tmp_path / "sprung"
    for zipped in (True, False):
        bomb = {**checkpoint, "args": Runs(sprung)}
        torch.save(bomb, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(OriginalError, match=r"bomb\.pt is refused.*system"):
            convert(path, tmp_path / "out")
    assert not sprung.exists()
    assert not (tmp_path / "out").exists()


def instead(**entries):
    """What replaces entries of a checkpoint."""
    return lambda saved: saved | entries


def weights(change, *names: str):
    """What changes weights of its model."""

    def changed(saved):
        for name in names:
            outer, _, last = name.rpartition(".")
            parameters = saved["model"].get_submodule(outer)._parameters
            parameters[last] = change(parameters[last].detach())
        return saved

    return changed


FEW = {i: w for i, w in WORDS.items() if i < 9}
WRONG = {
    "no dictionary with 'model'": lambda saved: {"state": torch.ones(2)},
    "are not 0, 1, 2": instead(idx2word={1: "a"}),
    "its first words are": instead(idx2word={0: "a"}),
    "twice": instead(idx2word={**WORDS, 50: "w3"}),
    "'word2idx' and 'idx2word' contradict": instead(idx2word=FEW),
    "has 9 words but embeddings of 288": instead(idx2word=FEW, word2idx=None),
    "not all of its words are strings": instead(idx2word={**WORDS, 50: 7}),
    "holds no original RNNG": lambda saved: saved | {"model": saved["model"].q_binary},
    "not a tied original": weights(torch.zeros_like, "vocab_mlp.1.weight"),
    "emb.weight is no matrix": weights(lambda w: None, "emb.weight"),
    "weight_hh_l0 is no matrix": weights(lambda w: w[0, 0], "q_leaf_rnn.weight_hh_l0"),
    r"score.0.bias, expected \(24,\)": weights(lambda w: None, "q_binary.0.bias"),
    "'q_binary.0.bias' holds NaN": weights(lambda w: w / 0, "q_binary.0.bias"),
    # 2 x 2,000,000 numbers would ask for matrices of 32 TB.
    ", expected": weights(
        lambda w: torch.zeros(len(w), 9000), "emb.weight", "vocab_mlp.1.weight"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_other_files_are_refused(checkpoint, tmp_path, message):
    """In one line, before any memory is taken for a model of their sizes."""
    path = tmp_path / "file.pt"
    torch.save(WRONG[message](checkpoint), path)
    limit = at_most(8 * path.stat().st_size + (1 << 28))
    with limit, pytest.raises(OriginalError, match=message) as caught:
        convert(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()
