"""What a run takes is said before it starts; what cannot fit is refused."""

from __future__ import annotations

import io
import math
import signal
import subprocess
import sys

import pytest
import torch
from tqdm import tqdm

from lm_latent_eval.cli import main
from lm_latent_eval.estimators import CorpusRate, enough_samples
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.scoring import budget
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.likelihoods import WholeTexts
from lm_latent_eval.scoring.model import load
from tests.tiny_checkpoint import conditional, generation, rolling

TEXTS = ["Ada saw the fox .", "the fox"]
WORDS = 5 + 2 + 2
"""With their ends."""


@pytest.fixture(scope="module")
def checkpoint(kglm_directory):
    return kglm_directory


@pytest.fixture(scope="module")
def model(checkpoint):
    return load(checkpoint, device="cpu")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def ways(model, checkpoint, text_file):
    """Everything that scores two texts, as functions of K."""
    return {
        "python": lambda k: model.log_likelihood(
            TEXTS, num_samples=k, estimator="mixed"
        ),
        "harness": lambda k: LatentKGLM(
            pretrained=str(checkpoint), num_samples=k, estimator="mixed", device="cpu"
        ).loglikelihood_rolling(rolling(*TEXTS)),
        "estimate": lambda k: main(
            [
                *("estimate", str(checkpoint), f"--data={text_file}"),
                *(f"--num-samples={k}", "--estimator=mixed"),
            ]
        ),
    }


@pytest.mark.parametrize("way", ["python", "harness", "estimate"])
def test_a_large_run_states_its_cost_first(
    model, checkpoint, text_file, monkeypatch, caplog, way
):
    score = ways(model, checkpoint, text_file)[way]
    score(30)
    assert "evaluations" not in caplog.text, "nothing to wait for"
    monkeypatch.setattr(budget, "MUCH", 30 * WORDS)
    said_before = []
    weigh = WholeTexts.draw

    def watching(*arguments):
        said_before.append("evaluations" in caplog.text)
        return weigh(*arguments)

    monkeypatch.setattr(WholeTexts, "draw", watching)
    score(30)
    assert said_before == [True]
    said = f"up to 30 latents of 2 texts: 60 evaluations of p(x, z), of {30 * WORDS} "
    assert said in caplog.text
    assert "Ctrl-C ends the run" in caplog.text


def test_continuations_and_generations_state_theirs(checkpoint, monkeypatch, caplog):
    monkeypatch.setattr(budget, "MUCH", 1)
    lm = LatentKGLM(pretrained=str(checkpoint), num_samples=10, device="cpu")
    lm.loglikelihood(conditional(("the fox", " saw Ada")))
    assert "1 text: 515 evaluations of p(x, z), of 2,060 words" in caplog.text
    lm.generate_until(generation("the fox", max_gen_toks=3))
    assert "1 text: 515 evaluations of p(x, z), of 2,575 words" in caplog.text


def test_a_pilot_and_what_it_chose_state_theirs(model, monkeypatch, caplog):
    monkeypatch.setattr(budget, "MUCH", 1)
    estimates = model.log_likelihood(
        TEXTS, num_samples=10, target_stderr=0.1, max_samples=200
    )
    pilot, chosen = [record.getMessage() for record in caplog.records]
    assert pilot.startswith("up to 10 latents of 2 texts: 20 evaluations")
    drawn = [estimate.num_samples for estimate in estimates]
    assert drawn != [10, 10], "premise"
    assert f"up to {max(drawn)} latents of 2 texts: {sum(drawn)} evalu" in chosen


@pytest.mark.parametrize("sentences", [False, True])
def test_a_pilot_shows_progress_and_so_do_estimates(model, monkeypatch, sentences):
    bars = []

    def bar(self, total, unit):
        bars.append(tqdm(total=total, unit=unit, file=io.StringIO()))
        return bars[-1]

    monkeypatch.setattr(Evaluation, "bar", bar)
    if sentences:  # what a model of sentences is known by
        monkeypatch.setattr(
            type(model.checkpoint.model),
            "sentence_starts",
            lambda self, text: [0],
            raising=False,
        )
    model.log_likelihood(TEXTS, num_samples=10, target_stderr=0.1, max_samples=200)
    unit = "sentences" if sentences else "texts"
    assert [bar.unit for bar in bars] == [f"pilots of {unit}", unit]
    assert [(bar.n, bar.total) for bar in bars] == [(2, 2), (2, 2)]


