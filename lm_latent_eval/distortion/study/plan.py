"""Sizes of a study, read from a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from lm_latent_eval.options import whole
from lm_latent_eval.text import strict_json

PLANS = Path(__file__).parent / "plans"
_OPTIONAL = {"seed", "micro_batch", "bf16"}
SIZES = ("lstm", "small", "medium", "large")
"""The models that are compared; the language is a medium one."""


def plans() -> list[str]:
    """Return the names of the built-in plans."""
    return sorted(path.stem for path in PLANS.glob("*.json"))


@dataclass(frozen=True)
class LatentSizes:
    """A latent learner, an RNNG of a grammar.

    Attributes:
        language: A grammar: a built-in one or a JSON file.
        num_train: Sentences, with their trees.
        num_test: Sentences that its errors are measured on.
        max_words: Of a test sentence: all its trees are summed as well.
        hidden_size: Of the RNNG.
        epochs: At most.
        estimates: The curves that are drawn beside the exact one, each a proposal and
            its number of samples K.
    """

    language: str
    num_train: int
    num_test: int
    max_words: int
    hidden_size: int
    epochs: int
    estimates: list[tuple[str, int]]


@dataclass(frozen=True)
class DistortionPlan:
    """What a study of distortion trains, draws and scores.

    Attributes:
        sizes: Of ``lstm``, ``small``, ``medium`` and ``large``: the name of an
            architecture or a configuration, and the learning rate.
        vocab_size: Of the byte-pair encoding that all share.
        max_length: Tokens of a sequence, its end included.
        batch_size: Sequences an update.
        language_epochs: Of the training of a language on text, at most.
        temperature: Of the language of most experiments.
        temperatures: Of those that are compared, ``temperature`` and 1 among them.
        num_train: Sequences of a fixed training set.
        num_dev: Of a validation set.
        num_test: Of a test set.
        epochs: Of training on a fixed set; it goes on past the best one.
        num_fresh: Fresh sequences an iteration of online training.
        iterations: Of online training.
        num_tracked: Training and test sequences scored after every epoch.
        num_perturbed: Test sequences that are perturbed.
        num_edits: The most perturbations of one.
        num_random: Random sequences.
        num_bins: Of sequences by probability.
        latent: The latent learner.
        seed: Of everything.
        micro_batch: Sequences computed together, where a batch does not fit into
            memory; None is all of them.
        bf16: Compute in bfloat16 where autocast does, in training.
    """

    sizes: dict[str, dict[str, Any]]
    vocab_size: int
    max_length: int
    batch_size: int
    language_epochs: int
    temperature: float
    temperatures: list[float]
    num_train: int
    num_dev: int
    num_test: int
    epochs: int
    num_fresh: int
    iterations: int
    num_tracked: int
    num_perturbed: int
    num_edits: int
    num_random: int
    num_bins: int
    latent: LatentSizes
    seed: int = 0
    micro_batch: int | None = None
    bf16: bool = False

    def __post_init__(self) -> None:
        """Check what the study relies on.

        Raises:
            ValueError: If a size or a temperature is missing, or a number too small.
        """
        if missing := [size for size in SIZES if size not in self.sizes]:
            raise ValueError(f"sizes: {', '.join(missing)} missing")
        for needed in (self.temperature, 1.0):
            if needed not in self.temperatures:
                raise ValueError(
                    f"temperatures: figures use {needed}, which is missing"
                )
        if self.num_tracked > min(self.num_train, self.num_test):
            raise ValueError(
                f"num_tracked={self.num_tracked}: there are {self.num_train} training "
                f"and {self.num_test} test sequences"
            )
        if self.num_bins > self.num_tracked:
            raise ValueError(
                f"num_bins={self.num_bins}: {self.num_tracked} sequences are tracked"
            )
        if self.num_perturbed > self.num_test:
            raise ValueError(
                f"num_perturbed={self.num_perturbed}: there are {self.num_test} test "
                "sequences"
            )

    @classmethod
    def read(cls, name: str | Path) -> Self:
        """Read a plan.

        Args:
            name: A built-in one or a JSON file.

        Raises:
            ValueError: If there is no such plan, or it is not one.
        """
        path = PLANS / f"{name}.json" if str(name) in plans() else Path(name)
        try:
            return cls.of(strict_json.read(path))
        except (OSError, AttributeError, TypeError, ValueError) as err:
            raise ValueError(
                f"{name} is no plan of a study ({err}); built in are "
                f"{', '.join(plans())}"
            ) from err

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Take the numbers as JSON has them.

        Raises:
            ValueError: If one is missing, unknown or impossible.
        """
        latent = LatentSizes(
            **_checked(LatentSizes, found.get("latent", {}), "latent: ")
        )
        return cls(**_checked(cls, {**found, "latent": latent}))

    def settings(self) -> dict[str, Any]:
        """Return the numbers as JSON takes them."""
        return asdict(self)


def _checked(kind: Any, found: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    types = {each.name: each.type for each in fields(kind)}
    names = set(types)
    if unknown := sorted(set(found) - names):
        raise ValueError(f"{where}unknown: {', '.join(unknown)}")
    if missing := sorted(names - set(found) - _OPTIONAL):
        raise ValueError(f"{where}missing: {', '.join(missing)}")
    return {
        name: whole(f"{where}{name}", value, 0) if types[name] == "int" else value
        for name, value in found.items()
    }
