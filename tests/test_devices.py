"""Devices without float64, as Apple's mps: everything works there, in float32.

On the simulated one, whose numbers are the CPU's, what is left to differ from float32
networks on the CPU is how log-probabilities are added up.
"""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval import testing
from lm_latent_eval.devices import (
    fetched,
    in_float64,
    moved,
    sent,
    sent_uniforms,
    widened,
)
from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.harness.backends import Latent
from lm_latent_eval.inference import estimator_named
from lm_latent_eval.latent import WholeText, WholeTextsOnly
from lm_latent_eval.models import checkpoint
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.testing.case import PREDICTED
from lm_latent_eval.testing.model_laws import numbers_of
from lm_latent_eval.text.words import END
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.simulated_device import SIMULATED, simulated_device
from tests.test_laws import PAIRS, TINY_MODELS, WITHOUT_LATENTS, written
from tests.tiny_checkpoint import conditional, generation, rolling
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm

every_model = pytest.mark.parametrize("name", TINY_MODELS)


@pytest.fixture
def without_float64():
    with simulated_device(float64=False):
        yield


def in_float32(name: str) -> testing.Case:
    """Return a case on the CPU, its weights rounded as the device has them."""
    case = TINY_MODELS[name].case()
    case.model.float()
    return case


def close(found, expected, what=None) -> None:
    torch.testing.assert_close(
        in_float64(found), in_float64(expected), rtol=0, atol=PREDICTED, msg=what
    )


@pytest.mark.parametrize(("name", "which"), PAIRS)
def test_proposals_give_the_numbers_of_the_cpu(name, which):
    case = in_float32(name)
    on_cpu = numbers_of(case, which)
    with simulated_device(float64=False):
        on_device = numbers_of(case.on(SIMULATED), which)
    for what, found in on_device.items():
        assert found.dtype is torch.float32
        close(found, on_cpu[what])


@every_model
def test_estimators_give_the_numbers_of_the_cpu(name):
    case = in_float32(name)
    every = [e for e in case.model.estimators if e != "auto"]  # one of the others

    texts = [text for text in case.outcomes() if text[-1] == END][1:3]

    def weights(case: testing.Case) -> dict[str, torch.Tensor]:
        found = {}
        for estimator in every:
            method = estimator_named(estimator, every)(20)
            proposal = case.proposal()
            if isinstance(proposal, WholeText) and estimator == "smc":
                proposal = proposal.left_to_right
            found[estimator] = case.log_weights(method, proposal, texts)
        return found

    on_cpu = weights(case)
    with simulated_device(float64=False):
        on_device = weights(case.on(SIMULATED))
    for estimator, expected in on_cpu.items():
        found = on_device[estimator].double()
        known = ~(expected.isnan() | (expected < -1e30))  # marks of ``mixed``
        close(found[known], expected[known], estimator)
        assert torch.equal(found.isnan(), expected.isnan())


# -- strings -------------------------------------------------------------------------


@every_model
def test_the_backend_answers_as_on_the_cpu(name, tmp_path):
    path = written(name, tmp_path)

    def answers(device: str) -> tuple[list[float], list[object]]:
        lm = Latent(
            pretrained=path,
            device=device,
            dtype="float32",
            **({} if name in WITHOUT_LATENTS else {"num_samples": 10}),
        )
        if lm._scorer.normalization == "unnormalised":
            queries = [Query(n, f"t/{n}", t) for n, t in enumerate(["the", "the the"])]
            found = list(lm._scorer.score_texts(queries))
            return [a.estimate.log_evidence for a in found], []
        numbers = [*map(float, lm.loglikelihood_rolling(rolling("the", "the the a")))]
        if isinstance(lm.checkpoint.model, WholeTextsOnly):
            return numbers, []
        parts = lm.loglikelihood(conditional(("the", " the"), ("the the", " a the")))
        numbers += [float(number) for number, _ in parts]
        texts = lm.generate_until(generation("the", "", max_gen_toks=3))
        drawn = generation("the", max_gen_toks=3, do_sample=True)
        return numbers, [*(g for _, g in parts), *texts, *lm.generate_until(drawn)]

    on_cpu = answers("cpu")
    with simulated_device(float64=False):
        on_device = answers(SIMULATED)
    assert on_device == (
        pytest.approx(on_cpu[0], rel=PREDICTED, abs=PREDICTED),
        on_cpu[1],
    )


