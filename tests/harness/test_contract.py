"""What every backend owes lm-eval: answers alike in any company, and from a cache."""

import functools
import re
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model

from lm_latent_eval.harness.answers import CacheMismatchError, ScoredFloat, score_of
from lm_latent_eval.harness.backends import LatentLSTM
from lm_latent_eval.harness.tasks import request
from lm_latent_eval.inference import importance, particles
from lm_latent_eval.scoring import evaluation
from lm_latent_eval.scoring.metrics import METRICS
from tests import tiny_causal, tiny_checkpoint
from tests.harness.test_kenlm import arpa
from tests.rounding import ROUNDING, agree
from tests.test_registry import ENTRY_POINTS
from tests.tiny_checkpoint import conditional, generation, rolling
from tests.wrappers.cot import tiny as thinking
from tests.wrappers.mdm import tiny as masked


def kglm(folder, **how):
    tiny_checkpoint.write(folder, tiny_checkpoint.kglm())
    return {"estimator": "is", "num_samples": 6, **how}


def lstm(folder):
    tiny_checkpoint.write(folder, tiny_checkpoint.lstm())
    return {}


def saved(network, folder, **more):
    tiny_causal.save(folder, network.tokenizer, network.model)
    return {"device": "cpu", **more}


def tokens(folder, **how):
    network = tiny_causal.network(tiny_causal.letters())
    return saved(network, folder, **{"num_samples": 6, **how})


def cot(folder, **how):
    how = {**thinking.MARKS, "max_think_tokens": 4, "close": "forced", **how}
    return saved(thinking.network(), folder, **how, num_samples=20)


def mdm(folder, **how):
    network = masked.network("bert", framed=True)
    return saved(network, folder, **{"num_samples": 9, **how})


def mixture(folder):
    given = tokens(folder) | {"base": "latent_tokens"}
    (folder / "mixture.yaml").write_text("prompts: ['{context}', 'b{context}']")
    return given | {"mixture": str(folder / "mixture.yaml")}


def kenlm(folder):
    pytest.importorskip("kenlm", reason="pip install 'lm-latent-eval[ngram]'")
    (folder / "tiny.arpa").write_text(arpa())
    return {"pretrained": str(folder / "tiny.arpa")}


WORDS = (("Ada saw", " the fox"), ("the", " fox saw Ada . the fox"), ("", "Bo"))
LETTERS = tuple(
    (
        ("aab", "b", "ba", "a")[n % 4],
        "".join("ab"[int(bit)] for bit in f"{16 + 3 * n:b}"),
    )
    for n in range(7)
)
QUESTIONS = (("a b", " c"), ("a b", " a a"), ("c c a", " b b"), ("b", " a"))
CHANGES = {
    "num_samples": 11,
    "seed": 1,
    "temperature": 1.5,
    "proposal": "prior",
    "unk": "closed",
    "estimator": "beam",
    "dtype": "float32",
}
NO_THOUGHTS = {
    "loglikelihood_rolling": "no question that thoughts could be about",
    "generate_until": "use --model hf",
}
CASES = {
    "latent_kglm": (kglm, WORDS, CHANGES, {}),
    "latent_lstm": (lstm, WORDS, {"unk": "closed"}, {}),
    "latent_tokens": (tokens, LETTERS, {"num_samples": 8}, {}),
    "latent_cot": (cot, QUESTIONS, {"model_temperature": 1.5}, NO_THOUGHTS),
    "latent_mdm": (mdm, WORDS, {"num_samples": 8}, {}),
    "latent_mixture": (
        mixture,
        LETTERS[:3],
        {"num_samples": 8},
        {
            "loglikelihood_rolling": "no context that prompt could change",
            "generate_until": "latent_mixture scores texts",
        },
    ),
    "kenlm": (kenlm, WORDS, None, {"generate_until": "generates none"}),
}
"""What writes it, what it is asked, what other settings are, and what it refuses."""


def variant(write, pairs, refused=None, **how):
    return partial(write, **how), pairs, {}, refused or {}


