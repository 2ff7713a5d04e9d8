"""Folder layout of a study, and the models it compares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lm_latent_eval.distortion.study.plan import DistortionPlan
from lm_latent_eval.files import safe_name

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
        """What a reader calls it, among others that were trained alike."""
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
    def mapped(self) -> list[LearnerSpec]:
        """Figures 5 and 11: those whose probabilities are looked for elsewhere."""
        return [LearnerSpec("medium", self.plan.temperature, online=True)]

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
        """What belongs to the latent learner."""
        return self.output / "latent" / part

    def latent_scores(self, *what: str | int) -> Path:
        """Its columns: ``exact``, or by a proposal and a number of samples."""
        return self.latent("scores") / safe_name("-".join(map(str, what)))
