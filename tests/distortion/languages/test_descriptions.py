"""Files of languages: what is wrong with them, and random ones."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from lm_latent_eval.distortion.languages.catalog import (
    described_language,
    examples,
    load_language,
)
from lm_latent_eval.distortion.languages.hmm import HMM
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.distortion.languages.random_languages import (
    random_hmm,
    random_pcfg,
)
from lm_latent_eval.distortion.languages.words import (
    read_description,
    word_tokenizer,
    write_description,
)
from tests.distortion.languages.tiny import AMBIGUOUS, WALK

RULES = {
    "S -> S S, A and the like": (
        {"S": {"S S": 0.6, "a": 0.4}},
        "infinite: each rewriting leaves 1.2 symbols .* those of S$",
    ),
    "critical": ({"S": {"S S": 0.5, "a": 0.5}}, "infinite: each rewriting leaves 1 "),
    "through another": (
        {"S": {"A": 1}, "A": {"B B": 0.7, "a": 0.3}, "B": {"A": 1}},
        "those of A, B",
    ),
    "total": ({"S": {"a": 0.5, "b": 0.4}}, "rules of S: the probabilities total 0.9,"),
    "zero": ({"S": {"a": 1, "b": 0}}, "'b' has the probability 0; expected more than"),
    "negative": ({"S": {"a": 1.5, "b": -0.5}}, "'a' has the probability 1.5"),
    "text": ({"S": {"a": "1"}}, "'a' has '1'; expected a probability"),
    "none": ({"S": {}}, "rules of S: expected names and their probabilities"),
    "list": ({"S": [1]}, "rules of S: expected names"),
    "unknown": ({"S": {"a NP": 1}}, "S -> a NP: NP is neither a symbol with rules nor"),
    "unreachable": (
        {"S": {"a": 1}, "A": {"B": 1}, "B": {"a": 1}},
        "nothing leads from S to A, B",
    ),
    "unproductive": (
        {"S": {"a": 0.9, "A": 0.1}, "A": {"B a": 1}, "B": {"A b": 1}},
        "no sequence of words comes from A, B",
    ),
    "empty": ({"S": {"a": 0.5, " ": 0.5}}, "S is rewritten as nothing"),
    "twice": ({"S": {"a b": 0.5, "a  b": 0.5}}, "S -> a  b stands there twice"),
    "a word with rules": ({"S": {"a": 1}, "a": {"b": 1}}, "'a' is a word, and has"),
    "no start": ({"T": {"a": 1}}, "'S' .the start. for one"),
}


@pytest.mark.parametrize("case", RULES)
def test_bad_rules(case):
    rules, message = RULES[case]
    description = {"kind": "pcfg", "start": "S", "words": ["a", "b"], "rules": rules}
    with pytest.raises(ValueError, match=message):
        PCFG(description)


CHAINS = {
    "total": ("transitions", "x", {"x": 0.5, "</s>": 0.4}, "total 0.9, expected 1"),
    "unknown state": ("transitions", "x", {"w": 1}, "no 'w' among x, y, z"),
    "unknown word": ("emissions", "x", {"w": 1}, "no 'w' among a, b"),
    "endless": ("transitions", "z", {"z": 1}, "state z never ends"),
    "unreachable": ("transitions", "y", {"x": 0.6, "</s>": 0.4}, "z is never reached"),
    "one side": ("emissions", "w", {"a": 1}, r"\['w'\]: in only one of"),
    "no end in emissions": ("emissions", "x", {"</s>": 1}, "there is no '</s>'"),
}


@pytest.mark.parametrize("case", CHAINS)
def test_bad_chains(case):
    part, state, row, message = CHAINS[case]
    description = copy.deepcopy(WALK)
    description[part][state] = row
    with pytest.raises(ValueError, match=message):
        HMM(description)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "at least one word"),
        ("ab", "at least one word"),
        (["a", "b c"], "'b c' is not a string without white space"),
        (["a", 3], "3 is not a string"),
        (["a", "b", "a"], "'a' stands there more than once"),
        (["a", "</s>"], "</s> stands for a begin or end"),
    ],
)
def test_bad_words(words, message):
    for description in (AMBIGUOUS, WALK):
        with pytest.raises(ValueError, match=message):
            described_language({**description, "words": words})


def test_bad_files(tmp_path):
    path = tmp_path / "language.json"
    for text, message in (
        ("{", "is not the description of a language"),
        ("[]", "expected a JSON object"),
        ('{"kind": "dfa"}', "kind is 'dfa', expected one of pcfg, hmm"),
        ('{"kind": "hmm", "word": []}', r"missing or unknown: \['emissions', 'in"),
        ('{"kind": "hmm", "kind": "pcfg"}', "'kind' stands twice in one place"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message) as caught:
            load_language(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ValueError, match="not the description of a language"):
        load_language(tmp_path / "none.json")
    with pytest.raises(ValueError, match="is not a causal LM: it has no temperature"):
        load_language("weather", temperature=0.5)


def test_rounded_probabilities_total_one():
    thirds = {"kind": "pcfg", "start": "S", "words": ["a", "b", "c"]}
    language = PCFG({**thirds, "rules": {"S": dict.fromkeys("abc", 0.3333333)}})
    p = language.log_p([[2, 1], [3, 1], [4, 1]]).exp()
    torch.testing.assert_close(p, torch.ones(3).double() / 3, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["agreement", "weather"])
def test_built_in_languages(name, tmp_path):
    assert name in examples()
    language = load_language(name)
    language.save(tmp_path)
    again = load_language(tmp_path / "language.json")
    assert again.settings() == language.settings()
    sample = language.sample(0, range(200), 40)
    assert torch.equal(again.log_p(sample.sequences), sample.log_p)
    assert sample.log_p.isfinite().all()
    said = {token for ids in sample.sequences for token in ids}
    assert len(said) > 0.8 * language.vocab_size


@pytest.mark.parametrize("make", [random_pcfg, random_hmm])
@pytest.mark.parametrize(("symbols", "words", "length"), [(1, 2, 3.5), (6, 40, 12.0)])
def test_random_languages(make, symbols, words, length, tmp_path):
    description = make(symbols, words, expected_length=length, seed=4)
    assert description == make(symbols, words, expected_length=length, seed=4)
    assert description != make(symbols, words, expected_length=length, seed=5)
    write_description(description, tmp_path / "random.json")
    assert read_description(tmp_path / "random.json") == description
    language = load_language(tmp_path / "random.json")
    assert language.vocab_size == 2 + words
    if isinstance(language, PCFG):
        assert language.grammar.expected_length == pytest.approx(length, rel=1e-9)
        assert len(language.grammar.rules) == 2 * symbols
        kinds = [r for s, r in description["rules"].items() if s.startswith("T")]
    else:
        assert language.expected_length == pytest.approx(length, rel=1e-9)
        kinds = list(description["emissions"].values())
    assert {word for own in kinds for word in own} == set(description["words"])
    if symbols > 1:  # lopsided
        spread = [max(own.values()) / min(own.values()) for own in kinds]
        assert sorted(spread)[len(spread) // 2] > 10
    sample = language.sample(0, range(300), 64)
    assert sample.log_p.isfinite().all()
    assert sample.log_p.std() > 1


def test_random_sizes():
    for (symbols, words, length), message in (
        ((0, 3, 9.0), "at least one symbol"),
        ((4, 3, 9.0), "a word for each"),
        ((1, 3, 1.0), "more than 1"),
        ((1, 3, math.inf), "=inf"),
    ):
        for make in (random_pcfg, random_hmm):
            with pytest.raises(ValueError, match=message):
                make(symbols, words, expected_length=length)


def test_the_tokenizer_of_a_language():
    tokenizer = word_tokenizer(["plums", "grow"])
    assert tokenizer("grow plums").input_ids == [3, 2]
    assert tokenizer.decode([3, 2, 1]) == "grow plums </s>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    with pytest.raises(Exception, match=r"Missing .UNK."):
        tokenizer("pears")
