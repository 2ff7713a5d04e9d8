"""The five claims of LeBrun, Sordoni and O'Donnell (2022), in small.

    python examples/distortion/study.py --output results/distortion
    python examples/distortion/study.py --output results/distortion --smallest

A GPT-2 of 154,000 weights learns the sentences of the demonstration corpus: at any
softmax temperature it is a language of known probabilities. Other models learn what it
says, and are measured on sequences that they have not seen. The folder gets
``claims.md`` and, of each experiment, the table, numbers and page of figures of
``lm-latent-eval distort measure``. A model that is there is not trained again.

Intervals are of 95 % over sequences, for these models as they were trained: with
another seed they are other models, and that is not in it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from lm_latent_eval import demo
from lm_latent_eval.distortion import measure
from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.edits import PERTURBED, RANDOM, Altered
from lm_latent_eval.distortion.figures import draw_page
from lm_latent_eval.distortion.languages.loading import language_of, load_language
from lm_latent_eval.distortion.learners import load_learner
from lm_latent_eval.distortion.measure import Measured
from lm_latent_eval.distortion.statistics.bins import FEWEST

TWO_SIDED = 1.96  # standard errors of a 95 % interval
FIRST = {"train": 0, "dev": 10**9, "test": 2 * 10**9}  # so that no sequence is in two
MODELS = {"small": (1, 48), "medium": (2, 64)}  # layers and width


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study; the paper's are a thousand times larger."""

    num_texts: int = 20_000  # sentences that the language is trained on, at most
    text_epochs: int = 4
    epochs: int = 10  # of a learner; the weights are those of the lowest dev loss
    vocab_size: int = 800
    max_length: int = 48
    num_train: int = 4000
    num_dev: int = 500
    num_test: int = 2500
    data: tuple[float, ...] = (0.25, 1)  # shares of num_train, for claim (iv)
    temperatures: tuple[float, ...] = (0.7, 0.85, 1.0)
    temperature: float = 0.85  # of the language of claims (i) to (iv)
    perturb: int = 10
    num_altered: int = 500


SMALLEST = Sizes(
    *(400, 1, 1, 300, 24, 100, 30, 60), (0.5, 1), (0.85, 1.0), perturb=2, num_altered=30
)


