"""A checkpoint directory loads completely or not at all.

What is wrong in one is refused in one line. What the manifest sees is tested with it,
and damage at random in ``tests/fuzz``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModel

import lm_latent_eval
from lm_latent_eval import manifest
from lm_latent_eval.cli import main
from lm_latent_eval.contrastive.noise import read_vocabulary
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.models import checkpoint, known_types, model_class
from lm_latent_eval.models.checkpoint import (
    CheckpointError,
    load_checkpoint,
    rewrite_manifest,
    save,
)
from lm_latent_eval.models.kglm.graph import FILE_NAME as GRAPH
from lm_latent_eval.models.kglm.graph import GraphError, KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.lrlm.topics import Fact, Topics
from lm_latent_eval.models.pretrained import local as checkpoint_local
from lm_latent_eval.text.words import FILE_NAME as TOKENIZER
from lm_latent_eval.text.words import WordTokenizer
from tests import large_graph, tiny_checkpoint, tiny_models
from tests.models.lrlm.tiny import worded

MODELS = {"kglm": tiny_checkpoint.kglm, "lstm": tiny_checkpoint.lstm}
FILES = {"config.json", "manifest.json", "model.safetensors", TOKENIZER}


def write(name: str, directory: Path, seed: int = 0):
    model = MODELS[name](seed)
    tiny_checkpoint.write(directory, model)
    return model


def same(model, wanted) -> bool:
    """Whether a model is of that class and has those weights, bit for bit."""
    found, weights = model.state_dict(), wanted.state_dict()
    assert type(model) is type(wanted) and found.keys() == weights.keys()
    return all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    """The name and the directory of a checkpoint."""
    write(request.param, tmp_path / "model")
    return request.param, tmp_path / "model"


@pytest.fixture
def spelled(spelled_directory, tmp_path) -> Path:
    """A copy of a KGLM with spelling and spacing."""
    return Path(shutil.copytree(spelled_directory, tmp_path / "spelled"))


def edit_config(directory: Path, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    with safe_open(path, "pt") as opened:
        about = opened.metadata()
    change(weights)
    save_file(weights, path, about)


# -- there and back -----------------------------------------------------------------


def test_a_saved_model_is_the_same(saved):
    name, directory = saved
    wanted, words = MODELS[name](0), tiny_checkpoint.tokenizer()
    files = FILES | {GRAPH} if name == "kglm" else FILES
    assert {path.name for path in directory.iterdir()} == files
    loaded = load_checkpoint(directory, expected=name)
    assert loaded.name == name and isinstance(loaded.model, model_class(name))
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert same(loaded.model, wanted)
    assert loaded.tokenizer("the Ada Bo") == words("the Ada Bo")
    assert loaded.model.config.num_unknown_types == tiny_checkpoint.UNKNOWN_TYPES
    assert same(AutoModel.from_pretrained(directory, dtype=torch.float64), wanted)
    single = load_checkpoint(directory, dtype=torch.float32).model
    assert {p.dtype for p in single.parameters()} == {torch.float32}
    assert same(single, wanted.float())


@pytest.mark.parametrize("name", MODELS)
def test_the_library_way_with_a_vocabulary_is_a_checkpoint(tmp_path, name):
    """And weights are as readable as any file, whatever safetensors thinks."""
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    tiny_checkpoint.tokenizer().save(tmp_path)
    written = rewrite_manifest(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.digest == written.digest
    assert same(loaded.model, model)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_a_model_is_not_sent_without_its_vocabulary(saved):
    _, directory = saved
    model = load_checkpoint(directory).model
    with pytest.raises(ValueError, match="hf upload REPOSITORY DIR"):
        model.save_pretrained(directory, push_to_hub=True)


def test_auto_classes_know_every_model_that_has_a_name():
    import_module("lm_latent_eval.models.auto")
    for model_type in known_types():
        assert AutoConfig.for_model(model_type).model_type == model_type


def test_the_demonstration_has_its_manifest():
    """The digest that results with it name, whatever else changes."""
    assert load_checkpoint(CHECKPOINT).digest == "984ed574e214403e"


def test_a_file_may_change_once_it_is_read(saved):
    name, directory = saved
    path = directory / "model.safetensors"
    library = model_class(name).from_pretrained(directory, dtype=torch.float64)
    read = load_checkpoint(directory).model, library
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert all(same(model, MODELS[name](0)) for model in read)


def test_a_repository_of_the_hub_is_a_directory(tmp_path, monkeypatch):
    """As the hub's library keeps it: links to files that are named by their hashes."""
    cache, commit = tmp_path / "hub", "0" * 40
    repository = cache / "models--who--model"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    for folder in (repository / "refs", snapshot, blobs):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    model = write("kglm", tmp_path / "written")
    for number, path in enumerate((tmp_path / "written").iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(blobs / str(number))
    (snapshot / "README.md").write_text("a model card")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    hub = {"cache_dir": str(cache), "local_files_only": True}
    assert same(KGLM.from_pretrained("who/model", **hub), model)
    cached = partial(checkpoint_local, cache_dir=cache)
    monkeypatch.setattr(checkpoint, "local", cached)
    assert same(load_checkpoint("who/model").model, model)
    pinned = load_checkpoint("who/model", revision=commit)
    assert pinned.directory == snapshot
    with pytest.raises(CheckpointError, match="not a repository that the hub serves"):
        load_checkpoint("who/model", revision="1" * 40)


def test_spelling_belongs_to_the_model_it_was_trained_for(tmp_path, capsys):
    folder = tiny_checkpoint.write(tmp_path / "model", tiny_checkpoint.lstm())
    (tmp_path / "text.txt").write_text("the fox saw Ada .\nzebras saw it\n")
    data = ["--data", str(tmp_path / "text.txt")]
    assert main(["train", "spelling", str(folder), *data]) == 0
    assert f"wrote spelling and spacing into {folder}" in capsys.readouterr().out
    assert load_checkpoint(folder).orthography is not None
    tiny_checkpoint.write(folder, tiny_checkpoint.lstm())
    assert load_checkpoint(folder).orthography is None, "saved anew without it"


def test_an_interrupted_save_leaves_no_weights(saved, monkeypatch):
    """Neither the old weights beside new files nor half of the new ones."""
    name, directory = saved

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(name, directory, seed=1)
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing, .* interr"):
        load_checkpoint(directory)
    manifest.write(directory)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing: .* int"):
        load_checkpoint(directory)


# -- what is refused, whatever the manifest says --------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"expected": "lstm"}, "holds a kglm model, not a lstm one: use --model laten"),
        ({"revision": "v1"}, "revision=v1: "),
        ({"dtype": torch.float8_e5m2}, "float8_e5m2: expected one of float16"),
    ],
)
def test_what_cannot_be_asked_for(kglm_directory, given, message):
    with pytest.raises(ValueError, match=message):
        load_checkpoint(kglm_directory, **given)


