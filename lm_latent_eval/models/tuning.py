"""What the strengths of proposals are fitted to: ``tuning.json`` of a checkpoint.

Draws are honest whatever a proposal was fitted to: their mean is p(x). But a proposal
that was fitted to the very texts that are scored was chosen by looking at them, and a
certificate holds only for what was decided before. So the file has a digest of every
text, and scoring says where it meets one of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import lm_latent_eval
from lm_latent_eval.durable import write_text
from lm_latent_eval.latent import Mass
from lm_latent_eval.models.proposals import RANGES, Strengths, chosen
from lm_latent_eval.text import strict_json
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.digests import digest
from lm_latent_eval.text.words import END, START, WordTokenizer
from lm_latent_eval.training.fitting import Fit, fit
from lm_latent_eval.training.options import FitBudget
from lm_latent_eval.values import Each, Matching, check

T = TypeVar("T")

FILE_NAME = "tuning.json"
FORMAT = "lm-latent-eval-tuning-1"
TEXTS_AT_ONCE = 8

_RULES = {"texts": Each(Matching("[0-9a-f]{16}", "16 hex digits"))}


@dataclass(frozen=True)
class Tuned:
    """The strengths of a proposal, and where they come from."""

    strengths: Mapping[str, float]
    texts: Sequence[str]
    """A digest of each text."""
    history: Mapping[str, Any]
    """The budget, what was gained, and the curve."""

    @property
    def data(self) -> str:
        """A digest of all texts."""
        return digest(" ".join(self.texts))

    @classmethod
    def of(cls, found: Fit, texts: Sequence[str], budget: FitBudget) -> Tuned:
        """Record what a fit found."""
        return cls(
            found.strengths,
            sorted({digest(text) for text in texts}),
            {
                "lm_latent_eval": lm_latent_eval.__version__,
                "budget": asdict(budget),
                "tokens": found.num_tokens,
                "before": asdict(found.before),
                "after": asdict(found.after),
                "gain": found.gain,
                "gain_stderr": found.stderr,
                "curve": [asdict(each) for each in found.curve],
            },
        )


def learned(model: Any) -> list[str]:
    """Return the proposals with strengths that were learned from annotation.

    The others begin at strengths of 1, which were never found to be far from best, and
    a fit of them costs more than the training of a small model.
    """
    given = {"scores", "look_ahead"}
    return [name for name in model.proposal_names if model.untuned(name).keys() - given]


def fit_after_training(
    model: Any, tokenizer: WordTokenizer, texts: Sequence[str], seed: int
) -> dict[str, Tuned]:
    """Fit the proposals of a new model to some of its training text.

    Args:
        model: Trained.
        tokenizer: Its words.
        texts: What it was trained on.
        seed: Of the draws.

    Returns:
        Those that are better for it, by name.
    """
    budget = FitBudget(texts=20, num_samples=50, seed=seed)
    ends = [END] if model.mass in (Mass.ONE, Mass.LESS) else []
    read = {text: [*tokenizer(text).ids, *ends] for text in spaced(texts, budget.texts)}
    read = {text: ids for text, ids in read.items() if ids != ends}
    batches = [
        TokenBatch.collate(group, first=START) for group in grouped(read.values(), len)
    ]
    model.requires_grad_(False)
    model.tuned = {}  # what was fitted to another p is past
    result: dict[str, Tuned] = {}
    for name in learned(model):
        print(f"fitting {name} to {len(read)} texts", file=sys.stderr)
        found = fit(model, name, batches, RANGES, budget)
        if found.better:
            result[name] = Tuned.of(found, [*read], budget)
    model.requires_grad_(True)
    return result


def spaced(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many, at even distances.

    Example:
        >>> spaced(range(10), 4), spaced(range(2), 4)
        ([0, 2, 5, 7], [0, 1])
    """
    number = min(most, len(items))
    return [items[n * len(items) // number] for n in range(number)]


def grouped(items: Iterable[T], size: Callable[[T], int]) -> list[list[T]]:
    """Put items of similar size together, a few at a time."""
    some = sorted(items, key=size)
    starts = range(0, len(some), TEXTS_AT_ONCE)
    return [some[start : start + TEXTS_AT_ONCE] for start in starts]


# -- files ----------------------------------------------------------------------------


def dumps(tuned: Mapping[str, Tuned]) -> str:
    """Write as JSON."""
    proposals = {name: asdict(each) for name, each in tuned.items()}
    return json.dumps({"format": FORMAT, "proposals": proposals}, indent=1) + "\n"


def save_tuned(tuned: Mapping[str, Tuned], directory: Path) -> None:
    """Write the file of a checkpoint, or see that there is none."""
    if tuned:
        write_text(directory / FILE_NAME, dumps(tuned))
    else:
        (directory / FILE_NAME).unlink(missing_ok=True)


def load_tuned(directory: Path, model: Any) -> dict[str, Tuned]:
    """Read the file of a checkpoint; {} if there is none.

    Args:
        directory: The checkpoint.
        model: The model, which says what its proposals can be tuned in.

    Raises:
        ValueError: If it is damaged, or of another model.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return {}
    try:
        content = strict_json.read(path)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {FORMAT!r}")
        found = {name: Tuned(**each) for name, each in content["proposals"].items()}
        for name, each in found.items():
            check(vars(each), _RULES)
            chosen(name, model.proposal_names)
            _check_strengths(name, each.strengths, model.untuned(name))
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise ValueError(
            f"{path} does not say how this model's proposals were tuned ({err}): copy "
            "the checkpoint again, or remove the file, seal the directory and tune it"
        ) from err
    return found


def _check_strengths(name: str, found: Mapping[str, Any], known: Strengths) -> None:
    if found.keys() != known.keys():
        raise ValueError(
            f"{name} has the strengths {', '.join(known) or 'of none'}, not "
            f"{', '.join(found)}"
        )
    for strength, value in found.items():
        low, high = RANGES[strength]
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(
                f"{name}: {strength} is {value!r}: expected a number of {low:g} to "
                f"{high:g}"
            )
