"""A toy model, tasks over a few sentences, and what tests of them share."""

from __future__ import annotations

import math

import lm_eval
from datasets import Dataset
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from lm_latent_eval.harness.answers import of_whole_text
from lm_latent_eval.harness.contrastive import ContrastiveEntropyTask
from tests.conftest import PROJECT
from tests.stock_tasks import plain_names

TASK, GROUP = "contrastive_entropy_text", "contrastive_entropy"
FOLDER = PROJECT / "tasks" / GROUP

SENTENCES = [
    "the fox saw the fox .",
    "the the fox fox saw saw .",
    "saw",
    "the fox saw the saw the fox saw . the fox saw the fox",
]
SUBSTITUTE = "z"
LEVELS = (10, 30, 50)


class Unigrams(LM):
    """2^-3 for the one substitute, 2^-1 for every other word, 2^-5 for the end."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        self.calls.append(requests)
        return [
            of_whole_text(r.args, -math.log(2) * self.bits(r.args[-1]))
            for r in requests
        ]

    @staticmethod
    def bits(text: str) -> int:
        return 5 + sum(3 if word == SUBSTITUTE else 1 for word in text.split())

    def loglikelihood(self, requests, disable_tqdm=False):
        raise AssertionError("whole texts only")

    def generate_until(self, requests, disable_tqdm=False):
        raise AssertionError("whole texts only")


def load(texts, **config):
    """Make a task over these texts, as a task file does."""
    splits = {"test": [{"text": text} for text in texts], **config.pop("splits", {})}
    return ContrastiveEntropyTask(
        {
            "task": "mine",
            "class": ContrastiveEntropyTask,
            "custom_dataset": lambda **_: {
                name: Dataset.from_list(rows) for name, rows in splits.items()
            },
            "output_type": "loglikelihood_rolling",
            "test_split": "test",
            "doc_to_text": "",
            "doc_to_target": "text",
            "num_fewshot": 0,
            "metadata": {},
            "metric_list": [{"metric": "contrastive_entropy"}],
            **config,
        }
    )


def evaluate(lm, folder, tasks=(GROUP,), metadata=None, include_path=FOLDER, **options):
    """Evaluate a model in process on the sentences, with files in a folder."""
    (folder / "test.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "train.txt").write_text(f"{SUBSTITUTE}\n")
    files = {
        "text_file": str(folder / "test.txt"),
        "vocabulary_file": str(folder / "train.txt"),
    }
    manager = TaskManager(
        include_path=str(include_path),
        include_defaults=False,
        metadata=files | (metadata or {}),
    )
    return plain_names(
        lm_eval.simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=manager,
            bootstrap_iters=0,
            **options,
        )
    )