def test_a_long_run_says_how_many_samples_it_is_worth(model, monkeypatch, caplog):
    texts = [" ".join(TEXTS[: 1 + n // 20]) for n in range(40)]
    how = {"estimator": "is", "num_samples": 300}
    plain = model.log_likelihood(texts, **how)
    assert "texts say" not in caplog.text, "not for a short one"
    monkeypatch.setattr(budget, "MUCH", 1)
    found = model.log_likelihood(texts, **how)
    assert [e.log_evidence for e in found] == pytest.approx(
        [e.log_evidence for e in plain], abs=1e-9
    ), "from random numbers of their own"
    (said,) = [r.getMessage() for r in caplog.records if "texts say" in r.getMessage()]
    assert said.startswith("10 of 40 texts say: with num_samples=")
    number = int(said.split("num_samples=")[1].split()[0])
    rate = CorpusRate.nats(found, torch.tensor([e.num_tokens for e in found]))
    spread = math.hypot(*(e.log_evidence + rate.value * e.num_tokens for e in found))
    drawn = math.hypot(*(e.draws_stderr for e in found))
    wanted = enough_samples(300, drawn, spread)
    assert wanted / 10 <= number <= 10 * wanted, "of ten texts"


def test_an_exact_model_draws_nothing(lstm_directory, monkeypatch, caplog):
    monkeypatch.setattr(budget, "MUCH", 1)
    exact = load(lstm_directory, device="cpu")
    exact.log_likelihood(TEXTS, num_samples=10**12)
    assert f"2 texts: 2 evaluations of p(x, z), of {WORDS} words" in caplog.text


@pytest.mark.parametrize("estimator", ["auto", "mixed", "is", "beam", "smc"])
def test_what_cannot_fit_is_refused_before_it_is_allocated(model, estimator):
    message = r"latents of 2 texts: .*take [\d,.]+ GB, and there are .* GB: draw fewer"
    for score in (
        lambda: model.log_likelihood(TEXTS, num_samples=10**12, estimator=estimator),
        lambda: model.log_likelihood(
            TEXTS, contexts=TEXTS, num_samples=10**12, estimator=estimator
        ),
    ):
        with pytest.raises(ValueError, match=message):
            score()
    with pytest.raises(ValueError, match=message):
        model.generate(TEXTS, num_samples=10**12)


def test_no_number_is_too_large_to_be_refused(model):
    """Beyond what a float can hold, too."""
    for estimator in ("auto", "is", "beam"):
        with pytest.raises(ValueError, match=r"take [\d,]{400,}\.\d GB, and there are"):
            model.log_likelihood(TEXTS, num_samples=10**400, estimator=estimator)


def test_the_command_refuses_in_one_line(model, checkpoint, text_file, capsys):
    assert ways(model, checkpoint, text_file)["estimate"](10**12) == 2
    (line,) = capsys.readouterr().err.splitlines()
    # 88 bytes a weight of the text at work, 16 a word of the half that is searched for,
    # 8 a draw of each estimate, which are the other half.
    assert "take 144,000.0 GB" in line
    assert "draw fewer samples, or score fewer texts at a time" in line


def test_all_estimates_have_to_fit_together(model, monkeypatch):
    monkeypatch.setattr(budget, "GROWN", math.inf)  # once is enough
    need = 625 * 88 + 625 * 16 * 6 + 5 * 8 * 2
    monkeypatch.setattr(budget, "machine_memory", lambda: need)
    assert len(model.log_likelihood(TEXTS, num_samples=100)) == 2
    with pytest.raises(ValueError, match="score fewer texts"):
        model.log_likelihood([*TEXTS, "Ada"], num_samples=100)


def test_a_container_may_have_less(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(budget, "CONTAINER", limit)
    whole = budget.machine_memory()
    assert whole > 1 << 28
    for content, expected in (("max\n", whole), ("12345\n", 12345)):
        limit.write_text(content)
        assert budget.machine_memory() == expected


# -- interruptions ---------------------------------------------------------------------


def interrupt_after(number: int, monkeypatch) -> None:
    weigh = WholeTexts.draw

    def interrupted(*arguments):
        for n, found in enumerate(weigh(*arguments)):
            if n == number:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(WholeTexts, "draw", interrupted)


@pytest.mark.parametrize("way", ["python", "harness"])
def test_an_interruption_says_what_is_kept(
    model, checkpoint, text_file, monkeypatch, way
):
    interrupt_after(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt) as stop:
        ways(model, checkpoint, text_file)[way](10)
    (note,) = stop.value.__notes__
    kept = {
        "python": "texts were scored, and are lost: `lm-latent-eval estimate --output`",
        "harness": "requests were answered; with --use_cache, the same command goes on",
    }
    assert note.startswith(f"interrupted: 1 of 2 {kept[way]}")


def test_ctrl_c_ends_a_run_that_would_take_hours(checkpoint, text_file):
    text_file.write_text("the fox saw Ada " * 10 + "\n")
    code = "import sys; from lm_latent_eval.cli import main; sys.exit(main())"
    command = ["estimate", str(checkpoint), "--data", str(text_file)]
    command += ["--num-samples", "3000000"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stderr=subprocess.PIPE,
        text=True,
        # Who started the tests may have them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as run:
        assert run.stderr is not None
        said = ""
        while "Ctrl-C ends the run" not in said and run.poll() is None:
            said += run.stderr.readline()
        run.send_signal(signal.SIGINT)
        _, rest = run.communicate()
    assert "interrupted" in rest, said + rest
    assert "Traceback" not in rest
    assert run.returncode == 130
