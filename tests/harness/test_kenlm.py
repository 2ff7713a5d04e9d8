"""N-gram models through KenLM: every probability of a small ARPA file is known."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from itertools import product

import pytest

from lm_latent_eval.harness.kenlm import KenLM
from lm_latent_eval.report.explain import explain
from lm_latent_eval.scoring.metrics import METRICS
from lm_latent_eval.wrappers.ngrams import _words
from tests.stock_tasks import evaluated, write_pages
from tests.tiny_checkpoint import conditional, rolling

pytestmark = pytest.mark.skipif(
    find_spec("kenlm") is None, reason="pip install 'lm-latent-eval[ngram]'"
)

# Log10 probabilities and back-off weights; lopsided, so that none stands for another.
UNIGRAMS = {
    "<unk>": (-2.0, 0.0),
    "<s>": (0.0, -0.30),
    "</s>": (-0.9, 0.0),
    "the": (-0.4, -0.25),
    "fox": (-0.8, -0.15),
    "saw": (-1.1, -0.05),
}
BIGRAMS = {
    ("<s>", "the"): -0.2,
    ("the", "fox"): -0.1,
    ("fox", "saw"): -0.35,
    ("fox", "</s>"): -0.5,
    ("saw", "the"): -0.25,
}
WORDS = ("the", "fox", "saw")


def arpa() -> str:
    """The file, as SRILM and lmplz write it."""
    lines = ["\\data\\", f"ngram 1={len(UNIGRAMS)}", f"ngram 2={len(BIGRAMS)}", ""]
    lines += ["\\1-grams:", *(f"{p}\t{w}\t{b}" for w, (p, b) in UNIGRAMS.items()), ""]
    lines += ["\\2-grams:", *(f"{p}\t{a} {b}" for (a, b), p in BIGRAMS.items()), ""]
    return "\n".join([*lines, "\\end\\", ""])


def log_p(word: str, last: str) -> float:
    """By hand: the bigram, or the back-off weight and the unigram; nats."""
    word = word if word in UNIGRAMS else "<unk>"
    last = last if last in UNIGRAMS else "<unk>"
    if (last, word) in BIGRAMS:
        return BIGRAMS[last, word] * math.log(10)
    return (UNIGRAMS[last][1] + UNIGRAMS[word][0]) * math.log(10)


def log_p_all(words: list[str], last: str = "<s>") -> float:
    pairs = zip([last, *words], words, strict=False)
    return math.fsum(log_p(word, before) for before, word in pairs)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ngram") / "tiny.arpa"
    path.write_text(arpa())
    return path


@pytest.fixture
def model(path):
    return KenLM(pretrained=str(path))


def likelihood(model, context: str, continuation: str) -> tuple[float, bool]:
    return model.loglikelihood(conditional((context, continuation)))[0]


def test_documents_are_lines_with_their_ends(model):
    """Every short sentence of the list, and lines of odd spaces; marks are unknown."""
    documents = {
        " ".join(words): [[*words]] for words in product((*WORDS, "wolf"), repeat=3)
    }
    documents |= {
        "the fox\nsaw the fox": [["the", "fox"], ["saw", "the", "fox"]],
        "\n the  fox\t\n\n \nsaw\n": [["the", "fox"], ["saw"]],
        "": [],
    }
    for mark in ("<s>", "</s>", "<unk>"):
        documents[f"the {mark} saw"] = [["the", "<unk>", "saw"]]
    found = model.loglikelihood_rolling(rolling(*documents))
    for (text, sentences), number in zip(documents.items(), found, strict=True):
        exact = sum(log_p_all([*words, "</s>"]) for words in sentences)
        assert number == pytest.approx(exact, abs=1e-5), text


@pytest.mark.parametrize(
    ("context", "continuation", "sentences"),
    [
        ("", "the fox", {"<s>": ["the", "fox"]}),
        ("the", " fox saw", {"the": ["fox", "saw"]}),
        ("the fo", "x saw", {"the": ["fox", "saw"]}),  # the word across the border
        ("the fox\n", "the", {"<s>": ["the"]}),  # the end belongs to the context
        ("the", " fox\nsaw", {"the": ["fox", "</s>"], "<s>": ["saw"]}),
        ("the fox", "", {"fox": []}),
    ],
)
def test_continuations_follow_their_contexts(model, context, continuation, sentences):
    """By what stands before each of their sentences."""
    found, _ = likelihood(model, context, continuation)
    exact = sum(log_p_all(words, last) for last, words in sentences.items())
    assert found == pytest.approx(exact, abs=1e-5)


def test_greedy_is_the_most_probable(model):
    seen = set()
    for context in ("", *WORDS):
        written = {word: f" {word}" for word in (*WORDS, "wolf")}
        if context:  # a blank line is no sentence
            written["</s>"] = "\n"
        last = context or "<s>"
        best = max((*WORDS, "</s>"), key=lambda word: log_p(word, last))
        for word, text in written.items():
            _, greedy = likelihood(model, context, text)
            assert greedy == (word == best)
            seen.add(greedy)
    assert seen == {True, False}, "premise"
    assert likelihood(model, "", "the fox saw the fox")[1]
    assert not likelihood(model, "", "the fox saw saw")[1]


class WithoutMarks:
    """A model whose file has no sentence marks, as build_binary -s writes it."""

    def __init__(self, model):
        self.model = model

    def __contains__(self, word):
        return word in WORDS

    def __getattr__(self, name):
        return getattr(self.model, name)


def test_a_model_without_unknown_words_is_said_to_have_none(tmp_path, caplog):
    (tmp_path / "known.arpa").write_text(arpa())
    KenLM(pretrained=str(tmp_path / "known.arpa"))
    assert not caplog.text
    lines = arpa().replace("ngram 1=6", "ngram 1=5").splitlines(keepends=True)
    without = "".join(line for line in lines if "<unk>" not in line)
    (tmp_path / "closed.arpa").write_text(without)
    model = KenLM(pretrained=str(tmp_path / "closed.arpa"))
    assert "has no <unk>" in caplog.text and "-230.259 nats" in caplog.text
    (found,) = model.loglikelihood_rolling(rolling("the wolf"))
    first = log_p("the", "<s>")
    unknown = (UNIGRAMS["the"][1] - 100) * math.log(10)
    # Nothing is known after an unknown word: the end has no back-off weight before it.
    end = UNIGRAMS["</s>"][0] * math.log(10)
    assert found == pytest.approx(first + unknown + end, abs=1e-4)


def test_a_model_without_sentence_ends_scores_words_alone(path, monkeypatch, caplog):
    import kenlm

    made = kenlm.Model
    monkeypatch.setattr(kenlm, "Model", lambda *given: WithoutMarks(made(*given)))
    monkeypatch.setattr("lm_latent_eval.wrappers.ngrams._words", lambda _: [*WORDS])
    model = KenLM(pretrained=str(path))
    assert "has no sentence ends" in caplog.text
    first = UNIGRAMS["the"][0] * math.log(10)
    (found,) = model.loglikelihood_rolling(rolling("the fox\nthe saw"))
    exact = 2 * first + log_p("fox", "the") + log_p("saw", "the")
    assert found == pytest.approx(exact, abs=1e-5)
    about = model.get_model_info()["latent_eval"]
    assert about["units"].endswith("not: the model has none")
    assert about["mass"] == "no distribution over lengths"
    # "the" after nothing is the most probable word, and no end is one.
    assert likelihood(model, "", "the") == (pytest.approx(first, abs=1e-5), True)
    (continued, _) = likelihood(model, "the", " fox\nthe")
    assert continued == pytest.approx(log_p("fox", "the") + first, abs=1e-5)


@pytest.mark.usefixtures("stock_data")
def test_a_rate_per_byte_is_refused_where_words_are_not_spelled(model, tmp_path):
    """In lm-eval's own tables and ours, in explanations, and of odd white space."""
    for text, lost in (
        ("the wolf saw a fox", "refused: 2 words not spelled"),
        ("the  fox saw", "refused: 1 gaps not charged"),
        ("the fox\nsaw\n", None),
    ):
        write_pages([text])
        found = evaluated(model, ["wikitext"])
        values = found["results"]["wikitext"]
        [score] = model.loglikelihood_rolling(rolling(text))
        for rate in ("bits_per_byte", "byte_perplexity"):
            value, ours = values[f"{rate},none"], METRICS[rate]([score.answer])
            assert (value == ours == lost) if lost else value == pytest.approx(ours)
        assert values["word_perplexity,none"] > 1
        assert score.answer.tokens == len(text.split()) + text.count("\n", 0, -1) + 1
    path = tmp_path / "results.json"
    path.write_text(json.dumps(found, default=str))
    assert "only within one vocabulary" in " ".join(explain(path).split())


