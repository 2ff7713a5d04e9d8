"""Languages by name, our latent models among them, and the language of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.distortion.languages.catalog import examples, load_language
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import Language
from lm_latent_eval.distortion.languages.words import LANGUAGE_FILE, read_description
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.distortion.learners.latent_language import LatentLanguage
from lm_latent_eval.ledger.settings import differences
from lm_latent_eval.scoring.string_scorers import is_latent

_OF_CAUSAL = {"temperature", "begin_id", "end_id"}


def open_language(name: str | Path, **options: Any) -> Language:
    """Load any language.

    Args:
        name: As :func:`load_language` takes it, or one of our latent models: a
            directory or a repository of the hub.
        options: Of a causal or a latent LM: ``device``, ``dtype``, ``batch_size``; of a
            causal LM also ``temperature``, ``begin_id`` and ``end_id``; of a latent one
            ``max_words``.

    Raises:
        ValueError: If there is no such language, or it has no such option.
    """
    try:
        latent = not _is_described(name) and is_latent(name)
    except ValueError as err:
        known = ", ".join(examples())
        raise ValueError(f"{err}; the built-in languages are {known}") from err
    if not latent:
        return load_language(name, **options)
    if wrong := sorted(_OF_CAUSAL & {*options}):
        raise ValueError(f"{name} is a latent LM: it has no {', '.join(wrong)}")
    return LatentLanguage.load(name, **options)


def language_of(
    corpus: Corpus, path: str | Path | None = None, **options: Any
) -> Language:
    """Load the language that a corpus was drawn from.

    Args:
        corpus: The corpus.
        path: Where the language is now; None is where it was.
        options: ``device`` and ``batch_size`` of a model.

    Raises:
        ValueError: If it is not there, or is another one.
    """
    theirs = corpus.settings["language"]
    file = corpus.directory / LANGUAGE_FILE
    of_a_model = theirs["kind"] in ("causal", "latent")
    if path is None:
        path = read_description(file)["path"] if of_a_model else file
    if _is_described(path):
        options = {}
    elif of_a_model:
        options["dtype"] = getattr(torch, theirs["dtype"])
        options |= {name: theirs[name] for name in sorted(_OF_CAUSAL & {*theirs})}
        if theirs["kind"] == "latent":
            options["max_words"] = corpus.max_length
    found = open_language(path, **options)
    if different := differences(theirs, found.settings()):
        raise ValueError(
            f"{corpus.directory} was not drawn from this language ({different})"
        )
    return found


def _is_described(name: str | Path) -> bool:
    """Whether a language is a grammar, not a model's."""
    return str(name) in examples() or Path(name).suffix.lower() == ".json"
