"""Word tokenizer, with a vocabulary that belongs to the checkpoint.

It is a word-level tokenizer of Hugging Face ``tokenizers`` in one ``tokenizer.json``.
The model can predict its first V words; later words occur only in aliases and can only
be copied. Everything else is the unknown word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer, Split, WhitespaceSplit

from lm_latent_eval.files import one_line, replacing

PADDING, UNKNOWN, START, END = range(4)
SPECIAL_WORDS = ("<pad>", "<unk>", "<s>", "</s>")
_MARKS = frozenset((PADDING, START, END))
LITERAL_UNKNOWN = SPECIAL_WORDS[UNKNOWN]
"""The unknown word, as it may stand in a text whose word is lost."""
FILE_NAME = "tokenizer.json"

WORD = (
    r"<unk>"
    r"|(?:\p{L}\.){2,}"  # initials: U.S.
    r"|['’](?:s|re|ve|ll|d|m)\b"  # clitics stand alone
    r"|\w+(?:(?:(?!['’](?:s|re|ve|ll|d|m)\b)['’.&/–-]|(?<=\d)[,:](?=\d))\w+)*"
    r"|[^\w\s]"
)
"""Regular expression of a word: letters and digits with inner marks, or one other
mark."""


@dataclass(frozen=True)
class Words:
    """A text as words."""

    ids: list[int]
    """Extended ids; words that can be neither predicted nor copied are ``UNKNOWN``."""
    starts: list[int]
    """Start of each word in the string, in characters."""
    ends: list[int]
    """End of each word in the string, in characters."""

    def gaps(self, text: str) -> list[str]:
        """Gaps before each word of its text and after the last."""
        borders = zip([0, *self.ends], [*self.starts, len(text)], strict=True)
        return [text[end:start] for end, start in borders]


class WordTokenizer:
    """A word-level tokenizer with V words to predict and further ones to copy."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @property
    def num_words(self) -> int:
        """Size of the extended vocabulary: V plus words that can only be copied."""
        return self.tokenizer.get_vocab_size()

    def is_unknown(self, index: int) -> bool:
        """Whether the model cannot predict a word; it may be able to copy it."""
        return index == UNKNOWN or index >= self.vocab_size

    @property
    def vocabulary(self) -> list[str]:
        """Words that the model can predict, in the order of their ids."""
        first = len(SPECIAL_WORDS)
        return [self.word(i) for i in range(first, self.vocab_size)]

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        min_count: int = 2,
        copied: Iterable[str] = (),
        already_cut: bool = False,
    ) -> WordTokenizer:
        """Collect the words of a training text.

        Args:
            texts: Strings.
            min_count: Rarer words are unknown.
            copied: Strings whose words are kept for copying.
            already_cut: Split at white space alone, between words of another program.
        """
        pieces = WhitespaceSplit() if already_cut else _SPLIT
        counts = Counter(word for text in texts for word in _cut(text, pieces))
        frequent = [w for w, n in counts.items() if n >= min_count]
        frequent = [w for w in frequent if w not in SPECIAL_WORDS]
        vocab = [*SPECIAL_WORDS, *sorted(frequent, key=lambda w: (-counts[w], w))]
        more = {word for text in copied for word in _cut(text, pieces)} - set(vocab)
        return cls(_word_level([*vocab, *sorted(more)], pieces), len(vocab))

    @classmethod
    def of_words(
        cls, words: Sequence[str], *, already_cut: bool = False
    ) -> WordTokenizer:
        """Take the words of another program, in their order, after the reserved ones.

        Args:
            words: Distinct words.
            already_cut: Split texts at white space alone.

        Raises:
            ValueError: If a word is there twice, or is a reserved one.
        """
        vocab = [*SPECIAL_WORDS, *words]
        twice = [word for word, n in Counter(vocab).items() if n > 1]
        if twice:
            raise ValueError(f"the word {twice[0]!r} is there twice, or reserved")
        pieces = WhitespaceSplit() if already_cut else _SPLIT
        return cls(_word_level(vocab, pieces), len(vocab))

    @classmethod
    def at_white_space(
        cls,
        words: Iterable[str],
        vocab_size: int,
        *,
        normalizer: Normalizer | None = None,
    ) -> WordTokenizer:
        """Split at white space alone, between words of another program.

        Args:
            words: Distinct words in the order of their ids, the unknown word second.
            vocab_size: V.
            normalizer: Change of a text before it is split.
        """
        tokenizer = _word_level(words, WhitespaceSplit())
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        return cls(tokenizer, vocab_size)

    def __call__(self, text: str) -> Words:
        """Split a string into words.

        Raises:
            ValueError: If a special word stands there as a word.
        """
        text = encodable(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        if not _MARKS.isdisjoint(ids):
            _refuse_marks(text, ids, offsets)
        return Words(ids, [start for start, _ in offsets], [end for _, end in offsets])

    def cut(self, text: str) -> list[str]:
        """Words of a string as strings, known or not."""
        return _cut(text, self.tokenizer.pre_tokenizer)

    def count_unknown_types(self, words: Iterable[str]) -> int:
        """Number of distinct words that the model cannot predict."""
        ids = map(self.tokenizer.token_to_id, set(words) - {SPECIAL_WORDS[UNKNOWN]})
        return sum(i is None or i >= self.vocab_size for i in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Write words as a string, with the usual spaces.

        Raises:
            ValueError: If an id has no word.
        """
        return join(self.word(i) for i in ids if i not in (PADDING, START, END))

    def word(self, index: int) -> str:
        """Word of an id.

        Raises:
            ValueError: If there is none.
        """
        word = self.tokenizer.id_to_token(index) if index >= 0 else None
        if word is None:
            raise ValueError(f"no word has the id {index}: there are {self.num_words}")
        return word

    def save(self, directory: Path) -> None:
        with replacing(directory / FILE_NAME) as partial:
            self.tokenizer.save(str(partial))

    @classmethod
    def load(cls, directory: Path, vocab_size: int) -> WordTokenizer:
        """Read ``tokenizer.json``.

        Raises:
            ValueError: If it is missing, damaged or smaller than the vocabulary.
        """
        path = Path(directory) / FILE_NAME
        if not path.is_file():
            raise ValueError(f"{path} is missing: the checkpoint has no vocabulary")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as err:  # the library raises bare exceptions
            raise ValueError(
                f"{path} is not a readable tokenizer ({one_line(err)})"
            ) from err
        if not isinstance(tokenizer.model, WordLevel):
            raise ValueError(f"{path}: its tokens are pieces of words")
        if wrong := _what_is_wrong(tokenizer):
            raise ValueError(f"{path}: {wrong}: copy or train the checkpoint again")
        if tokenizer.get_vocab_size() < vocab_size:
            raise ValueError(
                f"{path} has {tokenizer.get_vocab_size()} words but the model's "
                f"vocabulary has {vocab_size}: it belongs to another checkpoint"
            )
        return cls(tokenizer, vocab_size)


def split(text: str) -> list[str]:
    """Split a string into words.

    Example:
        >>> split("Anna's 3,000 books (U.S. edition) aren't here.")
        ['Anna', "'s", '3,000', 'books', '(', 'U.S.', 'edition', ')',
         "aren't", 'here', '.']
    """
    return _cut(text, _SPLIT)


def _cut(text: str, pieces: PreTokenizer) -> list[str]:
    return [word for word, _ in pieces.pre_tokenize_str(encodable(text))]


def _refuse_marks(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> None:
    """Refuse special words of the text itself; line ends may be replaced by them."""
    for i, (start, end) in zip(ids, offsets, strict=True):
        if i in _MARKS and text[start:end] == SPECIAL_WORDS[i]:
            raise ValueError(
                f"the text has {SPECIAL_WORDS[i]} as a word, which for this model is "
                "no word but a mark of its own: take it out"
            )


_SPLIT = Split(Regex(WORD), behavior="removed", invert=True)
_SURROGATE = re.compile("[\ud800-\udfff]")


def join(words: Iterable[str]) -> str:
    """Write words as a string, with the usual spaces.

    Example:
        >>> join(["Is", "it", "(", "or", "not", ")", "here", "?"])
        'Is it (or not) here?'
    """
    text = re.sub(r" (?=[.,;:!?%)\]}…’]|['’]\w+\b)", "", " ".join(words))
    return re.sub(r"(?<=[(\[{]) ", "", text)


def checked_strings(texts: Iterable[object], name: str = "texts") -> list[str]:
    """List of strings; an error gives the index of the first other object.

    Raises:
        TypeError: If it is one string, or holds something else.

    Example:
        >>> checked_strings(["a b", None])
        Traceback (most recent call last):
        ...
        TypeError: texts[1] is None: expected a string
    """
    if isinstance(texts, str):
        raise TypeError(f"{name}: expected a list of strings, not one string")
    strings = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is {text!r:.60}: expected a string")
        strings.append(text)
    return strings


def encodable(text: str) -> str:
    """Return a string unchanged if it can be encoded.

    Raises:
        ValueError: If it has a lone surrogate, half of a character.
    """
    if half := _SURROGATE.search(text):
        around = text[max(half.start() - 20, 0) : half.end()]
        raise ValueError(
            f"{around!r} ends in half a character (a lone surrogate), which no file "
            "can hold: complete the character, or take it out"
        )
    return text


def _what_is_wrong(tokenizer: Tokenizer) -> str | None:
    ids = sorted(tokenizer.get_vocab().values())
    if ids != list(range(len(ids))):
        return "the ids of its words are not 0, 1, 2, ..."
    if tokenizer.model.unk_token != tokenizer.id_to_token(UNKNOWN):
        return f"its unknown word is {tokenizer.model.unk_token!r}, not the second one"
    if (
        tokenizer.truncation
        or tokenizer.padding
        or tokenizer.get_added_tokens_decoder()
    ):
        return "it truncates, pads or adds words"
    return None


def _word_level(words: Iterable[str], cut: PreTokenizer) -> Tokenizer:
    listed = list(words)
    vocab = {word: i for i, word in enumerate(listed)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=listed[UNKNOWN]))
    tokenizer.pre_tokenizer = cut
    return tokenizer
