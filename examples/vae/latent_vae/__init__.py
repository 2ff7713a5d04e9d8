r"""A sentence VAE: two real numbers a text, and words that depend on them.

.. math:: p(x, z) = \mathcal N(z; 0, I) \prod_t p(x_t \mid x_{t-1}, z)

The decoder scores a word by the word before it and by z; the encoder q(z | x) is a
normal distribution whose mean and width follow from the words of the text. Weighed by
draws from it (``estimator=is``) that is the importance-weighted likelihood of Burda,
Grosse and Salakhutdinov (2016).

Source: Bowman et al. (2016), "Generating sentences from a continuous space". Departure:
networks of one layer, to be short.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from lm_latent_eval.extend import (
    PADDING,
    START,
    UNKNOWN,
    Normalization,
    NormalProposal,
    Pretrained,
    Proposal,
    TokenBatch,
    Whole,
    WordsConfig,
    value,
    widened,
)


class VAEConfig(WordsConfig):
    """Words, and numbers of a text."""

    model_type = "vae"
    num_reals: int = value(2, Whole(1))


class Encoded(NamedTuple):
    """What z does not change."""

    inside: Tensor
    """Which places hold a word, (B, T)."""
    words: Tensor
    """The words to be predicted, (B, T)."""
    cost: Tensor
    """What they cost as unknown words, nats, (B, T)."""
    scores: Tensor
    """Of every next word by the word before it, (B, T, V)."""


class SentenceVAE(Pretrained):
    """p(x, z) of a sentence VAE."""

    config_class = VAEConfig
    config: VAEConfig
    base_model_prefix = "vae"
    main_input_name = "inputs"
    estimators = ("is",)
    proposal_names = ("encoder", "prior")
    normalization = Normalization.ONE

    def __init__(self, config: VAEConfig) -> None:
        """Start from equal scores."""
        super().__init__(config)
        size, reals = config.vocab_size, config.num_reals
        self.before = nn.Parameter(torch.zeros(size, size))
        self.decoder = nn.Parameter(torch.zeros(reals, size))
        self.encoder = nn.Parameter(torch.zeros(size, 2 * reals))
        self.post_init()

    def encode(self, batch: TokenBatch) -> Encoded:
        """Look up the words."""
        words, cost = batch.uttered(self.config.vocab_size)
        before = batch.inputs.masked_fill(batch.inputs >= len(self.before), UNKNOWN)
        return Encoded(batch.inside, words, cost, widened(self.before)[before])

    def log_joint(self, encoded: Encoded, latents: Tensor) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K), of z (B, K, D): a density in z."""
        by_z = latents @ widened(self.decoder)
        scores = encoded.scores[:, None] + by_z[:, :, None]  # (B, K, T, V)
        never = torch.tensor([PADDING, START], device=scores.device)
        log_p = scores.index_fill(-1, never, -torch.inf).log_softmax(-1)
        words = encoded.words[:, None, :, None].expand(-1, log_p.shape[1], -1, -1)
        log_x = log_p.gather(-1, words)[..., 0]
        outside = ~encoded.inside[:, None]
        log_x = (log_x + encoded.cost[:, None]).masked_fill(outside, 0.0)
        prior = Normal(torch.zeros_like(latents), 1.0, validate_args=False)
        return log_x.sum(-1) + prior.log_prob(latents).sum(-1)

    def posterior(self, batch: TokenBatch) -> Normal:
        """Return q(z | x), (B, D)."""
        inside = batch.inside[..., None]
        read = widened(self.encoder)[self.encode(batch).words] * inside
        mean, width = (read.sum(1) / inside.sum(1).clamp_min(1)).chunk(2, -1)
        return Normal(mean, width.exp(), validate_args=False)

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> Proposal:
        """Return q(z | x), or the prior of z."""
        name = name or "encoder"

        def prior(batch: TokenBatch) -> Normal:
            zeros = torch.zeros_like(self.posterior(batch).loc)
            return Normal(zeros, torch.ones_like(zeros), validate_args=False)

        of = {"encoder": self.posterior, "prior": prior}
        if name not in of:
            raise ValueError(f"proposal={name!r}: expected encoder or prior")
        return NormalProposal(name, of[name], temperature)
