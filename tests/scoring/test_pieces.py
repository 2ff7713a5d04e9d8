"""Work: long texts are read in pieces, each token once, and none pads another.

A kill loses a piece at most, and a bar shows how far a text has got.
"""

from functools import partial
from itertools import accumulate

import pytest
import torch
from lm_eval.api.model import CachingLM
from tqdm import tqdm

from lm_latent_eval.harness.backend import PIECES
from lm_latent_eval.harness.backends import LatentKGLM
from lm_latent_eval.inference import (
    BeamMarginalization,
    ImportanceSampling,
    ParticleFilter,
    importance,
    particles,
)
from lm_latent_eval.ledger import checkpoints
from lm_latent_eval.ledger.checkpoints import Checkpoints
from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.recurrent import RecurrentStack
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.scoring import budget, evaluation, files
from lm_latent_eval.scoring.evaluation import Evaluation
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.model import load
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.progress import Pieces, ReadingProgress
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.words import END
from tests.test_laws import TINY_MODELS, written
from tests.tiny_checkpoint import conditional, rolling
from tests.watching import watch

PIECE, NUM_PIECES = 4, 5
TEXT = "Ada saw the fox . the fox saw Bo . Ada saw Bo . the fox saw Ada ."
"""With its end: as many words as fit into the pieces."""


class KilledError(Exception):
    """In the place of a kill, which no test survives."""


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", PIECE)
    monkeypatch.setattr(budget, "HISTORIES", 1)


class Reads:
    """Counts the tokens that a class of models reads, and ends at one of them."""

    def __init__(self, monkeypatch, kind):
        self.tokens, self.most = 0, None
        encode = kind.encode

        def counted(model, batch, after=None):
            self.tokens += batch.targets.shape[1]
            if self.most is not None and self.tokens > self.most:
                raise KilledError
            return encode(model, batch, after)

        monkeypatch.setattr(kind, "encode", counted)

    def of(self, run, most=None):
        """Run; return what comes of it, and how many tokens were read."""
        self.tokens, self.most = 0, most
        try:
            found = run()
        except KilledError:
            found = None
        return found, self.tokens


ESTIMATORS = [
    {"estimator": name, "num_samples": 10} for name in ("auto", "mixed", "beam", "smc")
]
BOTH = {"estimator": "dpf", "num_samples": 20, "bounds": "both"}
ROUNDS = {"estimator": "is", "num_samples": 11}
EXACT = {"estimator": "exact"}
MOST_READINGS = 5
"""Of a token, in one weighing of a text: a filter's beams, pilot and two passes."""


@pytest.fixture
def checkpoint(request, options):
    name = "lstm" if options is EXACT else "kglm"
    return load(request.getfixturevalue(f"{name}_directory"), device="cpu").checkpoint


