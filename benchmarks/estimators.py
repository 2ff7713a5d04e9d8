"""Errors, printed intervals (95 %) and cost of estimators, by kind of text.

    python -m benchmarks.estimators --texts 200 --output results/estimators/altered
    python -m benchmarks.estimators --report results/estimators/* \
        --counts coverage.csv --coverage coverage.png
    python -m benchmarks.estimators --output results/estimators/costs \
        --kinds "as they are" --methods auto,20 auto,100 is,smoothing,100 \
        --costs costs.png

scores texts by methods, ``estimator,K`` or ``estimator,proposal,K``, and by a reference
with other random numbers, which is exact where the model allows it. Texts are the
demonstration's, altered (words shuffled, names replaced, lower case, the first
sentences cut off, several joined) or drawn from the model itself; with ``--model DIR
--data FILE`` those of a file, and with ``--model hmm`` random words under the tests'
hidden Markov model. The table says, kind by kind, nats a text below the reference, how
many intervals the reference refutes and the upper limit of their share (Clopper and
Pearson), texts without an error, the median error and half-width of those that are off
by more than 1e-4 nats, the largest error, and CPU seconds a text. Every score is kept
in a file of its method in the output folder: a run that was stopped goes on, and more
texts add to it. Figures show shares of intervals that hold (of what ``--counts`` keeps
of former runs as well), or the largest error against seconds, an estimator a line.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.stats import beta
from scipy.stats import t as student

import lm_latent_eval
from benchmarks.scale import peak
from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo.__main__ import main as write_demo
from lm_latent_eval.ledger.journal import Journal
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.report.figures import COLOURS, MARKS
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.calibration import written
from lm_latent_eval.scoring.estimates import whole_texts
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.files import digest

METHODS = ("auto,20", "auto,100", "beam,1600", "is,1000")
KINDS = ("as they are", "fragments", "shuffled", "names replaced", "lower case")
REFERENCE = "dpf,16000"
EXACT = "exact,1"
LITTLE = 1e-4
"""Nats that nobody asks an error of."""
NORMAL = 1.96
DRAWN = "model-drawn"
HMM, HMM_WORDS = "hmm", (8, 40)

Alter = Callable[[str, random.Random], str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """What one method says of the texts of a kind."""

    kind: str
    method: str
    rows: dict[int, Row]
    best: dict[int, Row]
    """The reference's."""

    def __add__(self, other: Scores) -> Scores:
        """Return those of more texts of the kind, which go on counting."""
        start = 1 + max(self.best)
        rows, best = (
            mine | {start + n: row for n, row in theirs.items()}
            for mine, theirs in ((self.rows, other.rows), (self.best, other.best))
        )
        return replace(self, rows=rows, best=best)

    @property
    def below(self) -> dict[int, float]:
        """Nats that a text is below the reference."""
        return {n: self.best[n]["log_p"] - row["log_p"] for n, row in self.rows.items()}

    @property
    def worst(self) -> float:
        """The largest error of a text, nats."""
        return max(map(abs, self.below.values()))

    @property
    def told(self) -> list[int]:
        """Texts of which an error is printed."""
        return [n for n, row in self.rows.items() if row["half"] is not None]

    @property
    def refuted(self) -> list[int]:
        """Those whose interval the reference refutes, its own error granted.

        The reference may be too low itself: from above it refutes by what it says of
        all its error, from below by what its draws say.
        """
        return [n for n in self.told if self._off(n) > LITTLE]

    def _off(self, n: int) -> float:
        best, below = self.best[n], self.below[n]
        own = 2 * best["draws_stderr"] if below > 0 else best["half"]
        return abs(below) - math.hypot(
            self.rows[n]["half"], math.inf if own is None else own
        )


@dataclass(frozen=True)
class Counts:
    """How many texts of a kind have an interval, and how many intervals do not hold."""

    kind: str
    method: str
    texts: int
    told: int
    refuted: int

    @classmethod
    def of(cls, scores: Scores) -> Counts:
        told, refuted = len(scores.told), len(scores.refuted)
        return cls(scores.kind, scores.method, len(scores.rows), told, refuted)


