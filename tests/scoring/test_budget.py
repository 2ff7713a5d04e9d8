"""What a text gets, what a run costs, and what is said and refused before it starts."""

import pytest

from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.scoring import budget
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Cutter, Query
from lm_latent_eval.text.counts import sentence_starts
from tests.tiny_checkpoint import rolling
from tests.watching import watch


@pytest.fixture(scope="module")
def model(kglm_directory):
    return load(kglm_directory, device="cpu")


def test_an_upper_bound_takes_draws_of_its_own(model):
    def scored(**how):
        options = ScoringOptions.parse({"num_samples": 100, "estimator": "dpf", **how})
        scorer = Scorer(model.checkpoint, options, quiet=True)
        [answer] = scorer.score_texts([Query(0, "a", "Ada saw the fox")])
        return answer

    one, two = scored(), scored(bounds="both")
    assert one.estimate.upper is None
    assert two.estimate.log_evidence == one.estimate.log_evidence
    assert two.estimate.upper > two.estimate.log_evidence - 1
    assert two.estimate.upper != two.estimate.log_evidence


def test_what_is_exact_is_its_own_upper_bound_and_weighed_once(lstm_directory):
    """A document without sentences, too: one more exact number of a corpus."""
    checkpoint = load(lstm_directory, device="cpu").checkpoint
    scorer = Scorer(checkpoint, ScoringOptions.parse({"bounds": "both"}), quiet=True)
    scorer.cut = Cutter(scorer.reader, sentence_starts)
    queries = [Query(n, f"text/{n}", text) for n, text in enumerate(("", "the fox"))]
    for answer in scorer.score_texts(queries):
        estimate = answer.estimate
        assert estimate.upper == estimate.log_evidence


def test_the_default_takes_few_samples_as_the_least_that_pay(model, caplog):
    budget._warn_of_minimum.cache_clear()

    def found(number):
        [estimate] = model.log_likelihood(["Ada saw the fox"], num_samples=number)
        return estimate.num_samples, estimate.log_evidence

    assert (
        found(1)
        == found(1)
        == found(budget.MIN_AUTO_SAMPLES)
        != found(budget.MIN_AUTO_SAMPLES + 1)
    )
    said = [record.getMessage() for record in caplog.records]
    assert said == ["num_samples=1: estimator=auto takes at least 20"]


# -- costs --------------------------------------------------------------------------


TEXTS = ["Ada saw the fox .", "the fox"]

WORDS = 5 + 2 + 2
"""With their ends."""


def test_a_large_run_states_its_cost_first(model, monkeypatch, caplog):
    how = {"estimator": "is", "num_samples": 30}
    model.log_likelihood(TEXTS, **how)
    assert "evaluations" not in caplog.text, "nothing to wait for"
    monkeypatch.setattr(budget, "MUCH", 30 * WORDS)
    said_before = watch(
        monkeypatch, Evaluation, "weigh", lambda *_: "evaluations" in caplog.text
    )
    model.log_likelihood(TEXTS, **how)
    assert said_before == [True]
    said = f"up to 30 latents of 2 texts: 60 evaluations of p(x, z), of {30 * WORDS} "
    assert said in caplog.text
    assert "Ctrl-C ends the run" in caplog.text


@pytest.mark.parametrize("estimator", ["auto", "is", "beam", "smc"])
def test_what_cannot_fit_is_refused_before_it_is_allocated(model, estimator):
    message = r"latents of 2 texts: .*take [\d,.]+ GB, and there are .* GB: draw fewer"
    how = {"num_samples": 10**12, "estimator": estimator}
    for score in (
        lambda: model.log_likelihood(TEXTS, **how),
        lambda: model.log_likelihood(TEXTS, contexts=TEXTS, **how),
        lambda: model.generate(TEXTS, num_samples=10**12),
    ):
        with pytest.raises(ValueError, match=message):
            score()


def test_all_estimates_have_to_fit_together(model, monkeypatch):
    # Of 10^12: 88 bytes a weight of the text at work, 8 a draw of each estimate.
    with pytest.raises(ValueError, match=r"take 104,000\.0 GB.*, or score fewer texts"):
        model.log_likelihood(TEXTS, num_samples=10**12, estimator="is")
    # 6,400 histories in passes, 3,840 in those that check them.
    need = 10240 * 88 + 10240 * 16 * 6 + 5 * 8 * 2
    monkeypatch.setattr(budget, "machine_memory", lambda: need)
    assert len(model.log_likelihood(TEXTS, num_samples=100)) == 2
    with pytest.raises(ValueError, match="score fewer texts"):
        model.log_likelihood([*TEXTS, "Ada"], num_samples=100)


KEPT = {
    "texts were scored, and are lost: `lm-latent-eval estimate --output`": (
        lambda model: model.log_likelihood(TEXTS, num_samples=10)
    ),
    "requests were answered; with --use_cache, the same command goes on": (
        lambda model: LatentKGLM(
            pretrained=model.checkpoint.directory, num_samples=10, device="cpu"
        ).loglikelihood_rolling(rolling(*TEXTS))
    ),
}


@pytest.mark.parametrize("kept", KEPT)
def test_an_interruption_says_what_is_kept(model, monkeypatch, kept):
    weigh = Evaluation.weigh

    def interrupted(*arguments, **more):
        yield next(weigh(*arguments, **more))
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "weigh", interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        KEPT[kept](model)
    (note,) = stop.value.__notes__
    assert note.startswith(f"interrupted: 1 of 2 {kept}")
