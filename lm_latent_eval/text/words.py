"""Word tokenizer, with a vocabulary that belongs to the checkpoint.

The work is done by Hugging Face ``tokenizers``: a word-level tokenizer in one
``tokenizer.json``. Its first V words can be uttered by the model; the words after them
occur only in aliases and can only be copied. Everything else is the unknown word.
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
"""In a text, it is the unknown word: what it stood for is lost."""
FILE_NAME = "tokenizer.json"

WORD = (
    r"<unk>"
    r"|(?:\p{L}\.){2,}"  # initials: U.S.
    r"|['’](?:s|re|ve|ll|d|m)\b"  # clitics stand alone
    r"|\w+(?:(?:(?!['’](?:s|re|ve|ll|d|m)\b)['’.&/–-]|(?<=\d)[,:](?=\d))\w+)*"
    r"|[^\w\s]"
)
"""One word: letters and digits with inner marks, or one other mark."""


@dataclass(frozen=True)
class Words:
    """A text as words."""

    ids: list[int]
    """Extended ids; words that can neither be uttered nor copied are ``UNKNOWN``."""
    starts: list[int]
    """Where each word starts in the string, in characters."""
    ends: list[int]
    """Where each word ends."""

    def gaps(self, text: str) -> list[str]:
        """Return the gaps before each word of its text and after the last."""
        borders = zip([0, *self.ends], [*self.starts, len(text)], strict=True)
        return [text[end:start] for end, start in borders]


class WordTokenizer:
    """A word-level tokenizer with V words to utter and some more to copy."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Wrap a tokenizer; ``vocab_size`` is V."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @property
    def num_words(self) -> int:
        """V plus the words that can only be copied."""
        return self.tokenizer.get_vocab_size()

    def is_unknown(self, index: int) -> bool:
        """Whether the model cannot utter a word, though it may be able to copy it."""
        return index == UNKNOWN or index >= self.vocab_size

    @property
    def vocabulary(self) -> list[str]:
        """The words that the model can utter, in the order of their ids."""
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
            copied: Strings whose words are kept as words that can be copied.
            already_cut: Cut at white space alone: another program cut the words.
        """
        pieces = WhitespaceSplit() if already_cut else _SPLIT
        counts = Counter(word for text in texts for word in _cut(text, pieces))
        known = [w for w, n in counts.most_common() if n >= min_count]
        known = [w for w in known if w not in SPECIAL_WORDS]
        vocab = [*SPECIAL_WORDS, *sorted(known, key=lambda w: (-counts[w], w))]
        more = {word for text in copied for word in _cut(text, pieces)} - set(vocab)
        return cls(_word_level([*vocab, *sorted(more)], pieces), len(vocab))

    @classmethod
    def of_words(
        cls, words: Sequence[str], *, already_cut: bool = False
    ) -> WordTokenizer:
        """Take the words of another program, in their order, after the reserved ones.

        Args:
            words: No word twice.
            already_cut: Cut texts at white space alone.

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
        """Cut at white space alone: the words were cut by another program.

        Args:
            words: In the order of their ids, the unknown word second; no word twice.
            vocab_size: V.
            normalizer: What a text is changed by before it is cut.
        """
        tokenizer = _word_level(words, WhitespaceSplit())
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        return cls(tokenizer, vocab_size)

    def __call__(self, text: str) -> Words:
        """Split a string into words.

        Raises:
            ValueError: If the name of a special word stands there as a word, which can
                be where another program cut the words.
        """
        text = encodable(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        if not _MARKS.isdisjoint(ids):
            _refuse_marks(text, ids, offsets)
        return Words(ids, [start for start, _ in offsets], [end for _, end in offsets])

    def cut(self, text: str) -> list[str]:
        """Return the words of a string as they stand there, known or not."""
        return _cut(text, self.tokenizer.pre_tokenizer)

    def count_unknown_types(self, words: Iterable[str]) -> int:
        """Count the distinct words that the model cannot utter."""
        ids = map(self.tokenizer.token_to_id, set(words) - {SPECIAL_WORDS[UNKNOWN]})
        return sum(i is None or i >= self.vocab_size for i in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Write words as a string, punctuation attached the usual way.

        Raises:
            ValueError: If an id is no word's.
        """
        return join(self.word(i) for i in ids if i not in (PADDING, START, END))

    def word(self, index: int) -> str:
        """Return the word of an id.

        Raises:
            ValueError: If there is none.
        """
        word = self.tokenizer.id_to_token(index) if index >= 0 else None
        if word is None:
            raise ValueError(f"no word has the id {index}: there are {self.num_words}")
        return word

    def save(self, directory: Path) -> None:
        """Write ``tokenizer.json``."""
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
    """Refuse marks that the text itself names, not those that stand for a line end."""
    for i, (start, end) in zip(ids, offsets, strict=True):
        if i in _MARKS and text[start:end] == SPECIAL_WORDS[i]:
            raise ValueError(
                f"the text has {SPECIAL_WORDS[i]} as a word, which for this model is "
                "no word but a mark of its own: take it out"
            )


_SPLIT = Split(Regex(WORD), behavior="removed", invert=True)
_SURROGATE = re.compile("[\ud800-\udfff]")


def join(words: Iterable[str]) -> str:
    """Write words as a string, punctuation attached the usual way.

    Example:
        >>> join(["Is", "it", "(", "or", "not", ")", "here", "?"])
        'Is it (or not) here?'
    """
    text = re.sub(r" (?=[.,;:!?%)\]}…’]|['’]\w+\b)", "", " ".join(words))
    return re.sub(r"(?<=[(\[{]) ", "", text)


def checked_strings(texts: Iterable[object], name: str = "texts") -> list[str]:
    """Return strings as a list; an error gives the place of the first that is none.

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
    found = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{index}] is {text!r:.60}: expected a string")
        found.append(text)
    return found


def encodable(text: str) -> str:
    """Return a string that has bytes.

    Raises:
        ValueError: If it has a lone surrogate, which stands for half a character.
    """
    if half := _SURROGATE.search(text):
        around = text[max(half.start() - 20, 0) : half.end()]
        raise ValueError(
            f"{around!r} ends in half a character (a lone surrogate), which no file "
            "can hold: complete the character, or take it out"
        )
    return text


def _what_is_wrong(tokenizer: Tokenizer) -> str | None:
    """Return the settings of a tokenizer that would cut or number words differently."""
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
