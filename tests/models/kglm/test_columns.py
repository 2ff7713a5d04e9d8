"""Columns of a file are what tensors are, and notice when the file is changed."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lm_latent_eval.models.kglm.graph import FILE_NAME, GraphError, KnowledgeGraph
from lm_latent_eval.models.kglm.graph_file import (
    BLOCK,
    ChangedError,
    Column,
    TensorFile,
    everything,
    search,
    seek_and_read,
)
from tests import large_graph
from tests.memory_limit import at_most

PROJECT = Path(__file__).parents[3]


def column(folder: Path, tensor: torch.Tensor) -> Column:
    save_file({"other": torch.ones(3).int(), "x": tensor}, folder / "file")
    return TensorFile(folder / "file").column("x")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_systems_without_pread_read_the_same(tmp_path):
    content = bytes(range(256))
    (tmp_path / "file").write_bytes(content)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        for place, size in ((5, 7), (0, 256), (250, 20), (300, 1)):
            found = seek_and_read(descriptor, size, place)
            assert found == content[place : place + size]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("values", [3, 10**9])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
def test_searching_is_searching_a_tensor(tmp_path, size, values, dtype):
    """Where many numbers are equal, too, and beyond both ends."""
    numbers = torch.randint(values, (size,), generator=seeded(0), dtype=dtype)
    numbers = numbers.sort().values
    found = numbers[torch.randint(max(size, 1), (40 if size else 0,))]
    keys = torch.cat([found, torch.randint(values, (40,), dtype=dtype)])
    keys = torch.cat([keys, torch.tensor([-5, 0, values, values + 5], dtype=dtype)])
    for right in (False, True):
        lazy, wanted = column(tmp_path, numbers), keys.view(-1, 2)
        ours = lazy.search(wanted, right=right)
        assert torch.equal(ours, torch.searchsorted(numbers, wanted, right=right))
        lazy.whole()
        assert torch.equal(search(lazy, wanted, right=right), ours), "read in whole"


@pytest.mark.parametrize("shape", [(3 * BLOCK + 5,), (2000, 2, 3), (3, 5000)])
def test_rows_are_those_of_a_tensor(tmp_path, shape):
    numbers = torch.randint(99, shape, generator=seeded(1))
    lazy = column(tmp_path, numbers)
    assert (len(lazy), lazy.shape, lazy.ndim) == (len(numbers), shape, numbers.ndim)
    rows = torch.randint(len(numbers), (3, 2), generator=seeded(2))
    assert torch.equal(lazy[rows], numbers[rows])
    assert torch.equal(lazy[:3], numbers[:3])
    assert torch.equal(lazy[1:1], numbers[1:1])
    assert torch.equal(lazy[-1:], numbers[-1:])
    with pytest.raises(IndexError):
        lazy[torch.tensor([len(numbers) + BLOCK])]
    assert torch.equal(everything(lazy), numbers)


def test_what_is_not_looked_at_is_not_read(tmp_path, monkeypatch):
    lazy = column(tmp_path, torch.arange(100 * BLOCK))
    assert lazy.num_unread == 100
    for _ in range(2):
        assert lazy[torch.tensor([5, BLOCK + 1, 7])].tolist() == [5, BLOCK + 1, 7]
        assert lazy.search(torch.tensor([50 * BLOCK + 3])).tolist() == [50 * BLOCK + 3]
        assert lazy.num_unread == 97
        monkeypatch.setattr(TensorFile, "read", None)  # what is known is not read again


def test_a_copy_is_a_tensor(tmp_path):
    lazy = column(tmp_path, torch.arange(2 * BLOCK))
    for copied in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        assert torch.equal(copied, torch.arange(2 * BLOCK))


# -- files that change ----------------------------------------------------------------

TRUNCATED = """
import os, sys, torch
from pathlib import Path
from lm_latent_eval.models.kglm.graph import FILE_NAME, KnowledgeGraph
folder = Path(sys.argv[1])
graph = KnowledgeGraph.load(folder)
graph.edge_range(torch.tensor([7]))
os.truncate(folder / FILE_NAME, int(sys.argv[2]))
lookups = {
    "edge_range": lambda node: graph.edge_range(node),
    "relation": lambda node: graph.relation(node),
    "tail": lambda node: graph.tail(node),
    "entity": lambda node: graph.entity(node),
    "alias_words": lambda node: graph.alias_words(node),
    "aliases_that_begin": lambda node: graph.aliases_that_begin(node // 100),
    "names": lambda node: list(graph.node_names),
}
for name, look in lookups.items():
    try:
        look(torch.arange(4000, 19_000, 10))
    except ValueError as err:
        print(name, err)
"""


@pytest.mark.parametrize("size", [0, 5000, 1_000_000])
def test_a_graph_that_is_cut_while_in_use_is_an_error(tmp_path, size):
    """Of a mapped file it is a signal, which ends the process."""
    large_graph.graph(20_000, 100_000).save(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_size > 2_000_000, "premise"
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(tmp_path), str(size)],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    message = f"{tmp_path / FILE_NAME} was changed while in use: load it again"
    said = [line.removesuffix(f" {message}") for line in done.stdout.splitlines()]
    assert said == [
        *("edge_range", "relation", "tail", "entity"),
        *("alias_words", "aliases_that_begin", "names"),
    ]


def test_a_graph_that_is_written_to_while_in_use_is_an_error(tmp_path):
    """Its numbers would be those of two graphs."""
    large_graph.graph(20_000, 100_000).save(tmp_path)
    graph, path = KnowledgeGraph.load(tmp_path), tmp_path / FILE_NAME
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"x")
    with pytest.raises(ChangedError, match="was changed while in use"):
        graph.tail(torch.arange(graph.num_edges))


def test_a_graph_that_is_replaced_while_in_use_is_the_old_one(tmp_path):
    wanted = large_graph.graph(20_000, 100_000)
    wanted.save(tmp_path)
    graph = KnowledgeGraph.load(tmp_path)
    large_graph.graph(20_000, 100_000, seed=1).save(tmp_path)
    every = torch.arange(wanted.num_edges)
    assert torch.equal(graph.tail(every), wanted.tail(every))
    assert not torch.equal(
        KnowledgeGraph.load(tmp_path).tail(every), wanted.tail(every)
    )


# -- hostile files --------------------------------------------------------------------


def header(contents: bytes) -> bytes:
    return struct.pack("<Q", len(contents)) + contents


HOSTILE = {
    "empty": b"",
    "cut": b"\x10",
    "a header of an exabyte": struct.pack("<Q", 1 << 60) + b"{}",
    "no JSON": header(b"nonsense"),
    "deep JSON": header(b"[" * 100_000),
    "no table": header(b"[]"),
    "no entry": header(b'{"edge_key": 3}'),
    "numbers of no known kind": header(
        b'{"edge_key": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    ),
    "numbers of a terabyte": header(
        b'{"edge_key": {"dtype": "I64", "shape": [137438953472], '
        b'"data_offsets": [0, 1099511627776]}}'
    ),
    "another size": header(
        b'{"edge_key": {"dtype": "I64", "shape": [3], "data_offsets": [0, 8]}}'
    )
    + bytes(8),
    "a negative size": header(
        b'{"edge_key": {"dtype": "I64", "shape": [-1], "data_offsets": [8, 0]}}'
    )
    + bytes(8),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_graphs_are_refused(tmp_path, kind):
    (tmp_path / FILE_NAME).write_bytes(HOSTILE[kind])
    with (
        at_most(1 << 28),
        pytest.raises(GraphError, match=r"graph\.safetensors is not a readable graph"),
    ):
        KnowledgeGraph.load(tmp_path)
