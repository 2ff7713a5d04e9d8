"""Small corpora as tasks, their evaluation, and a model whose answers are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.language import word_tokenizer
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.harness.answers import of_whole_text
from tests.conftest import PROJECT
from tests.distortion.languages.tiny import gpt2
from tests.stock_tasks import plain_names

GROUP = "distributional_distortion"
TASK = f"{GROUP}_corpus"
BINS = [f"error_bin_{number:02}" for number in range(1, 11)]


def causal(spread: float = 0.0) -> CausalLanguage:
    """A language of two words, or a model of it with random errors, in float64."""
    model = gpt2()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            noise = torch.randn(weights.shape, generator=generator)
            weights += spread * noise
    return CausalLanguage(model, 1.0, 0, 1, word_tokenizer(["a", "b"]))


def fox() -> PCFG:
    """Sentences in the words of the tiny checkpoints, ``</s>`` after each."""
    rules = {
        "S": {"N V": 0.6, "N V S": 0.4},
        "N": {"the fox": 0.7, "fox": 0.3},
        "V": {"saw": 0.8, "saw N": 0.2},
    }
    words = ["the", "fox", "saw"]
    return PCFG({"kind": "pcfg", "start": "S", "words": words, "rules": rules})


def draw(language: Any, folder: Path, num_sequences: int, max_length: int) -> Corpus:
    return Corpus.draw(
        language, folder, num_sequences, max_length=max_length, quiet=True
    )


def save(language: CausalLanguage, folder: Path) -> str:
    """Write a model with its tokenizer, as a training leaves it."""
    language.model.save_pretrained(folder)
    language.tokenizer.save_pretrained(folder)
    return str(folder)


def manager(corpus: Any, **metadata: Any) -> TaskManager:
    directory = str(corpus.directory) if isinstance(corpus, Corpus) else corpus
    return TaskManager(
        include_path=str(PROJECT / "tasks" / GROUP),
        include_defaults=False,
        metadata={"corpus": directory, **metadata},
    )


def load(corpus: Any, **metadata: Any) -> Any:
    """Load the task as lm-eval does."""
    return manager(corpus, **metadata).load([TASK])["tasks"][TASK]


def evaluate(
    lm: LM, corpus: Corpus, metadata: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    found = lm_eval.simple_evaluate(
        model=lm,
        tasks=[GROUP],
        task_manager=manager(corpus, **(metadata or {})),
        **options,
    )
    return plain_names(found)


def errors(found: dict[str, Any]) -> dict[int, float]:
    """The error of each sequence, by its number."""
    return {s["doc"]["index"]: s["mean_error"] for s in found["samples"][TASK]}


class Told(LM):
    """A model whose log-probabilities are in a table, by text."""

    def __init__(self, log_p: dict[str, float]) -> None:
        super().__init__()
        self.log_p = log_p

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        return [(self.log_p[request.args[1]], False) for request in requests]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        return [of_whole_text(r.args, self.log_p[r.args[-1]]) for r in requests]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise AssertionError("log-likelihoods only")
