"""What a backend's numbers mean, held against sums over every walk."""

from collections import Counter

import pytest
import torch

from lm_latent_eval.scoring.generation import GenerationOptions, Utterance
from lm_latent_eval.text.words import END, UNKNOWN
from tests import tiny_checkpoint
from tests.harness.conftest import EVERY_WALK
from tests.means import p_value
from tests.tiny_checkpoint import (
    COPIED,
    UTTERED,
    Truth,
    conditional,
    generation,
    ids,
    rolling,
)

TEXTS = {
    "Ada saw the fox": ("Ada", "saw", "the", "fox"),
    "the fox saw Bo.": ("the", "fox", "saw", "Bo", "."),
    "a zebra saw Ada": ("?", "?", "saw", "Ada"),
    "": (),
}


# -- whole texts ---------------------------------------------------------------------


@pytest.mark.parametrize("unk", ["penalized", "closed"])
def test_a_beam_of_every_walk_is_the_probability_of_the_text_and_its_end(
    backend, truth, unk
):
    """An unknown word costs what its policy says."""
    lm = backend(estimator="beam", num_samples=EVERY_WALK, unk=unk)
    truth = Truth(truth.model, penalized=unk == "penalized")
    answers = lm.loglikelihood_rolling(rolling(*TEXTS))
    for text, answer in zip(TEXTS.values(), answers, strict=True):
        words = ids(*text, "END")
        assert answer == pytest.approx(truth.log_p(words), abs=1e-10)
        assert answer.estimate.num_tokens == len(words)
        assert answer.estimate.bound == "strict lower"


# -- continuations -------------------------------------------------------------------

PAIRS = {
    ("Ada saw", " the fox"): (("Ada", "saw"), ("the", "fox")),
    ("Ada saw ", "the fox"): (("Ada", "saw"), ("the", "fox")),
    ("Ada saw the fo", "x."): (("Ada", "saw", "the"), ("fox", ".")),
    ("", "the fox"): ((), ("the", "fox")),
    ("the fox  \n saw", "\n\n Ada zebra"): (("the", "fox", "saw"), ("Ada", "?")),
    ("zebra Bo", "."): (("?", "Bo"), (".",)),
    ("Ada", " "): (("Ada",), ()),
    ("Ada", ""): (("Ada",), ()),
    ("", ""): ((), ()),
}


def test_continuations_are_ratios_of_prefix_probabilities(exact, truth):
    answers = exact.loglikelihood(conditional(*PAIRS))
    for (answer, _), (context, continuation) in zip(
        answers, PAIRS.values(), strict=True
    ):
        given, rest = ids(*context), ids(*continuation)
        expected = truth.log_p([*given, *rest]) - truth.log_p(given)
        assert answer == pytest.approx(expected, abs=1e-10)
        assert answer.estimate.num_tokens == len(rest)
    ended = truth.log_p(ids("Ada", "saw", "the", "fox")) - truth.log_p(
        ids("Ada", "saw", "END")
    )
    assert abs(answers[0][0] - ended) > 0.1, "premise: an end would be noticed"


# -- is_greedy -----------------------------------------------------------------------

CONTEXTS = ((), ("the",), ("Ada", "saw"), ("fox", "?", "Bo"))
VOCABULARY = (*UTTERED, *COPIED, "zebra")


@pytest.mark.parametrize("seed", [12, 0, 7])
def test_greedy_is_the_argmax_over_every_walk(backend, seed, tmp_path):
    model = tiny_checkpoint.kglm(seed)
    folder = tiny_checkpoint.write(tmp_path, model)
    lm = backend(pretrained=folder, estimator="beam", num_samples=EVERY_WALK)
    truth = Truth(model)
    for context in CONTEXTS:
        text = " ".join(context).replace("?", "zebra")
        pairs = [(text, f" {word}") for word in VOCABULARY]
        best = truth.most_probable(ids(*context))
        answers = lm.loglikelihood(conditional(*pairs))
        for word, (_, greedy) in zip(VOCABULARY, answers, strict=True):
            utters = word != "zebra" and ids(word) == [best]
            assert greedy == utters, (context, word)
    if seed == 0:  # Of two words, both.
        first = truth.most_probable([])
        best = [first, truth.most_probable([first])]
        pairs = [("", f"{a} {b}") for a in UTTERED for b in UTTERED]
        answers = lm.loglikelihood(conditional(*pairs))
        chosen = [pair for pair, (_, yes) in zip(pairs, answers, strict=True) if yes]
        assert [ids(*text.split()) for _, text in chosen] == [best]


