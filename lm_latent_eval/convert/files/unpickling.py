"""Reads pickles without running them.

A pickle is a program: it may import any function, call it, and set what it likes on
what it gets. Here its instructions are carried out by a reader that knows those of
plain data (dictionaries, lists, tuples, sets, strings, numbers) and, where it is told
their names, of objects, each of which becomes a ``StandIn`` that only holds what it is
given. A name is looked up in a table and never imported; whatever else a file asks for
is refused.

Memory is bounded by the length of the file: what is merely *declared* to be large
costs nothing, places in the memo are kept in a table of those used, and what calls copy
is counted. Keys are names, numbers, or tuples of them: to hash a deep tuple would
exhaust the interpreter's stack, and one that holds another twice, and so on, all time.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable, Mapping, Sized
from pathlib import Path
from typing import Any, BinaryIO, NoReturn


class PickleError(ValueError):
    """A pickle that is damaged, or that holds more than was expected of it."""


class StandIn:
    """Stands for any object: it holds what it is given."""

    def __init__(self, *_: Any) -> None:
        """Take anything, as whatever is pickled may."""
        self.attributes: dict[Any, Any] = {}


_SCALARS = (str, bytes, int, float, type(None))


def _key(value: Any) -> Any:
    """Return a key, or refuse one whose hash could be a labour without end."""
    parts = value if type(value) is tuple else (value,)
    if not all(isinstance(part, _SCALARS) for part in parts):
        raise PickleError("it has a key that is no name, number or tuple of them")
    return value


def _dict(items: Any = ()) -> dict[Any, Any]:
    pairs = items.items() if isinstance(items, dict) else items
    return {_key(key): value for key, value in pairs}


def _default_dict(_factory: object = None, items: Any = ()) -> dict[Any, Any]:
    """What it defaults to does not matter to a reader."""
    return _dict(items)


def _set(items: Iterable[Any] = ()) -> set[Any]:
    return set(map(_key, items))


def _frozenset(items: Iterable[Any] = ()) -> frozenset[Any]:
    return frozenset(map(_key, items))


CONTAINERS: Mapping[str, Callable[..., Any]] = {
    "builtins.dict": _dict,
    "builtins.frozenset": _frozenset,
    "builtins.int": int,
    "builtins.list": list,
    "builtins.set": _set,
    "collections.Counter": _dict,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _default_dict,
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
    GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID
"""
INSTRUCTIONS = frozenset(_INSTRUCTIONS.split())
"""Every instruction that is carried out. Those that refer to registries of the process
are missing; those of objects are carried out on a ``StandIn`` only."""


class Reader(pickle._Unpickler):
    """Carries out ``INSTRUCTIONS`` only, and imports nothing.

    The reader in Python, not the one in C: its instructions are a table that can be
    narrowed, and its memo is a dictionary.
    """

    stack: list[Any]

    def __init__(
        self,
        file: BinaryIO,
        size: int,
        names: Mapping[str, Any],
        refer: Callable[[Any], Any] | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            file: It is read up to the end of the pickle.
            size: Bytes of the file.
            names: ``module.name`` -> what is called where the pickle asks for it.
            refer: From a persistent id to what it stands for; None: there are none.
        """
        super().__init__(file)
        self.names = names
        self.refer = refer
        self.to_copy = size

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global; the name is never looked up."""
        wanted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if wanted not in self.names:
            shown = repr(wanted)[1:-1][:200]  # it may well have line ends
            raise PickleError(f"it asks for {shown}, which its data do not need")
        return self.names[wanted]

    def load_reduce(self) -> None:
        """Call what a name stands for, on no more in all than the file can hold."""
        args = self.stack.pop()
        self.to_copy -= sum(len(arg) for arg in args if isinstance(arg, Sized))
        if self.to_copy < 0:
            raise PickleError("it copies the same data again and again")
        self.stack[-1] = self.stack[-1](*args)

    def load_newobj(self) -> None:
        """Make a record."""
        _, cls = self.stack.pop(), self.stack[-1]
        if cls is not StandIn:
            _refuse("NEWOBJ")
        self.stack[-1] = StandIn()

    def load_build(self) -> None:
        """Give a record its attributes; those of a container are nobody's."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StandIn):
            target.attributes = state if isinstance(state, dict) else {}
        elif not isinstance(target, dict):
            _refuse("BUILD")

    def load_binpersid(self) -> None:
        """Ask whoever knows what the pickle refers to."""
        if self.refer is None:
            _refuse("BINPERSID")
        self.stack[-1] = self.refer(self.stack[-1])


def _refuse(instruction: str) -> NoReturn:
    raise PickleError(
        f"it has the instruction {instruction}, which its data do not need"
    )


_KEYS: Mapping[str, slice] = {
    "SETITEM": slice(-2, -1),
    "SETITEMS": slice(None, None, 2),
    "DICT": slice(None, None, 2),
    "ADDITEMS": slice(None),
    "FROZENSET": slice(None),
}
"""Where on the stack the instructions that hash find what they hash."""


def _carry_out(op: pickletools.OpcodeInfo) -> Callable[[Any], None]:
    """Return what a reader does at an instruction."""
    if op.name not in INSTRUCTIONS:
        return lambda _: _refuse(op.name)
    load: Callable[[Any], None] = getattr(
        Reader, pickle._Unpickler.dispatch[ord(op.code)].__name__
    )
    if op.name not in _KEYS:
        return load

    def load_keys(reader: Reader) -> None:
        for key in reader.stack[_KEYS[op.name]]:
            _key(key)
        load(reader)

    return load_keys


Reader.dispatch = {ord(op.code): _carry_out(op) for op in pickletools.opcodes}


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
        content = Path(path).read_bytes()
        return Reader(io.BytesIO(content), len(content), allowed).load()
    except PickleError as err:
        raise PickleError(
            f"{path} is refused: {err}; nothing in it was run. If you trust the file, "
            "load it yourself and write what it holds as JSON"
        ) from None
    except OSError:
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise PickleError(
            f"{path} is not a readable pickle ({err!r:.200}): copy or download it again"
        ) from err
