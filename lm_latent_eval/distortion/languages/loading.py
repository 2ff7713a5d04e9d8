"""Languages by name: built-in grammars, JSON files, causal LMs, our latent LMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.language import (
    LANGUAGE_FILE,
    Language,
    read_description,
)
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.ledger.settings import differences
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.networks.network import is_latent
from lm_latent_eval.scoring.options import parse_device, parse_dtype

EXAMPLES = Path(__file__).parent / "examples"


def examples() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.json"))


_OF_CAUSAL = {"temperature", "begin_id", "end_id"}


def load_language(name: str | Path, **options: Any) -> Language:
    """Load a language.

    Args:
        name: A built-in example, a JSON file of a grammar, or a directory or a
            repository of the hub: a causal LM, or one of our latent models.
        options: Options of causal or latent LMs: ``device``, ``dtype``, ``batch_size``;
            of a causal LM also ``temperature``, ``begin_id`` and ``end_id``.

    Raises:
        ValueError: If there is no such language, its description is wrong, or it has no
            such option.

    Example:
        >>> load_language("agreement").vocab_size
        26
    """
    if _is_described(name):
        if options:
            raise ValueError(
                f"{name} is not a causal LM: it has no {', '.join(options)}"
            )
        path = EXAMPLES / f"{name}.json" if str(name) in examples() else Path(name)
        description = read_description(path)
        try:
            return PCFG(description)
        except ValueError as err:
            raise ValueError(f"{path}: {err}") from err
    try:
        latent = is_latent(name)
    except ValueError as err:
        names = ", ".join(examples())
        raise ValueError(f"{err}; the built-in languages are {names}") from err
    if not latent:
        return CausalLanguage.load(name, **options)
    if wrong := sorted(_OF_CAUSAL & {*options}):
        raise ValueError(f"{name} is a latent LM: it has no {', '.join(wrong)}")
    size = options.pop("batch_size", None)
    return LatentLanguage(_checkpoint(name, **options), batch_size=size)


def language_of(
    corpus: Corpus, path: str | Path | None = None, **options: Any
) -> Language:
    """Load the language that a corpus was drawn from.

    Args:
        corpus: The corpus.
        path: Present path of the language; None is the recorded one.
        options: ``device`` and ``batch_size`` of a model.

    Raises:
        ValueError: If it is not there, or is another one.
    """
    expected = corpus.settings["language"]
    file = corpus.directory / LANGUAGE_FILE
    try:
        of_a_model = expected["kind"] in ("causal", "latent")
        if path is None:
            path = read_description(file)["path"] if of_a_model else file
        if _is_described(path):
            options = {}
        elif of_a_model:
            options["dtype"] = getattr(torch, expected["dtype"])
            options |= {
                name: expected[name] for name in sorted(_OF_CAUSAL & {*expected})
            }
    except (AttributeError, KeyError, TypeError) as err:
        raise ValueError(
            f"{corpus.directory} does not say what language it was drawn from ({err!r})"
        ) from err
    language = load_language(path, **options)
    if different := differences(expected, language.settings()):
        raise ValueError(
            f"{corpus.directory} was not drawn from this language ({different})"
        )
    return language


def _is_described(name: str | Path) -> bool:
    return str(name) in examples() or Path(name).suffix.lower() == ".json"


def _checkpoint(path: str | Path, device: Any = None, dtype: Any = None) -> Checkpoint:
    where, kind = parse_device(device), parse_dtype(dtype)
    return load_checkpoint(path, device=where, dtype=kind)
