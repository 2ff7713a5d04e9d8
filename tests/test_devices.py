"""Devices without float64, as Apple's mps, give the CPU's numbers; counted work.

On the simulated one, whose numbers are the CPU's, what is left to differ from float32
networks on the CPU is how log-probabilities are added up.

Where there is float64, launches and waits are counted, of two texts of at most four
words under four samples, of trainings a step, and held to
``tests/reference/device_work.json``. A fifth more is let pass, since which words and
latents share their work follows from draws. When something gets cheaper, or there is a
new model, write the file anew: ``python -m tests.test_devices``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from lm_latent_eval.devices import (
    fetched,
    in_float64,
    moved,
    sent_uniforms,
    shared_type,
    use_one_thread,
    widened,
)
from lm_latent_eval.estimators import log_evidence
from lm_latent_eval.harness.backends import Latent, LatentKGLM
from lm_latent_eval.inference import ParticleFilter, estimator_named
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.inference.particles import Particles
from lm_latent_eval.inference.streams import Streams
from lm_latent_eval.metric_functions.strings import CausalLMScorer
from lm_latent_eval.models import checkpoint, srnn
from lm_latent_eval.scoring.interface import Query
from lm_latent_eval.testing.case import PREDICTED, Case, keys
from lm_latent_eval.testing.model_laws import numbers_of
from lm_latent_eval.text.words import END
from lm_latent_eval.training.options import Options
from lm_latent_eval.training.supervised import Part, Trainer
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from lm_latent_eval.wrappers.tokens.model import SegmentedLM
from tests import tiny_causal
from tests.conftest import PROJECT
from tests.simulated_device import SIMULATED, Work, simulated_device
from tests.test_laws import (
    TINY_MODELS,
    UNNORMALISED,
    WITHOUT_LATENTS,
    proposals,
    written,
)
from tests.tiny_checkpoint import conditional, generation, rolling
from tests.wrappers.cot import tiny as tiny_cot
from tests.wrappers.mdm import tiny as tiny_mdm

WORDS, SAMPLES = 4, 4
FILE = PROJECT / "tests" / "reference" / "device_work.json"
"""Launches of operations, and how often the host waits for the device."""
COSTS: dict[str, tuple[int, int]] = json.loads(FILE.read_text())
MORE = 1.2

Run = Callable[[], list[float] | torch.Tensor]
"""Scores texts, or trains on them, where its model lies."""


def in_float32(name: str) -> Case:
    """Return a case on the CPU, its weights rounded as the device has them."""
    case = TINY_MODELS[name].case()
    case.model.float()
    return case


def close(found, expected, what=None) -> None:
    torch.testing.assert_close(
        in_float64(torch.as_tensor(found)),
        in_float64(torch.as_tensor(expected)),
        rtol=PREDICTED,
        atol=PREDICTED,
        equal_nan=True,
        msg=what,
    )


# -- what is run -----------------------------------------------------------------------


def of_models(device: str, narrow: bool) -> Iterator[tuple[str, Run]]:
    """List models of the latent interface, with their estimators."""
    for name, tiny in TINY_MODELS.items():
        case = (in_float32(name) if narrow else tiny.case()).on(device)
        proposal = case.proposal()
        stepwise = proposal.left_to_right
        for estimator in case.model.estimators:
            if estimator == "auto":  # one of the others
                continue
            number = PASSES if estimator == DiscreteFilter.name else SAMPLES
            method = estimator_named(estimator, case.model.estimators)(number)
            stops = estimator in (ParticleFilter.name, DiscreteFilter.name)
            draw = stepwise if stops else proposal
            yield f"{name} {estimator}", partial(_whole_texts, case, method, draw)
            if estimator == "is" and name not in {*UNNORMALISED, "lda"}:
                yield f"{name} contexts", partial(_contexts, case, method, stepwise)


@torch.no_grad()
def _whole_texts(case: Case, method, proposal) -> torch.Tensor:
    text = [*case.some_words(WORDS), END]
    log_w = case.log_weights(method, proposal, [text, text[1:]])
    return log_w.masked_fill(log_w < -1e30, torch.nan)  # marks of ``dpf``


@torch.no_grad()
def _contexts(case: Case, method, proposal) -> torch.Tensor:
    text = case.some_words(WORDS)
    batch, begin = case.batch([text, text]), Particles.begin(2, case.device)
    read = method.extend(Texts(case.model, proposal, batch, keys(2)), begin)
    ahead = read.ahead(case.model, batch.targets[:, -1])
    return ahead.next_token(case.model, keys(2), [WORDS, WORDS]).cpu()


def of_wrappers(device: str, narrow: bool) -> Iterator[tuple[str, Run]]:
    """List what scores strings by networks of Hugging Face."""
    causal = tiny_causal.network(tiny_causal.letters())
    thinking, masked = tiny_cot.network(), tiny_mdm.network()
    for network in (causal, thinking, masked):
        moved(network.model.float() if narrow else network.model, device)

    def log_p(model, options, texts) -> list[float]:
        scorer = model.scorer(options, quiet=True)
        return [answer.estimate.log_evidence for answer in scorer.score_texts(texts)]

    texts = [Query(n, f"text/{n}", t) for n, t in enumerate(("abababab", "aabba"))]
    for estimator in ("canonical", "exact", "beam", "is"):
        options = {"estimator": estimator, "num_samples": SAMPLES}
        run = partial(log_p, SegmentedLM(causal), options, texts)
        yield f"tokens {estimator}", run
    texts = [Query(n, f"text/{n}", "the fox saw Ada") for n in range(2)]
    ways = {
        "elbo": {},
        "path": {"unmasking": "confidence"},
        "low confidence": {"unmasking": "low_confidence"},
        "blocks": {"block_length": 2},
    }
    for way, options in ways.items():
        yield f"mdm {way}", partial(log_p, MaskedDiffusion(masked), options, texts)

    def think() -> list[float]:
        questions = [Query(n, f"text/{n}", " c a", "a b") for n in range(2)]
        scorer = tiny_cot.scorer(thinking, num_samples=SAMPLES, close="forced")
        found = scorer.score_continuations(questions)
        return [answer.estimate.log_evidence for answer in found]

    yield "cot", think
    scorer = CausalLMScorer(causal.model.eval(), causal.tokenizer)
    yield "causal LM", lambda: scorer(["abab"] * 2).log_p


def of_trainings(device: str, narrow: bool) -> Iterator[tuple[str, Run]]:
    """List what is trained, for a step each on two texts."""
    for name, tiny in TINY_MODELS.items():
        if name == "lda":  # fitted by another program
            continue
        case = (in_float32(name) if narrow else tiny.case()).on(device)
        case.model.requires_grad_(True)
        text = [*case.some_words(WORDS), END]
        loss = _loss_of(case, text)
        if name == "srnn":  # of two sentences and their copies
            copies = [text[::-1]] * 2
            loss = partial(srnn.objective, case.model, [text] * 2, copies, 0.1)
        yield f"train {name}", partial(_step, case.model, loss)


def _loss_of(case: Case, text: list[int]):
    """Return -log p(x, z) - log q(z | x) of drawn latents, as of annotated ones."""
    proposal = case.proposal()

    @cache
    @torch.no_grad()
    def annotated():
        batch = case.batch([text, text])
        streams = Streams(keys(2), 1)
        return batch, proposal.sample(proposal.encode(batch), streams, 1).latents

    def loss() -> torch.Tensor:
        batch, latents = annotated()
        log_p = case.model.log_joint(case.model.encode(batch), latents)
        if isinstance(latents, torch.Tensor) and not latents.numel():  # there are none
            return -log_p.sum()
        return -(log_p + proposal.log_prob(proposal.encode(batch), latents)).sum()

    return loss


def _step(model, loss) -> list[float]:
    """Train on one batch, as an epoch of one does."""
    torch.manual_seed(0)
    part = Part(model, lambda _: loss())
    here, size = Path("unwritten"), {"size": lambda _: WORDS}
    trainer = Trainer({"p": part}, options=Options(), directory=here, **size)
    return [*trainer._train_epoch([0, 1]).values()]


def counted(run: Run, most: tuple[float, float] = (0, 0)) -> Work:
    """Count what a run asks for, or a second one: a model remembers some things.

    Args:
        run: What is run.
        most: Launches and waits that the first run is let pass with.
    """
    for _ in range(2):
        with simulated_device() as work:
            run()
        if work.num_launches <= most[0] and work.num_waits <= most[1]:
            break
    return work


@cache
def built(device: str, float64: bool = True) -> dict[str, Run]:
    """Return runs whose models lie on a device, as wide as it has numbers."""
    lists = of_models, of_wrappers, of_trainings
    with simulated_device(float64=float64) if device == SIMULATED else nullcontext():
        return dict(run for listed in lists for run in listed(device, not float64))


# -- numbers and work ------------------------------------------------------------------


def test_every_run_has_a_bound():
    assert built(SIMULATED).keys() == COSTS.keys()


SELDOM = {"ais", "beam", "dpf", "smc"}
"""Estimators that are run with KGLM, and with the others nightly."""


def daily(run: str) -> bool:
    name, _, kind = run.partition(" ")
    return name == "kglm" or kind not in SELDOM or name == "tokens"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if daily(n) else pytest.mark.nightly) for n in COSTS],
)
def test_a_device_gives_the_numbers_of_the_cpu_for_no_more_work(name):
    narrow = built(SIMULATED, float64=False)[name]
    with simulated_device(float64=False):
        found = narrow()
    close(found, built("cpu", float64=False)[name]())
    launches, waits = (MORE * cost for cost in COSTS[name])
    work = counted(built(SIMULATED)[name], (launches, waits))
    assert work.num_launches <= launches
    assert work.num_waits <= waits, work.waits.most_common()


@proposals()
def test_proposals_give_the_numbers_of_the_cpu(name, which):
    case = in_float32(name)
    expected = numbers_of(case, which)
    with simulated_device(float64=False):
        found = numbers_of(case.on(SIMULATED), which)
    for what, numbers in found.items():
        assert numbers.dtype is torch.float32
        close(numbers, expected[what], what)


# -- a real one ----------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", COSTS)
def test_cuda_gives_the_numbers_of_the_cpu(name):
    close(built("cuda")[name](), built("cpu")[name]())


# -- strings -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize(
    ("device", "opened"),
    [
        (SIMULATED, partial(simulated_device, float64=False)),
        pytest.param("cuda", nullcontext, marks=pytest.mark.gpu),
    ],
)
def test_the_backend_answers_as_on_the_cpu(name, device, opened, tmp_path):
    path = written(name, tmp_path)
    samples = {} if name in WITHOUT_LATENTS else {"num_samples": 4}
    if name in ("entitynlm", "nklm"):  # of which ``auto`` does no other than of KGLM
        samples["estimator"] = "is"

    def answers(device: str) -> tuple[list[float], list[object]]:
        lm = Latent(pretrained=path, device=device, dtype="float32", **samples)
        if lm._scorer.normalization == "unnormalised":
            queries = [Query(n, f"t/{n}", t) for n, t in enumerate(["the", "the the"])]
            found = list(lm._scorer.score_texts(queries))
            return [a.estimate.log_evidence for a in found], []
        numbers = [*map(float, lm.loglikelihood_rolling(rolling("the", "the the a")))]
        if lm.checkpoint.model.why_whole:
            return numbers, []
        parts = lm.loglikelihood(conditional(("the", " the"), ("the the", " a the")))
        numbers += [float(number) for number, _ in parts]
        texts = lm.generate_until(generation("the", "", max_gen_toks=3))
        drawn = generation("the", max_gen_toks=3, do_sample=True)
        return numbers, [*(g for _, g in parts), *texts, *lm.generate_until(drawn)]

    numbers, others = answers("cpu")
    with opened():
        found, also = answers(device)
    assert found == pytest.approx(numbers, rel=PREDICTED, abs=PREDICTED)
    assert also == others


def test_float64_is_refused_in_one_line(tmp_path):
    path = written("lrlm", tmp_path)
    with simulated_device(float64=False):
        with pytest.raises(
            ValueError, match=r"^dtype=float64: sim has no float64; .*$"
        ):
            Latent(pretrained=path, device=SIMULATED, dtype="float64")
        model = checkpoint.load_checkpoint(path, device=SIMULATED).model
        assert model.dtype is torch.float32
        assert checkpoint.load_checkpoint(path).model.dtype is torch.float64


# -- a device that is not there fails where one that is there does --------------------


def test_devices_do_not_mix():
    with simulated_device():
        there = torch.ones(3, device=SIMULATED)
        assert there.device == torch.device(SIMULATED)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2.0] * 3  # as CUDA does
        with pytest.raises(RuntimeError, match=r"add.*\(3,\) on sim:0, \(3,\) on cpu"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="can't convert sim:0"):
            there.numpy()


def test_the_host_waits_for_what_is_copied_to_it():
    with simulated_device() as work:
        here = torch.zeros(3)
        there = torch.ones(3).to(SIMULATED, non_blocking=True)
        assert work.num_waits == 0
        for copy in (
            lambda: there.to("cpu", non_blocking=True),
            lambda: here.copy_(there, non_blocking=True),
        ):
            with pytest.raises(RuntimeError, match="leave non_blocking out"):
                copy()
        assert here.copy_(there).tolist() == there.cpu().tolist() == [1.0] * 3
        assert work.num_waits == 2


def test_a_device_may_have_no_float64():
    with simulated_device(float64=False):
        there = torch.ones(3, device=SIMULATED)
        assert (there + 1).sum().cpu().double().item() == 6.0
        for make in (
            there.double,
            lambda: torch.zeros(2, dtype=torch.float64, device=SIMULATED),
            lambda: torch.ones(2, dtype=torch.float64).to(SIMULATED),
            lambda: there.sum(dtype=torch.float64),
        ):
            with pytest.raises(TypeError, match="sim:0 has no float64"):
                make()
    with simulated_device():
        assert torch.ones(3, device=SIMULATED).double().dtype is torch.float64


# -- copies --------------------------------------------------------------------------


def test_random_numbers_stay_below_1():
    """Half of the cell of float64 next to 1 is 1 in float32."""
    nearly = torch.tensor([2.0**-53, 0.25, 1 - 2.0**-53], dtype=torch.float64)
    with simulated_device(float64=False):
        there = sent_uniforms(nearly, SIMULATED).cpu()
    assert there.dtype is torch.float32
    assert there.min() > 0 and there.max() < 1
    assert (there - nearly).abs().max() < torch.finfo(torch.float32).eps
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


def test_no_weights_have_no_type():
    with pytest.raises(ValueError, match="it holds no tensor"):
        shared_type({})


def test_estimates_are_float64_wherever_weights_are():
    log_w = torch.tensor([-1000.0, -1001.0])
    with simulated_device(float64=False):
        there = widened(log_w.to(SIMULATED))
        assert there.dtype is torch.float32
        assert torch.equal(log_evidence(there), log_evidence(log_w))
        assert log_evidence(there).dtype is torch.float64


def main() -> None:
    """Write the bounds."""
    lines = []
    for name, run in built(SIMULATED).items():
        work = counted(run)
        print(name, work.num_launches, work.waits.most_common(3), flush=True)
        lines.append(f'"{name}": [{work.num_launches}, {work.num_waits}]')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture
def two_threads(monkeypatch) -> Iterator[None]:
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("width, threads", [(8, 1), (2000, 2)])
def test_a_small_network_has_one_thread(width, threads, two_threads):
    use_one_thread(torch.nn.Linear(width, width), torch.device("cpu"))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("chosen", [False, True])
def test_a_backend_has_one_thread_where_nobody_chose(chosen, two_threads, monkeypatch):
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    LatentKGLM(device="cpu")  # the embedded one
    assert torch.get_num_threads() == (2 if chosen else 1)


if __name__ == "__main__":
    main()