def demonstration() -> list[str]:
    """Return the demonstration's texts."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(sys.stderr):
            write_demo(["--out", folder])
        lines = (Path(folder) / "test.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def alterations(texts: list[str]) -> dict[str, Alter]:
    """Return what is done to a text, by name."""
    words = {word.strip(".,") for text in texts for word in text.split()[1:]}
    names = sorted(word for word in words if word[:1].isupper())

    def shuffled(text: str, dice: random.Random) -> str:
        return " ".join(dice.sample(text.split(), len(text.split())))

    def renamed(text: str, dice: random.Random) -> str:
        return " ".join(
            dice.choice(names) if word[:1].isupper() and dice.random() < 0.7 else word
            for word in text.split()
        )

    def joined(number: int) -> Alter:
        return lambda text, dice: " ".join([text, *dice.choices(texts, k=number - 1)])

    def long(words: int) -> Alter:
        def alter(text: str, dice: random.Random) -> str:
            while len(text.split()) < words:
                text = f"{text} {dice.choice(texts)}"
            return " ".join(text.split()[:words])

        return alter

    def fragment(text: str, dice: random.Random) -> str:
        sentences = text.split(". ")
        return ". ".join(sentences[dice.randrange(1, len(sentences)) :])

    def sentences_shuffled(text: str, dice: random.Random) -> str:
        sentences = text.rstrip(".").split(". ")
        return ". ".join(dice.sample(sentences, len(sentences))) + "."

    def names_swapped(text: str, dice: random.Random) -> str:
        mine = sorted({w.strip(".,") for w in text.split() if w[:1].isupper()})
        other = dict(zip(mine, dice.sample(mine, len(mine)), strict=True))
        return re.sub(r"\w+", lambda word: other.get(word[0], word[0]), text)

    def words_dropped(text: str, dice: random.Random) -> str:
        return " ".join(w for w in text.split() if dice.random() > 0.15)

    def words_doubled(text: str, dice: random.Random) -> str:
        return " ".join(
            word if dice.random() > 0.15 else f"{word} {word}" for word in text.split()
        )

    def interleaved(text: str, dice: random.Random) -> str:
        pairs = zip(text.split(". "), dice.choice(texts).split(". "), strict=False)
        return ". ".join(sentence for pair in pairs for sentence in pair)

    return {
        "as they are": lambda text, dice: text,
        "fragments": fragment,
        "shuffled": shuffled,
        "names replaced": renamed,
        "lower case": lambda text, dice: text.lower(),
        "sentences shuffled": sentences_shuffled,
        "names swapped": names_swapped,
        "words dropped": words_dropped,
        "words doubled": words_doubled,
        "two interleaved": interleaved,
        "five joined": joined(5),
        "twelve joined": joined(12),
        **{
            f"{words} words": long(words)
            for words in (200, 300, 400, 600, 1000, 1500, 3000)
        },
    }


def altered(kinds: Sequence[str], number: int, seed: int) -> dict[str, list[str]]:
    """Return that many texts of each kind; the first are the same for any number."""
    texts = demonstration()
    known = alterations(texts)
    if unknown := set(kinds) - known.keys():
        names = ", ".join([*known, DRAWN])
        raise SystemExit(f"--kinds {', '.join(unknown)}: expected {names}")
    found = {}
    for kind in kinds:
        dice = [random.Random(f"{seed} {kind} {n}") for n in range(number)]
        found[kind] = [known[kind](each.choice(texts), each) for each in dice]
    return found


def drawn(checkpoint: Checkpoint, number: int, seed: int) -> list[Text]:
    """Draw texts from a model; the first are the same for any number."""
    scorer = Scorer(checkpoint, ScoringOptions.parse({"seed": seed}), quiet=True)
    # Texts that are too long are left out.
    return [text for text, _ in written(scorer, 2 * number)][:number]


def some_of(file: Path, number: int, seed: int, words: int | None) -> list[str]:
    """Return texts of a file in random order, cut after so many words."""
    texts = [" ".join(text.split()[:words]) for text in read_texts(file)]
    random.Random(seed).shuffle(texts)
    return texts[:number]


def hidden_markov() -> Checkpoint:
    """Return the tests' hidden Markov model of 12 states, which looks nowhere ahead."""
    from lm_latent_eval.text.words import WordTokenizer
    from tests.inference.test_discrete import Peaked
    from tests.tiny_steps import tiny

    words = WordTokenizer.of_words(["a", "b"], already_cut=True)
    return Checkpoint(HMM, tiny(kind=Peaked), words, Path(HMM), digest=HMM)


