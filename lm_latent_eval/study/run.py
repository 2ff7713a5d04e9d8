"""Resumable execution of a study of one checkpoint on one corpus."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

import lm_latent_eval
from lm_latent_eval.ledger.database import Rows
from lm_latent_eval.ledger.files import going_on, read
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.study import rows
from lm_latent_eval.study.plan import StudyPlan, StudySetting
from lm_latent_eval.study.totals import Draws, Totals, ledger
from lm_latent_eval.text.corpora import stream_texts

TEXTS_AT_ONCE = 1024
"""Texts read at a time, and sorted by length."""
KIND = "study"
ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True)
class Study:
    """A plan for one checkpoint and one corpus, with the folder of its results."""

    checkpoint: Checkpoint
    data: Path
    plan: StudyPlan
    output: Path
    limit: int | None = None
    """Only the first texts; None is all."""
    batch_size: int | str | None = None
    quiet: bool = False

    def run(self) -> list[rows.Row]:
        """Draw missing log-weights, and return every row.

        The rows of a setting are in ``rows.jsonl`` as soon as it is done.

        Raises:
            ValueError: If the folder is of another study or of one that is running, the
                model has no latents, or a text cannot be scored.
        """
        if self.checkpoint.model.estimators[0] == "exact":
            raise ValueError(
                f"{self.checkpoint.name} has no latents, so there is nothing to "
                "study: its likelihoods are exact"
            )
        settings = self.plan.settings()
        # What cannot be scored is an error now, not after hours of drawing.
        digest, num_texts = self._fingerprint(self._scorer(settings[0]))
        asked = self._asked(digest)
        with (
            going_on(self.output, asked, KIND, "all draws so far"),
            ledger(self.output).going_on(asked, None) as kept,
        ):
            return self._run(settings, num_texts, kept)

    def _run(
        self, settings: list[StudySetting], num_texts: int, kept: Rows
    ) -> list[rows.Row]:
        found: list[rows.Row] = []
        for number, setting in enumerate(settings, start=1):
            drawn = 1 if setting.estimator == "beam" else setting.num_samples
            draws = Draws(kept, setting.name, drawn)
            title = f"{setting.name} ({number} of {len(settings)})"
            with tqdm(
                total=num_texts, desc=title, unit=" texts", disable=self.quiet
            ) as bar:
                self._draw(setting, draws, bar)
            found += self._rows(setting, draws)
            rows.write(self.output / ROWS_FILE, found)
        return found

    def _draw(self, setting: StudySetting, draws: Draws, bar: Any) -> None:
        """Weigh the texts that have no draws yet."""
        scorer, done = self._scorer(setting), draws.keys()
        texts = self._texts()
        while queries := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            missing = [
                text
                for query in queries
                for text in scorer.cut.whole(query)
                if text.words and (text.query.index, text.sentence) not in done
            ]
            last = _last_sentences(missing)
            bar.update(len(queries) - len(last))
            weighed = scorer.whole_texts.draw(scorer.evaluation.method, missing)
            if setting.estimator == "beam":
                weighed = ((t, log_p.logsumexp(0, True)) for t, log_p in weighed)
            for text in draws.append(weighed):
                bar.update(text.sentence == last[text.query.index])

    def _scorer(self, setting: StudySetting) -> Scorer:
        options = ScoringOptions(
            estimator=setting.estimator,
            num_samples=setting.num_samples,
            proposal=setting.proposal,
            temperature=setting.temperature,
            seed=self.plan.seed,
            unk=self.plan.unk,
        )
        return Scorer(self.checkpoint, options, batch_size=self.batch_size, quiet=True)

    def _rows(self, setting: StudySetting, draws: Draws) -> list[rows.Row]:
        if setting.estimator == "beam":
            totals = Totals(1, (1,), self.plan.seed)
        else:
            totals = Totals.of_samples(
                self.plan.num_samples, self.plan.replicate, self.plan.seed
            )
        for some in draws.read():
            totals.add(some)
        if setting.estimator == "beam":
            return [rows.beam_row(setting, totals, totals.corpus[0].item())]
        drawn = sum(s.estimator == "is" for s in self.plan.settings())
        return list(rows.drawn_rows(setting, totals, self.plan.replicate, drawn))

    def _texts(self) -> Iterator[Query]:
        texts = itertools.islice(stream_texts(self.data), self.limit)
        return (Query(n, f"text/{n}", text) for n, text in enumerate(texts))

    def _fingerprint(self, scorer: Scorer) -> tuple[str, int]:
        """Return a digest of the texts, and how many they are.

        Raises:
            ValueError: If one of them cannot be scored.
        """
        digest, number = hashlib.sha256(), 0
        for query in self._texts():
            scorer.cut.whole(query)
            digest.update(json.dumps(query.text).encode())
            number += 1
        return digest.hexdigest()[:16], number

    def _asked(self, digest: str) -> Settings:
        """Return the settings that identify this study."""
        return {
            "lm_latent_eval": lm_latent_eval.__version__,
            "model": self.checkpoint.name,
            "checkpoint": self.checkpoint.digest,
            "dtype": str(self.checkpoint.model.dtype),
            "texts": digest,
            **asdict(self.plan),
        }


def read_settings(directory: Path) -> Settings:
    """Read what the numbers of a study depend on.

    Raises:
        ValueError: If the folder is not of a study.
    """
    settings = read(directory, KIND, having="checkpoint")
    names = ["model", *(each.name for each in fields(StudyPlan))]
    if missing := [name for name in names if name not in settings]:
        raise ValueError(f"{directory} is of no study: its settings lack {missing[0]}")
    return settings


def _last_sentences(texts: list[Text]) -> dict[int, int]:
    """Return the last sentence of each text without log-weights."""
    last: dict[int, int] = {}
    for text in texts:
        last[text.query.index] = max(text.sentence, last.get(text.query.index, 0))
    return last
