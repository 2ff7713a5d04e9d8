"""Files of ours as somebody damages or changes them."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lm_latent_eval import manifest, parquet

SECONDS, MEMORY = 300.0, 1 << 29
"""What a file of some kilobytes may take, however busy the machine is."""


@dataclass(frozen=True)
class Subject:
    """A file or folder of ours, and the numbers that are read from it."""

    name: str
    path: Path
    numbers: Callable[[Path], Any]

    def copy(self, folder: Path) -> Subject:
        """Put a copy of it into a folder, in the place of what is there."""
        shutil.rmtree(folder, ignore_errors=True)
        copied = folder / self.path.name
        if self.path.is_dir():
            shutil.copytree(self.path, copied)
        else:
            folder.mkdir()
            shutil.copy(self.path, copied)
        return Subject(self.name, copied, self.numbers)

    def files(self) -> list[Path]:
        """Return its files, in the order of their names."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(path for path in self.path.iterdir() if path.is_file())


# -- damage --------------------------------------------------------------------------


def flip(subject: Subject, rng: random.Random) -> str:
    """Flip a bit."""
    file = rng.choice(subject.files())
    content = bytearray(file.read_bytes())
    at = rng.randrange(8 * len(content))
    content[at // 8] ^= 1 << at % 8
    file.write_bytes(content)
    return f"bit {at} of {file.name}"


def cut(subject: Subject, rng: random.Random) -> str:
    """Leave the beginning of a file."""
    file = rng.choice(subject.files())
    size = rng.randrange(file.stat().st_size)
    os.truncate(file, size)
    return f"{size} bytes of {file.name}"


# -- checkpoints that are given a new manifest -----------------------------------------

_NESTED: Any = []
for _ in range(300):
    _NESTED = [_NESTED]
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 10**6, 2**31, 2**63, 10**30, 0.5, -0.0, 1e300, 1e-300),
    *(math.inf, -math.inf, math.nan, None, True, False, "", "1", "nan", "../..", "é"),
    *([], [0], [1, 2], [-1], [None], [[]], {}, {"a": 1}, _NESTED, "\ud800", "a\nb"),
    *("a" * 10_000, list(range(3000))),
)


def _inner(value: Any, rng: random.Random) -> Any:
    """Change something within a value."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return value | {key: _inner(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        changes = ([], [value[at]] * 2, [_inner(value[at], rng)])  # gone, twice, other
        return [*value[:at], *rng.choice(changes), *value[at + 1 :]]
    if type(value) in (int, float) and rng.random() < 0.4:
        return value * rng.choice((-1, 2, 0, 100, 10**9))
    return rng.choice(VALUES)


def _json(file: Path, rng: random.Random) -> str:
    changed = _inner(json.loads(file.read_text(encoding="utf-8")), rng)
    file.write_text(json.dumps(changed))
    return f"{changed!r:.300}"


def _lines(file: Path, rng: random.Random) -> str:
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    other = rng.choice(("", "\n", "\0\n", lines[0], lines[at] * 2, "a b\tc\n", "é\r\n"))
    file.write_text("".join([*lines[:at], other, *lines[at + 1 :]]), encoding="utf-8")
    return f"line {at + 1} is {other!r:.40}"


def _tensors(file: Path, rng: random.Random) -> str:
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        about = opened.metadata() or {}
    if about and rng.random() < 0.2:
        name = rng.choice(sorted(about))
        about[name] = rng.choice(("", "1", "a\nb", "{", "[" * 3000, '{"shape": 3}'))
        save_file(tensors, file, about)
        return f"{name} = {about[name]!r:.80}"
    name, kind = rng.choice(sorted(tensors)), rng.choice([*TENSORS])
    value = tensors.pop(name)
    changed = TENSORS[kind](value if value.ndim else value.view(1))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, file, about)
    return f"{name}: {kind}"


def _set(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone().flatten()
        changed[-1:] = value if tensor.is_floating_point() else -1
        return changed.view(tensor.shape)

    return change


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "gone": lambda tensor: None,
    "NaN": _set(math.nan),
    "-inf": _set(-math.inf),
    "huge": _set(1e300),
    "empty": lambda tensor: tensor[:0],
    "of no axes": lambda tensor: tensor.sum(),
    "flat": lambda tensor: tensor.flatten(),
    "turned": lambda tensor: tensor.t() if tensor.ndim == 2 else tensor.flip(0),
    "twice": lambda tensor: torch.cat([tensor, tensor]),
    "of integers": lambda tensor: tensor.to(torch.int64),
    "in bfloat16": lambda tensor: tensor.bfloat16(),
    "of truth values": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
}


def remanifest(subject: Subject, rng: random.Random) -> str:
    """Change a field, a line or a tensor of a checkpoint, and write its manifest."""
    files = [path for path in subject.files() if path.name != "manifest.json"]
    config = next(path for path in files if path.name == "config.json")
    file = config if rng.random() < 0.5 else rng.choice(files)
    change = {".json": _json, ".safetensors": _tensors}.get(file.suffix, _lines)
    said = change(file, rng)
    manifest.write(subject.path)
    return f"{file.name}: {said}"


# -- results of lm-eval --------------------------------------------------------------


def results(subject: Subject, rng: random.Random) -> str:
    """Change a value in results or a sample log, or in what a record says of itself."""
    file = rng.choice(subject.files())
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(_inner(json.loads(lines[at]), rng))
        file.write_text("\n".join(lines) + "\n")
        return f"line {at + 1}: {lines[at]:.200}"
    if file.suffix == ".json":
        return _json(file, rng)
    table, name = pq.read_table(file), b"lm_latent_eval"
    about = _inner(json.loads(table.schema.metadata[name]), rng)
    if not isinstance(about, dict):
        about = {}
    parquet.write(file, table, name, about)
    return f"{about!r:.300}"