def test_the_unknown_word_is_never_greedy(backend, tmp_path):
    """Not even where it has nearly all of the probability."""
    model = tiny_checkpoint.kglm()
    model.generative.words.bias[UNKNOWN] = 100.0
    folder = tiny_checkpoint.write(tmp_path, model)
    lm = backend(pretrained=folder, estimator="auto", num_samples=20)
    ((log_p, greedy),) = lm.loglikelihood(conditional(("the", " zebra")))
    assert log_p == pytest.approx(Truth(model).penalty, abs=0.2), "premise"
    assert not greedy
    for text in lm.generate_until(generation("", "Ada", "the fox", max_gen_toks=8)):
        assert "<unk>" not in text


# -- generation ----------------------------------------------------------------------


def test_greedy_generation_is_the_chain_of_argmaxes(exact, truth):
    words = dict(zip(ids(*UTTERED, *COPIED), (*UTTERED, *COPIED), strict=True))
    contexts = [("the",), ("Ada", "saw"), ("fox", "?")]
    chains = []
    for context in contexts:
        written = ids(*context)
        for _ in range(3):
            written.append(truth.most_probable(written, but=(UNKNOWN,)))
        assert END not in written, "premise"
        chains.append([words[i] for i in written[len(context) :]])
    assert len({word for chain in chains for word in chain}) > 2, "premise: varied"
    texts = exact.generate_until(
        generation("the", "Ada saw", "fox zebra", max_gen_toks=3)
    )
    assert [text.replace(".", " .").split() for text in texts] == chains


@pytest.mark.parametrize(("after_gap", "written"), [(False, " saw"), (True, "saw")])
def test_a_context_that_ends_in_white_space_has_its_gap(exact, after_gap, written):
    how, encoder = GenerationOptions.parse({}), exact._scorer.reader
    found = Utterance(ids("the"), how, encoder, after_gap, words=ids("saw"))
    assert found.text() == written


def test_a_cache_does_not_make_one_sample_of_several(backend, monkeypatch):
    lm = backend(num_samples=5)
    monkeypatch.setattr(lm.cache_hook, "dbdict", {})
    how = {"max_gen_toks": 1, "temperature": 1.0}
    with pytest.raises(ValueError, match="set do_sample: true in generation_kwargs"):
        lm.generate_until(generation("the", "Ada", "the", **how))
    lm.generate_until(generation("the", "Ada", **how))
    lm.generate_until(generation("the", "the", **how, do_sample=True))
    lm.generate_until(generation("the", "the", max_gen_toks=1))


def test_generation_stops_at_the_first_stop_string(backend):
    lm = backend(num_samples=20)
    how = {"max_gen_toks": 12, "do_sample": True}
    free = lm.generate_until(generation("the", "Ada", **how, until=[]))
    for number, text in enumerate(free):
        third = text.split()[2]
        request = generation("the", "Ada", **how, until=[third, "zebra"])[number]
        (cut,) = lm.generate_until([request])
        assert cut == text[: text.index(third)]


@pytest.mark.parametrize(
    "number", [250, pytest.param(3_000, marks=pytest.mark.nightly)]
)
def test_sampled_words_follow_their_probabilities(backend, truth, number):
    """First words of many generations, against enumeration.

    In the cold, where probabilities differ more, fewer tell a wrong one.
    """
    lm = backend(estimator="beam", num_samples=200, batch_size=64)
    how = {"max_gen_toks": 1, "do_sample": True, "temperature": 0.5}
    requests = generation(*["the"] * number, **how)
    words = [text.strip() for text in lm.generate_until(requests)]
    free = Truth(truth.model, penalized=False)
    choices = ["END", *UTTERED, *COPIED]
    log_p = [free.log_p(ids("the", word), only_copied=True) for word in choices]
    shares = (torch.tensor(log_p).double() / 0.5).softmax(0).tolist()
    names = [word if word != "END" else "" for word in choices]
    expected = {name: number * p for name, p in zip(names, shares, strict=True)}
    assert p_value(Counter(words), expected, cells=5) > 1e-4


def test_bars_are_switched_as_those_of_hf_are(exact):
    for kind, asked in (
        ("loglikelihood", conditional(("the", " fox"))),
        ("loglikelihood_rolling", rolling("the fox")),
        ("generate_until", generation("the", max_gen_toks=1)),
    ):
        score = getattr(exact, kind)
        assert score(asked, disable_tqdm=True) == score(asked)


def test_wordy_arguments_are_checked(backend):
    lm = backend(num_samples=5)
    for wrong in (
        {"max_gen_toks": 0},
        {"max_new_tokens": 1.5},
        {"temperature": "hot"},
        {"until": ["a", 3]},
    ):
        with pytest.raises(ValueError, match=rf"task/0 .*{next(iter(wrong))}=.*expec"):
            lm.generate_until(generation("the", **wrong))
    [asked] = generation("the")
    asked.arguments = ("the", ["until"])
    with pytest.raises(ValueError, match=r"task/0 .*\['until'\]: expected a dictio"):
        lm.generate_until([asked])
