"""A pickle reader that executes nothing.

A pickle is a program: it may import any function, call it, and set what it likes on
what it gets. Here its instructions are carried out by a reader that knows those of
plain data (dictionaries, lists, tuples, sets, strings, numbers) and, where it is told
their names, of objects, each of which becomes a ``StandIn`` that only holds what it is
given. A name is looked up in a table and never imported; whatever else a file asks for
is refused.

Work and memory are bounded by the length of the file. What is merely *declared* to be
large costs nothing, places in the memo are kept in a table of those used, and what
instructions copy or make beyond their own length is counted against ``MULTIPLE``. Keys
are strings, short tuples of strings, or numbers of one machine word: the hashes of
others take time without bound (a tuple that holds another twice, which holds another
twice; a number of a million digits), or can be chosen to be all the same.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from lm_latent_eval.files import regular


class PickleError(ValueError):
    """A pickle that is damaged, or that holds more than was expected of it."""


MULTIPLE, LEAST = 100, 1 << 24
"""Bytes of memory, and of what is copied, that a byte of a file may take; and the bytes
that a file of any size may."""
_WORD = 1 << 60
"""Integers below it have hashes of their own."""
_SHORT = 256
"""Words of a tuple that is a key."""
_TREE, _LEAST_TREE = 20, 1 << 20
"""Values and characters a byte of a file, where what is shared counts again and again
as it does for whoever reads it; and those that a file of any size may hold."""
_SET = 256
"""Bytes that an empty set takes, which a single byte of a pickle makes."""


@dataclass(slots=True)
class StandIn:
    """Placeholder of any object: holds its arguments and state.

    Attributes:
        name: ``module.name`` of the class, or of the function that was to make it.
        arguments: Of the call.
        state: Given later, as to ``__setstate__``.
    """

    name: str = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    @property
    def attributes(self) -> dict[Any, Any]:
        """Attributes that an object without ``__setstate__`` takes from its state."""
        return self.state if isinstance(self.state, dict) else {}


@dataclass(frozen=True)
class _Class:
    """Placeholder of a class: calling it makes a ``StandIn``."""

    name: str

    def __call__(self, *arguments: Any) -> StandIn:
        return StandIn(self.name, arguments)


def _key(value: Any) -> Any:
    """Return a dictionary key, or refuse one whose hash could take very long."""
    if type(value) is tuple:
        known = len(value) <= _SHORT and all(type(part) is str for part in value)
    elif type(value) is int:
        known = -_WORD < value < _WORD
    else:
        known = isinstance(value, str | bytes | float | bool | None)
    if not known:
        raise PickleError("it has a key that is no name, number or tuple of names")
    return value


def _dict(items: Any = ()) -> dict[Any, Any]:
    pairs = items.items() if isinstance(items, dict) else items
    return {_key(key): value for key, value in pairs}


def _default_dict(_factory: object = None, items: Any = ()) -> dict[Any, Any]:
    """Make a dictionary; the default of a ``defaultdict`` is dropped."""
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
"""Allowed name -> its replacement. Every mapping is read as a ``dict``."""

_INSTRUCTIONS = """
    PROTO FRAME STOP MARK POP POP_MARK DUP
    GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET
    GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID
