"""What models ask a device for: launches and waits, counted on the simulated one.

``python -m tests.device_work`` prints the table that ``test_device_work`` bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lm_latent_eval.devices import moved
from lm_latent_eval.inference import estimator_named
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.latent import WholeText
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.scoring.score_functions import CausalLMScorer
from lm_latent_eval.testing import SIMULATED, Case, Work, simulated_device
from lm_latent_eval.testing.model_laws import keys
from lm_latent_eval.text.words import END
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.modeling import SegmentedLM
from tests import tiny_causal
from tests.test_laws import TINY_MODELS, UNNORMALISED
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm

WORDS, SAMPLES = 4, 4
"""Of each of two texts."""

Run = Callable[[], object]


def counted(run: Run) -> Work:
    """Count what a second run asks for: a model remembers some things of the first."""
    for _ in range(2):
        with simulated_device() as work:
            run()
    return work


def runs() -> Iterator[tuple[str, Run]]:
    """List models with their estimators, and how each scores two texts."""
    yield from of_models()
    yield from of_wrappers()


def of_models() -> Iterator[tuple[str, Run]]:
    """List models of the latent interface."""
    for name, tiny in TINY_MODELS.items():
        with simulated_device():
            case = tiny.case().on(SIMULATED)
        proposal = case.proposal()
        stepwise = proposal
        if isinstance(proposal, WholeText):
            stepwise = proposal.left_to_right
        for estimator in case.model.estimators:
            if estimator == "auto":  # one of the others
                continue
            method = estimator_named(estimator, case.model.estimators)(SAMPLES)
            draw = stepwise if estimator == "smc" else proposal
            yield f"{name} {estimator}", partial(_whole_texts, case, method, draw)
            if estimator == "is" and name not in {*UNNORMALISED, "lda"}:
                run = partial(_contexts, case, method, stepwise)
                yield f"{name} contexts", run


@torch.no_grad()
def _whole_texts(case: Case, method: Any, proposal: Any) -> None:
    text = [*case.some_words(WORDS), END]
    batch = case.batch([text, text])
    method.log_weights(case.model, proposal, batch, keys(2)).cpu()


@torch.no_grad()
def _contexts(case: Case, method: Any, proposal: Any) -> None:
    text = case.some_words(WORDS)
    batch, begin = case.batch([text, text]), Particles.begin(2, SIMULATED)
    read = method.extend(case.model, proposal, batch, keys(2), [0, 0], begin)
    read.next_token(case.model, batch.targets[:, -1]).cpu()


def of_wrappers() -> Iterator[tuple[str, Run]]:
    """List what scores strings by networks of Hugging Face."""
    with simulated_device():
        causal = tiny_causal.network(tiny_causal.letters())
        thinking, masked = tiny_cot.network(), tiny_mdm.network()
        for network in (causal, thinking, masked):
            moved(network.model, SIMULATED)
    texts = [Query(n, f"text/{n}", "ab" * WORDS) for n in range(2)]
    for estimator in ("canonical", "exact", "beam", "is", "mixed", "smc"):
        options = {"estimator": estimator, "num_samples": SAMPLES}

        def tokens(options: dict[str, Any] = options) -> None:
            list(SegmentedLM(causal).scorer(options, quiet=True).score_texts(texts))

        yield f"tokens {estimator}", tokens

    sentences = [Query(n, f"text/{n}", "the fox saw Ada") for n in range(2)]
    for estimator in ("elbo", "path"):
        asked = {"estimator": estimator}

        def unmask(options: dict[str, Any] = asked) -> None:
            scorer = MaskedDiffusion(masked).scorer(options, quiet=True)
            list(scorer.score_texts(sentences))

        yield f"mdm {estimator}", unmask

    questions = [Query(n, f"text/{n}", " c a", "a b") for n in range(2)]

    def think() -> None:
        scorer = tiny_cot.scorer(thinking, num_samples=SAMPLES, close="forced")
        list(scorer.score_continuations(questions))

    yield "cot", think
    yield (
        "causal LM",
        lambda: CausalLMScorer(causal.model.eval(), causal.tokenizer)(["abab"] * 2),
    )


def main() -> None:
    """Print the table."""
    for name, run in runs():
        work = counted(run)
        line = f'    "{name}": ({work.num_launches}, {work.num_waits}),'
        print(f"{line:44}# {work.waits.most_common(3)}", flush=True)


if __name__ == "__main__":
    main()
