"""Loops compiled by numba: one decorator, with a cache of its own.

Compiled functions take and return arrays and numbers; random numbers come in as arrays.
They release the interpreter's lock, raise nothing and call neither torch nor Python.

The cache is a folder named by a hash of every source in ``SOURCES``: numba's own cache
checks the file of a function alone, and would keep a caller after a change in another
file. Importing numba takes half a second, so only modules with compiled functions
import this one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.version import __version__

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Keys = NDArray[np.uint64]

SOURCES = (
    "inference/pruning.py",
    "inference/sorted_lists.py",
    "inference/table_search.py",
    "models/kglm/chain.py",
    "models/kglm/choices.py",
    "models/kglm/parent_gains.py",
    "models/kglm/search.py",
    "models/kglm/tables.py",
    "wrappers/tokens/edges.py",
)
"""Files with compiled functions."""

CONFIG: Any = numba.config
_LOG = logging.getLogger(__name__)


def compiled(function: FunctionT) -> FunctionT:
    """Compile a function at its first call, or load it from the cache.

    ``NUMBA_DISABLE_JIT=1`` leaves it as it is, ``NUMBA_BOUNDSCHECK=1`` checks indices.
    """
    folder = cache_folder()
    before = CONFIG.CACHE_DIR
    CONFIG.CACHE_DIR = "" if folder is None else str(folder)
    try:
        made: Any = numba.njit(nogil=True, cache=folder is not None)(function)
    finally:
        CONFIG.CACHE_DIR = before
    return made  # type: ignore[no-any-return]


@cache
def cache_folder() -> Path | None:
    """Folder of the cache; None if it cannot be written to.

    It lies in ``NUMBA_CACHE_DIR``, or else among the user's caches.
    """
    if CONFIG.DISABLE_JIT:
        return None
    try:
        given = CONFIG.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
        base = Path(given) if given else Path.home() / ".cache"
        folder = base / "lm_latent_eval" / _digest()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            if not any(folder.rglob("*.nbi")):
                _LOG.warning("loops are compiled, once a version: about a minute")
            return folder
    except (OSError, RuntimeError) as err:  # RuntimeError: there is no home
        _LOG.warning(
            "no folder for compiled loops can be written (%s): each process compiles "
            "them anew, for half a minute; set NUMBA_CACHE_DIR to a folder",
            err,
        )
        return None


def _digest() -> str:
    root, digest = Path(__file__).parent, hashlib.blake2b(digest_size=8)
    digest.update(f"{__version__} {CONFIG.BOUNDSCHECK}".encode())
    for name in SOURCES:
        digest.update((root / name).read_bytes())
    return f"{__version__}-{digest.hexdigest()}"