def test_what_is_no_model_is_refused(path, tmp_path, monkeypatch):
    sphinx = tmp_path / "sphinx.arpa"
    sphinx.write_text("This is an ARPA-format file\n" + arpa())
    for arguments, reason in (
        ({}, "needs --model_args pretrained"),
        ({"pretrained": "nowhere.arpa"}, "nowhere.arpa: no such file"),
        ({"pretrained": __file__}, "no model that KenLM reads"),
        ({"pretrained": str(sphinx)}, r"with nothing above its \\data\\"),
        ({"pretrained": "x", "num_samples": 3}, "'num_samples' is not an argument"),
    ):
        with pytest.raises(ValueError, match=reason):
            KenLM(**arguments)
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(ModuleNotFoundError, match=r"lm-latent-eval\[ngram\]"):
        KenLM(pretrained=str(path))


def test_the_words_of_a_binary_file_are_read(path, tmp_path):
    """KenLM appends its words to a binary file, one after another."""
    listed = _words(path)
    assert listed == list(UNIGRAMS)
    tail = b"".join(word.encode() + b"\0" for word in listed)
    binary = tmp_path / "tiny.bin"
    binary.write_bytes(b"mmap lm http://kheafield.com/code\n\0\1\2<unk>" + tail)
    assert _words(binary) == listed
