"""What the options of a multiple-choice question cost: four of them against one.

    python benchmarks/options.py [--pretrained DIR --texts FILE] [--questions 16]
        [--words 60] [--samples 100] [--batch-size N] [--rounds 5] [--seed 0]

Questions with a context of about 60 words and options of three words, which are the
beginnings of other texts, scored as a multiple-choice task of lm-eval scores them. The
context is read, and the word after it predicted, once for all its options, so four
should cost little more than one. Prints the ratio, measured side by side.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from itertools import cycle, islice
from pathlib import Path

import torch

from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.demo import texts as demo_texts
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import read_texts

OPTIONS, OPTION_WORDS = 4, 3


def build_questions(
    texts: list[str], number: int, num_words: int
) -> list[tuple[str, list[str]]]:
    """Join texts to contexts of some length; the next texts begin the options."""
    words = cycle(text.split() for text in texts)
    questions = []
    for _ in range(number):
        context: list[str] = []
        while len(context) < num_words:
            context += next(words)
        options = [
            " " + " ".join(text[:OPTION_WORDS]) for text in islice(words, OPTIONS)
        ]
        questions.append((" ".join(context[:num_words]), options))
    return questions


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrained", default=CHECKPOINT, help="the demo model")
    parser.add_argument("--texts", type=Path, help="the demo model's test texts")
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = read_texts(args.texts) if args.texts else demo_texts("test")
    checkpoint = load_checkpoint(args.pretrained)
    options = ScoringOptions.parse(num_samples=args.samples, seed=args.seed)
    scorer = Scorer(checkpoint, options, batch_size=args.batch_size, quiet=True)
    questions = build_questions(texts, args.questions, args.words)

    def score(num_options: int) -> tuple[float, dict[tuple[int, int], float]]:
        """Return seconds, and log-likelihoods by question and option."""
        asked = [
            Query(OPTIONS * i + j, f"question/{i}", option, context)
            for i, (context, every) in enumerate(questions)
            for j, option in enumerate(every[:num_options])
        ]
        start = time.perf_counter()
        answers = list(scorer.score_continuations(asked))
        seconds = time.perf_counter() - start
        return seconds, {
            divmod(answer.index, OPTIONS): answer.estimate.log_evidence
            for answer in answers
        }

    score(1)  # fills the memo of alias encodings for both
    one, four = [], []
    for _ in range(args.rounds):
        seconds, alone = score(1)
        one.append(seconds)
        seconds, together = score(OPTIONS)
        four.append(seconds)
    for question, found in alone.items():
        assert abs(found - together[question]) < 1e-3, question
    ratios = [b / a for a, b in zip(one, four, strict=True)]
    print(
        f"{platform.processor() or platform.machine()}, 1 thread, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"checkpoint {checkpoint.digest}, seed {args.seed}, K = {args.samples}, "
        f"batch size {args.batch_size or 'auto'}\n"
        f"{args.questions} questions of {args.words} words: one option "
        f"{statistics.median(one):.3f} s, {OPTIONS} options "
        f"{statistics.median(four):.3f} s, ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