@dataclass(frozen=True)
class Study:
    """Folder of a study, its sizes, and the seed of everything."""

    output: Path
    sizes: Sizes
    seed: int = 0

    def language(self) -> None:
        """Train the language on natural text, of which a tenth is held out."""
        sizes, marks = self.sizes, ["<s>", "</s>"]
        texts = [text for split in demo.SPLITS for text in demo.texts(split)]
        found = [s for text in texts for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text)]
        distinct = list(dict.fromkeys(" ".join(each.split()) for each in found))
        distinct = distinct[: sizes.num_texts]
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(
            distinct, sizes.vocab_size, special_tokens=marks, show_progress=False
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=bpe._tokenizer, bos_token=marks[0], eos_token=marks[1]
        )
        ids = [[*bpe.encode(text).ids, tokenizer.eos_token_id] for text in distinct]
        dev, train = ids[::10], [each for n, each in enumerate(ids) if n % 10]
        self.train("language", "medium", tokenizer, train, dev, sizes.text_epochs)

    def corpus(self, temperature: float, split: str, number: int) -> Corpus:
        """Draw sequences of the language at a temperature."""
        path = self.output / "language"
        return Corpus.draw(
            load_language(path, temperature=temperature, batch_size=512),
            self.output / "corpora" / f"{split}-T{temperature:g}-{number}",
            number,
            seed=self.seed,
            first=FIRST[split],
            max_length=self.sizes.max_length,
            quiet=True,
        )

    def learner(self, size: str, temperature: float, number: int) -> Path:
        """Train a model on so many sequences of the language."""
        train = self.corpus(temperature, "train", number)
        dev = self.corpus(temperature, "dev", self.sizes.num_dev)
        data, held_out = (corpus.dataset()["ids"][:] for corpus in (train, dev))
        name, epochs = f"{size}-T{temperature:g}-{number}", self.sizes.epochs
        return self.train(name, size, train.tokenizer(), data, held_out, epochs)

    def train(
        self,
        name: str,
        size: str,
        tokenizer: PreTrainedTokenizerFast,
        data: Sequence[Sequence[int]],
        dev: Sequence[Sequence[int]],
        epochs: int,
    ) -> Path:
        """Train a GPT-2, unless its folder is there; keep the epoch of lowest loss."""
        folder, sizes = self.output / name, self.sizes
        if (folder / "tokenizer.json").exists():  # written last
            return folder
        set_seed(self.seed)
        layers, width = MODELS[size]
        begin = tokenizer.bos_token_id
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=sizes.max_length + 1,
            n_layer=layers,
            n_embd=width,
            n_head=4,
            bos_token_id=begin,
            eos_token_id=tokenizer.eos_token_id,
        )

        def batch(rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
            """Predict every token after the begin; padding has no label."""
            cut = [[begin, *ids[: sizes.max_length]] for ids in rows]
            labels = torch.full((len(cut), max(map(len, cut))), -100)
            for place, ids in enumerate(cut):
                labels[place, : len(ids)] = torch.tensor(ids)
            return {"input_ids": labels.clamp(min=0), "labels": labels}

        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                str(folder / "checkpoints"),
                num_train_epochs=epochs,
                per_device_train_batch_size=32,
                per_device_eval_batch_size=256,
                learning_rate=3e-3,
                lr_scheduler_type="reduce_lr_on_plateau",
                lr_scheduler_kwargs={"factor": 0.5, "patience": 0, "threshold": 0},
                eval_strategy="epoch",
                save_strategy="epoch",
                save_total_limit=1,
                load_best_model_at_end=True,
                metric_for_best_model="loss",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
                seed=self.seed,
            ),
            data_collator=batch,
            train_dataset=data,
            eval_dataset=dev,
        )
        trainer.train()
        trainer.save_model(folder)
        tokenizer.save_pretrained(folder)
        return folder

    def measured(
        self, name: str, models: Mapping[str, Path], corpus: Corpus, alter: bool = False
    ) -> dict[str, tuple[pd.DataFrame, Measured]]:
        """Measure models as ``distort measure`` does, into a folder."""
        altered, number = None, None
        if alter:
            language = language_of(corpus, batch_size=512)
            altered = Altered(corpus, language, self.sizes.perturb, True, self.seed)
            number = self.sizes.num_altered
        scores, found = {}, {}
        for label, path in models.items():
            learner = load_learner(path, corpus, batch_size=512)
            scores[label] = measure.score(
                learner, corpus, num_sequences=number, altered=altered
            )
            found[label] = Measured.of(learner, scores[label])
        measure.write(self.output / "measured" / name, scores, found)
        draw_page(self.output / "measured" / name / "figures", found)
        return {label: (scores[label], found[label]) for label in models}


Interval = tuple[float, float]
Case = tuple[str, str]
"""Verdict and numbers."""


def below(*intervals: Interval) -> str:
    """Say whether all numbers with these intervals are below 0."""
    if all(upper < 0 for _, upper in intervals):
        return "holds"
    return "fails" if any(lower > 0 for lower, _ in intervals) else "undecided"


def around(mean: float, stderr: float) -> Interval:
    """Return the 95 % interval of a mean."""
    return mean - TWO_SIDED * stderr, mean + TWO_SIDED * stderr


def underestimated(found: Measured) -> Case:
    """(i) The mean error is below 0, and so are most errors."""
    row = found.summaries[0]
    share = row["share_underestimated"]
    spread = math.sqrt(share * (1 - share) / row["num_sequences"])
    verdict = below((row["lower"], row["upper"]), around(0.5 - share, spread))
    said = "{mean_error:.2f} ({lower:.2f} .. {upper:.2f}) nats".format(**row)
    return verdict, f"{said}, {share:.1%} of the sequences"


def rarer_worse(found: Measured) -> Case:
    """(ii) The rarest tenth is underestimated more than the most probable one."""
    rarest, commonest = (found.tenths.bins.iloc[n] for n in (0, -1))
    verdict = below((rarest.lower - commonest.upper, rarest.upper - commonest.lower))
    return verdict, f"{rarest.mean_error:.2f} against {commonest.mean_error:.2f} nats"


