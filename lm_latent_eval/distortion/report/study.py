"""A study of distortion as the figures and tables of LeBrun et al. (2022).

Everything is read from saved columns: no model is run, or loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lm_latent_eval.distortion.columns import Columns, read_epochs
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.report.claims import claims
from lm_latent_eval.distortion.report.curves import draw_latent
from lm_latent_eval.distortion.report.maps import draw_estimates
from lm_latent_eval.distortion.report.measures import (
    MEASURES,
    Comparison,
    error_table,
    novelty,
    perplexity_row,
    read_map,
    write_map,
)
from lm_latent_eval.distortion.report.style import sample_table, shown, write_json
from lm_latent_eval.distortion.sources import Perturbation
from lm_latent_eval.distortion.study.plan import (
    BASE,
    LANGUAGE_TEXT,
    DistortionPlan,
    Layout,
    Learners,
    LearnerSpec,
)
from lm_latent_eval.distortion.study.run import KIND
from lm_latent_eval.ledger.files import read
from lm_latent_eval.report.tabular import Cell, Table, rendered, write_page
from lm_latent_eval.text.corpora import stream_texts

ORDERS = (1, 2, 3, 4, 5)
SAMPLES = 5
TITLE = "# Claims and tables of distributional distortion"


def write_report(study: Path, output: Path, kind: str = "text") -> str:
    """Write figures, their numbers, and ``tables.md``; return the tables.

    Figures are written as PNG, SVG and PDF; each table of ``tables.md`` is also beside
    its figure, as CSV and LaTeX.

    Args:
        study: Folder of a study that is complete.
        output: Where the report goes.
        kind: What is returned: ``tables.md`` (``text``), or its tables as ``csv`` or
            ``latex``.

    Raises:
        ValueError: If the folder is not of a study, or a step is not done.
        ModuleNotFoundError: If matplotlib is missing.
    """
    settings = read(study, KIND, having="plan")
    found = Report(DistortionPlan.of(settings["plan"]), Layout(study), output)
    text = "\n\n".join([TITLE, *found.sections()]) + "\n"
    return write_page(output, text, found.tables, kind)


@dataclass(frozen=True)
class Report:
    """The plan of a study, its folders, and where its report goes."""

    plan: DistortionPlan
    layout: Layout
    output: Path
    tables: dict[str, Table] = field(default_factory=dict)
    """Tables so far, by the name of their files."""

    @property
    def learners(self) -> Learners:
        """The models that were compared."""
        return Learners(self.plan)

    def sections(self) -> Iterator[str]:
        """Draw every figure; yield a paragraph about each."""
        learners, scores = self.learners, self._scores
        yield "## Claims"
        yield self._claims()
        yield "## Estimates on test sequences (figures 1, 2 and 12)"
        yield self._measured("errors", scores(learners.fixed), 2)
        found = Comparison.open(self.layout.scores(learners.fixed[-1], "test"))
        panel = (learners.fixed[-1].label, found.histogram(self.plan.num_bins))
        draw_estimates(self._stem(1), [panel], {})
        self._measured("lengths", scores(learners.fixed[1:]), 12)
        yield "## Training time (figure 3)"
        of_epochs = {
            split: self.layout.trajectory(learners.fixed[-1], split)
            for split in ("train", "test")
        }
        yield self._measured("training", of_epochs, 3)
        yield "## Amount of data (figure 4; untempered 8; pretrained 10)"
        yield self._amount(learners.online, 4)
        yield self._amount(learners.untempered, 8)
        yield self._amount([learners.pretrained_online], 10)
        yield "## Perturbed sequences (figure 5)"
        error_map = read_map(self.layout.scores(learners.mapped, "perturbed"))
        examples = self._examples(learners.mapped)
        table = write_map(error_map, self._stem(5), examples)
        yield self._kept(table, self._stem(5))
        yield "## Random sequences (figure 11)"
        yield self._measured("random", scores([learners.mapped], "random"), 11)
        yield "## Temperatures (figure 6)"
        by_temperature = {
            f"{each.temperature:g}": self.layout.scores(each, "test")
            for each in learners.by_temperature
        }
        yield self._measured("temperatures", by_temperature, 6)
        yield "## A language from a pretrained model (figure 7)"
        of_finetuned = {
            kind: self.layout.scores(learners.of_finetuned, kind)
            for kind in ("test", "random")
        }
        yield self._measured("language", of_finetuned, 7)
        yield "## Pretrained models (figure 9)"
        yield self._measured("errors", scores(learners.pretrained), 9)
        yield "## A latent model: its error, and its estimator's"
        yield self._latent()
        yield "## Perplexities (table 4; by temperature, table 5)"
        yield self._perplexities(learners.all)
        yield "## New n-grams in the natural text (figure 13)"
        path = self.layout.text(LANGUAGE_TEXT) / "train.txt"
        table = novelty(lambda: stream_texts(path), ORDERS, self._stem(13))
        yield self._kept(table, self._stem(13))
        for temperature in sorted(self.plan.temperatures):
            yield f"## Sequences at T = {temperature:g} (tables 2 and 6 to 9)"
            corpus = self.layout.corpus(BASE, temperature, "test")
            table = sample_table(Corpus.open(corpus), SAMPLES)
            yield self._kept(table, self.output / f"sequences_{temperature:g}")

    def _stem(self, figure: int | str) -> Path:
        return self.output / f"figure_{figure}"

    def _scores(
        self, learners: Sequence[LearnerSpec], kind: str = "test"
    ) -> dict[str, Path]:
        return {each.label: self.layout.scores(each, kind) for each in learners}

    def _measured(self, name: str, folders: dict[str, Path], figure: int) -> str:
        found = MEASURES[name](folders, self._stem(figure), self.plan.num_bins)
        return self._kept(found, self._stem(figure))

    def _amount(self, learners: Sequence[LearnerSpec], figure: int) -> str:
        folders = {
            each.label: self.layout.trajectory(each, "test") for each in learners
        }
        return self._measured("amount", folders, figure)

    def _examples(self, learner: LearnerSpec) -> list[tuple[str, str]]:
        """Return a rare test sequence, and one as rare that was perturbed."""
        corpus = Corpus.open(
            self.layout.corpus(learner.language, learner.temperature, "test")
        )
        folder = self.layout.scores(learner, "perturbed")
        most = Comparison.open(folder, self.plan.num_edits).columns
        plain = Comparison.open(folder, 0).columns
        rare = most.true_log_p.median()
        places = {
            "not perturbed": plain[(plain.true_log_p - rare).abs().argmin()[None]],
            f"perturbed {self.plan.num_edits} times": most[
                (most.true_log_p - rare).abs().argmin()[None]
            ],
        }
        perturbation = Perturbation(corpus.alphabet(), corpus.end_id, corpus.max_length)
        tokenizer = corpus.tokenizer()
        found = []
        for name, row in places.items():
            index, edits = int(row.index), int(row.edits)
            (ids,) = corpus.read(range(index, index + 1)).sequences
            steps = perturbation.steps(ids, edits, seed=self.plan.seed, index=index)
            words = [token for token in steps[-1] if token != corpus.end_id]
            error = (row.model_log_p - row.true_log_p).item()
            found.append((f"{name} (error {error:+.1f})", shown(words, tokenizer)))
        return found

    def _latent(self) -> str:
        exact = Comparison.open(self.layout.latent_scores("exact"))
        estimated = {
            f"{proposal}, K = {number:,}": Comparison.open(
                self.layout.latent_scores(proposal, number)
            )
            for proposal, number in self.plan.latent.estimates
        }
        bins = max(1, min(self.plan.num_bins, len(exact.columns) // 20))
        curves = {name: each.curve(num_bins=bins) for name, each in estimated.items()}
        known = exact.curve(num_bins=bins)
        draw_latent(self._stem("latent"), curves, known)
        write_json(self._stem("latent"), {**curves, "exact": known})
        found = error_table({**estimated, "every tree summed": exact})
        return self._kept(found, self._stem("latent"))

    def _perplexities(self, learners: Sequence[LearnerSpec]) -> str:
        rows: list[dict[str, Cell]] = []
        for learner in sorted(learners, key=lambda each: (each.temperature, each.name)):
            name = learner.label + ", pretrained" * learner.pretrained
            name += ", more data" * learner.online
            row: dict[str, Cell] = {
                "model": name,
                "language": learner.language,
                "T": f"{learner.temperature:g}",
            }
            for what in ("test", "text"):
                found = perplexity_row(self.layout.scores(learner, what))
                row |= {
                    what: found["corpus"],
                    f"{what}, mean of sentences": found["mean_of_sentences"],
                    f"{what}, by the language": found["language"],
                }
            rows.append(row)
        return self._kept(Table.of(rows), self.output / "perplexities")

    def _claims(self) -> str:
        learners, scores = self.learners, self.layout.scores
        compared = [*learners.fixed, *learners.pretrained, learners.of_finetuned]
        online = [*learners.online, *learners.untempered, learners.pretrained_online]
        mapped = learners.mapped
        random = [mapped, learners.of_finetuned]
        temperatures = {each.temperature: each for each in learners.by_temperature}

        def epochs(learner: LearnerSpec) -> list[Columns]:
            return read_epochs(self.layout.trajectory(learner, "test"))

        return claims(
            {each.name: Comparison.open(scores(each, "test")) for each in compared},
            {mapped.name: read_map(scores(mapped, "perturbed"))},
            {each.name: Comparison.open(scores(each, "random")) for each in random},
            {each.name: epochs(each) for each in online},
            {t: Comparison.open(scores(e, "test")) for t, e in temperatures.items()},
        )

    def _kept(self, table: Table, stem: Path) -> str:
        """Write a table beside its figure; return it for ``tables.md``."""
        self.tables[stem.name] = table
        return rendered(table, "text")
