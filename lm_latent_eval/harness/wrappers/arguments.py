"""Typed parsing of the arguments of lm-eval's network loader.

lm-eval hands on whatever it is given, and transformers takes any string for true.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from lm_latent_eval.arguments import TRUTHS, one_of, truth, whole
from lm_latent_eval.messages import one_line

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
"""How Python says that a function has no such argument."""


def read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert arguments of ``--model hf`` and of ``from_pretrained``.

    Arguments of other names are for transformers, which knows them once it has a
    network's configuration: see ``refusing``.

    Raises:
        ValueError: If a value is not one that an argument can have.
    """
    declared = _declared()
    return {
        name: _converted(name, value, declared[name]) if name in declared else value
        for name, value in arguments.items()
    }


@contextmanager
def refusing(arguments: Mapping[str, Any], options: Sequence[str]) -> Iterator[None]:
    """Name an argument that nobody knows or that has another type than transformers'.

    Args:
        arguments: Those that a network is loaded with.
        options: Names of the model's own.

    Raises:
        ValueError: If loading fails by one that is not declared; near names are
            suggested.
    """
    others = [name for name in arguments if name not in _declared()]
    try:
        yield
    except (AttributeError, TypeError, StrictDataclassError) as err:
        found = UNEXPECTED.search(str(err))
        if found and found[1] in others:
            raise ValueError(_unknown(found[1], options)) from err
        if not others:
            raise
        given = ", ".join(f"{name}={arguments[name]!r}" for name in others)
        raise ValueError(
            f"{given}: transformers, which is given what --model hf does not know, "
            f"cannot load the network with that ({one_line(err)})"
        ) from err


def _unknown(name: str, options: Sequence[str]) -> str:
    names = [*options, *_declared()]
    near = difflib.get_close_matches(name, names)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"option={name!r}: expected one of {', '.join(names)}, or an argument that "
        f"transformers loads this network with{hint}"
    )


def _declared() -> dict[str, inspect.Parameter]:
    """Return what lm-eval's loader and transformers declare, by name."""
    functions: tuple[Callable[..., Any], ...] = (
        PreTrainedModel.from_pretrained,
        HFLM.__init__,
    )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: parameter
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named and name not in ("self", "pretrained")
    }


def _converted(name: str, value: Any, declared: inspect.Parameter) -> Any:
    """Read a value as one of the types of an annotation, the strictest that it has."""
    annotation = declared.annotation
    if not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    kinds = annotation.split(" | ")
    if value is None and ("None" in kinds or declared.default is None):
        return None
    if annotation.startswith("Literal"):
        return one_of(name, value, re.findall(r"""["'](\w+)["']""", annotation))
    if "bool" in kinds and ("str" not in kinds or str(value).lower() in TRUTHS):
        return truth(name, value)
    if "torch.dtype" in kinds:
        return _dtype(name, value)
    if "str" in kinds:
        number = isinstance(value, int) and not isinstance(value, bool)
        return value if number and "int" in kinds else _text(name, value, kinds)
    if "int" in kinds:
        return whole(name, value, least=int(name == "max_length"))
    if annotation.startswith("dict") and not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r}: expected a mapping of names to values")
    return value


def _dtype(name: str, value: Any) -> Any:
    """Read the name of a type of torch, or ``auto``."""
    if isinstance(value, torch.dtype) or value == "auto":
        return value
    short = str(value).removeprefix("torch.")
    if not isinstance(getattr(torch, short, None), torch.dtype):
        raise ValueError(
            f"{name}={value!r}: not the name of a type; expected auto, float32, "
            "float64, bfloat16 or float16"
        )
    return short


def _text(name: str, value: Any, kinds: Sequence[str]) -> Any:
    """Read a string; lm-eval has made numbers of those that look like one."""
    if isinstance(value, Mapping) and "dict" in kinds:
        return value
    if isinstance(value, bool | float | Mapping | Sequence) and value != str(value):
        raise ValueError(f"{name}={value!r}: expected text")
    return str(value) if isinstance(value, int | os.PathLike) else value