def random_words(number: int, seed: int, words: int | None) -> list[Text]:
    """Return texts of the hidden Markov model's words, all as long if it is said."""
    from tests.tiny_steps import VOCABULARY

    texts = []
    for n in range(number):
        dice = random.Random(f"{seed} {HMM} {n}")
        length = words or dice.randint(*HMM_WORDS)
        some = dice.choices(range(VOCABULARY), k=length)
        query = Query(n, f"{HMM}/{n}", "")
        texts.append(Text(query, 0, [], [], some, [0.0] * length, 0.0, 0, 0))
    return texts


def scored(checkpoint: Checkpoint, text: str | Text, method: str, seed: int) -> Row:
    """Score a text."""
    begin = time.process_time()
    if method == EXACT and checkpoint.name == HMM:
        from tests.tiny_steps import log_p

        assert isinstance(text, Text)
        found = lm_latent_eval.Estimate.exact(
            log_p(checkpoint.model, text.words),
            num_tokens=len(text.words),
            estimator="exact",
        )
    else:
        found = _estimated(checkpoint, text, method, seed)
    return {
        "log_p": found.log_evidence,
        "half": None if found.stderr is None else half_width(found),
        "draws_stderr": found.draws_stderr,
        "tokens": found.num_tokens,
        "seconds": time.process_time() - begin,
        "peak": peak(),  # MB, of the process so far
    }


def _estimated(
    checkpoint: Checkpoint, text: str | Text, method: str, seed: int
) -> lm_latent_eval.Estimate:
    estimator, *proposal, number = method.split(",")
    options = ScoringOptions.parse(
        {
            "estimator": estimator,
            "proposal": proposal[0] if proposal else None,
            "num_samples": int(number),
            "seed": seed,
        }
    )
    scorer = Scorer(checkpoint, options, quiet=True)
    if isinstance(text, Text):
        missed = Missed([text.query])
        [answer] = [each for _, each in whole_texts(scorer.evaluation, [text], missed)]
        missed.tell()
    else:
        [answer] = scorer.score_texts([Query(0, "text/0", text)])
    return answer.estimate


def half_width(estimate: lm_latent_eval.Estimate) -> float:
    """Return that of the interval that holds 95 %, nats."""
    drawn = student.ppf(0.975, estimate.draws_degrees) * estimate.draws_stderr
    return math.hypot(drawn, NORMAL * (estimate.missed or 0.0))


def journal_of(folder: Path, name: str) -> Journal:
    """Return the file of a method's scores."""
    return Journal(folder / f"{name.replace(',', '-')}.jsonl", "file of scores", 2)


def score(
    asked: argparse.Namespace, texts: dict[str, list[Any]], model: Checkpoint
) -> None:
    """Score what is not there yet."""
    start = 100_000 * asked.seed  # each text has random numbers of its own
    for method in (asked.reference, *asked.methods):
        is_reference = method == asked.reference
        settings = {
            "model": model.digest,
            "texts": asked.data and digest(asked.data.read_text()),
            "words": asked.words,
            "seed": asked.seed,
            "method": method,
            "lm_latent_eval": lm_latent_eval.__version__,
        }
        journal = journal_of(asked.output, "reference" if is_reference else method)
        with journal.going_on(settings, "the scores so far") as rows:
            known = {(row["kind"], row["text"]) for _, row in rows}
            for kind, some in texts.items():
                for number in (n for n in range(len(some)) if (kind, n) not in known):
                    seed = 2 * (start + number) + is_reference
                    row = scored(model, some[number], method, seed)
                    rows.add({"kind": kind, "text": number, **row})
                    _progress(kind, method, number, row)


