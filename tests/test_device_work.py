"""What models ask a device for does not grow: counted work, never seconds.

Launches and waits, on the simulated device: two texts of four words under four samples,
of trainings a step. A fifth more is let pass, since which words and latents share their
work follows from draws. When something gets cheaper, lower its line:
``python -m tests.test_device_work`` prints the table anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lm_latent_eval.devices import moved
from lm_latent_eval.inference import ParticleFilter, estimator_named
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.latent import WholeText
from lm_latent_eval.models import srnn
from lm_latent_eval.scoring.interface import Query
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


# -- bounds ----------------------------------------------------------------------------

MORE = 1.2
COSTS = {
    "entitynlm mixed": (2234, 16),
    "entitynlm dpf": (4979, 27),
    "entitynlm is": (1166, 9),
    "entitynlm contexts": (1282, 10),
    "entitynlm beam": (1093, 10),
    "entitynlm smc": (2571, 7),
    "entitynlm ais": (2108, 15),
    "kglm mixed": (3343, 19),
    "kglm dpf": (4481, 36),
    "kglm is": (2428, 12),
    "kglm contexts": (2507, 15),
    "kglm beam": (1827, 13),
    "kglm smc": (4530, 11),
    "kglm ais": (4569, 21),
    "lda ais": (1601, 1),
    "lda l2r": (422, 1),
    "lda chib": (4340, 1),
    "lda mixed": (814, 1),
    "lda dpf": (1755, 1),
    "lda is": (433, 1),
    "lda beam": (453, 1),
    "lda smc": (957, 6),
    "lrlm exact": (196, 3),
    "lrlm mixed": (430, 4),
    "lrlm dpf": (515, 4),
    "lrlm is": (378, 4),
    "lrlm contexts": (662, 7),
    "lrlm beam": (375, 4),
    "lrlm smc": (1521, 7),
    "lstm exact": (114, 4),
    "lstm is": (102, 4),
    "lstm contexts": (129, 4),
    "lstm beam": (98, 4),
    "nklm mixed": (2752, 14),
    "nklm dpf": (3597, 25),
    "nklm is": (1143, 7),
    "nklm contexts": (1411, 8),
    "nklm beam": (979, 7),
    "nklm smc": (2152, 7),
    "rnn exact": (129, 7),
    "rnn is": (117, 7),
    "rnn contexts": (147, 7),
    "rnn beam": (113, 7),
    "rnng mixed": (658, 7),
    "rnng dpf": (2769, 21),
    "rnng is": (578, 6),
    "rnng contexts": (735, 6),
    "rnng beam": (576, 6),
    "rnng smc": (1447, 7),
    "rnng ais": (3132, 12),
    "srnn exact": (72, 2),
    "tokens canonical": (179, 12),
    "tokens exact": (808, 33),
    "tokens beam": (650, 29),
    "tokens is": (571, 27),
    "tokens mixed": (567, 27),
    "tokens smc": (571, 27),
    "mdm elbo": (376, 33),
    "mdm path": (340, 33),
    "mdm blocks": (226, 17),
    "cot": (1307, 59),
    "causal LM": (93, 9),
    "train entitynlm": (1370, 4),
    "train kglm": (2501, 7),
    "train lrlm": (985, 6),
    "train lstm": (315, 5),
    "train nklm": (2294, 3),
    "train rnn": (314, 8),
    "train rnng": (2772, 4),
    "train srnn": (203, 2),
    "train mdm": (673, 10),
}
"""Launches of operations, and how often the host waits for the device."""

ON_THE_HOST = ("lda", "lrlm", "lstm", "rnn", "srnn")
"""Models that have nothing to wait for while they go through a text."""


def a_token(model: str, estimator: str) -> int:
    """How often the host may wait a token, however many texts and samples there are."""
    if estimator == "smc":  # which particles go on, and what they draw next
        return 1
    if model in ON_THE_HOST:
        return 0
    if estimator == "dpf":  # two beams, passes and a pilot; of KGLM what is not listed
        return 6 if model == "kglm" else 4
    return 2 if estimator == "mixed" else 1  # it searches, and then it draws


@pytest.fixture(scope="module")
def every_run():
    return dict(runs())


def test_every_run_has_a_bound(every_run):
    assert every_run.keys() == COSTS.keys()


@pytest.mark.parametrize("name", COSTS)
def test_launches_and_waits(every_run, name):
    work = counted(every_run[name])
    launches, waits = COSTS[name]
    assert work.num_launches <= MORE * launches
    assert work.num_waits <= MORE * waits, work.waits.most_common()


@pytest.fixture(scope="module")
def lengths():
    return [dict(of_models(words)) for words in (WORDS, 3 * WORDS)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [name for name in COSTS if name.split()[0] in TINY_MODELS]
)
def test_waits_a_token(lengths, name):
    short, long = (counted(runs[name]) for runs in lengths)
    more = long.waits - short.waits
    allowed = 2 * WORDS * a_token(*name.split())
    assert long.num_waits - short.num_waits <= allowed, more


def main() -> None:
    """Print the table."""
    for name, run in runs():
        work = counted(run)
        line = f'    "{name}": ({work.num_launches}, {work.num_waits}),'
        print(f"{line:44}# {work.waits.most_common(3)}", flush=True)


if __name__ == "__main__":
    main()
