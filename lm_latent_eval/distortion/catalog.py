"""Languages and learners by name or directory.

Languages are built-in grammars, JSON files, causal LMs and our latent LMs; learners are
causal LMs and our latent LMs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus, TokenIds
from lm_latent_eval.distortion.languages.language import (
    LANGUAGE_FILE,
    Language,
    read_description,
)
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.learners import (
    lstm as lstm,  # so that its directories load
)
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.ledger.settings import differences
from lm_latent_eval.networks.network import check_positions
from lm_latent_eval.scoring.sequence_scorer import TokenIdModel
from lm_latent_eval.scoring.string_scorers import is_latent

if TYPE_CHECKING:
    from lm_latent_eval.distortion.languages.language import Language


EXAMPLES = Path(__file__).parent / "languages" / "examples"


def examples() -> list[str]:
    """Return the names of the built-in languages."""
    return sorted(path.stem for path in EXAMPLES.glob("*.json"))


def load_language(name: str | Path, **causal: Any) -> Language:
    """Load a language.

    Args:
        name: A built-in example, a JSON file of a grammar, or a causal LM: a directory
            or a repository of the hub.
        causal: For a causal LM, as :meth:`CausalLanguage.load`.

    Raises:
        ValueError: If there is no such language, or its description is wrong.

    Example:
        >>> load_language("agreement").vocab_size
        26
    """
    path = EXAMPLES / f"{name}.json" if str(name) in examples() else Path(name)
    if path.suffix.lower() != ".json":
        from lm_latent_eval.distortion.languages.causal import CausalLanguage

        return CausalLanguage.load(name, **causal)
    if causal:
        raise ValueError(f"{name} is not a causal LM: it has no {', '.join(causal)}")
    description = read_description(path)
    try:
        return PCFG(description)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


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


def load_learner(path: str | Path, corpus: Corpus, **settings: Any) -> TokenIdModel:
    """Load a learner of the language of a corpus.

    Args:
        path: A directory or a hub repository.
        corpus: Sequences of the language: its tokens must be the model's.
        settings: As :func:`load_causal_learner` or :meth:`LatentLearner.load`.

    Raises:
        ValueError: If there is no such model, its tokens are others, or it has no such
            setting.
    """
    if is_latent(path):
        return LatentLearner.load(path, corpus, **settings)
    wrong = sorted(settings.keys() - {"device", "dtype", "batch_size"})
    if wrong:
        raise ValueError(
            f"{path} is a causal LM, whose log-probabilities are exact: it has no "
            f"{', '.join(wrong)}"
        )
    return load_causal_learner(path, corpus, **settings)


def load_causal_learner(
    path: str | Path,
    corpus: Corpus,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    batch_size: int = 64,
) -> CausalLanguage:
    """Load a model for the sequences of a corpus, whose begin and end it takes.

    Args:
        path: A directory, or a repository of the hub.
        corpus: What is to be scored.
        device: Where to compute; None is a GPU if there is one.
        dtype: Of the model.
        batch_size: Sequences computed together.

    Raises:
        ValueError: If there is no such model, it has another vocabulary than the
            corpus, or too few positions for it.
    """
    vocabulary = TokenIds.of(corpus)
    language = CausalLanguage.load(
        path,
        begin_id=vocabulary.begin_id,
        end_id=vocabulary.end_id,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
    )
    vocabulary.check_tokens(str(path), language.vocab_size, language.tokenizer)
    check_positions(language.model, str(path), corpus.max_length)
    return language
