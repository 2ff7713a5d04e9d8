r"""Format of mixture files: YAML or JSON, read and checked as a whole.

prompts:                      # texts around a context
  - "{context}"
  - {name: polite, text: "Please answer.\n{context}", weight: 2}
few_shot:                     # sets of examples before it
  {file: examples.jsonl, number: 4, seeds: [0, 1, 2]}
permutations: all             # of the options that it lists; or cyclic
documents:                    # before it, as they were retrieved for it
  {file: retrieved.jsonl, template: "{document}\n\n{context}"}
models:
  - {name: small, weight: 1, base: hf, args: {pretrained: DIR}}
draws: 64                     # components a question; left out: all are summed
seed: 0
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lm_latent_eval.files import file_digest, one_line
from lm_latent_eval.registry import Registry
from lm_latent_eval.text import strict_yaml
from lm_latent_eval.text.files import digest, numbered_lines, read_text
from lm_latent_eval.values import parse
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

FACTORS = ("prompts", "few_shot", "permutations", "documents", "models")
OTHERS = ("draws", "seed")
SEPARATOR = "\n\n"
MODEL_ARGUMENTS = (
    *("pretrained", "revision", "subfolder", "tokenizer", "dtype", "max_length"),
    *("mixture", "end", "estimator", "num_samples", "seed"),
)
"""Allowed arguments of a model: none of them runs code that the file names."""
RETRIEVERS = Registry("lm_latent_eval.retrievers", "retriever", {})


@dataclass(frozen=True)
class Model:
    """One of several models."""

    name: str
    weight: float
    base: str | None
    """Its name in ``--model``; None: that of the command line."""
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Mixture:
    """Content of a mixture file."""

    factors: Sequence[Factor]
    """But models, in the order in which they change a question."""
    models: Sequence[Model]
    """None where there is only that of the command line."""
    draws: int | None
    """Components drawn for a question; None: all are summed."""
    seed: int
    digest: str
    """Of all that numbers depend on; the order of entries does not matter."""

    @property
    def of_models(self) -> Fixed:
        """Return the factor that says which model is asked."""
        listed = [(m.name, m.weight, unchanged) for m in self.models]
        return Fixed("model", weighed(listed, "models"))


def read(path: Path, *, trust_retriever: bool = False) -> Mixture:
    """Read a file.

    Args:
        path: YAML or JSON; files that it names are beside it.
        trust_retriever: Whether a function that it names may be imported and called.

    Raises:
        ValueError: If it is none, or says what cannot be; the error names the place.
    """
    path = Path(path)
    text = read_text(path)
    reading = parse if path.suffix == ".json" else strict_yaml.parse
    try:
        return _Reading(path, trust_retriever).mixture(reading(text))
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


@dataclass
class _Reading:
    """One file as it is read."""

    path: Path
    trust: bool
    parsed: dict[str, Any] = field(default_factory=dict)
    """Content that numbers depend on, as JSON in a fixed order."""

    def mixture(self, content: Any) -> Mixture:
        found = _fields(content, "the file", (*FACTORS, *OTHERS))
        if not any(name in found for name in FACTORS):
            raise ValueError(f"nothing is mixed: expected one of {', '.join(FACTORS)}")
        readers: Mapping[str, Callable[[Any], Factor]] = {
            "permutations": self._orders,
            "documents": self._documents,
            "few_shot": self._few_shot,
            "prompts": self._prompts,
        }
        factors = [read(found[name]) for name, read in readers.items() if name in found]
        models = self._models(found["models"]) if "models" in found else []
        draws = _whole(found["draws"], "draws", 1) if "draws" in found else None
        seed = _whole(found.get("seed", 0), "seed", 0)
        self.parsed["draws"] = None if draws is None else [draws, seed]
        whole = digest(json.dumps(self.parsed, sort_keys=True))
        return Mixture(factors, models, draws, seed, whole)

    def _fixed(self, name: str, found: Sequence[tuple[str, float, str]]) -> Fixed:
        """Return a factor of texts around a context."""
        parsed = sorted([each, weight, digest(text)] for each, weight, text in found)
        self.parsed[name] = parsed
        variants = weighed([(n, weight, around(t)) for n, weight, t in found], name)
        return Fixed(name, variants)

    def _prompts(self, content: Any) -> Factor:
        found = []
        for place, each in enumerate(_list(content, "prompts")):
            where = f"prompts[{place}]"
            given = {"text": each} if isinstance(each, str) else each
            prompt = _fields(given, where, ("name", "text", "weight"))
            text = _template(prompt.get("text"), f"{where}.text", CONTEXT)
            name = _text(prompt.get("name", short(text)), f"{where}.name")
            found.append((name, _weight(prompt, where), text))
        return self._fixed("prompt", found)

    def _few_shot(self, content: Any) -> Factor:
        allowed = ("file", "number", "seeds", "separator")
        parsed = _fields(content, "few_shot", allowed)
        path = self._beside(parsed.get("file"), "few_shot.file")
        texts = [
            _text(_fields(row, where, ("text",)).get("text"), f"{where}: text")
            for where, row in _rows(path)
        ]
        number = _whole(parsed.get("number"), "few_shot.number", 1)
        if number > len(texts):
            raise ValueError(
                f"few_shot.number is {number}: {path} has {len(texts)} rows"
            )
        seeds = [
            _whole(seed, f"few_shot.seeds[{place}]", 0)
            for place, seed in enumerate(_list(parsed.get("seeds"), "few_shot.seeds"))
        ]
        between = _text(parsed.get("separator", SEPARATOR), "few_shot.separator")
        found = []
        for seed in seeds:
            drawn = np.random.Generator(np.random.Philox(seed)).permutation(len(texts))
            shown = [texts[place] for place in drawn[:number]]
            before = between.join([*shown, ""])
            if CONTEXT in before:
                raise ValueError(f"{path}: an example has {CONTEXT} in it")
            found.append((f"seed {seed}", 1.0, before + CONTEXT))
        return self._fixed("few_shot", found)

    def _orders(self, content: Any) -> Factor:
        if content not in ("all", "cyclic"):
            raise ValueError(f"permutations is {content!r:.40}: expected all or cyclic")
        self.parsed["order"] = content
        return Orders(content)

    def _documents(self, content: Any) -> Factor:
        parsed = _fields(content, "documents", ("file", "callable", "template"))
        if ("file" in parsed) == ("callable" in parsed):
            raise ValueError("documents: expected either a file or a callable")
        template = _template(
            parsed.get("template", f"{DOCUMENT}{SEPARATOR}{CONTEXT}"),
            "documents.template",
            DOCUMENT,
        )
        if template.count(CONTEXT) > 1:
            raise ValueError(f"documents.template has {CONTEXT} more than once")
        source = self._listed if "file" in parsed else self._called
        retrieve, known = source(parsed.get("file", parsed.get("callable")))
        self.parsed["document"] = [known, template]
        return Documents(retrieve, template)

    def _listed(self, content: Any) -> tuple[Retrieve, str]:
        """Return what looks documents up in a file, and its digest."""
        path = self._beside(content, "documents.file")
        found: dict[str, list[Document]] = {}
        for where, row in _rows(path):
            parsed = _fields(row, where, ("context", "documents"))
            context = _text(parsed.get("context"), f"{where}: context", empty=True)
            if context.strip() in found:
                raise ValueError(f"{where}: the context of a line before")
            listed = _list(parsed.get("documents"), f"{where}: documents")
            found[context.strip()] = [_document(each, where) for each in listed]

        def retrieve(context: str) -> Sequence[Document]:
            if context.strip() not in found:
                raise ValueError(
                    f"{path} has no line with this context: give one to every question "
                    "('context' as lm_eval --log_samples writes it, 'documents')"
                )
            return found[context.strip()]

        return retrieve, file_digest(path)[:16]

    def _called(self, content: Any) -> tuple[Retrieve, str]:
        """Return a retriever that calls a trusted function, and its name."""
        name = _text(content, "documents.callable")
        if ":" not in name:
            raise ValueError(
                f"documents.callable is {name!r:.60}: expected package.module:function"
            )
        if not self.trust:
            raise ValueError(
                f"documents.callable names code ({name}), which is imported and called "
                "with trust_retriever=True in --model_args alone"
            )
        function = RETRIEVERS[name]
        if not callable(function):
            raise ValueError(f"documents.callable: {name} is no function")

        def retrieve(context: str) -> Sequence[Document]:
            try:
                rows = list(function(context))
            except Exception as err:  # of code that is not ours
                raise ValueError(
                    f"{name} ends in {type(err).__name__} ({one_line(err)})"
                ) from err
            return [_document(row, name) for row in rows]

        return retrieve, name

    def _models(self, content: Any) -> list[Model]:
        found = []
        for place, each in enumerate(_list(content, "models")):
            where = f"models[{place}]"
            parsed = _fields(each, where, ("name", "weight", "base", "args"))
            given = _fields(parsed.get("args", {}), f"{where}.args", MODEL_ARGUMENTS)
            for name, value in given.items():
                if not isinstance(value, str | int | float):
                    raise ValueError(
                        f"{where}.args.{name} is {value!r:.40}: expected text"
                    )
            if ":" in str(given.get("estimator", "")):
                raise ValueError(f"{where}.args.estimator names code: expected a name")
            base = _text(parsed["base"], f"{where}.base") if "base" in parsed else None
            name = parsed.get("name", given.get("pretrained", base or f"model {place}"))
            found.append(
                Model(_text(name, f"{where}.name"), _weight(parsed, where), base, given)
            )
        weighed([(m.name, m.weight, unchanged) for m in found], "models")
        self.parsed["model"] = sorted([m.name, m.weight] for m in found)
        return found

    def _beside(self, content: Any, what: str) -> Path:
        path = self.path.parent / _text(content, what)
        if not path.is_file():
            raise ValueError(f"{what}: {path} is no file")
        return path


def _document(row: Any, where: str) -> Document:
    parsed = _fields(row, where, ("name", "text", "weight"))
    text = _text(parsed.get("text"), f"{where}: text of a document")
    name = _text(parsed.get("name", short(text)), f"{where}: name of a document")
    return name, _weight(parsed, where), text


def _rows(path: Path) -> list[tuple[str, Any]]:
    """Return the values of a file of JSON lines, and where each stands."""
    found = []
    for number, line in numbered_lines(path):
        where = f"{path.name}, line {number}"
        try:
            found.append((where, parse(line)))
        except ValueError as err:
            raise ValueError(f"{where}: {err}") from err
    return found


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


def _text(content: Any, where: str, *, empty: bool = False) -> str:
    if not isinstance(content, str) or not (content or empty):
        raise ValueError(f"{where} is {content!r:.40}: expected text")
    return content


def _template(content: Any, where: str, *marks: str) -> str:
    text = _text(content, where)
    for mark in marks:
        if text.count(mark) != 1:
            raise ValueError(
                f"{where} has {mark} {text.count(mark)} times: expected once"
            )
    return text


def _whole(content: Any, where: str, least: int) -> int:
    if type(content) is not int or not least <= content < 2**31:
        raise ValueError(
            f"{where} is {content!r:.40}: expected a whole number of {least} or more"
        )
    return content


def _weight(parsed: Mapping[str, Any], where: str) -> float:
    weight = parsed.get("weight", 1.0)
    if type(weight) not in (int, float) or not 0 < weight < 1e300:
        raise ValueError(
            f"{where}.weight is {weight!r:.40}: expected a positive number"
        )
    return float(weight)
