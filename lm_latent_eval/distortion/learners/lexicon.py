"""Mapping between the words of an artificial language and a model's vocabulary.

A latent model scores words, so it can learn a language whose tokens are words: each of
them one word of the checkpoint. Then sequences and texts are one to one, and p(text) is
a probability of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.text.words import SPECIAL_WORDS, WordTokenizer

_MOST_NAMED = 10


def words_of(corpus: Corpus) -> dict[int, str]:
    """Return the word of each token that sequences are made of.

    Raises:
        ValueError: If the tokens are not words.
    """
    tokenizer = corpus.tokenizer()
    if not (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and isinstance(tokenizer.backend_tokenizer.model, WordLevel)
    ):
        raise ValueError(
            f"{corpus.directory}: its tokens are not words, and a model of words gives "
            "sequences of other tokens no probability; draw a corpus from a grammar"
        )
    return {
        token: str(tokenizer.convert_ids_to_tokens(token))
        for token in corpus.alphabet()
    }


def check_whole(corpus: Corpus) -> None:
    """Raise if a sequence was cut at the maximum length.

    Raises:
        ValueError: If there is such a one.
    """
    cut = sum(batch["ended"].false_count for batch in corpus.shards().batches())
    if cut:
        raise ValueError(
            f"{cut} of {corpus.num_sequences} sequences of {corpus.directory} have no "
            f"end: they were cut at {corpus.max_length} tokens, and a model of whole "
            "texts has no probability for a beginning. Draw the corpus with a larger "
            "--max-length"
        )


def texts_of(corpus: Corpus) -> list[str]:
    """Return the sequences as words between spaces.

    Raises:
        ValueError: If the tokens are not words, or a sequence was cut.
    """
    words = words_of(corpus)
    check_whole(corpus)
    return [
        " ".join(words[token] for token in ids[:-1])
        for batch in corpus.shards().batches()
        for ids in batch["ids"].to_pylist()
    ]


def exact_vocabulary(words: Iterable[str]) -> WordTokenizer:
    """Return a vocabulary of exactly these words, cut at white space.

    Raises:
        ValueError: If one is a mark of the vocabulary.
    """
    listed = list(words)
    if marks := sorted({*listed} & {*SPECIAL_WORDS}):
        raise ValueError(f"words that are marks: {', '.join(marks)}; rename them")
    vocabulary = [*SPECIAL_WORDS, *listed]
    return WordTokenizer.at_white_space(vocabulary, len(vocabulary))


def ids_in(tokenizer: WordTokenizer, words: Mapping[int, str]) -> dict[int, int]:
    """Return what a checkpoint calls the words of a language.

    Args:
        tokenizer: The checkpoint's.
        words: Token of the language -> word.

    Raises:
        ValueError: If the checkpoint lacks a word, or cuts it into several.
    """
    several, lacking, found = [], [], {}
    for token, word in words.items():
        if word in SPECIAL_WORDS:
            lacking.append(word)
            continue
        ids = tokenizer(word).ids
        if len(ids) != 1:
            several.append(word)
        elif tokenizer.is_unknown(ids[0]):
            lacking.append(word)
        else:
            found[token] = ids[0]
    if several:
        raise ValueError(
            f"the checkpoint does not read as one word what is one in the language: "
            f"{_named(several)}. Train it on the corpus itself (learners.rnng), or on "
            "text that is cut at white space"
        )
    if lacking:
        raise ValueError(
            f"the checkpoint lacks {len(lacking)} of {len(words)} words of the "
            f"language: {_named(lacking)}. They would share one probability. Train it "
            "with all words of the language (learners.rnng), or on more text and with "
            "--min-count 1"
        )
    return found


def _named(words: Sequence[str]) -> str:
    more = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
