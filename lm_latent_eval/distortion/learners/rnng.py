"""Training of an RNNG on the derivations of a corpus."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from lm_latent_eval.distortion.catalog import language_of
from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.pcfg import PCFG, Derivation
from lm_latent_eval.distortion.learners.latent import (
    check_whole,
    exact_vocabulary,
    words_of,
)
from lm_latent_eval.files import replacing
from lm_latent_eval.models.rnng.data import ParsedSentence, read_treebank
from lm_latent_eval.models.rnng.training import train_rnng
from lm_latent_eval.text.corpora import TREE_SUFFIXES
from lm_latent_eval.text.words import split
from lm_latent_eval.training.options import Options, RNNGSize


def derivations(corpus: Corpus) -> list[Derivation]:
    """Draw the derivations of a corpus, with the random numbers of its sequences.

    Raises:
        ValueError: If it was not drawn from a grammar, or a sequence was cut.
    """
    language = language_of(corpus)
    if not isinstance(language, PCFG):
        raise ValueError(
            f"{corpus.directory} was drawn from a language of kind "
            f"{language.settings()['kind']}: only those of a grammar (pcfg) have trees"
        )
    check_whole(corpus)
    seed = int(corpus.settings["seed"])
    return [language.derivation(seed, index) for index in corpus.indices]


def parsed(derivation: Derivation) -> ParsedSentence:
    """Return a derivation as a model of binary trees learns it.

    The words stand between single spaces. Symbols and what has one word are not kept.
    """
    text = " ".join(derivation.words)
    ends = accumulate(len(word) + 1 for word in derivation.words)
    constituents = {(p.first, p.last) for p in derivation.phrases if p.first < p.last}
    return ParsedSentence(text, (0, *list(ends)[:-1]), frozenset(constituents))


def write_trees(corpus: Corpus, path: Path) -> int:
    """Write the derivations of a corpus in brackets, one a line.

    Returns:
        How many.

    Raises:
        ValueError: If the file would not be read as a treebank, there are no trees, or
            they would be read as other sentences than these.
    """
    if path.suffix.lower() not in TREE_SUFFIXES:
        suffixes = " or ".join(TREE_SUFFIXES)
        raise ValueError(f"{path}: a file of trees ends in {suffixes}")
    found = derivations(corpus)
    names = {word for each in found for word in each.words}
    names |= {phrase.symbol for each in found for phrase in each.phrases}
    if wrong := sorted(name for name in names if {*name} & {*"()"}):
        raise ValueError(
            f"brackets in words or symbols: {', '.join(wrong)}; rename them"
        )
    with replacing(path) as partial:
        lines = (f"{derivation.brackets()}\n" for derivation in found)
        partial.write_text("".join(lines), encoding="utf-8")
        for derivation, sentence in zip(found, read_treebank(partial), strict=True):
            if split(sentence.text) != [*derivation.words]:
                raise ValueError(
                    f"the words {' '.join(derivation.words)!r} are read from brackets "
                    f"as {split(sentence.text)}: rename words that have or are "
                    "punctuation, or train on the corpus itself (learners.rnng)"
                )
    return len(found)


def train_grammar(
    corpus: Corpus,
    dev: Corpus,
    directory: Path,
    *,
    size: RNNGSize | None = None,
    options: Options | None = None,
) -> None:
    """Train a model of a language of words, and write its checkpoint.

    Its vocabulary is that of the language, drawn words or not, and has no unknown word:
    all of its mass is on sequences of the language's words. ``dev``, of the same
    language, is for the learning rate and for stopping. An interrupted run in the
    directory is resumed.

    Raises:
        ValueError: If the corpora are of different words, or sequences were cut or
            have no trees.
    """
    words = words_of(corpus)
    if words != words_of(dev):
        raise ValueError(
            f"{corpus.directory} and {dev.directory} have different words: draw both "
            "from one language"
        )
    train_rnng(
        [*map(parsed, derivations(corpus))],
        [*map(parsed, derivations(dev))],
        directory,
        objective="supervised",
        words=exact_vocabulary(words.values()),
        size=size,
        options=options,
    )