VARIANTS = {
    "latent_kglm auto": variant(kglm, WORDS, estimator="auto"),
    "latent_kglm prior": variant(kglm, WORDS, estimator="beam", proposal="prior"),
    "latent_kglm peeking": variant(kglm, WORDS, proposal="peeking", temperature=1.3),
    "latent_kglm smoothing": variant(kglm, WORDS, proposal="smoothing"),
    "latent_tokens canonical": variant(tokens, LETTERS, estimator="canonical"),
    "latent_tokens is": variant(tokens, LETTERS, estimator="is"),
    "latent_tokens beam": variant(tokens, LETTERS, estimator="beam"),
    "latent_cot hinted": variant(cot, QUESTIONS, NO_THOUGHTS, proposal="hinted"),
    "latent_mdm elbo": variant(mdm, WORDS, estimator="elbo", num_samples=4),
    "latent_mdm is": variant(mdm, WORDS, estimator="is", num_samples=4),
}
"""Other settings of the same, asked whether company moves them."""
DRAWN = ["latent_kglm", "latent_tokens is", "latent_cot hinted", "latent_mdm is"]
NETWORKS = [
    name
    for name in (*CASES, *VARIANTS)
    if name.startswith(("latent_lstm", "latent_tokens", "latent_cot", "latent_mdm"))
]
OF_GRAPHS = [name for name in VARIANTS if name.startswith("latent_kglm")]
SELDOM = {
    *("latent_kglm peeking", "latent_kglm smoothing", "latent_tokens canonical"),
    *("latent_tokens is", "latent_tokens beam", "latent_cot", "latent_mdm is"),
}
"""What others do as well, by other numbers or as a part: a mixture of proposals."""


def cases(names, seldom=SELDOM):
    """Parametrize with backends, some of them nightly."""
    marked = [
        pytest.param(name, marks=pytest.mark.nightly if name in seldom else ())
        for name in names
    ]
    return pytest.mark.parametrize("case", marked, indirect=True)


def paired(text):
    """A whole text as lm-eval 0.5 asks for it."""
    return [request("loglikelihood_rolling", ("", text), {}, 0, ("task", 0, 1))]


def asked(pairs):
    """Requests of every kind; a whole text by both lines of lm-eval, then all."""
    contexts, texts = zip(*pairs, strict=True)
    yield "loglikelihood", conditional(*pairs)
    yield "loglikelihood_rolling", paired(texts[0])
    yield "loglikelihood_rolling", rolling(*texts)
    yield "generate_until", generation(*contexts, max_gen_toks=3)


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """Return what opens a backend, its questions, others, and its refusals."""
    write, pairs, changed, refused = (CASES | VARIANTS)[request.param]
    given = {"pretrained": str(tmp_path), **write(tmp_path)}

    def opened(**more):
        return get_model(request.param.partition(" ")[0])(**{**given, **more})

    if changed is None:
        (tmp_path / "other.arpa").write_text(arpa().replace("-0.35", "-0.36"))
        changed = {"pretrained": str(tmp_path / "other.arpa")}
    return opened, pairs, changed, refused


@cases([*CASES, *VARIANTS])
def test_batches_and_order_move_no_number(case):
    """And 0.5, which asks for whole texts in pairs, is told of the same numbers."""
    opened, pairs, _, refused = case
    alone, together = opened(batch_size=1), opened(batch_size=4)
    whole, contexts = None, [context for context, _ in pairs]
    chance = {"do_sample": True, "temperature": 1.5}
    # Of different lengths: those that have ended move no other.
    drawn = [
        generation(*contexts, max_gen_toks=1 + 2 * n, **chance)[n]
        for n in range(len(contexts))
    ]
    written = [] if pairs is LETTERS else [("generate_until", drawn)]  # hf draws
    for kind, requests in (*asked(pairs), *written):
        if kind in refused:
            with pytest.raises((ValueError, NotImplementedError), match=refused[kind]):
                getattr(alone, kind)(requests)
            continue
        found = getattr(alone, kind)(requests)
        again = getattr(together, kind)(requests[::-1])[::-1]
        assert agree(found, again) and len(found) == len(requests)
        assert agree(estimates(found), estimates(again))
        if kind == "loglikelihood_rolling" and whole is None:
            [(whole, greedy)] = found
            assert greedy is False
        elif kind == "loglikelihood_rolling":
            assert agree(found[0], whole)
        assert getattr(alone, kind)([]) == []


OTHERS = {
    "latent": "any of these",
    "latent_entitynlm": "the reader of words of latent_kglm",
    "latent_lda": "refuses lm-eval's rates by name",
    "latent_lrlm": "the reader of words of latent_kglm",
    "latent_nklm": "the reader of words of latent_kglm",
    "latent_rnng": "the reader of words of latent_kglm",
    "latent_srnn": "unnormalised: it has no rates",
}
"""Backends that are no case here, and why."""


@cases(CASES)
def test_strings_that_are_scored_alike_have_no_rate_per_byte(case):
    """Unknown words that cost one class, and white space that costs nothing."""
    assert {*CASES, *OTHERS} == {*ENTRY_POINTS}, "a new backend says what it leaves out"
    opened, pairs, _, refused = case
    if "loglikelihood_rolling" in refused:
        return  # it scores no texts
    backend, text, alike = opened(), pairs[0][0] + pairs[0][1], 0
    known = text.replace("b", "a") if pairs is LETTERS else text
    for one, other in (
        (f"{text} qqx", f"{text} zzv"),
        (f"{known} {known}", f"{known}  {known}"),
        (f"{known} ", f"{known}"),
    ):
        try:
            both = [score_of(found) for found in texts_of(backend, one, other)]
        except ValueError as err:
            assert "\n" not in str(err)  # refused, by name
            continue
        if agree(*([score] for score in both)):
            alike += 1
            rates = [METRICS["bits_per_byte"]([score.answer]) for score in both]
            assert any(str(rate).startswith("refused") for rate in rates), (one, other)
    assert alike or pairs is LETTERS, "premise"


