r"""Mixture files: YAML, checked as a whole.

prompts:                      # texts around a context
  - "{context}"
  - {name: polite, text: "Please answer.\n{context}", weight: 2}
permutations: all             # of the options that it lists; or cyclic
documents:                    # before it, as they were retrieved for it
  template: "{document}\n\n{context}"
  retrieved:
    - {context: "Who wrote it?", documents: [first text, {text: second, weight: 3}]}
models:
  - {name: small, weight: 1, base: hf, args: {pretrained: DIR}}
draws: 64                     # components a question; left out: all are summed
seed: 0
"""

from __future__ import annotations

import difflib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lm_latent_eval.files import one_line
from lm_latent_eval.text.files import digest, read_text
from lm_latent_eval.values import Whole, check
from lm_latent_eval.wrappers.mixtures.factors import (
    CONTEXT,
    DOCUMENT,
    Document,
    Documents,
    Factor,
    Fixed,
    Orders,
    Retrieve,
    around,
    short,
    unchanged,
    weighed,
)

FACTORS = ("prompts", "permutations", "documents", "models")
NUMBERS = {"draws": Whole(1), "seed": Whole(0)}
MODEL_ARGUMENTS = (
    *("pretrained", "revision", "subfolder", "tokenizer", "dtype", "max_length"),
    *("end", "estimator", "num_samples", "seed"),
)
"""Allowed arguments of a model. None of them runs code that the file names."""


@dataclass(frozen=True)
class Model:
    name: str
    weight: float
    base: str | None
    """Backend name as in ``--model``; None: the command line's ``base``."""
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Mixture:
    factors: Sequence[Factor]
    """Factors other than models, in the order in which they rewrite a question."""
    models: Sequence[Model]
    """Models; empty if the command line's ``base`` is the only one."""
    draws: int | None
    """Number of components drawn for a question; None: all are summed."""
    seed: int
    digest: str
    """Digest of all that numbers depend on; the order of entries is ignored."""

    @property
    def of_models(self) -> Fixed:
        listed = [(m.name, m.weight, unchanged) for m in self.models]
        return Fixed("model", weighed(listed, "models"))


def read(path: Path, *, trust_retriever: bool = False) -> Mixture:
    """Read a mixture file.

    Args:
        path: The file.
        trust_retriever: Whether a function that it names may be imported and called.

    Raises:
        ValueError: If it is missing or malformed; the error names the entry.
    """
    try:
        return _mixture(yaml.safe_load(read_text(path)), trust_retriever)
    except (yaml.YAMLError, RecursionError) as err:
        raise ValueError(f"{path}: cannot be read ({one_line(err)})") from err
    except FileNotFoundError as err:
        raise ValueError(f"mixture={path}: there is no such file") from err
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


def _mixture(content: Any, trust_retriever: bool) -> Mixture:
    parsed = _fields(content, "the file", (*FACTORS, *NUMBERS))
    if not any(name in parsed for name in FACTORS):
        raise ValueError(f"nothing is mixed: expected one of {', '.join(FACTORS)}")
    check(parsed, {name: rule for name, rule in NUMBERS.items() if name in parsed})
    factors: list[Factor] = []
    if "permutations" in parsed:
        factors.append(_orders(parsed["permutations"]))
    if "documents" in parsed:
        factors.append(_documents(parsed["documents"], trust_retriever))
    if "prompts" in parsed:
        factors.append(_prompts(parsed["prompts"]))
    models = _models(parsed["models"]) if "models" in parsed else []
    # Arguments of models are in the identity of the models that they make.
    identity = {**parsed, "models": [[m.name, m.weight] for m in models]}
    if "draws" not in parsed:
        identity.pop("seed", None)
    whole = digest(json.dumps(_ordered(identity), sort_keys=True))
    return Mixture(factors, models, parsed.get("draws"), parsed.get("seed", 0), whole)


def _ordered(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _ordered(value) for name, value in content.items()}
    if isinstance(content, list):
        return sorted(map(_ordered, content), key=json.dumps)
    return content


def _prompts(content: Any) -> Factor:
    prompts = []
    for index, each in enumerate(_list(content, "prompts")):
        where = f"prompts[{index}]"
        name, weight, text = _named(each, where)
        _once(text, f"{where}.text", CONTEXT)
        prompts.append((name, weight, around(text)))
    return Fixed("prompt", weighed(prompts, "prompt"))


def _orders(content: Any) -> Factor:
    if content not in ("all", "cyclic"):
        raise ValueError(f"permutations is {content!r:.40}: expected all or cyclic")
    return Orders(content)


