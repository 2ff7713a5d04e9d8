r"""Orthography: spelling and spacing models that make word models models of strings.

Spelling is a recurrent model of the bytes of unknown words:

.. math::
    s(w) = \prod_i p(b_i \mid b_{<i}), \qquad
    p(w \mid \text{unknown}) = \frac{s(w)}{1 - \sum_{v \in V} s(v)}
    \quad \text{for } w \notin V

b_1 .. b_n are the bytes of the word in UTF-8 and an end, so every string has a
probability. Division by the mass outside of the vocabulary V makes the unknown words
total one, so a word-level model with it is a distribution over strings.

Spacing is the white space between words:

.. math:: p(\text{text}) = p(\text{words}) \prod_t p(g_t \mid l_t, r_t)

where the gap g_t is the string of white space between two words, l_t the last
character before it and r_t the first one after it. The gaps have counts of their own,
interpolated with those of fewer conditions (hierarchical Dirichlet smoothing):

.. math::
    p(g \mid l, r) = \frac{c_{lr}(g) + p(g \mid r)}{c_{lr} + 1}, \quad
    p(g \mid r) = \frac{c_{r}(g) + p(g)}{c_{r} + 1}, \quad
    p(g) = \frac{c(g) + p_0(g)}{c + 1}

p_0 writes one white-space character after another and stops with probability 1/2, so
every gap is possible and the gaps between two given words total one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lm_latent_eval.devices import shared_type
from lm_latent_eval.files import one_line, replacing, write_text
from lm_latent_eval.text.files import read_json
from lm_latent_eval.text.words import Words
from lm_latent_eval.values import Matching, Rules, Whole, check, parse

SPELLING_FILE = "spelling.safetensors"
SPELLING_RULES: Rules = {
    "alphabet": Matching("([0-9a-f]{2})+", "bytes in hexadecimal"),
    "embedding_dim": Whole(1),
    "hidden_size": Whole(1),
}
BYTES = bytes(range(256))
AT_ONCE = 1 << 13
"""Largest number of bytes spelled together, with padding."""


class Spelling(nn.Module):
    """Distribution over strings outside of a vocabulary."""

    log_outside: Tensor
    """Log of the mass of s on strings outside of V."""

    def __init__(
        self, alphabet: bytes = BYTES, embedding_dim: int = 32, hidden_size: int = 128
    ) -> None:
        """Build the layers.

        Args:
            alphabet: Bytes of words.
            embedding_dim: Size of a byte's embedding.
            hidden_size: Size of the recurrent layer.
        """
        super().__init__()
        self.sizes = {"embedding_dim": embedding_dim, "hidden_size": hidden_size}
        self.alphabet = alphabet
        self.index = {byte: i for i, byte in enumerate(alphabet)}
        self.end = len(alphabet)
        self.embeddings = nn.Embedding(self.end + 1, embedding_dim)
        self.rnn = nn.LSTM(embedding_dim, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, self.end + 1)
        self.register_buffer("log_outside", torch.zeros((), dtype=torch.float64))
        self._known: dict[str, float] = {}

    def log_mass(self, words: Sequence[str]) -> Tensor:
        """Log s(w) of words in nats, (number of words,) float64.

        Raises:
            ValueError: If a word is empty or has a byte outside of the alphabet.
        """
        groups = _groups([self._bytes(word) for word in words])
        log_s = [self._log_mass(spelled) for spelled in groups]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *log_s])

    def _log_mass(self, spelled: Sequence[bytes]) -> Tensor:
        lengths = torch.tensor([len(letters) for letters in spelled])
        longest = int(lengths.max()) + 1
        total = torch.zeros(len(spelled), dtype=torch.float64)
        state: tuple[Tensor, Tensor] | None = None
        for start in range(0, longest, AT_ONCE):
            end = min(start + AT_ONCE, longest)
            symbols = self._symbols(spelled, start, end)
            if longest <= AT_ONCE:
                log_p, state = self._piece(symbols, state)
            else:  # the gradient holds one piece at a time as well
                log_p, state = checkpoint(
                    self._piece, symbols, state, use_reentrant=False
                )
            inside = torch.arange(start, end) <= lengths[:, None]
            total = total + log_p.double().masked_fill(~inside, 0.0).sum(1)
        return total

    def _symbols(self, spelled: Sequence[bytes], start: int, end: int) -> Tensor:
        """Symbols ``start`` .. ``end`` of words between ends, (n, end - start + 1)."""
        symbols = torch.full((len(spelled), end - start + 1), self.end)
        for row, letters in zip(symbols, spelled, strict=True):
            part = [self.index[byte] for byte in letters[max(start - 1, 0) : end]]
            first = int(start == 0)
            row[first : first + len(part)] = torch.tensor(part)
        return symbols

    def _piece(
        self, symbols: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Log p of each symbol after the one before it, and the new state."""
        hidden, after = self.rnn(self.embeddings(symbols[:, :-1]), state)
        scores = self.output(hidden)
        if state is None:  # no word is empty
            never = torch.zeros_like(scores[:, 0], dtype=torch.bool)
            never[:, self.end] = True
            scores[:, 0] = scores[:, 0].masked_fill(never, -torch.inf)
        target = symbols[:, 1:]
        log_p = -F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        return log_p, after

    @torch.no_grad()
    def exclude(self, vocabulary: Iterable[str]) -> None:
        total = self.log_mass(list(vocabulary)).exp().sum()
        self.log_outside.copy_(torch.log1p(-total))
        self._known.clear()

    @torch.no_grad()
    def log_prob(self, words: Sequence[str]) -> list[float]:
        """Log p(w | unknown) of words outside of the vocabulary, nats."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        new.sort(key=len)  # words of one length need no padding
        log_p = self.log_mass(new) - self.log_outside
        self._known |= zip(new, log_p.tolist(), strict=True)
        return [self._known[word] for word in words]

    def _bytes(self, word: str) -> bytes:
        letters = word.encode("utf-8", "replace")
        if not letters:
            raise ValueError("an empty word has no spelling")
        if strange := letters.translate(None, self.alphabet):
            raise ValueError(
                f"{word!r} has the byte {strange[0]:#x}, which is not in the alphabet"
            )
        return letters

    # -- files ------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        shape = {"alphabet": self.alphabet.hex(), **self.sizes}
        # One entry, since the order of several is random, and files have digests.
        metadata = {"shape": json.dumps(shape)}
        with replacing(directory / SPELLING_FILE) as partial:
            save_file(self.state_dict(), partial, metadata=metadata)

    @classmethod
    def load(cls, directory: Path) -> Spelling:
        """Read ``spelling.safetensors``.

        Raises:
            ValueError: If it is missing, damaged or holds NaN.
        """
        path = Path(directory) / SPELLING_FILE
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            shape = parse(metadata["shape"])
            check(shape, SPELLING_RULES)
            alphabet = bytes.fromhex(shape.pop("alphabet"))
            with torch.device("meta"):  # it takes no memory at any size
                model = cls(alphabet, **shape)
            # log_outside is in float64, whatever the rest.
            log_outside = weights["log_outside"]
            if log_outside.dtype != torch.float64 or not log_outside <= 0:
                raise ValueError("log_outside is no logarithm of a share in float64")
            shared_type({n: weights[n] for n, _ in model.named_parameters()})
            model.load_state_dict(weights, assign=True)
        except Exception as err:  # of four libraries
            raise ValueError(
                f"{path} is not a readable spelling model ({one_line(err)}): train the "
                "checkpoint's spelling again"
            ) from err
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise ValueError(f"{path} holds NaN or infinity: train it again")
        return model.eval().requires_grad_(False)


def _groups(spelled: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Groups of words of ``AT_ONCE`` bytes with padding, or of one longer word."""
    start, longest = 0, 0
    for n, letters in enumerate(spelled):
        longest = max(longest, len(letters) + 1)
        if n > start and (n + 1 - start) * longest > AT_ONCE:
            yield spelled[start:n]
            start, longest = n, len(letters) + 1
    if len(spelled) > start:
        yield spelled[start:]