def _progress(kind: str, method: str, number: int, row: Row) -> None:
    half = "N/A" if row["half"] is None else f"{row['half']:.4f}"
    print(
        f"{kind}, {number}: {method} {row['log_p']:.4f} ± {half}, "
        f"{row['tokens']} tokens, {row['seconds']:.1f} s, peak {row['peak']:.0f} MB",
        file=sys.stderr,
        flush=True,
    )


def read(folder: Path) -> Iterator[Scores]:
    """Read the scores of all methods on the texts that the reference has, too."""
    best = _rows(folder / "reference.jsonl")
    methods = list(folder.glob("*-*.jsonl"))
    every = {path.stem.replace("-", ","): _rows(path) for path in sorted(methods)}
    for kind, reference in best.items():
        for method, rows in every.items():
            both = {n: row for n, row in rows.get(kind, {}).items() if n in reference}
            if both:
                yield Scores(kind, method, both, reference)


def together(every: Iterable[Scores]) -> list[Scores]:
    """Put the texts of each kind and method together, whatever folder they are in."""
    found: dict[tuple[str, str], Scores] = {}
    for scores in every:
        key = scores.kind, scores.method
        found[key] = found[key] + scores if key in found else scores
    return list(found.values())


def _rows(path: Path) -> dict[str, dict[int, Row]]:
    """Return the scores in a file: kind -> text -> its score."""
    found: dict[str, dict[int, Row]] = {}
    for _, row in Journal(path, "file of scores", 2).read()[1]:
        found.setdefault(row.pop("kind"), {})[row.pop("text")] = row
    return found


