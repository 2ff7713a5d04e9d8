"""Settings that a study compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lm_latent_eval.options import one_of, whole
from lm_latent_eval.scoring.options import ScoringOptions

TEMPERATURES = (0.5, 0.9, 1.0, 1.1, 2.0, 5.0)
"""Those of Logan et al. (2020), section 4."""
BEAM_WIDTHS = (1, 10, 100)
"""Those of their table 2."""
REPLICATE = 100
"""Samples of one replicate in their figure 4."""


@dataclass(frozen=True)
class StudySetting:
    """One way to draw latents, or to search for them."""

    estimator: str
    """``is`` or ``beam``."""
    proposal: str
    temperature: float
    num_samples: int
    """K, or the width of the beam."""

    @property
    def name(self) -> str:
        if self.estimator == "beam":
            return f"beam-{self.proposal}-{self.num_samples}"
        return f"is-{self.proposal}-{self.temperature:g}"


@dataclass(frozen=True)
class StudyPlan:
    """The settings of a study, checked against what a model has.

    Attributes:
        tempered: Proposals that are drawn from at every temperature, and searched.
        others: Proposals that are drawn from as they are.
        temperatures: Divide the scores of the tempered ones.
        num_samples: K, all samples of a text; estimates from fewer are nested in them.
        replicate: Samples of one replicate; a text's samples make K / replicate.
        beam_widths: Numbers of latents summed.
        seed: Of all random numbers.
        unk: What unknown words cost; None is the checkpoint's own way.
    """

    tempered: tuple[str, ...]
    others: tuple[str, ...]
    temperatures: tuple[float, ...] = TEMPERATURES
    num_samples: int = 1000
    replicate: int = REPLICATE
    beam_widths: tuple[int, ...] = BEAM_WIDTHS
    seed: int = 0
    unk: str | None = None

    @classmethod
    def of(
        cls, proposals: Sequence[str], tempered: Sequence[str] | None, **choices: object
    ) -> StudyPlan:
        """Choose among the proposals of a model, the one that reads most first.

        Where no tempered ones are named it is the first alone.

        Raises:
            ValueError: If the model has no such proposal, or a number is impossible.

        Example:
            >>> [s.name for s in StudyPlan.of(["peeking", "prior"], None).settings()]
            ['is-peeking-0.5', 'is-peeking-0.9', 'is-peeking-1', 'is-peeking-1.1',
             'is-peeking-2', 'is-peeking-5', 'is-prior-1',
             'beam-peeking-1', 'beam-peeking-10', 'beam-peeking-100']
        """
        tempered = tuple(tempered or proposals[:1])
        for name in tempered:
            one_of("tempered", name, proposals)
        others = tuple(name for name in proposals if name not in tempered)
        for name in {"num_samples", "replicate"} & {*choices}:
            choices[name] = whole(name, choices[name], 1)
        plan = cls(tempered, others, **choices)  # type: ignore[arg-type]
        if not 1 <= plan.replicate <= plan.num_samples:
            raise ValueError(
                f"a replicate of {plan.replicate} samples: expected 1 to "
                f"{plan.num_samples}, the samples of a text"
            )
        if 1.0 not in plan.temperatures:
            raise ValueError(
                "the temperatures must include 1, with which others compare"
            )
        names = [setting.name for setting in plan.settings()]
        for setting in plan.settings():
            ScoringOptions.parse(
                {
                    "num_samples": setting.num_samples,
                    "temperature": setting.temperature,
                }
            )
            if names.count(setting.name) > 1:
                raise ValueError(f"the plan has {setting.name} twice: give it once")
        return plan

    def settings(self) -> list[StudySetting]:
        """Return every setting, in the order in which a study runs them."""
        drawn = [
            StudySetting("is", name, temperature, self.num_samples)
            for name in self.tempered
            for temperature in self.temperatures
        ]
        drawn += [
            StudySetting("is", name, 1.0, self.num_samples) for name in self.others
        ]
        searched = [
            StudySetting("beam", name, 1.0, width)
            for name in self.tempered
            for width in self.beam_widths
        ]
        return drawn + searched