def _documents(content: Any, trust_retriever: bool) -> Factor:
    parsed = _fields(content, "documents", ("retrieved", "callable", "template"))
    if ("retrieved" in parsed) == ("callable" in parsed):
        raise ValueError("documents: expected either retrieved or a callable")
    template = parsed.get("template", f"{DOCUMENT}\n\n{CONTEXT}")
    template = _text(template, "documents.template")
    _once(template, "documents.template", DOCUMENT)
    if template.count(CONTEXT) > 1:
        raise ValueError(f"documents.template has {CONTEXT} more than once")
    if "retrieved" in parsed:
        return Documents(_listed(parsed["retrieved"]), template)
    return Documents(_called(parsed["callable"], trust_retriever), template)


def _listed(content: Any) -> Retrieve:
    by_context: dict[str, list[Document]] = {}
    for index, row in enumerate(_list(content, "documents.retrieved")):
        where = f"documents.retrieved[{index}]"
        parsed = _fields(row, where, ("context", "documents"))
        context = _text(parsed.get("context"), f"{where}.context").strip()
        if context in by_context:
            raise ValueError(f"{where}.context is there twice")
        listed = enumerate(_list(parsed.get("documents"), f"{where}.documents"))
        by_context[context] = [
            _named(each, f"{where}.documents[{n}]") for n, each in listed
        ]

    def retrieve(context: str) -> Sequence[Document]:
        if context.strip() not in by_context:
            raise ValueError(
                "documents.retrieved has no entry with this context: give one to every "
                "question (context as lm_eval --log_samples writes it, documents)"
            )
        return by_context[context.strip()]

    return retrieve


def _called(content: Any, trust_retriever: bool) -> Retrieve:
    name = _text(content, "documents.callable")
    if ":" not in name:
        raise ValueError(
            f"documents.callable is {name!r:.60}: expected package.module:function"
        )
    if not trust_retriever:
        raise ValueError(
            f"documents.callable names code ({name}), which is imported and called "
            "with trust_retriever=True in --model_args alone"
        )
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as err:
        why = one_line(err)
        raise ValueError(f"documents.callable: {name} is not there ({why})") from err

    def retrieve(context: str) -> Sequence[Document]:
        try:
            rows = list(function(context))
        except Exception as err:  # of code that is not ours
            raise ValueError(
                f"{name} ends in {type(err).__name__} ({one_line(err)})"
            ) from err
        return [_named(row, f"document {n} of {name}") for n, row in enumerate(rows)]

    return retrieve


def _models(content: Any) -> list[Model]:
    models = []
    for index, each in enumerate(_list(content, "models")):
        where = f"models[{index}]"
        parsed = _fields(each, where, ("name", "weight", "base", "args"))
        given = _fields(parsed.get("args", {}), f"{where}.args", MODEL_ARGUMENTS)
        for name, value in given.items():
            if not isinstance(value, str | int | float):
                raise ValueError(f"{where}.args.{name} is {value!r:.40}: expected text")
        if ":" in str(given.get("estimator", "")):
            raise ValueError(f"{where}.args.estimator names code: expected a name")
        base = _text(parsed["base"], f"{where}.base") if "base" in parsed else None
        name = parsed.get("name", given.get("pretrained", base or f"model {index}"))
        name = _text(name, f"{where}.name")
        models.append(Model(name, _weight(parsed, where), base, given))
    weighed([(m.name, m.weight, unchanged) for m in models], "models")
    return models


# -- plain values --------------------------------------------------------------------


def _named(content: Any, where: str) -> tuple[str, float, str]:
    """Name, weight and text of an entry, which may be its text alone."""
    given = {"text": content} if isinstance(content, str) else content
    parsed = _fields(given, where, ("name", "text", "weight"))
    text = _text(parsed.get("text"), f"{where}.text")
    name = _text(parsed.get("name", short(text)), f"{where}.name")
    return name, _weight(parsed, where), text


def _fields(content: Any, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where} is {content!r:.40}: expected {', '.join(allowed)}")
    for name in content:
        if name not in allowed:
            near = difflib.get_close_matches(str(name), allowed, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"{where} has {name!r:.40}: expected {', '.join(allowed)}{hint}"
            )
    return content


def _list(content: Any, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise ValueError(f"{where} is {content!r:.40}: expected a list")
    return content


def _text(content: Any, where: str) -> str:
    if not isinstance(content, str) or not content:
        raise ValueError(f"{where} is {content!r:.40}: expected text")
    return content


def _once(text: str, where: str, mark: str) -> None:
    if text.count(mark) != 1:
        raise ValueError(f"{where} has {mark} {text.count(mark)} times: expected once")


def _weight(parsed: Mapping[str, Any], where: str) -> float:
    weight = parsed.get("weight", 1.0)
    if type(weight) not in (int, float) or not 0 < weight < 1e300:
        raise ValueError(
            f"{where}.weight is {weight!r:.40}: expected a positive number"
        )
    return float(weight)