def overestimated(row: Mapping[str, float]) -> Case:
    """(iii) The mean error is above 0."""
    said = "{mean_error:+.2f} ({lower:.2f} .. {upper:.2f}) nats".format(**row)
    return below((-row["upper"], -row["lower"])), said


def lessened(few: pd.DataFrame, many: pd.DataFrame) -> Case:
    """(iv) Of the same sequences, errors rise with the data, and stay below 0."""
    first, last = few.model_log_p - few.true_log_p, many.model_log_p - many.true_log_p
    rise, stays = (around(each.mean(), each.sem()) for each in (first - last, last))
    said = "{:.2f} to {:.2f} ({:.2f} .. {:.2f}) nats"
    return below(rise, stays), said.format(first.mean(), last.mean(), *stays)


def worse_when_cold(*scores: pd.DataFrame) -> Case:
    """(v) In bins of true log-probability that both fill, the colder errs lower."""
    every = pd.concat([each.true_log_p for each in scores])
    edges = np.linspace(every.min(), every.max(), 51)
    cold, warm = (
        (each.model_log_p - each.true_log_p)
        .groupby(np.digitize(each.true_log_p, edges))
        .agg(["size", "mean", "var"])
        .query(f"size >= {FEWEST}")
        for each in scores
    )
    number = len(cold.index.intersection(warm.index))
    if not number:
        return "undecided", "no probability that both have sequences of"
    difference = (cold["mean"] - warm["mean"]).mean()  # of bins that both have
    variance = (cold["var"] / cold["size"] + warm["var"] / warm["size"]).sum()
    verdict = below(around(difference, stderr := math.sqrt(variance) / number))
    said = f"{difference:+.2f} ± {TWO_SIDED * stderr:.2f} nats over {number} bins"
    return verdict, said


def run(study: Study) -> dict[str, dict[str, Case]]:
    """Train and measure; return the cases of each claim, with verdict and numbers."""
    sizes, number, warmth = study.sizes, study.sizes.num_train, study.sizes.temperature
    study.language()

    def test(temperature: float) -> Corpus:
        return study.corpus(temperature, "test", sizes.num_test)

    models = {size: study.learner(size, warmth, number) for size in MODELS}
    found = study.measured("models", models, test(warmth))
    medium = {"medium": models["medium"]}
    [(_, altered)] = study.measured("altered", medium, test(warmth), True).values()
    rows = {(row["kind"], row["edits"]): row for row in altered.summaries}
    amounts = [int(share * number) for share in sizes.data]
    data = study.measured(
        "amounts",
        {f"{n:,} sequences": study.learner("medium", warmth, n) for n in amounts},
        test(warmth),
    )
    (few, (first, _)), *_, (many, (last, _)) = data.items()
    cold = {}
    for each in sorted(sizes.temperatures):
        name = f"T = {each:g}"
        learner = {name: study.learner("medium", each, number)}
        cold[name], _ = study.measured(name, learner, test(each))[name]
    return {
        "(i) Sequences of the language are underestimated.": {
            name: underestimated(each) for name, (_, each) in found.items()
        },
        "(ii) Less probable ones are underestimated more.": {
            name: rarer_worse(each) for name, (_, each) in found.items()
        },
        "(iii) Perturbed and random sequences are overestimated.": {
            "perturbed": overestimated(rows[PERTURBED, sizes.perturb]),
            "random": overestimated(rows[RANDOM, 0]),
        },
        "(iv) More training data lessens this and does not end it.": {
            f"{few} to {many}": lessened(first, last)
        },
        "(v) It is worse for languages of lower entropy, at equal probability.": {
            f"{low} against {high}": worse_when_cold(cold[low], cold[high])
            for low, high in pairwise(cold)
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of results")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--smallest", action="store_true", help="a minute, whose verdicts say nothing"
    )
    args = parser.parse_args(arguments)
    sizes = SMALLEST if args.smallest else Sizes()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # its own loading of tied weights warns
    lines = []
    for claim, cases in run(Study(args.output, sizes, args.seed)).items():
        held = sum(verdict == "holds" for verdict, _ in cases.values())
        lines += [f"- {claim} Holds for {held} of {len(cases)}:"]
        lines += [f"  - {name}: {v} ({said})" for name, (v, said) in cases.items()]
    text = "\n".join(lines) + "\n"
    (args.output / "claims.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
