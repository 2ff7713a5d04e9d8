"""The contrastive entropy paper's tables and figures, on the Penn Treebank.

    python benchmarks/contrastive_ptb.py --data DIR --output results/ptb [--lmplz lmplz]
        [--replicates 10] [--n-gram-replicates 40] [--rnn-epochs 15]
        [--models 3-gram,5-gram,...] [--figures DIR]

DIR holds ptb.train.txt, ptb.valid.txt and ptb.test.txt of Mikolov's preprocessing, one
sentence a line. Models and scores that are there already are not made again, and an
interrupted training is resumed. Needs ``pip install 'lm-latent-eval[ngram,plots]'`` and
KenLM's ``lmplz`` (benchmarks/README.md says how to build it).

Every model scores the test text and the same distorted copies of it. Substitutes are
drawn from the words of the training text.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import lm_latent_eval
from lm_latent_eval.contrastive.entropy import contrastive_entropy
from lm_latent_eval.contrastive.noise import distinct_words
from lm_latent_eval.estimators.standard_errors import mean_stderr, ratio_stderr
from lm_latent_eval.harness.tasks import request
from lm_latent_eval.models.recurrent_training import train_lstm
from lm_latent_eval.models.srnn import train_srnn
from lm_latent_eval.registry import require
from lm_latent_eval.text.corpora import read_texts
from lm_latent_eval.text.noise import NoiseChannel
from lm_latent_eval.training.options import LSTMSize, MarginObjective, Options, SRNNSize

LEVELS = (0.1, 0.3, 0.5)
BIT = math.log(2)
SRNN = Options(epochs=10, batch_size=64)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart without red and green."""

Score = Callable[[list[str]], Tensor]
"""Sentences -> their log-scores, nats, float64."""


@dataclass(frozen=True)
class Corpus:
    """The three parts of the treebank, one sentence a string."""

    train: list[str]
    dev: list[str]
    test: list[str]

    @classmethod
    def read(cls, data: Path) -> Corpus:
        """Read them."""
        parts = (read_texts(data / f"ptb.{p}.txt") for p in ("train", "valid", "test"))
        return cls(*([line.strip() for line in part] for part in parts))

    def copies(self, level: float, replicate: int) -> list[str]:
        """Return the test text as it leaves the noise channel."""
        return distort(self.test, level, distinct_words(self.train), replicate)


def distort(
    texts: list[str], level: float, vocabulary: list[str], replicate: int = 0
) -> list[str]:
    """Distort sentences at a level."""
    channel = NoiseChannel.preset(level, vocabulary)
    return [
        " ".join(channel.distort(text.split(), seed=0, name=n, replicate=replicate))
        for n, text in enumerate(texts)
    ]


# -- models --------------------------------------------------------------------------


def n_gram(corpus: Corpus, output: Path, lmplz: str, order: int) -> Score:
    """Build an interpolated modified Kneser-Ney model and return what scores with it.

    ``lmplz`` refuses the literal ``<unk>`` of the text: an ordinary word stands for it.
    """
    from lm_latent_eval.harness.kenlm import KenLM

    def ordinary(texts: list[str]) -> list[str]:
        return [text.replace("<unk>", "UNK") for text in texts]

    path = output / f"{order}-gram.arpa"
    if not path.exists():
        if shutil.which(lmplz) is None:
            raise SystemExit(
                f"{lmplz} is missing: build it from KenLM's source as "
                "benchmarks/README.md says, and name it with --lmplz"
            )
        partial_file = path.with_suffix(".partial")
        with partial_file.open("w") as arpa:
            subprocess.run(
                [lmplz, "-o", str(order), "-S", "20%"],
                input="\n".join(ordinary(corpus.train)) + "\n",
                stdout=arpa,
                text=True,
                check=True,
            )
        partial_file.rename(path)
    model = KenLM(pretrained=str(path))

    def score(texts: list[str]) -> Tensor:
        asked = [
            request("loglikelihood_rolling", (text,), {}, 0, ("ptb", n, 1))
            for n, text in enumerate(ordinary(texts))
        ]
        return torch.tensor(model.loglikelihood_rolling(asked), dtype=torch.float64)

    return score


def rnn(corpus: Corpus, output: Path, epochs: int) -> Score:
    """Train a simple recurrent network and return what scores with it."""
    directory = output / "rnn"
    if not (directory / "model.safetensors").exists():
        train_lstm(
            corpus.train,
            corpus.dev,
            directory,
            min_count=1,
            already_cut=True,
            size=LSTMSize(200, num_layers=1, dropout=0.0, cell="rnn"),
            options=Options(epochs=epochs),
        )
    return latent(directory)