@pytest.mark.parametrize("share", [0.5, pytest.param(0.95, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("options", [*ESTIMATORS, BOTH, ROUNDS, EXACT], ids=str)
def test_a_killed_text_goes_on_after_its_last_piece(
    checkpoint, tmp_path, monkeypatch, options, share
):
    if options is ROUNDS:
        monkeypatch.setattr(importance, "ROWS", 4)  # latents at a time
    reads = Reads(monkeypatch, LSTMLanguageModel if options is EXACT else KGLM)

    def run(output=None):
        scorer = Scorer(checkpoint, ScoringOptions(**options), quiet=True)
        [answer] = files.score_file(scorer, [TEXT], output)
        return answer.estimate

    whole, tokens = reads.of(run)
    assert whole.num_tokens == PIECE * NUM_PIECES, "premise"
    assert (whole.upper is None) == (options is not BOTH), "premise"
    output = tmp_path / "out.jsonl"
    folder = tmp_path / f"out.jsonl{files.PIECES}"
    lost, before = reads.of(partial(run, output), most=int(share * tokens))
    assert lost is None and before > PIECE, "premise: killed after a piece"
    assert folder.exists()
    found, after = reads.of(partial(run, output))
    # The piece that was lost, and a token that says what states are made of.
    assert tokens <= before + after <= tokens + MOST_READINGS * (PIECE + 1)
    assert found.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)
    assert found.draws_stderr == pytest.approx(whole.draws_stderr, rel=1e-9)
    assert (found.upper or 0.0) == pytest.approx(whole.upper or 0.0, rel=1e-9)
    assert not folder.exists()


def test_texts_of_a_batch_and_other_settings(spelled_directory, tmp_path, monkeypatch):
    """What was weighed of some is not weighed again with others; seeds do not mix."""
    loaded = load(spelled_directory, device="cpu")
    reads, output = Reads(monkeypatch, KGLM), tmp_path / "out.jsonl"
    texts = [TEXT, "the fox", f"{TEXT} .", f"Bo saw {TEXT}"]

    def run(seed=0, output=output):
        options = ScoringOptions(num_samples=10, estimator="is", seed=seed)
        scorer = Scorer(loaded.checkpoint, options, quiet=True)
        return [
            a.estimate.log_evidence for a in files.score_file(scorer, texts, output)
        ]

    whole, tokens = reads.of(lambda: run(output=None))
    _, before = reads.of(run, most=tokens // 2)
    [*ours] = output.parent.glob("*.pieces/*.pt")
    assert ours, "premise: something was kept"
    output.with_name("out.jsonl.partial.sqlite").unlink()
    other, _ = reads.of(lambda: run(seed=1))
    assert other == pytest.approx(run(1, None), rel=1e-12)
    assert other != pytest.approx(whole, rel=1e-6)
    output.unlink()
    _, before = reads.of(run, most=tokens // 2)
    found, after = reads.of(run)
    assert found == pytest.approx(whole, rel=1e-12)
    assert before + after <= tokens + PIECE + 1


@pytest.mark.parametrize("asked", [rolling(TEXT), conditional((TEXT, " . Bo saw"))])
def test_lm_eval_goes_on_from_what_lies_beside_its_cache(
    kglm_directory, tmp_path, monkeypatch, asked
):
    reads, folder = Reads(monkeypatch, KGLM), tmp_path / f"answers.db{PIECES}"

    def run(cached):
        lm = LatentKGLM(kglm_directory, device="cpu", estimator="is", num_samples=10)
        caching = CachingLM(lm, str(cached))
        try:
            return getattr(caching, asked[0].request_type)(asked)
        finally:
            caching.dbdict.close()

    [whole], tokens = reads.of(lambda: run(tmp_path / "whole.db"))
    _, before = reads.of(lambda: run(tmp_path / "answers.db"), most=tokens // 2)
    assert [*folder.iterdir()]
    [found], after = reads.of(lambda: run(tmp_path / "answers.db"))
    assert found == pytest.approx(whole, rel=1e-12)
    assert before + after <= tokens + PIECE + 1
    assert not folder.exists()


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_states_of_every_model_are_kept(name, tmp_path, monkeypatch):
    case = TINY_MODELS[name].case()
    reads = Reads(monkeypatch, type(case.model))
    proposal = getattr(case.proposal(), "left_to_right", case.proposal())
    texts = [case.some_words(9), case.some_words(6)]

    def weigh(method, pieces=None):
        with ReadingProgress([9, 6], tqdm(disable=True), pieces).reading():
            return case.log_weights(method, proposal, texts)

    for method in (ImportanceSampling(6), BeamMarginalization(5), ParticleFilter(20)):
        kept = Checkpoints(tmp_path / method.name, {})
        pieces = Pieces(kept, method, "no purpose", [])
        whole, tokens = reads.of(partial(weigh, method))
        reads.of(partial(weigh, method, pieces), most=tokens // 2)
        assert kept.folder.exists(), "premise: killed after a piece"
        found, after = reads.of(partial(weigh, method, pieces))
        assert after < tokens
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=0)


def test_what_is_kept_is_data(tmp_path):
    kept = Checkpoints(tmp_path / "pieces", {"seed": 0})
    state = (3, torch.arange(8)[::2], None)
    kept.write("text", ["a"], state)
    [path] = kept.folder.iterdir()
    assert path.stat().st_size < 8 * 1000
    found = kept.read("text", ["a"], lambda: (0, torch.zeros(1).long(), torch.ones(2)))
    assert found[0] == 3 and found[1].tolist() == [0, 2, 4, 6] and found[2] is None
    assert kept.read("text", ["b"], lambda: state) is None
    with pytest.raises(ValueError, match=r"is damaged .*a list for a int"):
        kept.read("text", ["a"], lambda: 0)
    with pytest.raises(TypeError, match="object is no tensor"):
        kept.write("text", ["a"], object())
    torch.save({"settings": "{}", "state": 0}, path)
    with pytest.raises(ValueError, match="of another checkpoint"):
        kept.read("text", ["a"], lambda: state)
    torch.save(checkpoints.Path("x"), path)
    with pytest.raises(ValueError, match="remove the file"):
        kept.read("text", ["a"], lambda: state)
    kept.remove("text")
    assert not kept.folder.exists()


@pytest.mark.parametrize("options", [ESTIMATORS[1], BOTH, ROUNDS, EXACT], ids=str)
def test_a_bar_moves_within_a_text_and_ends_where_it_says(
    checkpoint, monkeypatch, options
):
    seen = watch(monkeypatch, tqdm, "update", lambda _, bar, n: (n, bar.total))
    scorer = Scorer(checkpoint, ScoringOptions(**options), quiet=True)
    files.score_file(scorer, [TEXT, "the fox"], None)
    moved, totals = zip(*seen, strict=True)
    reached = [*accumulate(moved)]
    assert len({*reached}) >= NUM_PIECES
    assert all(n <= total for n, total in zip(reached, totals, strict=True))
    assert reached == sorted(reached)
    assert reached[-1] == totals[-1] > 0


# -- no text pays for the padding of another -------------------------------------------


TEXTS = ["the fox " * 30, *["the fox saw", "fox", "the fox saw the fox ."] * 5]


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_long_text_goes_with_long_ones(lstm_directory, monkeypatch, batch_size):
    loaded = load(lstm_directory, device="cpu").checkpoint
    batches = watch(monkeypatch, Evaluation, "collate", lambda batch, *_: batch)
    queries = [Query(n, str(n), text) for n, text in enumerate(TEXTS)]

    def found(size):
        some = Scorer(loaded, ScoringOptions(), batch_size=size, quiet=True)
        answers = {a.index: a.estimate for a in some.score_texts(queries)}
        return [answers[n].log_evidence for n in range(len(TEXTS))]

    together = found(batch_size)
    for batch in batches:
        padded = batch.targets.numel() - int(batch.length.sum())
        assert padded <= batch.length.sum() + PIECE * len(batch.length)
    assert 1 < len(batches) < len(TEXTS) / 2
    assert together == pytest.approx(found(1), rel=1e-12)


# -- generation reads each token once: counted work, never seconds ---------------------


CONTEXT, WRITTEN = "the the", 8
OWN_NETWORK = {"kglm": "nonpeeking", "lstm": "none"}
"""A proposal that does not read with p's network."""


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        *(("kglm", estimator) for estimator in ("is", "beam", "smc")),
        *(("lstm", estimator) for estimator in ("is", "beam", "exact")),
    ],
)
def test_every_token_is_read_once(name, estimator, tmp_path, monkeypatch):
    """Those of the context, the one before it, and those that are written."""
    found = load_checkpoint(written(name, tmp_path))
    given = {"proposal": OWN_NETWORK[name], "num_samples": 10}
    chosen = ScoringOptions.parse({"estimator": estimator, **given})
    scorer, model = Scorer(found, chosen, quiet=True), found.model
    layers = model.rnn if name == "lstm" else model.generative.trunk.rnn
    predictions, next_token = [], type(model).next_token
    places = watch(
        monkeypatch,
        RecurrentStack,
        "forward",
        lambda _, stack, value, *more: value.shape[1] * (stack is layers),
    )

    def predicting(self, *args):
        predictions.append(args)
        log_p = next_token(self, *args)
        log_p[:, END] = -torch.inf  # so that it goes on
        return log_p

    monkeypatch.setattr(type(model), "next_token", predicting)
    how = GenerationOptions.parse({"max_gen_toks": WRITTEN})
    list(scorer.generate([(Query(0, "text", "", CONTEXT), how)]))
    assert len(predictions) == WRITTEN, "premise"
    assert sum(places) == len(CONTEXT.split()) + len(predictions)
