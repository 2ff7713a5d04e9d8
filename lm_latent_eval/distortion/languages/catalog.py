"""Languages by name: built-in grammars, JSON files, directories of causal LMs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.languages.words import read_description

if TYPE_CHECKING:
    from lm_latent_eval.distortion.languages.language import Language

EXAMPLES = Path(__file__).parent / "examples"


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
