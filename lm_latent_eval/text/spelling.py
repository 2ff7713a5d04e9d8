r"""How unknown words are spelled: a recurrent model of the bytes of a word.

.. math::
    s(w) = \prod_i p(b_i \mid b_{<i}), \qquad
    p(w \mid \text{unknown}) = \frac{s(w)}{1 - \sum_{v \in V} s(v)}
    \quad \text{for } w \notin V

b_1 .. b_n are the bytes of the word in UTF-8 and an end, so that every string has a
probability: letters, case and digits as they are. Dividing by the mass outside of the
vocabulary V makes the unknown words total one, so that a word-level model with it is a
distribution over strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.durable import replacing
from lm_latent_eval.values import Rules, Text, Whole, check
from lm_latent_eval.weights import shared_type

FILE_NAME = "spelling.safetensors"
RULES: Rules = {
    "alphabet": Text("([0-9a-f]{2})+", "bytes in hexadecimal"),
    "embedding_dim": Whole(1),
    "hidden_size": Whole(1),
}
BYTES = bytes(range(256))
AT_ONCE = 512
"""Words spelled together."""


class Spelling(nn.Module):
    """A distribution over strings outside of a vocabulary."""

    log_outside: Tensor
    """Log of the mass that s gives to strings outside of V."""

    def __init__(
        self, alphabet: bytes = BYTES, embedding_dim: int = 32, hidden_size: int = 128
    ) -> None:
        """Build the layers.

        Args:
            alphabet: The bytes that words are made of.
            embedding_dim: Size of a byte's embedding.
            hidden_size: Of the recurrent layer.
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
        """Return log s(w) of words in nats, (number of words,) float64.

        Raises:
            ValueError: If a word is empty or has a byte outside of the alphabet.
        """
        spelled = [self._bytes(word) for word in words]
        lengths = torch.tensor([len(s) for s in spelled])
        target = torch.full((len(words), int(lengths.max()) + 1), self.end)
        for row, letters in zip(target, spelled, strict=True):
            row[: len(letters)] = torch.tensor(letters)
        begin = target.new_full((len(words), 1), self.end)
        read = torch.cat([begin, target[:, :-1]], 1)
        hidden, _ = self.rnn(self.embeddings(read))
        scores = self.output(hidden)
        # No word is empty.
        never = torch.zeros_like(scores[:, 0], dtype=torch.bool)
        never[:, self.end] = True
        scores[:, 0] = scores[:, 0].masked_fill(never, -torch.inf)
        log_p = -F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        inside = torch.arange(target.shape[1]) <= lengths[:, None]
        return log_p.double().masked_fill(~inside, 0.0).sum(1)

    @torch.no_grad()
    def exclude(self, vocabulary: Iterable[str]) -> None:
        """Renormalise over the strings outside of a vocabulary."""
        words = list(vocabulary)
        total = torch.zeros((), dtype=torch.float64)
        for batch in _batches(words):
            total += self.log_mass(batch).exp().sum()
        self.log_outside.copy_(torch.log1p(-total))
        self._known.clear()

    @torch.no_grad()
    def log_prob(self, words: Sequence[str]) -> list[float]:
        """Return log p(w | unknown) of words outside of the vocabulary, nats."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        for batch in _batches(sorted(new, key=len)):
            log_p = self.log_mass(batch) - self.log_outside
            self._known |= zip(batch, log_p.tolist(), strict=True)
        return [self._known[word] for word in words]

    def _bytes(self, word: str) -> list[int]:
        letters = word.encode("utf-8", "replace")
        if not letters:
            raise ValueError("an empty word has no spelling")
        try:
            return [self.index[byte] for byte in letters]
        except KeyError as err:
            raise ValueError(
                f"{word!r} has the byte {err.args[0]:#x}, which is not in the alphabet"
            ) from None

    # -- files ------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Write ``spelling.safetensors``."""
        shape = {"alphabet": self.alphabet.hex(), **self.sizes}
        # One entry: several are written in an order of chance, and files have digests.
        metadata = {"shape": json.dumps(shape)}
        with replacing(directory / FILE_NAME) as partial:
            save_file(self.state_dict(), partial, metadata=metadata)

    @classmethod
    def load(cls, directory: Path) -> Spelling:
        """Read ``spelling.safetensors``.

        Raises:
            ValueError: If it is missing, damaged or holds NaN.
        """
        path = Path(directory) / FILE_NAME
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            shape = json.loads(metadata["shape"])
            check(shape, RULES)
            model = cls(bytes.fromhex(shape.pop("alphabet")), **shape)
            # log_outside is in float64, whatever the rest.
            log_outside = weights["log_outside"]
            if log_outside.dtype != torch.float64 or not log_outside <= 0:
                raise ValueError("log_outside is no logarithm of a share in float64")
            model.to(shared_type({n: weights[n] for n, _ in model.named_parameters()}))
            model.load_state_dict(weights)
            model.log_outside = log_outside
        except Exception as err:  # of four libraries
            raise ValueError(
                f"{path} is not a readable spelling model ({err}): train the "
                "checkpoint's spelling again"
            ) from err
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise ValueError(f"{path} holds NaN or infinity: train it again")
        return model.eval().requires_grad_(False)


def _batches(words: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(words), AT_ONCE):
        yield words[start : start + AT_ONCE]