def texts_of(backend, *texts):
    """Score whole texts that share their random numbers."""
    return [backend.loglikelihood_rolling(rolling(text))[0] for text in texts]


@pytest.mark.parametrize("case", DRAWN, indirect=True)
def test_draws_follow_from_names_and_more_begin_with_the_same(case, monkeypatch):
    opened, pairs, _, refused = case
    if "loglikelihood_rolling" in refused:
        kind, copies = "loglikelihood", conditional(*pairs[1:2] * 3)
    else:
        # Draws of a text of few segmentations coincide.
        text = pairs[1][1] * (4 if pairs is LETTERS else 1)
        kind, copies = "loglikelihood_rolling", rolling(*[text] * 3)

    def weights(requests, **how):
        answers = getattr(opened(**{"num_samples": 20, **how}), kind)(requests)
        return [[*each.estimate.log_weights] for each in map(score_of, answers)]

    every = weights(copies)
    monkeypatch.setattr(importance, "ROWS", 4)  # rounds of one sample a text
    for few, many in zip(weights(copies, num_samples=5), every, strict=True):
        assert few == pytest.approx(many[:5], rel=1e-9)
    reseeded = weights(copies[:1], seed=1)
    copies[0].repeats = 2
    first, repeated = weights(copies[:1] * 2)
    assert first == pytest.approx(every[0], rel=1e-9)
    drawn = (*every, *reseeded, repeated)
    assert len({tuple(round(w, 6) for w in each) for each in drawn}) == 5
    copies[0].task_name = None
    assert len(weights(copies[:1])) == 1


@cases(OF_GRAPHS, {*SELDOM, "latent_kglm target"})
def test_memory_and_pieces_move_no_number(case, monkeypatch, request):
    """A few latent decisions, or scores, at a time instead of millions.

    Where a long text is cut moves numbers of proposals that read ahead to the end of
    their piece; by ``auto``, which thins by what it reads there, within their errors.
    """
    opened, _, _, _ = case
    pairs = (WORDS[1], ("the fox. " * 2, "Ada saw the fox"), ("the fo", "x"))
    every = dict(asked(pairs))  # of each kind once

    def everything(**how):
        lm = opened(**how)
        found = [getattr(lm, kind)(requests) for kind, requests in every.items()]
        return found, [estimates(each) for each in found[:-1]]

    alone = everything(batch_size=1)
    for module in (importance, evaluation):
        monkeypatch.setattr(module, "DECISIONS", 32)
    monkeypatch.setattr(importance, "ROWS", 5)
    monkeypatch.setattr(evaluation, "TABLE", 256)
    assert agree(everything(), alone)
    for module in (particles, importance, evaluation):
        monkeypatch.setattr(module, "PIECE", 5)
    pieces = everything(batch_size=64)
    assert agree(everything(batch_size=1), pieces)
    if "auto" in request.node.name:
        for cut, whole in zip(
            *(chain(*found) for _, found in (pieces, alone)), strict=True
        ):
            off = abs(cut.estimate.log_evidence - whole.estimate.log_evidence)
            assert off <= cut.estimate.stderr + whole.estimate.stderr + ROUNDING
        return
    unmoved = any(n in request.node.name for n in ("prior", "peeking"))
    assert agree(pieces, alone) == unmoved


def hold(lm, monkeypatch, rows):
    """Make networks hold a number of rows at a time; return what is tried."""
    latent = isinstance(lm, LatentLSTM)
    kind = type(lm.checkpoint.model if latent else lm._loaded.model)
    name = "encode" if latent else "forward"
    work, tried = getattr(kind, name), []

    @functools.wraps(work)
    def limited(self, *args, **kwargs):
        given = args[0] if args else kwargs["input_ids"]
        tried.append(len(given.targets if latent else given))
        if tried[-1] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(self, *args, **kwargs)

    monkeypatch.setattr(kind, name, limited)
    return tried