"""
INSTRUCTIONS = frozenset(_INSTRUCTIONS.split())
"""Every instruction that is carried out. Those that refer to registries of the process
are missing; those of objects are carried out on a ``StandIn`` only."""


class Reader(pickle._Unpickler):
    """Unpickler of a few ``INSTRUCTIONS`` that imports nothing.

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
        packages: tuple[str, ...] = (),
    ) -> None:
        """Prepare to read.

        Args:
            file: It is read up to the end of the pickle.
            size: Bytes of the file.
            names: ``module.name`` -> what is called where the pickle asks for it.
            refer: From a persistent id to what it stands for; None: there are none.
            packages: Whatever is asked of them becomes a ``StandIn``.
        """
        super().__init__(file)
        self.names = names
        self.refer = refer
        self.packages = packages
        self.left = max(MULTIPLE * size, LEAST)

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global; the name is never looked up."""
        wanted = f"{'builtins' if module == '__builtin__' else module}.{name}"
        found = self.names.get(wanted)
        if found is None and wanted.partition(".")[0] in self.packages:
            found = StandIn
        if found is None:
            shown = repr(wanted[:200])[1:-1]  # it may well have line ends
            raise PickleError(f"it asks for {shown}, which its data do not need")
        return _Class(wanted) if found is StandIn else found

    def charge(self, size: int) -> None:
        """Count bytes that an instruction takes beyond its own.

        Raises:
            PickleError: If they are more than the file may take.
        """
        self.left -= size
        if self.left < 0:
            raise PickleError("it copies the same data again and again")

    def load_reduce(self) -> None:
        """Call what a name stands for."""
        args = self.stack.pop()
        lengths = (len(arg) for arg in args if isinstance(arg, Sized))
        self.charge(8 * (len(args) + sum(lengths)))
        self.stack[-1] = self.stack[-1](*args)

    def load_newobj(self) -> None:
        """Make a record."""
        args, cls = self.stack.pop(), self.stack[-1]
        if not isinstance(cls, _Class):
            _refuse("NEWOBJ")
        self.stack[-1] = StandIn(cls.name, args)

    def load_build(self) -> None:
        """Give a record its state; attributes of containers are dropped."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StandIn):
            target.state = state
        elif not isinstance(target, dict):
            _refuse("BUILD")

    def load_binpersid(self) -> None:
        """Resolve a persistent id by ``refer``."""
        if self.refer is None:
            _refuse("BINPERSID")
        self.stack[-1] = self.refer(self.stack[-1])

    def load_bytearray8(self) -> None:
        """Read bytes; the original takes memory for as many as are declared."""
        self.load_binbytes8()  # type: ignore[attr-defined]


def _refuse(instruction: str) -> NoReturn:
    raise PickleError(
        f"it has the instruction {instruction}, which its data do not need"
    )


_KEYS: Mapping[str, slice] = {
    "SETITEM": slice(-2, -1),
    "SETITEMS": slice(None, None, 2),
    "DICT": slice(None, None, 2),
    "ADDITEMS": slice(None),
    "EMPTY_SET": slice(0),
    "FROZENSET": slice(None),
}
"""Stack positions of the values that hashing instructions hash."""


def _carry_out(op: pickletools.OpcodeInfo) -> Callable[[Any], None]:
    """Return the handler of an instruction."""
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
        if op.name.endswith("SET"):
            reader.charge(_SET)
        load(reader)

    return load_keys


Reader.dispatch = {ord(op.code): _carry_out(op) for op in pickletools.opcodes}


def load_pickle(
    path: Path,
    allowed: Mapping[str, Callable[..., Any]] = CONTAINERS,
    *,
    packages: tuple[str, ...] = (),
    instead: str = "load it yourself and write what it holds as JSON",
) -> Any:
    """Read a pickle of plain data.

    Args:
        path: The file.
        allowed: ``module.name`` -> what is called where the pickle asks for that name.
        packages: Whatever is asked of them becomes a ``StandIn``.
        instead: Advice to users who trust a refused file.

    Raises:
        PickleError: If the file asks for anything else, or is damaged.
    """
    try:
        content = regular(path).read_bytes()
        file = io.BytesIO(content)
        found = Reader(file, len(content), allowed, None, packages).load()
        if not _is_a_tree(found, max(_TREE * len(content), _LEAST_TREE)):
            raise PickleError("it holds the same data again and again")
        return found
    except PickleError as err:
        raise PickleError(
            f"{path} is refused: {err}; nothing in it was run. If you trust the file, "
            f"{instead}"
        ) from None
    except OSError:
        raise
    except Exception as err:  # a damaged pickle can raise nearly anything
        raise PickleError(
            f"{path} is not a readable pickle ({err!r:.200}): copy or download it again"
        ) from err


def _is_a_tree(value: Any, most: int) -> bool:
    """Whether plain data, written out in full, have at most so many parts.

    Who walks them meets a part as often as it is held: a list that holds twice a list
    that holds twice a list, and so on, is small in memory only.
    """
    sizes: dict[int, int] = {}
    begun: set[int] = set()
    waiting = [value]
    while waiting:
        value = waiting[-1]
        if id(value) in sizes:  # another place holds it as well
            waiting.pop()
            continue
        parts = _parts(value)
        if new := [part for part in parts if id(part) not in sizes]:
            if id(value) in begun:
                return False  # it holds itself
            begun.add(id(value))
            waiting += new
            continue
        waiting.pop()
        length = len(value) if isinstance(value, str | bytes) else 0
        sizes[id(value)] = 1 + length + sum(sizes[id(part)] for part in parts)
        if sizes[id(value)] > most:
            return False
    return True


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, set | frozenset):
        return [*value]
    return value if isinstance(value, list | tuple) else ()