def srnn(
    corpus: Corpus, output: Path, size: int, level: int, epochs: int = SRNN.epochs
) -> Score:
    """Train a sentence-level RNN at a level (in %) and return what scores with it."""
    directory = output / f"srnn-{size}-{level}-epochs-{epochs}"
    if not (directory / "model.safetensors").exists():
        before = output / f"srnn-{size}-{level}-epochs-{epochs - 1}"
        if before.exists() and not directory.exists():
            unfinished = shutil.ignore_patterns("model.safetensors")
            shutil.copytree(before, directory, ignore=unfinished)
        train_srnn(
            corpus.train,
            corpus.dev,
            directory,
            min_count=1,
            already_cut=True,
            size=SRNNSize(size),
            margin=MarginObjective(level / 100),
            options=Options(epochs=epochs, batch_size=SRNN.batch_size),
        )
    return latent(directory)


def latent(directory: Path) -> Score:
    """Return what scores with a checkpoint."""
    model = lm_latent_eval.load(directory)

    def score(texts: list[str]) -> Tensor:
        found = model.log_likelihood(texts, unk="closed")
        return torch.tensor([e.log_evidence for e in found], dtype=torch.float64)

    return score


# -- scores --------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """The log-scores of the test text and of its copies, nats."""

    clean: Tensor
    """(N,)."""
    distorted: Tensor
    """(levels, replicates, N)."""

    @classmethod
    def of(
        cls, build: Callable[[], Score], corpus: Corpus, replicates: int, path: Path
    ) -> Scores:
        """Read them, or have them scored and keep them."""
        if not path.exists():
            score = build()
            distorted = [
                torch.stack([score(corpus.copies(level, r)) for r in range(replicates)])
                for level in LEVELS
            ]
            scores = {"clean": score(corpus.test), "distorted": torch.stack(distorted)}
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(scores, path)
        return cls(**torch.load(path, weights_only=True))

    def bits(self, units: int) -> Tensor:
        """Return contrastive entropies in bits a unit, (levels, replicates)."""
        return contrastive_entropy(self.clean, self.distorted, units) / BIT


# -- tables --------------------------------------------------------------------------

PRINTED = {
    "3-gram": (148.28, 1.993, 4.179, 5.279, 2.096, 2.649),
    "5-gram": (141.46, 2.021, 4.198, 5.308, 2.077, 2.626),
    "RNN": (141.31, 2.546, 5.339, 6.609, 2.097, 2.596),
    "sRNN-75(50)": (math.nan, 1.978, 3.961, 6.477, 2.002, 3.275),
    "sRNN-75(10)": (math.nan, 2.339, 6.759, 11.01, 2.890, 5.257),
    "sRNN-150(10)": (math.nan, 2.547, 7.581, 12.925, 2.976, 5.074),
}
"""Perplexity, entropies at the three levels, ratios: the paper's tables 2 and 3."""


def table(corpus: Corpus, found: dict[str, Scores]) -> Iterator[str]:
    """Yield tables 2 and 3 as Markdown, the paper's numbers in brackets."""
    sentences = len(corpus.test)
    words = sum(len(text.split()) for text in corpus.test)
    yield f"{sentences:,} sentences, {words:,} words; ± over replicates of the noise."
    yield ""
    yield "| | perplexity | 10 % | 30 % | 50 % | 30 % / 10 % | 50 % / 10 % |"
    yield "|---|---|---|---|---|---|---|"
    for name, scores in found.items():
        normalised = not name.startswith("sRNN")
        printed = iter(PRINTED.get(name, (math.nan,) * 6))
        # As in the paper: per word (with ends), or per sentence.
        entropy = scores.bits(words + sentences if normalised else sentences)
        cells = [f"{math.exp(-scores.clean.sum() / (words + sentences)):.2f}"]
        if not normalised:
            cells = ["-"]
        cells[0] += _bracket(next(printed), 2)
        for level in entropy:
            value = f"{level.mean():.3f} ± {mean_stderr(level):.3f}"
            cells.append(value + _bracket(next(printed), 3))
        for level in entropy[1:]:
            ratio = level.mean() / entropy[0].mean()
            error = ratio_stderr(level, entropy[0])
            cells.append(f"{ratio:.3f} ± {error:.3f}" + _bracket(next(printed), 3))
        yield f"| {name} | {' | '.join(cells)} |"


