"""What a text gets, what a run costs, and what is said and refused before it starts."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from lm_latent_eval.cli import main
from lm_latent_eval.estimators import CorpusRate, enough_samples
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.inference.discrete import PASSES, DiscreteFilter
from lm_latent_eval.scoring import budget
from lm_latent_eval.scoring.budget import PAYS, Auto
from lm_latent_eval.scoring.likelihoods import WholeTexts
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from tests.tiny_checkpoint import rolling

NOTHING = [-math.inf] * PASSES


def text(words: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(words=[4] * words, query=SimpleNamespace(index=index))


def row(wide: float, narrow: float, pilot: Sequence[float] = NOTHING) -> torch.Tensor:
    """Return weights of passes that found nothing, of beams, a pilot, a mark."""
    parts = [*NOTHING, wide, wide, narrow, *NOTHING, *pilot, -math.inf]
    return torch.tensor(parts, dtype=torch.float64)


@pytest.mark.parametrize(
    ("number", "levels"),
    [
        (100, [(400, 200), (1600, 800), (1600, 6400)]),
        (30, [(400, 60), (1600, 240), (1600, 1920)]),
        (7, [(400, 20), (1600, 80), (1600, 640)]),
    ],
)
def test_it_widens_while_that_pays(number, levels):
    auto, texts = Auto.of(number), [text(9), text(500)]
    [(method, group)] = auto.spend(texts, lambda *_: pytest.fail("a pilot"))
    assert group == texts
    assert method == auto.method
    for (beam, passes), (grown, uneven) in zip(levels, [*PAYS, PAYS[-1]], strict=True):
        assert method == DiscreteFilter(beam, passes)
        assert auto.replacement(method, row(-7.0, -7.0 - grown / 2)) is None
        assert auto.replacement(method, row(-math.inf, -math.inf)) is None
        much = [-7.0 - math.log(grown / 2)] * PASSES
        assert auto.replacement(method, row(-7.0, -8.0, much)) is None, (
            "half of what counts"
        )
        assert auto.pilot == 0
        apart = row(-30.0, -30.0)
        apart[PASSES + 3 : 2 * PASSES + 3] = 3 * uneven * torch.arange(PASSES)
        wider = auto.replacement(method, apart)
        last, method = method, auto.replacement(method, row(-7.0, -7.0 - 2 * grown))
        assert wider == method, "narrower passes that differ ask for as much"
    assert method is None, "the widest"
    assert auto.replacement(last, row(-7.0, -9.0)) is None


def test_options_far_behind_the_best_one_need_not_be_precise():
    auto, context = Auto.of(100), row(-4.0, -4.0)
    grown = 10 * PAYS[0][0]
    near, far = (row(log_p, log_p - grown) for log_p in (-9.0, -27.0))
    sure, impossible = row(-7.0, -7.0), row(-math.inf, -math.inf)
    for options, wider in (
        ([sure, far], False),
        ([sure, near], False),
        ([sure, far, impossible], False),
        ([near, far], True),
        ([near], True),
        ([sure, row(-7.1, -7.1 - grown)], True),
        ([impossible, impossible], False),
    ):
        weights = [(option, context) for option in options]
        asked = auto.replacement_of_options(auto.method, weights)
        assert asked == (auto.levels[1] if wider else None)


def test_what_passes_find_decides_nothing():
    auto = Auto.of(100)
    [(method, _)] = auto.spend([text(9)], lambda *_: pytest.fail("a pilot"))
    for beams in ((-7.0, -7.0), (-7.0, -7.5)):
        decided = set()
        for found in (-math.inf, -7.0, 3.0):
            weights = row(*beams)
            weights[:PASSES] = found
            decided.add(auto.replacement(method, weights))
        assert len(decided) == 1


@pytest.fixture(scope="module")
def model(kglm_directory):
    return load(kglm_directory, device="cpu")


@pytest.fixture(scope="module")
def checkpoint(model):
    return model.checkpoint


def scored(checkpoint, texts, batch_size=None, **options):
    options = ScoringOptions.parse(**{"num_samples": 100} | options)
    scorer = Scorer(checkpoint, options, batch_size=batch_size, quiet=True)
    queries = [Query(n, name, string) for n, (name, string) in enumerate(texts)]
    answers = {a.index: a for a in scorer.score_texts(queries)}
    return [answers[n] for n in range(len(queries))]


def test_company_decides_nothing(checkpoint, monkeypatch):
    monkeypatch.setattr(budget, "PAYS", ((0.0, 0.3), (9.9, 99.0)))
    texts = [
        ("a", "Ada saw the fox . " * 20),
        ("b", "the"),
        ("c", "the fox saw Ada and zebra . " * 15),
        ("d", "Ada . " * 40),
    ]
    together = scored(checkpoint, texts, num_samples=25)
    widths = [answer.estimate.num_samples for answer in together]
    assert len({*widths}) > 1, f"premise: {widths}"
    spent = {400: 400 + 100 + 2 * 50 + 10}
    spent[1600] = spent[400] + 1600 + 400 + 2 * 200 + 50
    assert [answer.evaluations for answer in together] == [spent[w] for w in widths]
    backwards = scored(checkpoint, texts[::-1], batch_size=1, num_samples=25)[::-1]
    for one, other in zip(together, backwards, strict=True):
        a, b = one.estimate, other.estimate
        assert a.num_samples == b.num_samples
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-9)


def test_the_options_of_a_context_are_widened_together(checkpoint, monkeypatch):
    scorer = Scorer(checkpoint, ScoringOptions.parse(num_samples=25), quiet=True)
    long = "Ada saw the fox . " * 20
    asked = [(long, " Ada"), (long, " the fox saw Ada"), ("the", " fox"), ("Bo", "")]
    queries = [
        Query(n, f"task/{context[:4]}", string, context)
        for n, (context, string) in enumerate(asked)
    ]

    def widths() -> list[int]:
        answers = {a.index: a for a in scorer.score_continuations(queries)}
        return [answers[n].estimate.num_samples for n in range(len(queries))]

    rows = []

    def pays(method, log_w, *least):
        """Ask for more where the first option of the long context is weighed."""
        rows.append(log_w)
        return len(rows) == 1

    monkeypatch.setattr(DiscreteFilter, "pays", pays)
    assert widths() == [1600, 1600, 400, 400]


def test_an_upper_bound_takes_draws_of_its_own(checkpoint):
    queries = [Query(0, "a", "Ada saw the fox")]
    how = {"num_samples": 100, "estimator": "mixed"}
    [one] = Scorer(checkpoint, ScoringOptions.parse(**how), quiet=True).score_texts(
        queries
    )
    both = ScoringOptions.parse(bounds="both", **how)
    [two] = Scorer(checkpoint, both, quiet=True).score_texts(queries)
    assert one.estimate.upper is None
    assert two.estimate.log_evidence == one.estimate.log_evidence
    assert (one.evaluations, two.evaluations) == (100, 200)
    assert two.estimate.upper > two.estimate.log_evidence - 1
    assert two.estimate.upper != two.estimate.log_evidence


# -- costs --------------------------------------------------------------------------


TEXTS = ["Ada saw the fox .", "the fox"]

WORDS = 5 + 2 + 2
"""With their ends."""


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def ways(model, text_file):
    """Everything that scores two texts, as functions of K."""
    directory, how = str(model.checkpoint.directory), {"estimator": "mixed"}
    command = ["estimate", directory, f"--data={text_file}", "--estimator=mixed"]
    return {
        "python": lambda k: model.log_likelihood(TEXTS, num_samples=k, **how),
        "harness": lambda k: LatentKGLM(
            pretrained=directory, num_samples=k, device="cpu", **how
        ).loglikelihood_rolling(rolling(*TEXTS)),
        "estimate": lambda k: main([*command, f"--num-samples={k}"]),
    }


@pytest.mark.parametrize("way", ["python", "harness", "estimate"])
def test_a_large_run_states_its_cost_first(model, text_file, monkeypatch, caplog, way):
    score = ways(model, text_file)[way]
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


@pytest.mark.parametrize("estimator", ["auto", "mixed", "is", "beam", "smc"])
def test_what_cannot_fit_is_refused_before_it_is_allocated(
    model, estimator, text_file, capsys
):
    message = r"latents of 2 texts: .*take [\d,.]+ GB, and there are .* GB: draw fewer"
    how = {"num_samples": 10**12, "estimator": estimator}
    for score in (
        lambda: model.log_likelihood(TEXTS, **how),
        lambda: model.log_likelihood(TEXTS, contexts=TEXTS, **how),
        lambda: model.generate(TEXTS, num_samples=10**12),
    ):
        with pytest.raises(ValueError, match=message):
            score()
    if estimator == "mixed":
        assert ways(model, text_file)["estimate"](10**12) == 2
        (line,) = capsys.readouterr().err.splitlines()
        # 88 bytes a weight of the text at work, 16 a word of the half that is searched
        # for, 8 a draw of each estimate, which are the other half.
        assert "take 144,000.0 GB" in line
        assert "draw fewer samples, or score fewer texts at a time" in line


def test_all_estimates_have_to_fit_together(model, monkeypatch):
    monkeypatch.setattr(budget, "PAYS", ((math.inf, math.inf),) * 2)  # once is enough
    need = 950 * 88 + 950 * 16 * 6 + 5 * 8 * 2
    monkeypatch.setattr(budget, "machine_memory", lambda: need)
    assert len(model.log_likelihood(TEXTS, num_samples=100)) == 2
    with pytest.raises(ValueError, match="score fewer texts"):
        model.log_likelihood([*TEXTS, "Ada"], num_samples=100)


def interrupt_after(number: int, monkeypatch) -> None:
    weigh = WholeTexts.draw

    def interrupted(*arguments):
        for n, found in enumerate(weigh(*arguments)):
            if n == number:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(WholeTexts, "draw", interrupted)


@pytest.mark.parametrize("way", ["python", "harness"])
def test_an_interruption_says_what_is_kept(model, text_file, monkeypatch, way):
    interrupt_after(1, monkeypatch)
    with pytest.raises(KeyboardInterrupt) as stop:
        ways(model, text_file)[way](10)
    (note,) = stop.value.__notes__
    kept = {
        "python": "texts were scored, and are lost: `lm-latent-eval estimate --output`",
        "harness": "requests were answered; with --use_cache, the same command goes on",
    }
    assert note.startswith(f"interrupted: 1 of 2 {kept[way]}")


def test_ctrl_c_ends_a_run_that_would_take_hours(kglm_directory, text_file):
    text_file.write_text("the fox saw Ada " * 10 + "\n")
    code = "import sys; from lm_latent_eval.cli import main; sys.exit(main())"
    command = ["estimate", str(kglm_directory), "--data", str(text_file)]
    command += ["--num-samples", "300000"]
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