def test_what_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"config\.json is missing: .* no"):
        load_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("no_such_model", "who/knows", "a/b/c", "x y"):
        with pytest.raises(CheckpointError, match=r"no such directory.* train` wrote"):
            load_checkpoint(name)


def wrote(name: str, content: str | bytes):
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str):
    return lambda folder: tiny_models.damage(folder / name)


def lost(name: str):
    return lambda folder: (folder / name).unlink()


def config(**changes):
    return lambda folder: edit_config(folder, **changes)


def tensors(change, file="model"):
    """Change the weights, given their names in alphabetical order."""
    return lambda folder: edit_weights(
        folder / f"{file}.safetensors", lambda w: change(w, sorted(w))
    )


def as_type(dtype: torch.dtype, file: str):
    return tensors(lambda w, n: w.update({n[0]: w[n[0]].to(dtype)}), file)


def spaced(row):
    """Add a row to the counts of white space; None: the first once more."""

    def change(folder):
        path = folder / "spacing.json"
        rows = json.loads(path.read_text())
        path.write_text(json.dumps([*rows, rows[0] if row is None else row]))

    return change


def tokenizer(change):
    def changed(folder):
        words = Tokenizer.from_file(str(folder / TOKENIZER))
        change(words)
        words.save(str(folder / TOKENIZER))

    return changed