SPACING_FILE = "spacing.json"

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""All characters outside words."""

BEGIN, END = "begin", "end"
"""Kinds of the ends of a text; no character has these names."""

_KIND = Matching(rf"(?s:.)|{BEGIN}|{END}", "a character, begin or end")
SPACING_RULES: Rules = {
    "what stands before": _KIND,
    "what stands after": _KIND,
    "the gap": Matching(f"[{re.escape(WHITE_SPACE)}]*", "white space"),
    "its count": Whole(1),
}
"""Rules of a row of the file."""


class Spacing:
    """Distribution of the white space between two words."""

    def __init__(self, counts: Iterable[tuple[str, str, str, int]] = ()) -> None:
        """Take counts of (kind before, kind after, gap)."""
        self.counts = Counter[tuple[str, str, str]]()
        for left, right, gap, count in counts:
            self.counts[left, right, gap] += count
        self._right, self._any = Counter[tuple[str, str]](), Counter[str]()
        self._pairs, self._rights = Counter[tuple[str, str]](), Counter[str]()
        for (left, right, gap), count in self.counts.items():
            self._right[right, gap] += count
            self._any[gap] += count
            self._pairs[left, right] += count
            self._rights[right] += count
        self._total = self._any.total()
        self._log_prob = cache(self._uncached_log_prob)

    @classmethod
    def train(cls, texts: Iterable[tuple[str, Words]]) -> Spacing:
        """Count the gaps between the words of texts."""
        counts = Counter(gap for text, words in texts for gap in _gaps(text, words))
        return cls((*gap, count) for gap, count in counts.items())

    def __call__(self, text: str, words: Words) -> list[float]:
        """Log p of the gaps before each of T words and after the last, T + 1 nats."""
        return [self._log_prob(*gap) for gap in _gaps(text, words)]

    def _uncached_log_prob(self, left: str, right: str, gap: str) -> float:
        base = 0.5 * (0.5 / len(WHITE_SPACE)) ** len(gap)
        anywhere = (self._any[gap] + base) / (self._total + 1)
        before = (self._right[right, gap] + anywhere) / (self._rights[right] + 1)
        pair = (left, right)
        return math.log(
            (self.counts[left, right, gap] + before) / (self._pairs[pair] + 1)
        )

    def save(self, directory: Path) -> None:
        rows = [[*gap, count] for gap, count in sorted(self.counts.items())]
        write_text(directory / SPACING_FILE, json.dumps(rows, ensure_ascii=True))

    @classmethod
    def load(cls, directory: Path) -> Spacing:
        """Read ``spacing.json``.

        Raises:
            ValueError: If it is missing or damaged.
        """
        path = Path(directory) / SPACING_FILE
        try:
            rows = read_json(path)
            for row_number, row in enumerate(rows, 1):
                try:
                    check(dict(zip(SPACING_RULES, row, strict=True)), SPACING_RULES)
                except ValueError as err:
                    raise ValueError(f"row {row_number}: {err}") from err
            if len({(left, right, gap) for left, right, gap, _ in rows}) < len(rows):
                raise ValueError("it counts a gap twice")
            return cls(rows)
        except (OSError, ValueError, TypeError) as err:
            raise ValueError(
                f"{path} is not a readable table of white space ({err}): train the "
                "checkpoint's spelling again"
            ) from err


def _gaps(text: str, words: Words) -> Iterator[tuple[str, str, str]]:
    """Kinds before and after, and the gap, before each word and after the last."""
    left = [BEGIN, *(_kind(text[end - 1]) for end in words.ends)]
    right = [*(_kind(text[start]) for start in words.starts), END]
    yield from zip(left, right, words.gaps(text), strict=True)


@cache
def _kind(character: str) -> str:
    """Sign of a character: one for all letters, one for all digits, a mark itself."""
    if character.isalpha():
        return "a"
    return "0" if character.isdigit() else character


FILE_NAMES = (SPELLING_FILE, SPACING_FILE)


@dataclass(frozen=True)
class Orthography:
    """Spelling of unknown words and white space between words."""

    spelling: Spelling
    spacing: Spacing

    def save(self, directory: Path) -> None:
        self.spelling.save(directory)
        self.spacing.save(directory)

    @staticmethod
    def remove(directory: Path) -> None:
        for name in FILE_NAMES:
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path) -> Orthography | None:
        """Read both files; None if both are missing.

        Raises:
            ValueError: If one of them is missing or damaged.
        """
        if not any((Path(directory) / name).exists() for name in FILE_NAMES):
            return None
        return cls(Spelling.load(directory), Spacing.load(directory))
