"""What models ask a device for: launches and waits, counted on the simulated one.

``python -m tests.device_work`` prints the table that ``test_device_work`` bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from lm_latent_eval.devices import moved
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.learners.latent import LatentLearner
from lm_latent_eval.distortion.learners.latent_language import LatentLanguage
from lm_latent_eval.distortion.learners.options import TrainingOptions
from lm_latent_eval.distortion.learners.sequences import Batches, TokenSequences
from lm_latent_eval.distortion.learners.trainer import LearnerTrainer
from lm_latent_eval.inference import ParticleFilter, estimator_named
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import WholeText
from lm_latent_eval.models import srnn
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.string_scorers import CausalLMScorer
from lm_latent_eval.testing import Case
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.words import END
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.supervised import Part, Trainer
from lm_latent_eval.wrappers.mdm import training as mdm_training
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.distortion.learners import tiny_rnng
from tests.simulated_device import SIMULATED, Work, simulated_device
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
    yield from of_trainings()
    yield from of_learners()


def of_models(words: int = WORDS) -> Iterator[tuple[str, Run]]:
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
            number = PASSES if estimator == DiscreteFilter.name else SAMPLES
            method = estimator_named(estimator, case.model.estimators)(number)
            stops = estimator in (ParticleFilter.name, DiscreteFilter.name)
            draw = stepwise if stops else proposal
            yield (
                f"{name} {estimator}",
                partial(_whole_texts, case, method, draw, words),
            )
            if estimator == "is" and name not in {*UNNORMALISED, "lda"}:
                run = partial(_contexts, case, method, stepwise, words)
                yield f"{name} contexts", run


@torch.no_grad()
def _whole_texts(case: Case, method: Any, proposal: Any, words: int) -> None:
    text = [*case.some_words(words), END]
    batch = case.batch([text, text])
    method.log_weights(case.model, proposal, batch, keys(2)).cpu()


@torch.no_grad()
def _contexts(case: Case, method: Any, proposal: Any, words: int) -> None:
    text = case.some_words(words)
    batch, begin = case.batch([text, text]), Particles.begin(2, SIMULATED)
    read = method.extend(case.model, proposal, batch, keys(2), [0, 0], begin)
    ahead = read.ahead(case.model, batch.targets[:, -1])
    ahead.next_token(case.model, keys(2), [words, words]).cpu()


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
    ways = {
        "elbo": {},
        "path": {"unmasking": "confidence"},
        "blocks": {"block_length": 2},
    }
    for way, asked in ways.items():

        def unmask(options: dict[str, Any] = asked) -> None:
            scorer = MaskedDiffusion(masked).scorer(options, quiet=True)
            list(scorer.score_texts(sentences))

        yield f"mdm {way}", unmask

    questions = [Query(n, f"text/{n}", " c a", "a b") for n in range(2)]

    def think() -> None:
        scorer = tiny_cot.scorer(thinking, num_samples=SAMPLES, close="forced")
        list(scorer.score_continuations(questions))

    yield "cot", think
    yield (
        "causal LM",
        partial(
            CausalLMScorer(causal.model.eval(), causal.tokenizer).score, ["abab"] * 2
        ),
    )


def of_trainings() -> Iterator[tuple[str, Run]]:
    """List what is trained, for a step each on two texts."""
    for name, tiny in TINY_MODELS.items():
        if name == "lda":  # fitted by another program
            continue
        with simulated_device():
            case = tiny.case()
            model = case.model.to(SIMULATED).requires_grad_(True)
        loss = _margin_of(case) if name == "srnn" else _loss_of(case)
        yield f"train {name}", partial(_step, model, loss)
    with simulated_device():
        masked = tiny_mdm.network().model.to(SIMULATED).requires_grad_(True)
    tokens = [[5, 6, 7, 8], [6, 5, 8, 9]]
    predict = partial(
        mdm_training.negative_bound, masked, tokens, tiny_mdm.MASK, tiny_mdm.BEGIN
    )
    yield "train mdm", partial(_step, masked, predict)


def _loss_of(case: Case) -> Run:
    """Return -log p(x, z) - log q(z | x) of drawn latents, as of annotated ones."""
    proposal, text = case.proposal(), [*case.some_words(WORDS), END]

    @torch.no_grad()
    def annotated() -> Any:
        batch = case.batch([text, text])
        streams = Streams(keys(2), 1)
        return batch, proposal.sample(proposal.encode(batch), streams, 1).latents

    with simulated_device():
        batch, latents = annotated()

    def loss() -> Any:
        log_p = case.model.log_joint(case.model.encode(batch), latents)
        if isinstance(latents, torch.Tensor) and not latents.numel():  # there are none
            return -log_p.sum()
        return -(log_p + proposal.log_prob(proposal.encode(batch), latents)).sum()

    return loss


def _margin_of(case: Case) -> Run:
    """Return what a sentence-level RNN minimises, of two sentences and their copies."""
    text = [*case.some_words(WORDS), END]
    return partial(srnn.objective, case.model, [text] * 2, [text[::-1]] * 2, 0.1)


def _step(model: Any, loss: Run) -> None:
    """Train on one batch, as an epoch of one does."""
    part = Part(model, lambda _: loss())
    here, size = Path("unwritten"), {"size": lambda _: WORDS}
    Trainer({"p": part}, options=Options(), directory=here, **size)._train_epoch([0, 1])


def of_learners() -> Iterator[tuple[str, Run]]:
    """List learners of distortion, and how each scores two sequences."""
    with simulated_device():
        causal = tiny_causal.network(tiny_causal.letters()).model.to(SIMULATED)
        tree_lm = tiny_rnng.checkpoint()
        tree_lm.model.to(SIMULATED)
    language = CausalLanguage(causal, 1.0, 5, 5)
    sequences = [[0, 1, 0, 1, 5]] * 2
    yield "learner causal", lambda: language.score(sequences, [0, 1])
    yield "language causal", lambda: language.sample(0, [0, 1], WORDS)
    sentences = [[2, 3, 3, 2, tiny_rnng.END_ID]] * 2
    options = ScoringOptions(estimator="is", num_samples=SAMPLES)
    latent = LatentLearner(tree_lm, tiny_rnng.WORDS, tiny_rnng.END_ID, options)
    yield "learner rnng", lambda: latent.score(sentences, [0, 1])
    with simulated_device():
        trees = LatentLanguage(tree_lm)
    yield "language rnng", lambda: trees.sample(0, [0, 1], WORDS)


def learner_epoch(directory: Path, num_batches: int) -> Work:
    """Count an epoch of transformers' Trainer, as learners of distortion use it."""
    sequences = TokenSequences.of([pa.array([[0, 1, 0, 1, 5]] * 2 * num_batches)])
    batches = Batches(lambda _: sequences, len(sequences), 2, 5, 0, quiet=True)
    options = TrainingOptions(epochs=1, learning_rate=1e-3, batch_size=2)
    with simulated_device() as work:
        model = tiny_causal.network(tiny_causal.letters()).model.requires_grad_(True)
        trainer = LearnerTrainer(
            model, directory, batches, lambda *_: 1.0, options, torch.device("cpu")
        )
        trainer.args.save_strategy = "no"
        # Accelerate finds a device by itself, and this one it does not know.
        there = torch.device(SIMULATED)
        vars(trainer.args)["_setup_devices"] = there
        state, here = trainer.accelerator.state, trainer.accelerator.device
        trainer.model = model.to(there)
        trainer._nats, trainer._tokens = (
            trainer._nats.to(there),
            trainer._tokens.to(there),
        )
        state.device = there
        try:
            trainer.train()
        finally:
            state.device = here
    assert next(model.parameters()).device == there, "premise"
    return work


def main() -> None:
    """Print the table."""
    for name, run in runs():
        work = counted(run)
        line = f'    "{name}": ({work.num_launches}, {work.num_waits}),'
        print(f"{line:44}# {work.waits.most_common(3)}", flush=True)


if __name__ == "__main__":
    main()
