"""A checkpoint directory loads completely or not at all."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

import lm_latent_eval
from lm_latent_eval import manifest
from lm_latent_eval.cli import main
from lm_latent_eval.contrastive.noise import read_vocabulary
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.latent import NO_LATENT
from lm_latent_eval.manifest import ManifestError
from lm_latent_eval.models import checkpoint, known_types, model_class
from lm_latent_eval.models.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_tokenizer,
    rewrite_manifest,
    save,
)
from lm_latent_eval.models.kglm.graph import FILE_NAME as GRAPH
from lm_latent_eval.models.kglm.graph import GraphError, KnowledgeGraph
from lm_latent_eval.models.kglm.graph_file import CHECKED
from lm_latent_eval.models.pretrained import local as checkpoint_local
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.text.words import FILE_NAME as TOKENIZER
from lm_latent_eval.text.words import WordTokenizer
from tests import large_graph, tiny_checkpoint, tiny_models
from tests.kglm_space import every_walk

MODELS = {
    "kglm": lambda seed=0: tiny_models.kglm(tiny_models.full_graph(), seed=seed),
    "lstm": tiny_models.lstm,
}
FILES = {
    "kglm": {"config.json", "manifest.json", "model.safetensors", TOKENIZER, GRAPH},
    "lstm": {"config.json", "manifest.json", "model.safetensors", TOKENIZER},
}


def write(name: str, directory: Path, seed: int = 0):
    model = MODELS[name](seed)
    save(model, tiny_models.tokenizer(), directory, model.state_dict())
    return model


def log_p(model) -> torch.Tensor:
    """log p(x, z) of some texts, under every latent."""
    encoded = model.encode(tiny_models.batch([[4, 1], [4, 4]]))
    if isinstance(model, LSTMLanguageModel):
        return model.log_joint(encoded, NO_LATENT)
    walks = every_walk(model.knowledge, 2, model.config.cutoff, 1)
    return model.log_joint(encoded, type(walks)(*(z.expand(2, -1, -1) for z in walks)))


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    """The name and the directory of a checkpoint."""
    write(request.param, tmp_path / "model")
    return request.param, tmp_path / "model"


def edit_config(directory: Path, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(weights)
    save_file(weights, path)


# -- there and back -----------------------------------------------------------------


def test_a_saved_model_is_the_same(saved):
    name, directory = saved
    assert {path.name for path in directory.iterdir()} == FILES[name]
    loaded = load_checkpoint(directory, expected=name)
    assert loaded.name == name
    assert isinstance(loaded.model, model_class(name))
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert torch.equal(log_p(loaded.model), log_p(MODELS[name]()))
    assert loaded.tokenizer("the Ada Bo") == tiny_models.tokenizer()("the Ada Bo")
    assert loaded.model.config.num_unknown_types == 7


def test_what_version_0_2_tuned_is_refused(saved):
    name, directory = saved
    (directory / "tuning.json").write_text('{"format": "lm-latent-eval-tuning-1"}')
    manifest.write(directory)
    with pytest.raises(
        CheckpointError, match=r"tuning\.json .* went with version 0\.3"
    ):
        load_checkpoint(directory, expected=name)
    with pytest.raises(
        ValueError, match=r"remove the file .* `lm-latent-eval manifest"
    ):
        model_class(name).from_pretrained(directory)


def test_a_type_to_compute_in(saved):
    name, directory = saved
    single = load_checkpoint(directory, dtype=torch.float32).model
    assert {p.dtype for p in single.parameters()} == {torch.float32}
    ours, wanted = log_p(single), log_p(MODELS[name]())
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
    assert not torch.equal(ours, wanted)


def the_library_way(name: str, directory: Path):
    """Read a model and freeze it: torch rounds an LSTM that can be trained otherwise.

    It does so where no gradient is asked for as well.
    """
    model = model_class(name).from_pretrained(directory, dtype=torch.float64)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("name", MODELS)
def test_the_library_way_with_a_vocabulary_is_a_checkpoint(tmp_path, name):
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    tiny_models.tokenizer().save(tmp_path)
    written = rewrite_manifest(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.digest == written.digest
    assert torch.equal(log_p(loaded.model), log_p(model))


def test_the_digest_is_of_what_scores_depend_on(saved):
    name, directory = saved
    first = load_checkpoint(directory).digest
    assert len(first) == 16
    assert load_checkpoint(directory).digest == first

    (directory / "notes.txt").write_text("no score depends on this")
    assert load_checkpoint(directory).digest == first

    def nudge(weights):
        next(iter(weights.values())).view(-1)[0] += 1e-12

    edit_weights(directory, nudge)
    second = rewrite_manifest(directory).digest
    edit_config(directory, num_unknown_types=8)
    third = rewrite_manifest(directory).digest
    assert load_checkpoint(directory).digest == third
    assert len({first, second, third}) == 3
    write(name, directory)
    assert load_checkpoint(directory).digest == first


# -- whose memory weights are in -----------------------------------------------------


def lengthen_header(path: Path, spaces: int) -> None:
    """Move all that a file of tensors holds to other addresses."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    size = (end - 8 + spaces).to_bytes(8, "little")
    path.write_bytes(size + content[8:end] + b" " * spaces + content[end:])