def word_ids(**ids):

    def change(folder):
        path = folder / TOKENIZER
        content = json.loads(path.read_text())
        content["model"]["vocab"] |= ids
        path.write_text(json.dumps(content))

    return change


def named(aliases) -> KnowledgeGraph:
    """A graph of the tiny model's relations, but other names."""
    return KnowledgeGraph.build(
        [("Ada", "knows", "Bo")], aliases, max_aliases=2, max_alias_words=2
    )


def bert(kind: str) -> dict[str, Any]:
    return {"model_type": "bert", "architectures": [f"Bert{kind}"]}


OTHER = r"config\.json describes a model of type .* kglm, latent_eval_lda"
DAMAGED = r"model\.safetensors is damaged .* copy or train it again"
OTHER_GRAPH = r"graph\.safetensors has .* it belongs to another checkpoint"
CONFIGURATIONS = [
    ({"model_type": "bert"}, OTHER),
    (bert("ForMaskedLM"), "of type .* of transformers.*latent_mdm"),
    (bert("LMHeadModel"), "of type .* of transformers.*latent_tokens"),
    ({"cutoff": 1001}, "describes no model .cutoff is 1001: .* 1 <= n <= 1000"),
    ({"num_words": 7}, "num_words is 7: .* 8 <= n"),
    ({"num_words": 11}, "num_words is 11, but 10 words are in the vocabulary"),
    ({"hidden_size": 10**6}, r"config\.json asks for \(.*00000"),
    ({"copy_scores": "mirrored"}, "expected one of transposed, reshaped"),
    ({"dropout": 1.0}, r"dropout is 1\.0"),
    ({"dtype": "int64"}, "dtype"),
    ({"cutof": 5}, "cutof"),
    ({"auto_map": {}}, "auto_map"),
]
DAMAGES = [
    *((config(**changes), message) for changes, message in CONFIGURATIONS),
    (wrote("config.json", ""), r"config\.json is not JSON .* written to the end"),
    (wrote("config.json", "[" * 100_000), r"config\.json .*nested too deeply"),
    (wrote("config.json", "[]"), OTHER),
    (wrote("model.safetensors", b"no tensors"), DAMAGED),
    (cut("model.safetensors"), DAMAGED),
    (
        tensors(lambda w, n: w[n[3]].view(-1)[-1].fill_(-torch.inf)),
        r"tensor '\S+' holds NaN or infinity: .* diverged",
    ),
    (tensors(lambda w, n: w.pop(n[1])), r"has nothing as \S+, config"),
    (
        tensors(lambda w, n: w.update({"new.bias": torch.zeros(3).double()})),
        r"as new\.bias, config\.json asks for nothing",
    ),
    *(
        (as_type(dtype, file), rf"{file}\.safetensors.* is {dtype}[,;:]")
        for file in ("model", "spelling")
        for dtype in (torch.int8, torch.float32)
    ),
    (cut(GRAPH), r"graph\.safetensors is not a readable graph .* Build it again"),
    (tiny_models.plain_graph().save, OTHER_GRAPH),  # of other relations
    (named({"Cy": [[4]]}).save, OTHER_GRAPH),  # of one entity more
    (named({"Ada": [[10]]}).save, OTHER_GRAPH),  # of a word that the model lacks
    (
        tensors(lambda w, _: w["log_outside"].fill_(0.5), "spelling"),
        "not a readable spelling model",
    ),
    (tensors(lambda w, n: w[n[0]].fill_(torch.nan), "spelling"), "holds NaN"),
    (cut("spelling.safetensors"), r"spelling\.safetensors is not"),
    (lost("spacing.json"), r"spacing\.json .* train .* again"),
    (lost(TOKENIZER), r"tokenizer\.json is missing: .* vocabulary"),
    *(
        (spaced(row), r"spacing\.json is not a readable")
        for row in (None, {}, ["a", "a", " "], ["a", "a", " ", 0], [7, "a", " ", 1])
    ),
    (cut(TOKENIZER), "not a readable tokenizer"),
    *((word_ids(fox=n), r"tokenizer\.json") for n in (4, 99, -1, 5.5)),
    *(
        (tokenizer(change), r"tokenizer\.json")
        for change in (
            lambda words: setattr(words, "model", WordLevel({"a": 0}, "a")),
            lambda words: words.enable_padding(length=9),
            lambda words: words.enable_truncation(2),
            lambda words: words.add_tokens(["zebra"]),
        )
    ),
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_what_is_damaged_is_refused(spelled, number):
    damage, message = DAMAGES[number]
    damage(spelled)
    manifest.write(spelled)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(spelled)
    assert str(spelled) in str(caught.value) and "\n" not in str(caught.value)


def below_zero(column: str):
    return lambda path: edit_weights(path, lambda w: w[column][-1].fill_(-1))


OTHER_TOPICS = Topics.build({"Ada": [Fact(0, 0, (0,))]}, [[4]], pieces=[[1]])
TOPICS = {
    "belongs to another checkpoint": lambda path: OTHER_TOPICS.save(path.parent),
    "missing or damaged": tiny_models.damage,
    "a relation is not one of": below_zero("fact_relation"),
    "a piece of an alias is not one of 9": below_zero("alias_pieces"),
}


@pytest.mark.parametrize("message", TOPICS)
@pytest.mark.parametrize("name", ["lrlm", "nklm"])
def test_topics_that_are_not_the_model_s_are_refused(tmp_path, name, message):
    tiny_checkpoint.write(tmp_path, worded(name))
    TOPICS[message](tmp_path / "topics.safetensors")
    manifest.write(tmp_path)
    with pytest.raises(ValueError, match=rf"topics\.safetensors.*{message}"):
        load_checkpoint(tmp_path)


# -- the manifest ---------------------------------------------------------------------


def test_every_reader_holds_a_directory_against_its_manifest(saved):
    edit_config(saved[1], num_unknown_types=8)
    message = r"config\.json has \d+ bytes, but \d+ by .*`lm-latent-eval manifest "
    library = model_class(saved[0]).from_pretrained
    readers = load_checkpoint, lm_latent_eval.load, read_vocabulary
    for read in (*readers, library):
        with pytest.raises(ValueError, match=message):
            read(saved[1])


def test_a_change_by_hand_is_accepted_by_its_manifest(saved, capsys):
    name, directory = saved
    edit_config(directory, num_unknown_types=8)
    assert main(["manifest", str(directory)]) == 0
    loaded = load_checkpoint(directory)
    assert capsys.readouterr().out == (
        f"wrote the manifest of {directory}: a {name} model, checkpoint "
        f"{loaded.digest}\n"
    )
    assert loaded.model.config.num_unknown_types == 8


def test_what_does_not_load_gets_no_manifest(saved, refused):
    (saved[1] / TOKENIZER).write_text("{}")
    before = (saved[1] / manifest.FILE_NAME).read_bytes()
    said = refused("manifest", saved[1])
    assert "tokenizer.json is not a readable tokenizer" in said
    assert (saved[1] / manifest.FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("aliases", -1, "aliases are not word ids"),
        ("alias_order", 1, "the lookup columns are not of this graph"),
        ("node_names.text", 0xFF, "node_names are not UTF-8"),
    ],
)
def test_a_graph_gets_a_manifest_if_all_of_it_holds(tmp_path, column, bad, message):
    """Loading looks at sizes alone."""
    model = large_graph.kglm(large_graph.graph(20_000, 40_000))
    words = WordTokenizer.train(
        [" ".join(f"word{n}" for n in range(4, large_graph.NUM_WORDS))], min_count=1
    )
    save(model, words, tmp_path, model.state_dict())
    path = tmp_path / GRAPH
    edit_weights(path, lambda columns: columns[column].view(-1)[12_345].fill_(bad))
    manifest.write(tmp_path)
    loaded = load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        rewrite_manifest(tmp_path)
    with pytest.raises(GraphError, match=message):
        loaded.model.knowledge.save(tmp_path / "again")