@cases(NETWORKS)
def test_out_of_memory_halves_the_batch(case, monkeypatch, caplog):
    opened, pairs, _, refused = case
    few, most = opened(batch_size=4), 0
    rows = 6 if pairs is LETTERS else 2  # six samples of a text are read together
    if few.fingerprint.get("estimator") == "dpf":
        rows = 14  # the fewest histories of passes, and the canonical one
    for kind, requests in dict(asked(pairs)).items():
        if kind in refused or (kind == "generate_until" and pairs is LETTERS):
            continue  # what a causal network writes is what --model hf does
        expected = getattr(few, kind)(requests)
        lm, other = opened(batch_size=64), opened(batch_size=64)
        with monkeypatch.context() as patched:
            tried = hold(lm, patched, rows)
            assert agree(getattr(lm, kind)(requests), expected)
            before, most = len(tried), max(most, *tried)
            assert agree(getattr(lm, kind)(requests), expected)
            assert max(tried[before:]) <= rows, "what does not fit is not tried again"
        with monkeypatch.context() as patched:
            hold(lm, patched, rows=0)
            with pytest.raises(ValueError, match="not fit into the memory of cpu"):
                getattr(other, kind)(requests)
    assert most > rows, "premise: more was tried than memory holds"
    assert re.search(r"out of memory with \d+ at a time; \d+ fit", caplog.text)


def test_a_cache_answers_alike_and_only_for_the_same_model(case, caching):
    opened, pairs, changed, refused = case
    first, silent = caching(opened()), opened(batch_size=3)
    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(silent, kind, lambda _: pytest.fail("not from the cache"))
    second = caching(silent)
    for kind, requests in asked(pairs):
        if kind not in refused:
            found = getattr(first, kind)(requests)
            again = getattr(second, kind)(requests)
            assert again == found and estimates(again) == estimates(found)
    for name, value in changed.items():
        named = "checkpoint" if name == "pretrained" else name
        told = rf"cache\.db.*{named} is .* there and .* here.*--use_cache another path"
        with pytest.raises(CacheMismatchError, match=told):
            caching(opened(**{name: value}))


def estimates(found):
    """Return the answers that numbers carry, wherever they stand."""
    scores = map(score_of, found)
    answers = [score.answer for score in scores if isinstance(score, ScoredFloat)]
    return [replace(answer, index=0) for answer in answers]


# -- the cache of one backend ----------------------------------------------------------


@pytest.fixture
def caching(tmp_path):
    """Return a function that wraps a backend in the same cache; it is closed after."""
    opened = []

    def wrap(lm, name="cache.db"):
        wrapped = object.__new__(CachingLM)
        opened.append(wrapped)
        wrapped.__init__(lm, str(tmp_path / name))
        return wrapped

    yield wrap
    for wrapped in opened:
        if "dbdict" in vars(wrapped):
            wrapped.dbdict.close()


def test_the_cache_of_a_stranger_is_refused(backend, caching):
    stranger = caching(backend(num_samples=10), "stranger.db")
    stranger.dbdict.clear()
    stranger.dbdict["a hash"] = -1.0
    stranger.dbdict.commit()
    with pytest.raises(CacheMismatchError, match="1 answers of a model that left no"):
        caching(backend(num_samples=10), "stranger.db")


def test_a_full_disk_keeps_the_answers_and_says_so(backend, caching, caplog):
    lm = backend(num_samples=10, batch_size=1)
    full = caching(lm)
    full.loglikelihood_rolling(rolling("the fox"))
    (pages,) = full.dbdict.conn.select_one("PRAGMA page_count")
    full.dbdict.conn.execute(f"PRAGMA max_page_count = {pages}")
    many = [f"the fox saw {n}" for n in range(12)]
    with pytest.raises(OSError, match=r"cache\.db cannot be used .* is full") as caught:
        full.loglikelihood_rolling(rolling(*many, first=1))
    assert "\n" not in str(caught.value)
    loggers = {record.name for record in caplog.records}
    assert not any("sqlitedict" in name for name in loggers), "thirty lines"
    kept = len(full.dbdict) - 1
    assert 1 <= kept < 12, "premise"
    full.dbdict.conn.execute(f"PRAGMA max_page_count = {1 << 30}")
    asked = []
    score, lm = lm._scorer.score_texts, full.lm
    lm._scorer.score_texts = lambda queries: asked.extend(queries) or score(queries)
    again = full.loglikelihood_rolling(rolling("the fox", *many))
    assert len(asked) == 13 - kept, "no answer twice"
    expected = backend(num_samples=10).loglikelihood_rolling(rolling("the fox", *many))
    assert again == pytest.approx(expected, rel=1e-12)


def test_a_damaged_cache_says_so(backend, caching):
    written = caching(backend(num_samples=10))
    written.loglikelihood_rolling(rolling(*[f"the fox {n}" for n in range(100)]))
    path = Path(written.dbdict.filename)
    written.dbdict.close()
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"cache\.db cannot be used .* remove it"):
        caching(backend(num_samples=10))