def test_float64_is_refused_in_one_line(tmp_path, without_float64):
    path = written("lstm", tmp_path)
    with pytest.raises(ValueError, match=r"^dtype=float64: sim has no float64; ") as e:
        Latent(pretrained=path, device=SIMULATED, dtype="float64")
    assert "\n" not in str(e.value)
    path = written("lrlm", tmp_path / "wide")
    model = checkpoint.load_checkpoint(path, device=SIMULATED).model
    assert model.dtype is torch.float32
    assert checkpoint.load_checkpoint(path).model.dtype is torch.float64


def of_tokens(device, **options):
    network = tiny_causal.network(tiny_causal.letters())
    moved(network.model.float(), device)
    texts = [Query(n, f"text/{n}", t) for n, t in enumerate(["abab", "aabba"])]
    return SegmentedLM(network).scorer(options, quiet=True).score_texts(texts)


def of_masks(device, **options):
    network = tiny_mdm.network()
    moved(network.model.float(), device)
    texts = [Query(0, "text/0", "the fox saw Ada")]
    return MaskedDiffusion(network).scorer(options, quiet=True).score_texts(texts)


def of_thoughts(device, **options):
    network = tiny_cot.network(dtype=torch.float32)
    moved(network.model, device)
    questions = [Query(n, f"text/{n}", " c a", "a b") for n in range(2)]
    return tiny_cot.scorer(network, **options).score_continuations(questions)


WRAPPED = [
    *(
        (of_tokens, {"estimator": estimator, "num_samples": 10})
        for estimator in ("canonical", "exact", "beam", "is", "mixed", "smc")
    ),
    *((of_masks, {"unmasking": u}) for u in ("confidence", "low_confidence")),
    (of_masks, {}),
    (of_thoughts, {"num_samples": 10, "close": "forced"}),
]


@pytest.mark.parametrize(("score", "options"), WRAPPED)
def test_networks_of_transformers_answer_as_on_the_cpu(score, options):
    def found(device):
        return [each.estimate.log_evidence for each in score(device, **options)]

    on_cpu = found("cpu")
    with simulated_device(float64=False):
        on_device = found(SIMULATED)
    assert on_device == pytest.approx(on_cpu, rel=PREDICTED)


# -- numbers -------------------------------------------------------------------------


def test_random_numbers_stay_below_1(without_float64):
    """Half of the cell of float64 next to 1 is 1 in float32."""
    nearly = torch.tensor([2.0**-53, 0.25, 1 - 2.0**-53], dtype=torch.float64)
    there = sent_uniforms(nearly, SIMULATED)
    assert there.dtype is torch.float32
    assert there.min() > 0
    assert there.max() < 1
    assert (there.cpu() - nearly).abs().max() < torch.finfo(torch.float32).eps
    assert torch.equal(sent_uniforms(nearly, "cpu"), nearly)


def test_numbers_of_any_type_are_waited_for_once():
    expected = [
        torch.tensor([True, False, True]),
        torch.tensor(0.1, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.tensor([[7]]).expand(2, 3),
        torch.tensor([5]),
    ]
    with simulated_device() as work:
        there = [tensor.to(SIMULATED) for tensor in expected[:-1]]
        there.append(torch.arange(10, device=SIMULATED)[5::7][:1])  # has a step of 7
        before = work.num_waits
        found = fetched(torch.ones(2), *there)
        assert work.num_waits == before + 1
    for value, like in zip(found, [torch.ones(2), *expected], strict=True):
        assert value.is_cpu
        assert value.dtype is like.dtype
        assert torch.equal(value, like)


def test_gradients_flow_through_what_is_fetched():
    with simulated_device():
        for types in ([torch.float32, torch.float32], [torch.float32, torch.float64]):
            leaves = [torch.ones(2, dtype=t, device=SIMULATED) for t in types]
            leaves = [leaf.requires_grad_() for leaf in leaves]
            found = fetched(*(2 * leaf for leaf in leaves))
            sum(part.double().sum() for part in found).backward()
            assert all(leaf.grad.tolist() == [2, 2] for leaf in leaves)


def test_what_is_sent_to_the_host_is_there():
    with simulated_device() as work:
        there = sent(torch.arange(3), SIMULATED)
        assert work.num_waits == 0
        assert sent(there, "cpu").tolist() == [0, 1, 2]
        assert work.num_waits == 1


def test_estimates_are_float64_wherever_weights_are(without_float64):
    log_w = torch.tensor([-1000.0, -1001.0])
    there = widened(log_w.to(SIMULATED))
    assert there.dtype is torch.float32
    assert torch.equal(log_evidence(there), log_evidence(log_w))
    assert log_evidence(there).dtype is torch.float64
