"""Recurrent language models without latents: LSTM, and Elman's network with classes.

    p(x) = prod_t p(x_t | x_<t)

With nothing to sum over, one "sample" of weight p(x) is exact: every estimator, task
and table that takes a latent LM takes these models beside it.

The LSTM has a softmax over all words. Elman's simple recurrent network is the RNNLM
toolkit's model:

    h_t = sigma(W x_t + U h_{t-1} + b)
    p(x_{t+1} | x_<=t) = p(c | h_t) p(x_{t+1} | c, h_t),   c the class of x_{t+1}

Words fall into classes of about equal frequency, so that a word costs a softmax over
some classes and one over a few words, in the place of one over all. It is exact, as the
softmax over all words is.

Symbols: W, U, b -> ``rnn``; classes are ranges of word numbers, ``class_starts``.
Departures: the embeddings x_t are the second softmax's matrix as well (there are two
matrices); every text starts from h_0 = 0 (there, from where the one before it ended).
Source: Mikolov et al. (2011), "Extensions of recurrent neural network language model".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import widened
from lm_latent_eval.inference.ragged import in_parts
from lm_latent_eval.latent import NO_LATENT, Uniforms
from lm_latent_eval.models.pretrained import TrainedConfig, TrainedModel, value
from lm_latent_eval.models.proposals import NoLatents
from lm_latent_eval.models.recurrent import LSTM, Carry, Elman, RecurrentStack
from lm_latent_eval.text.batch import TokenBatch, excluding, known_ids
from lm_latent_eval.text.words import START
from lm_latent_eval.values import Each, Whole


class RecurrentConfig(TrainedConfig):
    """Configuration of a recurrent language model.

    Args:
        embedding_dim: Size of the embeddings, shared with the output layer.
        hidden_size: Of the inner layers.
        num_layers: Recurrent layers.
    """

    embedding_dim: int = value(128, Whole(1))
    hidden_size: int = value(256, Whole(1))
    num_layers: int = value(2, Whole(1, 1000))


@dataclass(frozen=True)
class Encoded:
    """Hidden states, from which each token is predicted."""

    batch: TokenBatch
    hidden: Tensor
    """(B, T, embedding_dim)."""
    carry: Carry


class RecurrentLM(TrainedModel, ABC):
    """p(x) of a stack of recurrent layers; z is always ()."""

    cell: ClassVar[Any]
    """Class of the recurrent layers."""
    base_model_prefix = "recurrent"
    main_input_name = "inputs"
    estimators = ("exact", "is", "beam")
    """Names of its estimators, the default first."""
    proposal_names = ("none",)
    """Names of its proposals."""
    exact_proposal = "none"
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        inner = [config.hidden_size] * (config.num_layers - 1)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        sizes = [config.embedding_dim, *inner, config.embedding_dim]
        self.rnn = RecurrentStack(sizes, config.dropout, self.cell)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.post_init()  # type: ignore[no-untyped-call]

    @abstractmethod
    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word after each state: (N, D), (N,) -> (N,) nats."""

    @abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word after each state: (N, D) -> (N, V) nats."""

    def num_latents(self, num_words: int) -> int:
        """Return 1: there is nothing to sum over."""
        return 1

    def log_marginal(self, words: Tensor) -> Tensor:
        """Return log p of texts of one length; see ``Enumerable``."""
        batch = TokenBatch.collate(words.tolist(), first=START, device=words.device)
        return self.log_joint(self.encode(batch), NO_LATENT)[:, 0]

    def encode(self, batch: TokenBatch, after: Carry | None = None) -> Encoded:
        known = known_ids(batch.inputs, self.config.vocab_size)
        hidden, carry = self.rnn(self.embeddings(known), batch.length, after)
        return Encoded(batch, hidden, carry)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: Carry | None
    ) -> Encoded:
        """Reuse an encoding after targets change."""
        return replace(encoded, batch=batch)

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """Return log p(x) in nats, once for each of K empty latents, (B, K)."""
        batch = encoded.batch
        known, cost = batch.uttered(self.config.vocab_size)
        inside = batch.inside
        width, columns = self.config.vocab_size, (encoded.hidden[inside], known[inside])
        parts = [widened(self.log_prob(*some)) for some in in_parts(width, *columns)]
        log_p = torch.zeros_like(cost).masked_scatter(inside, torch.cat(parts))
        total = (log_p + cost).masked_fill(~inside, 0.0).sum(-1)
        return total[:, None].expand(-1, latents.shape[1])

    def advance(self, encoded: Encoded, latents: Tensor) -> Carry:
        """Return the recurrent state after the piece."""
        return encoded.carry

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats."""
        first = self.log_probs(encoded.hidden[:, 0])
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> NoLatents:
        """Return the only one: there is nothing to propose."""
        return NoLatents()


