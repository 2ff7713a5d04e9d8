r"""Whole trees of a model without sentence ends, drawn and searched word by word.

Without an end word p(x, z) is over whole trees, but several items may stand on the
stack after the last word. One more step, of an end word that costs nothing, reduces
them to one tree:

.. math::
    q(z \mid x) = \prod_t q(z_t \mid z_{<t}, x_{\le t}), \qquad
    z_{T+1} = \text{the items on the stack} - 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.models.rnng.joint import Encoded
from lm_latent_eval.models.rnng.left_to_right import (
    WIDENING,
    StackSteps,
    WordByWord,
)
from lm_latent_eval.models.rnng.trees import Trees, count_ends, from_ends
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END


@dataclass(frozen=True)
class FinishedTrees(StepProposal):
    """q(z | x) of whole trees, whose last step finishes them."""

    widening: ClassVar[int] = WIDENING
    name: str
    by_word: WordByWord
    """The proposal for unfinished texts, which draws all steps but the last."""

    @property
    def left_to_right(self) -> WordByWord:
        return self.by_word

    @property
    def _finishing(self) -> WordByWord:
        return replace(self.by_word, finishes=True)

    def encode(self, batch: TokenBatch, after: None = None) -> Encoded:
        """Encode texts with an end word added to each.

        Raises:
            ValueError: If a text has one already.
        """
        targets, length = batch.on_host
        if bool(((targets == END) & batch.inside_on_host).any()):
            raise ValueError(
                "the text has an end word, and this model has no sentence ends: leave "
                "it out"
            )
        targets = F.pad(targets, (0, 1)).scatter(1, length[:, None], END)
        length = length + 1
        device = batch.length.device
        ended = TokenBatch(
            F.pad(batch.inputs, (0, 1)),  # which nothing reads
            sent(targets, device),
            sent(length, device),
            F.pad(batch.unknown_log_prob, (0, 1)),
            batch.spelled,
            (targets, length),
        )
        encoded = self.by_word.encode(ended)
        return replace(encoded, ended=length > 0)

    def drawn_steps(self, encoded: Encoded) -> StackSteps:
        return self._finishing.drawn_steps(encoded)

    searched_steps = drawn_steps

    def histories(self, encoded: Encoded) -> int:
        return 1

    def latents(self, encoded: Encoded, found: Sampled | Found) -> Trees:
        return _without_end(encoded, self._finishing.latents(encoded, found))

    def log_prob(self, encoded: Encoded, trees: Trees) -> Tensor:
        """log q(z_k | x) in nats, (B, K) float64."""
        _, length = encoded.batch.on_host
        ends = count_ends(Trees(*fetched(*trees)), length - 1)
        with_end = Trees(ends, ends.new_zeros(ends.shape[:2]))
        return self._finishing.log_prob(encoded, with_end)


def _without_end(encoded: Encoded, trees: Trees) -> Trees:
    _, length = encoded.batch.on_host
    return from_ends(trees.before, length - 1, trees.before.shape[2] - 1)