def line(scores: Scores) -> str:
    """Compare scores with the reference, text by text."""
    told, below = scores.told, scores.below
    false, seconds = len(scores.refuted), [r["seconds"] for r in scores.rows.values()]
    far = [n for n in told or below if abs(below[n]) > LITTLE]
    middle = [
        statistics.median(numbers) if numbers else None
        for numbers in (
            [abs(below[n]) for n in far],
            [scores.rows[n]["half"] for n in far if told],
        )
    ]
    most = beta.ppf(0.95, false + 1, len(told) - false) if false < len(told) else 1.0
    held = [f"{false} of {len(told)}", f"{100 * most:.0f} %"] if told else ["", ""]
    cells = [
        scores.kind,
        scores.method.replace(",", ", "),
        f"{statistics.fmean(below.values()):.3f}",
        *held,
        f"{len(below) - len(told)}" if told else "",
        *("" if nats is None else f"{nats:.4f}" for nats in middle),
        f"{scores.worst:.2f}",
        f"{statistics.fmean(seconds):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def counted(every: Sequence[Scores], file: Path | None) -> list[Counts]:
    """Count intervals; a file keeps the counts of kinds that were not scored now."""
    found: dict[tuple[str, str], Counts] = {}
    if file and file.exists():
        with file.open(newline="") as lines:
            for kind, method, *numbers in list(csv.reader(lines))[1:]:
                found[kind, method] = Counts(kind, method, *map(int, numbers))
    for scores in every:
        if scores.told:
            found[scores.kind, scores.method] = Counts.of(scores)
    if file:
        with file.open("w", newline="") as lines:
            names = [field.name for field in fields(Counts)]
            rows = csv.DictWriter(lines, names, lineterminator="\n")
            rows.writeheader()
            rows.writerows(map(asdict, found.values()))
    return list(found.values())


def draw_coverage(every: Sequence[Counts], file: Path) -> None:
    """Draw the share of intervals that hold, with the limits of 95 %."""
    figure, ax = plt.subplots(figsize=(8.5, 0.9 + 0.28 * len(every)))
    for place, counts in enumerate(every[::-1]):
        number, held = counts.told, counts.told - counts.refuted
        low = 100 * beta.ppf(0.025, held, number - held + 1) if held else 0.0
        high = 100 * beta.ppf(0.975, held + 1, number - held) if held < number else 100
        ax.plot([low, high], [place, place], color="#0072b2", linewidth=2)
        ax.plot(100 * held / number, place, "o", color="#0072b2")
    ax.axvline(95, color="#d55e00", linestyle="--", linewidth=1)
    names = []
    for counts in every[::-1]:
        estimator, _, number = counts.method.replace(",", ", ").rpartition(", ")
        told = f"{counts.told} of {counts.texts} texts"
        names.append(f"{counts.kind}: {estimator}, K = {number} ({told})")
    ax.set_yticks(range(len(every)), names, fontsize=8)
    ax.set_xlabel(
        "% of intervals (95 %) that the reference does not refute,\n"
        "of texts that have one; lines: limits of 95 %"
    )
    ax.set_xlim(right=100.5)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def draw_costs(every: Sequence[Scores], file: Path) -> None:
    """Draw the largest error of a text against seconds: a number is a K."""
    figure, ax = plt.subplots(figsize=(7, 4))
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for scores in every:
        name, _, number = scores.method.rpartition(",")
        seconds = statistics.fmean(row["seconds"] for row in scores.rows.values())
        point = seconds, max(scores.worst, LITTLE), number
        lines.setdefault(name.replace(",", ", "), []).append(point)
    for (name, points), colour, mark in zip(
        sorted(lines.items()), COLOURS, MARKS, strict=False
    ):
        cost, error, numbers = zip(*sorted(points), strict=True)
        ax.plot(cost, error, color=colour, marker=mark, markersize=5, label=name)
        for x, y, number in zip(cost, error, numbers, strict=True):
            ax.annotate(
                number,
                (x, y),
                (0, 5),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=7,
            )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("CPU seconds a text")
    ax.set_ylabel("largest error of a text, nats")
    ax.grid(color="0.92")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(
        title="numbers are K",
        fontsize=8,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    figure.savefig(file, bbox_inches="tight", dpi=150)


def main() -> None:
    """Score what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument(
        "--methods", nargs="*", default=METHODS, help="as auto,100 is,adapted,100"
    )
    parser.add_argument("--reference", help=f"default: {EXACT}, or else {REFERENCE}")
    parser.add_argument("--model", default=CHECKPOINT)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--name", help="of the kind of texts of --data or hmm")
    parser.add_argument("--words", type=int, help="of a text, cut or drawn")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="outputs")
    parser.add_argument("--counts", type=Path, help="CSV of what --coverage shows")
    parser.add_argument("--coverage", type=Path, help="figure of intervals that hold")
    parser.add_argument("--costs", type=Path, help="figure of errors against seconds")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.output:
        asked.output.mkdir(parents=True, exist_ok=True)
        score_all(asked)
    folders = asked.report or [asked.output]
    every = together(scores for folder in folders for scores in read(folder))
    print(
        "| texts | estimator | below | not held | at most | N/A | error | half-width "
        "| worst | CPU s |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for scores in every:
        print(line(scores))
    counts = counted(every, asked.counts)
    if asked.coverage:
        draw_coverage(counts, asked.coverage)
    if asked.costs:
        draw_costs(every, asked.costs)


def score_all(asked: argparse.Namespace) -> None:
    """Open the model, make the texts and score them."""
    number, seed, texts = asked.texts, asked.seed, dict[str, list[Any]]()
    if asked.model == HMM:
        model = hidden_markov()
        name = asked.name or "hidden Markov model"
        texts[name] = random_words(number, seed, asked.words)
    else:
        model = lm_latent_eval.load(asked.model, device="cpu").checkpoint
        if asked.data:
            name = asked.name or asked.data.name
            texts[name] = some_of(asked.data, number, seed, asked.words)
        else:
            texts |= altered([k for k in asked.kinds if k != DRAWN], number, seed)
            if DRAWN in asked.kinds:
                texts[DRAWN] = drawn(model, number, seed)
    exact = model.name == HMM or "exact" in model.model.estimators
    asked.reference = asked.reference or (EXACT if exact else REFERENCE)
    score(asked, texts, model)


if __name__ == "__main__":
    main()
