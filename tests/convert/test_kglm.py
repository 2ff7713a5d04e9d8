"""Converted archives are the originals, and score as they do."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.convert.archive import _lines
from lm_latent_eval.convert.kglm import convert, read_aliases, split_alias
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.text.words import END
from tests import kglm_reference as reference
from tests.allennlp_archive import files, write_tar
from tests.kglm_archives import (
    SPECIAL,
    golden_archive,
    knowledge,
    published,
    word,
    written,
)


def otherwise(config, weights, vocabulary):
    """An archive whose marks of texts come last, and with what ours do not need.

    Its lines end at the end of a file, names begin with a dot, and there are others.
    """
    size = len(vocabulary["tokens"])
    order = [0, 1, *range(4, size), 2, 3]
    of_words = ("_token_embedder.weight", "_fc_generate.weight", "_fc_generate.bias")
    weights |= {name: weights[name][order] for name in of_words if name in weights}
    vocabulary["tokens"] = [vocabulary["tokens"][i] for i in order]
    assert vocabulary["tokens"][-2:] == SPECIAL[2:], "premise"
    contents = {
        f"./{name}": content + b"\n" * name.startswith("vocabulary/")
        for name, content in files(config, weights, vocabulary).items()
    }
    return contents | {"./training_config.json": b"{", "./fta/x": b"", "./log/a": b""}


PARTS = ({}, {"proposal": True, "offset": True}, {"proposal": True})


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """Convert configuration A, B or C with both proposals, once."""
    folder = tmp_path_factory.mktemp("golden")

    @cache
    def converted(name: str) -> Checkpoint:
        archive, *proposals = (
            write_tar(
                folder / f"{name}{n}.tar.gz", otherwise(*golden_archive(name, **q))
            )
            for n, q in enumerate(PARTS)
        )
        convert(archive, folder / name, proposals=proposals, **knowledge(folder))
        return load_checkpoint(folder / name, expected="kglm")

    return converted


@pytest.mark.parametrize("name", "ABC")
def test_every_number_of_a_model_is_taken_over(golden, name):
    ours, wanted = golden(name), reference.model(name, as_reader=True)
    weights, expected = ours.model.state_dict(), wanted.state_dict()
    assert weights.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(weights[key], tensor), key
        assert weights[key].dtype == torch.float64
    for option, value in wanted.config.to_dict().items():
        if option not in ("architectures", "dtype", "num_words", "hidden_size"):
            assert getattr(ours.model.config, option) == value, option
    assert ours.model.config.num_words == ours.tokenizer.num_words

    graph, original = ours.model.knowledge, wanted.knowledge
    for column in ("edge_key", "edge_relation", "entity_of"):
        assert torch.equal(getattr(graph, column), getattr(original, column))
    assert list(graph.node_names) == list(original.node_names)
    assert list(graph.relation_names) == list(original.relation_names)
    names = [
        ["" if i == 0 else ours.tokenizer.word(i) for i in form]
        for form in graph.aliases.flatten(0, 1).tolist()
    ]
    assert names == [
        ["" if i == 0 else word(i) for i in form]
        for form in original.aliases.flatten(0, 1).tolist()
    ]


# -- words --------------------------------------------------------------------------


def test_a_line_ends_with_its_mark(golden):
    """Where each word stands in the string is known all the same."""
    first, last = word(5), word(6)
    text = f"{first}  {last} \n\n {last}\n{first} {first}"
    words = golden("A").tokenizer(text)
    assert words.ids == [5, 6, END, 6, END, 5, 5]
    pieces = [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)]
    assert [p.strip() for p in pieces] == [first, last, "", last, "", first, first]


def test_names_are_cut_into_words(tmp_path):
    for words in (
        "U.S. | Route | 12 | in | Washington",
        "St | Ceinwen|'s | Church|, | Cerrigceinwen",
        "Washington | (|state|)",
        "Benton | City | – | Kiona | Bridge",
        "R&B|, | do|n't|, | O'Brien|, | 10,000 | and | 1990–91",
    ):
        name = words.replace(" | ", " ").replace("|", "")
        assert split_alias(name) == [word.strip() for word in words.split("|")]
    one, both = ["a cable-stayed one", ["as", "it is"]], {"b", ("a", "c")}
    names = {"Q1": one, "Q2": both, "Q3": []}
    (tmp_path / "alias.pkl").write_bytes(pickle.dumps(names))
    assert read_aliases(tmp_path / "alias.pkl") == {
        "Q1": [["a", "cable", "-", "stayed", "one"], ["as", "it is"]],
        "Q2": [["a", "c"], ["b"]],
        "Q3": [],
    }


def test_vocabularies_that_were_written_on_windows():
    written = {
        "a.txt": b"\xef\xbb\xbfone\r\ntwo\r\n",
        "b.txt": b"one\r\ntwo\n",  # a word may well end in white space
    }
    assert _lines(Path("x"), "a.txt", written) == ["one", "two"]
    assert _lines(Path("x"), "b.txt", written) == ["one\r", "two"]


# -- files --------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["knowledge_graph", "aliases"])
def test_files_of_another_world_are_refused(tmp_path, other):
    arguments = written(tmp_path, "acl2020")
    arguments[other].write_text('{"Another": []}')
    with pytest.raises(ValueError, match="have no entity in common"):
        convert(output=tmp_path / "out", **arguments)


def test_files_that_the_archive_names_are_found(tmp_path, monkeypatch, capsys):
    arguments = written(tmp_path, "acl2020")
    archive, graph, aliases = arguments.values()
    with pytest.raises(ValueError, match=r"knowledge_graph_path in config\.json is"):
        convert(archive, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    config = published()["config"]["acl2020"]
    named = Path(config["model"]["knowledge_graph_path"])
    named.parent.mkdir(parents=True)
    named.write_bytes(pickle.dumps(json.loads(graph.read_text())))
    named = Path(config["dataset_reader"]["alias_database_path"])
    named.write_bytes(pickle.dumps(json.loads(aliases.read_text())))
    convert(archive, tmp_path / "out")
    command = ["convert", "kglm", "--output", str(tmp_path / "same")]
    for name, path in arguments.items():
        command += [f"--{name.replace('_', '-')}", str(path)]
    assert main(command) == 0
    assert capsys.readouterr().out == (
        f"wrote {tmp_path / 'same'}: 20 words to utter, 46 more to copy; "
        "1464 nodes, 1814 edges; proposals: adapted, prior\n"
    )
    same = load_checkpoint(tmp_path / "same")
    assert load_checkpoint(tmp_path / "out").digest == same.digest
    assert same.model.normalization is Normalization.BELOW_ONE
