"""Plan of a study, the models it compares, and the layout of its folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from lm_latent_eval.distortion.languages.latent import MOST_WORDS
from lm_latent_eval.distortion.learners.architectures import named_size
from lm_latent_eval.distortion.learners.options import MOST_SEED
from lm_latent_eval.files import safe_name
from lm_latent_eval.options import one_of, whole
from lm_latent_eval.text import strict_json

PLANS = Path(__file__).parent / "plans"
_OPTIONAL = {"seed", "micro_batch", "bf16"}
PROPOSALS = ("adapted", "crf", "prior")
"""Of an RNNG."""
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

    def __post_init__(self) -> None:
        if not isinstance(self.language, str):
            raise ValueError(f"latent: language={self.language!r}: expected a name")
        if self.max_words > MOST_WORDS:
            raise ValueError(
                f"latent: max_words={self.max_words}: all trees are summed of "
                f"{MOST_WORDS} at most"
            )
        for each in self.estimates:
            if len(each) != 2:
                raise ValueError(
                    f"latent: estimates={each!r}: expected a proposal and a number"
                )
            proposal, number = each
            one_of("latent: proposal", proposal, PROPOSALS)
            whole("latent: number of samples", number, 1)


@dataclass(frozen=True)
class DistortionPlan:
    """Plan of a study of distortion: what to train, draw and score.

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
        if missing := [size for size in SIZES if size not in self.sizes]:
            raise ValueError(f"sizes: {', '.join(missing)} missing")
        for size in self.sizes.values():
            if "architecture" in size:
                named_size(size["architecture"])
        for needed in (self.temperature, 1.0):
            if needed not in self.temperatures:
                raise ValueError(
                    f"temperatures: figures use {needed}, which is missing"
                )
        shown = [f"{each:g}" for each in self.temperatures]
        if len({*shown}) < len(shown):
            raise ValueError(
                f"temperatures: {', '.join(shown)}: folders are named by them, and two "
                "are alike"
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
        except (OSError, ValueError) as err:
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
        try:
            given = found.get("latent", {})
            latent = LatentSizes(**_checked(LatentSizes, given, "latent: "))
            return cls(**_checked(cls, {**found, "latent": latent}))
        except (AttributeError, TypeError) as err:
            raise ValueError(f"plan: a value is of another type ({err})") from err

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
    limits = {"seed": (0, MOST_SEED)}
    return {
        name: whole(f"{where}{name}", value, *limits.get(name, (1,)))
        if types[name] == "int"
        else value
        for name, value in found.items()
    }


BASE, FINETUNED = "base", "finetuned"
"""Languages: trained from random weights, or from a model that had read other text."""
LANGUAGE_TEXT, OTHER_TEXT = "language", "other"
"""Natural text: what languages are trained on, and what a model had read before."""
LABELS = {
    "lstm": "LSTM",
    "small": "GPT2-small",
    "medium": "GPT2-medium",
    "large": "GPT2-large",
}


@dataclass(frozen=True)
class LearnerSpec:
    """A model that the study trains on a language.

    Attributes:
        size: One of the plan's sizes.
        temperature: Of the language.
        language: Which language.
        online: Whether every iteration has a fresh sample.
        pretrained: Whether it had read other text before.
    """

    size: str
    temperature: float
    language: str = BASE
    online: bool = False
    pretrained: bool = False

    @property
    def name(self) -> str:
        parts = [self.size]
        parts += ["online"] * self.online + ["pretrained"] * self.pretrained
        return "-".join([*parts, self.language, f"T{self.temperature:g}"])

    @property
    def label(self) -> str:
        """Label in figures, among learners of the same training."""
        return LABELS[self.size]


def pretrained(size: str) -> str:
    """Return the name of a model that has read the other text."""
    return f"pretrained-{size}"


@dataclass(frozen=True)
class Learners:
    """The models of a plan, by the figures of the paper that they appear in."""

    plan: DistortionPlan

    @property
    def fixed(self) -> list[LearnerSpec]:
        """Figures 1, 2, 3 and 12."""
        return [
            LearnerSpec(size, self.plan.temperature)
            for size in ("lstm", "small", "medium")
        ]

    @property
    def online(self) -> list[LearnerSpec]:
        """Figure 4."""
        return [
            LearnerSpec(size, self.plan.temperature, online=True)
            for size in ("medium", "large", "lstm")
        ]

    @property
    def mapped(self) -> LearnerSpec:
        """Figures 5 and 11."""
        return LearnerSpec("medium", self.plan.temperature, online=True)

    @property
    def by_temperature(self) -> list[LearnerSpec]:
        """Figure 6."""
        return [LearnerSpec("medium", t) for t in sorted(self.plan.temperatures)]

    @property
    def of_finetuned(self) -> LearnerSpec:
        """Figure 7."""
        return LearnerSpec("medium", 1.0, FINETUNED)

    @property
    def untempered(self) -> list[LearnerSpec]:
        """Figure 8."""
        return [LearnerSpec(size, 1.0, online=True) for size in ("medium", "large")]

    @property
    def pretrained(self) -> list[LearnerSpec]:
        """Figure 9."""
        return [
            LearnerSpec(size, self.plan.temperature, pretrained=True)
            for size in ("small", "medium", "large")
        ]

    @property
    def pretrained_online(self) -> LearnerSpec:
        """Figure 10."""
        return LearnerSpec(
            "medium", self.plan.temperature, online=True, pretrained=True
        )

    @property
    def all(self) -> list[LearnerSpec]:
        """Return each once, those that take longest first."""
        found = [
            self.pretrained_online,
            *self.online,
            *self.untempered,
            *self.fixed,
            *self.by_temperature,
            *self.pretrained,
            self.of_finetuned,
        ]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Layout:
    """The folders of a study."""

    output: Path

    def text(self, part: str) -> Path:
        """Natural text, one text a line, in three files."""
        return self.output / "text" / part

    @property
    def tokenizer(self) -> Path:
        """The byte-pair encoding that all share."""
        return self.output / "tokenizer"

    def language(self, name: str) -> Path:
        """A causal LM that was trained on text."""
        return self.output / "languages" / name

    def corpus(self, language: str, temperature: float, split: str) -> Path:
        """Sequences of a language: ``train``, ``dev`` or ``test``."""
        return self.output / "corpora" / f"{language}-T{temperature:g}" / split

    def learner(self, learner: LearnerSpec) -> Path:
        """A trained model."""
        return self.output / "learners" / learner.name

    def trajectory(self, learner: LearnerSpec, split: str) -> Path:
        """Its scores after every epoch."""
        return self.learner(learner) / "trajectories" / split

    def scores(self, learner: LearnerSpec, kind: str) -> Path:
        """Columns: ``test``, ``perturbed``, ``random`` or ``text``."""
        return self.output / "scores" / learner.name / kind

    def latent(self, part: str) -> Path:
        """Folder of the latent learner."""
        return self.output / "latent" / part

    def latent_scores(self, *what: str | int) -> Path:
        """Its columns: ``exact``, or by a proposal and a number of samples."""
        return self.latent("scores") / safe_name("-".join(map(str, what)))
