"""Languages so small that every sequence can be listed, and models of their words."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2LMHeadModel

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.latent import LatentLanguage
from lm_latent_eval.distortion.languages.pcfg import PCFG
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.text.words import (
    PADDING,
    SPECIAL_WORDS,
    START,
    UNKNOWN,
    WordTokenizer,
)
from tests import tiny_causal, tiny_models
from tests.models.rnng import reference

AMBIGUOUS = {
    "kind": "pcfg",
    "start": "S",
    "words": ["a", "b", "never"],
    "rules": {
        # Left, right and central recursion, chains and cycles of single symbols,
        # words among symbols, and two ways to most sequences.
        "S": {"S S": 0.2, "a S b": 0.15, "A": 0.3, "b": 0.25, "a": 0.1},
        "A": {"B": 0.45, "A b": 0.3, "a B a b": 0.25},
        "B": {"S": 0.2, "b b": 0.35, "a": 0.45},
    },
}
REGULAR = {
    "kind": "pcfg",
    "start": "S",
    "words": ["a", "b", "never"],
    "rules": {
        # A hidden Markov model: X, Y and Z say x, y and z.
        "S": {"X": 0.7, "Y": 0.3},
        "X": {"x X": 0.5, "x Y": 0.3, "x": 0.2},
        "Y": {"y X": 0.6, "y Z": 0.35, "y": 0.05},
        "Z": {"z Z": 0.8, "z": 0.2},
        "x": {"a": 0.9, "b": 0.1},
        "y": {"a": 0.35, "b": 0.65},
        "z": {"b": 1},
    },
}


def pcfg() -> PCFG:
    return PCFG(AMBIGUOUS)


def regular() -> PCFG:
    return PCFG(REGULAR)


def gpt2(dtype: torch.dtype = torch.float64, vocab_size: int = 4) -> GPT2LMHeadModel:
    """A model with weights large enough that its predictions are lopsided."""
    model = tiny_causal.model(vocab_size, positions=12, spread=3).to(dtype)
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = 0, 1
    return model


def causal(temperature: float = 0.7, end_id: int = 1, **options: Any) -> CausalLanguage:
    return CausalLanguage(gpt2(), temperature, 0, end_id, **options)


LANGUAGES = {
    "pcfg": pcfg,
    "regular": regular,
    "causal": causal,
    "causal, one id for begin and end": lambda: causal(2.0, end_id=0),
}


def records(language: Any, max_length: int) -> list[list[int]]:
    """All that can be drawn: sequences that end, and beginnings of that length."""
    open_ended = [[], *beginnings(language, max_length + 1)]
    ended = [[*ids, language.end_id] for ids in open_ended if len(ids) < max_length]
    return ended + [ids for ids in open_ended if len(ids) == max_length]


def derived(language: PCFG, ids: list[int], rest: float = 1e-16) -> float:
    """The probability of a sequence, or of its beginning, by rewriting from the left.

    Every form that rewriting leads to has a probability, which its rules pass on until
    less than ``rest`` is left of it. A form is the symbols that still have to give the
    words from one place on; every symbol gives a word at least, so a form with more
    symbols than words is impossible or, of a beginning, as good as its first ones.
    """
    grammar = language.grammar
    ended = ids[-1] == language.end_id
    words = [grammar.words[id_ - 2] for id_ in ids if id_ != language.end_id]
    total = 0.0
    forms: dict[tuple[tuple[str, ...], int], float] = {((grammar.start,), 0): 1.0}
    while sum(forms.values()) > rest:
        after: dict[tuple[tuple[str, ...], int], float] = defaultdict(float)
        for (form, place), p in forms.items():
            for right, probability in grammar.rules[form[0]].items():
                longer, at = right + form[1:], place
                while longer and at < len(words) and longer[0] == words[at]:
                    longer, at = longer[1:], at + 1
                left = len(words) - at
                if left == 0:
                    total += p * probability if not ended or not longer else 0.0
                elif longer and longer[0] in grammar.rules:
                    if not ended:
                        longer = longer[:left]
                    if len(longer) <= left:
                        after[longer, at] += p * probability
        forms = after
    return total


def beginnings(language: Any, max_length: int) -> Iterator[list[int]]:
    """All sequences without an end, shorter than a length."""
    others = [id_ for id_ in range(language.vocab_size) if id_ != language.end_id]
    for length in range(1, max_length):
        for ids in itertools.product(others, repeat=length):
            yield [*ids]


MAX_LENGTH = 9


def draw(
    directory: Path, num: int, first: int = 0, language: Any = None, **settings: Any
) -> Corpus:
    """Draw a corpus of a language, or of a regular one."""
    settings = {"max_length": MAX_LENGTH} | settings
    language = language or regular()
    return Corpus.draw(language, directory, num, first=first, quiet=True, **settings)


WORDS = {2: "plums", 3: "grow"}
"""Token of the language -> word."""
END_ID = 1


def checkpoint(words: Iterable[str] = ("grow", "plums"), **options) -> Checkpoint:
    listed = [*SPECIAL_WORDS, *words]
    tokenizer = WordTokenizer.at_white_space(listed, len(listed))
    options = {"never_uttered": [PADDING, UNKNOWN, START], **options}
    model = reference.tiny(vocab_size=tokenizer.vocab_size, **options)
    return Checkpoint("rnng", model, tokenizer, Path("untrained"))


def unlike(name: str, *given: Any) -> Checkpoint:
    """A checkpoint of a tiny model that is no RNNG."""
    model = getattr(tiny_models, name)(*given, seed=3)
    return Checkpoint(name, model, tiny_models.tokenizer(), Path("untrained"))


def opinionated() -> Checkpoint:
    """An RNNG whose words tell much of their trees."""
    given = checkpoint(seed=2, spread=1.0)
    generative = given.model.generative
    for even in (generative.bias, generative.action.bias):
        even.zero_()
    generative.embeddings.weight.mul_(3)
    return given


LATENT = {
    "rnng": lambda: LatentLanguage(opinionated(), batch_size=40),
    "lstm": lambda: LatentLanguage(unlike("lstm"), batch_size=40),
}


def sequences(longest: int) -> list[list[int]]:
    """Every sequence of at least one word and at most so many."""
    return [
        [*words, END_ID]
        for n in range(1, longest + 1)
        for words in itertools.product(WORDS, repeat=n)
    ]
