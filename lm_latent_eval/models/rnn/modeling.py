"""Elman's simple recurrent network with classes of words: the RNNLM toolkit's model.

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

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.models.pretrained import value
from lm_latent_eval.models.recurrent import Elman
from lm_latent_eval.models.recurrent_lm import RecurrentConfig, RecurrentLM
from lm_latent_eval.values import Each, Whole


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
        never = sent(torch.tensor(self.config.never_uttered).long(), self.bias.device)
        bias = self.bias.index_fill(0, never, -torch.inf)
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
    """
    before = list(accumulate(counts, initial=0))[:-1]
    total = sum(counts)
    classes = [min(num_classes * n // total, num_classes - 1) for n in before]
    return [0, *(i for i in range(1, len(counts)) if classes[i] != classes[i - 1])]
