"""Spellings and white space: every string has a probability, and files keep it.

Damaged files: ``tests/models/test_checkpoint.py``.
"""

import json
import math
import sys
from itertools import product

import pytest
import torch
from safetensors.torch import save_file

from lm_latent_eval.text import orthography as spelling_module
from lm_latent_eval.text.orthography import (
    BEGIN,
    END,
    WHITE_SPACE,
    Orthography,
    Spacing,
    Spelling,
)
from lm_latent_eval.text.words import WordTokenizer, split
from tests.limits import at_most
from tests.memory import measured, on_linux
from tests.tiny_models import randomised


def tiny():
    return randomised(Spelling(embedding_dim=3, hidden_size=4).double(), 2, 0.5)


@pytest.fixture(scope="module")
def spelling():
    model = tiny()
    model.exclude(["the", "a"])
    return model.eval()


def test_a_spelling_is_the_product_of_its_bytes(spelling):
    word = "né"
    letters = list(word.encode())
    expected, state, last = 0.0, None, spelling.end
    for n, byte in enumerate([*letters, spelling.end]):
        hidden, state = spelling.rnn(spelling.embeddings(torch.tensor([[last]])), state)
        scores = spelling.output(hidden)[0, 0]
        if n == 0:
            scores[spelling.end] = -torch.inf
        expected += scores.log_softmax(-1)[byte].item()
        last = byte
    assert spelling.log_mass([word]).item() == pytest.approx(expected, rel=1e-12)


def test_words_do_not_depend_on_their_company(spelling):
    words = ["x", "a-longer-word", "Ünï", "x"]
    alone = [spelling.log_mass([word]).item() for word in words]
    assert spelling.log_mass(words).tolist() == pytest.approx(alone, rel=1e-12)
    given = [log_s - spelling.log_outside.item() for log_s in alone]
    assert spelling.log_prob(words) == pytest.approx(given, rel=1e-12)
    inside = spelling.log_mass(["the", "a"]).exp().sum().item()
    assert spelling.log_outside.item() == pytest.approx(math.log1p(-inside), rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 3, 12])
def test_long_words_are_spelled_piece_by_piece(monkeypatch, at_once):
    """With the same probability and the same gradient, in any company."""
    words = ["x", "a-longer-word", "Ünï", "x", "n\u0303" * 5, "seven"]

    def found():
        model = tiny()
        log_s = model.requires_grad_().log_mass(words)
        (log_s * torch.arange(6)).sum().backward()
        return [log_s.detach(), *(p.grad for p in model.parameters())]

    whole = found()
    monkeypatch.setattr(spelling_module, "AT_ONCE", at_once)
    for ours, wanted in zip(found(), whole, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


SPELL = """
from lm_latent_eval.text import orthography as spelling
spelling.AT_ONCE = 1 << 10
model = spelling.Spelling(embedding_dim=4, hidden_size=4)
def peak(spell):
    before = memory("VmHWM")
    spell()
    return memory("VmHWM") - before
def spell(words):
    assert all(-float("inf") < p < 0 for p in model.log_prob(words))
def learn(word):
    (-model.log_mass([word]).sum()).backward()
spell(["a" * 2000])
learn("a" * 2000)
long = "a" + "\u0301" * 4_000
print(json.dumps({
    "many": peak(lambda: spell([f"{n:0400}" for n in range(100)])),
    "long": peak(lambda: spell([long])),
    "learned": peak(lambda: learn(long)),
}))
"""


@on_linux
def test_memory_does_not_follow_from_the_length_of_words():
    """Of each byte 257 scores of 4 bytes, twice: 16 MB for 8,000 of them at once."""
    for what, peak in measured(SPELL).items():
        assert peak < 8e6, what


@pytest.mark.parametrize("double", [True, False])
def test_files_keep_every_probability(tmp_path, double):
    model = Spelling(embedding_dim=3, hidden_size=4)
    model = model.double() if double else model
    model.exclude(["the"])
    assert Orthography.load(tmp_path) is None, "no files are none"
    Orthography(model, Spacing([("a", ".", " ", 3)])).save(tmp_path)
    again = Orthography.load(tmp_path)
    words = ["zebra", "7,5", "é"]
    assert again.spelling.log_outside == model.log_outside
    assert again.spelling.log_outside.dtype == torch.float64
    assert again.spelling.log_prob(words) == model.log_prob(words)
    assert again.spacing.counts == {("a", ".", " "): 3}


@pytest.mark.parametrize(
    ("word", "message"),
    [("", "an empty word has no spelling"), ("abc", r"'abc' has the byte 0x63")],
)
def test_what_has_no_spelling_is_an_error(word, message):
    with pytest.raises(ValueError, match=message):
        Spelling(b"ab", 2, 2).log_prob([word])


def test_sizes_that_are_only_claimed_take_no_memory(spelling, tmp_path):
    spelling.save(tmp_path)
    path = tmp_path / "spelling.safetensors"
    shape = json.dumps({"alphabet": spelling.alphabet.hex(), "embedding_dim": 3})
    huge = {"shape": shape.replace("}", ', "hidden_size": 1000000}')}
    save_file(spelling.state_dict(), path, metadata=huge)
    with at_most(1 << 28), pytest.raises(ValueError, match="size mismatch") as caught:
        Spelling.load(tmp_path)
    assert "\n" not in str(caught.value)


# -- white space -----------------------------------------------------------------------

TEXTS = ("the fox.", "the  fox .\n", "(the) 7 foxes")


@pytest.fixture(scope="module")
def words():
    return WordTokenizer.train(TEXTS)


@pytest.fixture(scope="module")
def spacing(words):
    return Spacing.train((text, words(text)) for text in TEXTS)


@pytest.mark.parametrize(
    "last", [0xFFFF, pytest.param(sys.maxunicode, marks=pytest.mark.nightly)]
)
def test_white_space_is_what_no_word_has(last):
    """All of it is in the first plane of Unicode."""
    every = (chr(i) for i in range(last + 1) if not 0xD800 <= i <= 0xDFFF)
    assert "".join(c for c in every if not split(c)) == WHITE_SPACE


def test_a_gap_by_hand(spacing, words):
    text = "the fox"
    [before, between, after] = spacing(text, words(text))
    # Of 14 gaps 4 are " ", of the 6 before a letter 2, of the 2 between letters 1.
    anywhere = (4 + 0.5 * 0.5 / 25) / 15
    right = (2 + anywhere) / 7
    assert between == pytest.approx(math.log((1 + right) / 3), rel=1e-12)
    assert before < 0 and after < 0


@pytest.mark.parametrize("left", ["a", ".", BEGIN, "^"])
@pytest.mark.parametrize("right", ["a", END, "$"])
def test_gaps_total_one(spacing, left, right):
    longest = 2
    total = sum(
        math.exp(spacing._log_prob(left, right, "".join(gap)))
        for n in range(longest + 1)
        for gap in product(WHITE_SPACE, repeat=n)
    )
    # Longer gaps were never seen: what is left of p_0, with the weight it has left.
    weight = 1.0
    before = [(key[0], n) for key, n in spacing.counts.items() if key[1] == right]
    between = [n for other, n in before if other == left]
    for seen in (spacing.counts.total(), sum(n for _, n in before), sum(between)):
        weight /= seen + 1
    assert total + weight * 0.5 ** (longest + 1) == pytest.approx(1, rel=1e-12)