def _bracket(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f" ({value:.{digits}f})"


# -- figures -------------------------------------------------------------------------


def figures(
    corpus: Corpus, found: dict[str, Scores], epochs: list[float], folder: Path
) -> None:
    """Draw figures 1 to 3: by test distortion, by epoch, by training distortion."""
    require("matplotlib", extra="plots")
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    words = sum(len(text.split()) for text in corpus.test)
    percent = [0, *(100 * level for level in LEVELS)]

    def draw(name: str, x: str, lines: dict[str, tuple[list[float], list[float]]]):
        figure, axes = pyplot.subplots(figsize=(5.6, 3.8), layout="constrained")
        for (label, (at, values)), colour, marker in zip(
            lines.items(), COLOURS, "os^Dv*X", strict=False
        ):
            axes.plot(at, values, color=colour, marker=marker, label=label)
        axes.set(xlabel=x, ylabel="contrastive entropy (bits per word)", ylim=(0, None))
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(frameon=False)
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata=_UNDATED[kind])
        pyplot.close(figure)

    def curve(name: str) -> tuple[list[float], list[float]]:
        return percent, [0.0, *found[name].bits(words).mean(-1).tolist()]

    tested = "distortion of the test text (% substituted, as many transposed)"
    draw("ptb-1-test-distortion", tested, {n: curve(n) for n in PRINTED if n in found})
    draw(
        "ptb-2-epochs",
        "epochs of training of sRNN-75(10)",
        {"training text": (list(range(1, len(epochs) + 1)), epochs)},
    )
    trained = {f"trained at {n} %": f"sRNN-75({n})" for n in (10, 30, 50)}
    draw(
        "ptb-3-training-distortion",
        tested,
        {label: curve(n) for label, n in trained.items() if n in found},
    )


_UNDATED = {"png": {"Software": None}, "svg": {"Date": None}}
"""So that the same numbers give the same files."""


def by_epoch(corpus: Corpus, output: Path) -> list[float]:
    """Return the contrastive entropy, at 10 %, of training text after each epoch.

    Of as many training sentences as there are test sentences; bits per word.
    """
    path = output / "scores" / "epochs.pt"
    if not path.exists():
        texts = corpus.train[: len(corpus.test)]
        noisy = distort(texts, 0.1, distinct_words(corpus.train))
        words = sum(len(text.split()) for text in texts)
        entropies = []
        for epoch in range(1, SRNN.epochs + 1):
            score = srnn(corpus, output, 75, 10, epoch)
            entropies.append(contrastive_entropy(score(texts), score(noisy), words))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.stack(entropies) / BIT, path)
    return list(torch.load(path, weights_only=True).tolist())


def main() -> None:
    """Train, score, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--figures", type=Path, help="default: the output folder")
    parser.add_argument("--lmplz", default="lmplz")
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--n-gram-replicates", type=int, default=40)
    parser.add_argument("--rnn-epochs", type=int, default=15)
    parser.add_argument("--models", help="some of them, with commas between")
    args = parser.parse_args()
    corpus, output = Corpus.read(args.data), args.output
    builds: dict[str, Callable[[], Score]] = {
        "3-gram": partial(n_gram, corpus, output, args.lmplz, 3),
        "5-gram": partial(n_gram, corpus, output, args.lmplz, 5),
        "RNN": partial(rnn, corpus, output, args.rnn_epochs),
        "sRNN-75(50)": partial(srnn, corpus, output, 75, 50),
        "sRNN-75(30)": partial(srnn, corpus, output, 75, 30),
        "sRNN-75(10)": partial(srnn, corpus, output, 75, 10),
        "sRNN-150(10)": partial(srnn, corpus, output, 150, 10),
    }
    output.mkdir(parents=True, exist_ok=True)
    names = args.models.split(",") if args.models else list(builds)
    # Epoch by epoch first: what is found on the way is the model of the table.
    epochs = by_epoch(corpus, output) if "sRNN-75(10)" in names else []
    found = {}
    for name in names:
        n_grams = name.endswith("-gram")  # they are quick
        replicates = args.n_gram_replicates if n_grams else args.replicates
        path = output / "scores" / f"{name}.pt"
        found[name] = Scores.of(builds[name], corpus, replicates, path)
    print("\n".join(table(corpus, found)))
    if not args.models:
        figures(corpus, found, epochs, args.figures or output)


if __name__ == "__main__":
    main()