@pytest.fixture(params=MODELS)
def published(request, tmp_path):
    """A model's name and the directory that it was saved to in the library's way."""
    tiny_models.tokenizer().save(tmp_path)
    MODELS[request.param]().save_pretrained(tmp_path)
    return request.param, tmp_path


@pytest.mark.parametrize("spaces", [1, 8, 13, 56])
def test_where_a_file_has_its_weights_moves_no_number(published, spaces):
    """One machine, as many threads, the same questions: equal to the last bit."""
    name, directory = published
    lengthen_header(directory / "model.safetensors", spaces)
    manifest.write(directory)
    for again in (load_checkpoint(directory).model, the_library_way(name, directory)):
        assert torch.equal(log_p(again), log_p(MODELS[name]()))


def test_a_file_may_change_once_it_is_read(published):
    name, directory = published
    path = directory / "model.safetensors"
    read = (load_checkpoint(directory).model, the_library_way(name, directory))
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert all(torch.equal(log_p(again), log_p(MODELS[name]())) for again in read)


@pytest.mark.parametrize("name", MODELS)
def test_a_repository_of_the_hub_is_a_directory(tmp_path, monkeypatch, name):
    """As the hub's library keeps it: links to files that are named by their hashes."""
    cache, commit = tmp_path / "hub", "0" * 40
    repository = cache / "models--who--model"
    snapshot = repository / "snapshots" / commit
    blobs = repository / "blobs"
    for folder in (repository / "refs", snapshot, blobs):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    model = write(name, tmp_path / "written")
    for number, path in enumerate((tmp_path / "written").iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(blobs / str(number))
    (snapshot / "README.md").write_text("a model card")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    hub = {"cache_dir": str(cache), "local_files_only": True}

    def read():
        return model_class(name).from_pretrained("who/model", **hub).eval()

    torch.testing.assert_close(log_p(read()), log_p(model), rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(
        checkpoint,
        "local",
        lambda path, **hub: checkpoint_local(path, cache_dir=cache, **hub),
    )
    assert torch.equal(log_p(load_checkpoint("who/model").model), log_p(model))
    pinned = load_checkpoint("who/model", revision=commit)
    assert pinned.directory == snapshot
    with pytest.raises(CheckpointError, match="not a repository that the hub serves"):
        load_checkpoint("who/model", revision="1" * 40)

    (snapshot / TOKENIZER).resolve().write_text("{}")
    with pytest.raises(ManifestError, match=r"tokenizer\.json has 2 bytes, but"):
        read()
    refused_as_it_is("who/model", r"tokenizer\.json has 2 bytes, but")


def test_saving_without_spelling_leaves_none_of_another(tmp_path):
    tiny_checkpoint.write(
        tmp_path, tiny_checkpoint.lstm(), tiny_checkpoint.orthography()
    )
    assert load_checkpoint(tmp_path).orthography is not None, "premise"
    tiny_checkpoint.write(tmp_path, tiny_checkpoint.lstm())
    assert load_checkpoint(tmp_path).orthography is None


# -- what is refused ----------------------------------------------------------------


def refused(directory, message: str, **options) -> None:
    """See that loading refuses what a directory holds, whatever its manifest."""
    if Path(directory).is_dir():
        manifest.write(Path(directory))
    refused_as_it_is(directory, message, **options)


def refused_as_it_is(directory, message: str, **options) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(directory, **options)


def test_no_such_directory(tmp_path):
    refused(
        tmp_path / "nowhere",
        r"nowhere: no such directory.*`lm-latent-eval train` wrote",
    )


@pytest.mark.parametrize("name", ["no_such_model", "who/knows", "a/b/c", "x y"])
def test_no_such_repository(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(name, "no such directory")


def wrote(name: str, content: str | bytes):
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def tensors(change):
    """Change the weights, given their names in alphabetical order."""
    return lambda folder: edit_weights(folder, lambda w: change(w, sorted(w)))


def spoiled(bad: float):
    def change(weights, names):
        weights[names[3]].view(-1)[-1] = bad

    return tensors(change), r"tensor '\S+' holds NaN or infinity: .* diverged"


NOT_JSON = r"config\.json is not JSON .* written to the end"
OTHER = r"config\.json describes a model of type .* kglm, latent_eval_lda"
NO_MODEL = r"config\.json describes no model"
DAMAGED = r"model\.safetensors is damaged .* copy or train it again"
DAMAGES = {
    "no configuration": (wrote("config.json", ""), NOT_JSON),
    "half a configuration": (wrote("config.json", '{"model_type": "kgl'), NOT_JSON),
    "a list": (wrote("config.json", "[]"), OTHER),
    "no type": (wrote("config.json", "{}"), OTHER),
    "another type": (wrote("config.json", '{"model_type": "bert"}'), OTHER),
    "words for a size": (lambda f: edit_config(f, vocab_size="six"), NO_MODEL),
    "a negative size": (lambda f: edit_config(f, vocab_size=-1), NO_MODEL),
    "no tensors": (wrote("model.safetensors", b"no tensors"), DAMAGED),
    "nothing": (wrote("model.safetensors", b""), DAMAGED),
    "half of the weights": (
        lambda f: tiny_models.damage(f / "model.safetensors"),
        DAMAGED,
    ),
    "nan": spoiled(float("nan")),
    "infinity": spoiled(float("inf")),
    "minus infinity": spoiled(-float("inf")),
    "another shape": (
        tensors(lambda w, n: w.update({n[0]: w[n[0]][:-1].clone()})),
        r"tensor '\S+' is \(.*\) but config\.json asks for \(",
    ),
    "a tensor less": (tensors(lambda w, n: w.pop(n[1])), r"lacks the tensor '\S+'"),
    "a tensor more": (
        tensors(lambda w, n: w.update({"new.bias": torch.zeros(3).double()})),
        r"has a tensor 'new\.bias' that no such model has",
    ),
    "half a vocabulary": (
        lambda f: tiny_models.damage(f / TOKENIZER),
        r"tokenizer\.json is not a readable tokenizer",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_damaged_is_refused(saved, kind):
    damage, message = DAMAGES[kind]
    damage(saved[1])
    refused(saved[1], message)


@pytest.mark.parametrize(
    ("config", "reader"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "latent_tokens"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "latent_mdm"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "latent_tokens"),
    ],
)
def test_a_network_of_transformers_is_told_who_reads_it(tmp_path, config, reader):
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tmp_path, rf"describes a model of type .* of transformers.*{reader}")


def test_another_model(saved):
    name, directory = saved
    other = ({"kglm", "lstm"} - {name}).pop()
    refused(
        directory,
        rf"holds a {name} model, not a {other} one: use --model latent_{name}",
        expected=other,
    )


def test_auto_classes_know_it(saved):
    name, directory = saved
    model = AutoModel.from_pretrained(directory, dtype=torch.float64).eval()
    assert type(model) is model_class(name)
    torch.testing.assert_close(log_p(model), log_p(MODELS[name]()))


def test_auto_classes_know_every_model_that_has_a_name():
    import_module("lm_latent_eval.models.auto")
    for model_type in known_types():
        assert AutoConfig.for_model(model_type).model_type == model_type


def test_only_repositories_have_revisions(saved):
    with pytest.raises(CheckpointError, match="revision=v1: "):
        load_checkpoint(saved[1], revision="v1")


def test_weights_are_as_readable_as_any_file(saved, tmp_path):
    """Some versions of safetensors write for their user alone."""
    name, directory = saved
    MODELS[name]().save_pretrained(tmp_path / "again")
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    for folder in (directory, tmp_path / "again"):
        modes = {path.name: path.stat().st_mode for path in folder.iterdir()}
        assert set(modes.values()) == {usual}, modes


def test_an_interrupted_save_leaves_no_weights(saved, monkeypatch):
    """Neither the old weights beside new files nor half of the new ones."""
    name, directory = saved

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(name, directory, seed=1)
    refused_as_it_is(directory, r"manifest\.json is missing, .* interrupted")
    refused(directory, r"model\.safetensors is missing: .* interrupted")


def test_a_damaged_graph(tmp_path):
    write("kglm", tmp_path)
    tiny_models.damage(tmp_path / GRAPH)
    refused(tmp_path, r"graph\.safetensors is not a readable graph .* Build it again")


@pytest.mark.parametrize(
    "other",
    [
        tiny_models.plain_graph,  # other relations
        lambda: KnowledgeGraph.build(  # one entity more
            [("Ada", "knows", "Bo")],
            {"Cy": [[4]]},
            max_aliases=2,
            max_alias_words=3,
        ),
        lambda: KnowledgeGraph.build(  # a word that the model lacks
            [("Ada", "knows", "Bo")],
            {"Ada": [[6]]},
            max_aliases=2,
            max_alias_words=3,
        ),
    ],
)
def test_a_graph_of_another_checkpoint(tmp_path, other):
    write("kglm", tmp_path)
    other().save(tmp_path)
    refused(tmp_path, r"graph\.safetensors has .* it belongs to another checkpoint")


# -- the manifest ---------------------------------------------------------------------


def test_every_reader_holds_a_directory_against_its_manifest(saved):
    edit_config(saved[1], num_unknown_types=8)
    message = r"config\.json has \d+ bytes, but \d+ by .*`lm-latent-eval manifest "
    for read in (load_checkpoint, load_tokenizer, lm_latent_eval.load, read_vocabulary):
        with pytest.raises(ValueError, match=message):
            read(saved[1])
    with pytest.raises(ManifestError, match=message):
        model_class(saved[0]).from_pretrained(saved[1])


def test_a_change_by_hand_is_accepted_by_its_manifest(saved, capsys):
    name, directory = saved
    edit_config(directory, num_unknown_types=8)
    (directory / "text.txt").write_text("the Ada")
    data = ["--data", str(directory / "text.txt")]
    assert main(["estimate", str(directory), *data]) == 2
    remedy = f"accept it as it is by `lm-latent-eval manifest {directory}`"
    assert remedy in capsys.readouterr().err
    assert main(["manifest", str(directory)]) == 0
    loaded = load_checkpoint(directory)
    assert capsys.readouterr().out == (
        f"wrote the manifest of {directory}: a {name} model, checkpoint "
        f"{loaded.digest}\n"
    )
    assert loaded.model.config.num_unknown_types == 8


def test_spelling_that_is_trained_later_belongs_to_it(tmp_path, capsys):
    folder = tiny_checkpoint.write(tmp_path / "model", tiny_checkpoint.lstm())
    (tmp_path / "text.txt").write_text("the fox saw Ada .\nzebras saw it\n")
    data = ["--data", str(tmp_path / "text.txt")]
    assert main(["train", "spelling", str(folder), *data]) == 0
    assert f"wrote spelling and spacing into {folder}" in capsys.readouterr().out
    assert load_checkpoint(folder).orthography is not None


def test_what_does_not_load_gets_no_manifest(saved, capsys):
    (saved[1] / TOKENIZER).write_text("{}")
    before = (saved[1] / manifest.FILE_NAME).read_bytes()
    assert main(["manifest", str(saved[1])]) == 2
    shown = capsys.readouterr().err
    assert "tokenizer.json is not a readable tokenizer" in shown
    assert shown.count("\n") == 1
    assert (saved[1] / manifest.FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("edge_relation", -1, "dangling id: an edge's relation"),
        ("aliases", -1, "aliases are not word ids"),
        ("has_edges", False, "the lookup columns are not of this graph"),
        ("alias_order", 1, "the lookup columns are not of this graph"),
        ("node_names.text", 0xFF, "node_names are not UTF-8"),
    ],
)
def test_a_graph_gets_a_manifest_if_all_of_it_holds_together(
    tmp_path, column, bad, message
):
    """Loading looks at some windows of it; this is between them."""
    model = large_graph.kglm(large_graph.graph(20_000, 40_000))
    words = WordTokenizer.train(
        [" ".join(f"word{n}" for n in range(4, large_graph.NUM_WORDS))], min_count=1
    )
    save(model, words, tmp_path, model.state_dict())
    path = tmp_path / GRAPH
    columns = {name: tensor.clone() for name, tensor in load_file(path).items()}
    columns[column].view(-1)[12_345] = bad
    save_file(columns, path, {"format": CHECKED})
    manifest.write(tmp_path)
    loaded = load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        rewrite_manifest(tmp_path)
    with pytest.raises(GraphError, match=message):
        loaded.model.knowledge.save(tmp_path / "again")


def test_the_demonstration_has_its_manifest():
    """The digest that results with it name, whatever else changes."""
    assert load_checkpoint(CHECKPOINT).digest == "984ed574e214403e"