class LSTMConfig(RecurrentConfig):
    """Configuration of an LSTM language model."""

    model_type = "latent_eval_lstm"

    # transformers gives a class without one of its own that of a dataclass.
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class LSTMLanguageModel(RecurrentLM):
    """p(x) of a stack of LSTM layers, with a softmax over all words."""

    config_class = LSTMConfig
    cell = staticmethod(LSTM)
    config: LSTMConfig

    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word after each state: (N, D), (N,) -> (N,) nats."""
        return self.log_probs(hidden).gather(-1, words[:, None])[:, 0]

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word after each state: (N, D) -> (N, V) nats."""
        scores = F.linear(hidden, self.embeddings.weight, self.bias)
        return excluding(scores, self.config.never_uttered).log_softmax(-1)


class RNNConfig(RecurrentConfig):
    """Configuration of a simple recurrent language model.

    Args:
        class_starts: The first word of each class, from 0.
    """

    model_type = "latent_eval_rnn"
    class_starts: list[int] = value([0], Each(Whole(0, below="vocab_size")))


class RNNLanguageModel(RecurrentLM):
    """p(x) of a simple recurrent network."""

    config_class = RNNConfig
    cell = staticmethod(Elman)
    config: RNNConfig

    def __init__(self, config: RNNConfig) -> None:
        super().__init__(config)
        starts = [*config.class_starts, config.vocab_size]
        if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(
                f"class_starts={config.class_starts}: expected 0 and rising numbers of "
                f"words below {config.vocab_size}"
            )
        never = {*config.never_uttered}
        if any(never.issuperset(range(a, b)) for a, b in pairwise(starts)):
            raise ValueError(
                f"class_starts={config.class_starts}: a class whose words are all "
                "excluded has no probability to share"
            )
        self.sizes = [end - start for start, end in pairwise(starts)]
        self.classes = nn.Linear(config.embedding_dim, len(self.sizes))
        self.post_init()  # type: ignore[no-untyped-call]

    def log_prob(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Return log p of one word after each state: (N, D), (N,) -> (N,) nats."""
        starts = torch.tensor(self.config.class_starts, device=words.device)
        classes = torch.bucketize(words, starts, right=True) - 1
        by_class = classes.argsort(stable=True)
        members = by_class.split(classes.bincount(minlength=len(starts)).tolist())
        within = [
            F.linear(hidden[rows], weight, bias)
            .log_softmax(-1)
            .gather(1, (words[rows] - start)[:, None])
            for rows, (weight, bias), start in zip(
                members, self._of_classes(), starts, strict=True
            )
        ]
        log_class = self.classes(hidden).log_softmax(-1).gather(1, classes[:, None])
        log_within = torch.cat(within)[by_class.argsort()]
        total: Tensor = (widened(log_class) + log_within)[:, 0]
        return total

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p of every word after each state: (N, D) -> (N, V) nats."""
        log_classes = self.classes(hidden).log_softmax(-1).unbind(-1)
        return torch.cat(
            [
                log_class[:, None] + F.linear(hidden, weight, bias).log_softmax(-1)
                for log_class, (weight, bias) in zip(
                    log_classes, self._of_classes(), strict=True
                )
            ],
            -1,
        )

    def _of_classes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each class's rows of the output layer: weights and biases."""
        bias = excluding(self.bias, self.config.never_uttered)
        # Split once: the gradient of each slice would be as large as the whole.
        weights = self.embeddings.weight.split(self.sizes)
        return zip(weights, bias.split(self.sizes), strict=True)


def class_starts(counts: Sequence[int], num_classes: int) -> list[int]:
    """Cut words into at most so many classes of about equal frequency.

    Args:
        counts: Of each word, in the order of their numbers, which should be that of
            their frequencies: classes are ranges, and the last are the largest.
        num_classes: At most so many; frequent words fill a class alone.

    Returns:
        The first word of each class.

    Example:
        >>> class_starts([0, 50, 0, 20, 10, 5, 5, 5, 5], num_classes=4)
        [0, 2, 5]
        >>> class_starts([5, 5, 0], num_classes=2), class_starts([0, 0], num_classes=2)
        ([0, 1], [0])
    """
    before = list(accumulate(counts, initial=0))[:-1]
    total = max(1, sum(counts))
    classes = [min(num_classes * n // total, num_classes - 1) for n in before]
    return [0, *(i for i in range(1, len(counts)) if classes[i] != classes[i - 1])]
