"""Writes archives as AllenNLP does, for the tests of what reads them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PATTERNS = ("*labels", "*tags", "*unk")


def files(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    vocabulary: Mapping[str, Sequence[str]],
) -> dict[str, bytes]:
    """Return the files of an archive; vocabularies hold their padding."""
    pickled = io.BytesIO()
    torch.save(dict(weights), pickled, _use_new_zipfile_serialization=False)
    found = {
        "config.json": json.dumps(config).encode(),
        "weights.th": pickled.getvalue(),
        "vocabulary/non_padded_namespaces.txt": "\n".join(PATTERNS).encode(),
    }
    for namespace, entries in vocabulary.items():
        listed = entries if namespace.endswith("unk") else entries[1:]
        text = "\n".join(entry.replace("\n", "@@NEWLINE@@") for entry in listed)
        found[f"vocabulary/{namespace}.txt"] = text.encode()
    return found


def write_tar(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write a tar.gz."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_directory(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write the directory that a tar.gz would unpack to."""
    for name, content in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path
