"""Languages by name: built-in examples, JSON files, directories of causal LMs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.distortion.languages.hmm import HMM
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.languages.words import read_description

if TYPE_CHECKING:
    from lm_latent_eval.distortion.languages.language import Language

EXAMPLES = Path(__file__).parent / "examples"


def examples() -> list[str]:
    """Return the names of the built-in languages."""
    return sorted(path.stem for path in EXAMPLES.glob("*.json"))


def described_language(description: Mapping[str, Any]) -> PCFG | HMM:
    """Return the language of a description.

    Raises:
        ValueError: If it is not one.
    """
    kinds: dict[Any, type[PCFG] | type[HMM]] = {"pcfg": PCFG, "hmm": HMM}
    kind = description.get("kind")
    if kind not in kinds:
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(kinds)}")
    return kinds[kind](description)


def load_language(name: str | Path, **causal: Any) -> Language:
    """Load a language.

    Args:
        name: A built-in example, a JSON file of a grammar or a hidden Markov model, or
            a causal LM: a directory or a repository of the hub.
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
        return described_language(description)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err
