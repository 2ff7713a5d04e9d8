"""Reads pickles of plain data, and nothing else.

A pickle is a program: it may import any function and call it. The pickles that come
with older models hold dictionaries, lists, tuples, sets, strings and numbers, for which
few instructions and fewer functions are needed; whatever else a file asks for is
refused before it is looked up.

What is not protected: time and memory. A file that was made to be large, deep or
entangled can exhaust them, or the interpreter's stack, and end the process; it cannot
make it run anything. What a file merely *declares* to be large costs nothing: lengths
are bounded by the file, and places in the memo are kept in a table of those used.
"""

from __future__ import annotations

import mmap
import pickle
import pickletools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast


class PickleError(ValueError):
    """A pickle that is damaged, or that holds more than was expected of it."""


def _plain(_factory: object = None, items: Iterable[Any] = ()) -> dict[Any, Any]:
    """Stand for a ``defaultdict``: what it defaults to does not matter to a reader."""
    return dict(items)


CONTAINERS: Mapping[str, Callable[..., Any]] = {
    "builtins.dict": dict,
    "builtins.frozenset": frozenset,
    "builtins.int": int,
    "builtins.list": list,
    "builtins.set": set,
    "collections.Counter": dict,
    "collections.OrderedDict": dict,
    "collections.defaultdict": _plain,
}
"""What a pickle may ask for -> what it gets. Every mapping is read as a ``dict``."""

_INSTRUCTIONS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP
    GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET
    GLOBAL STACK_GLOBAL REDUCE
"""
INSTRUCTIONS = frozenset(_INSTRUCTIONS.split())
"""Every instruction that plain data need. Those that build objects, change attributes
or refer to registries of the process are missing."""


class _PlainUnpickler(pickle._Unpickler):
    """Carries out ``INSTRUCTIONS`` only, and imports nothing.

    The reader in Python, not the one in C: its instructions are a table that can be
    narrowed, and its memo is a dictionary.
    """

    def __init__(self, file: BinaryIO, allowed: Mapping[str, Callable[..., Any]]):
        super().__init__(file)
        self.allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global; the name is never looked up."""
        wanted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if wanted not in self.allowed:
            raise PickleError(f"it asks for {wanted}, which plain data do not need")
        return self.allowed[wanted]


def _refusal(name: str) -> Callable[[Any], NoReturn]:
    def refuse(_: Any) -> NoReturn:
        raise PickleError(
            f"it has the instruction {name}, which plain data do not need"
        )

    return refuse


_PlainUnpickler.dispatch = {
    ord(op.code): (
        pickle._Unpickler.dispatch[ord(op.code)]
        if op.name in INSTRUCTIONS
        else _refusal(op.name)
    )
    for op in pickletools.opcodes
}


def load_pickle(
    path: Path, allowed: Mapping[str, Callable[..., Any]] = CONTAINERS
) -> Any:
    """Read a pickle of plain data.

    Args:
        path: The file.
        allowed: ``module.name`` -> what is called where the pickle asks for that name.

    Raises:
        PickleError: If the file asks for anything else, or is damaged.
    """
    try:
        with (
            Path(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _PlainUnpickler(cast(BinaryIO, content), allowed).load()
    except PickleError as err:
        raise PickleError(
            f"{path} is refused: {err}; nothing in it was run. If you trust the file, "
            "load it yourself and write what it holds as JSON"
        ) from None
    except OSError:
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise PickleError(
            f"{path} is not a readable pickle ({err!r}): copy or download it again"
        ) from err
