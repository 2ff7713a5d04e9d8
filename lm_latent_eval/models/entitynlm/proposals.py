"""Proposals of entity chains: trained networks, or p's own decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from lm_latent_eval.devices import fetched, sent
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.entitynlm.following import Encoded
from lm_latent_eval.models.entitynlm.latents import Chains, EntityState
from lm_latent_eval.models.entitynlm.network import Trunk
from lm_latent_eval.models.entitynlm.steps import (
    ChainSteps,
    Standing,
    moved,
)
from lm_latent_eval.text.batch import TokenBatch

if TYPE_CHECKING:
    from lm_latent_eval.models.entitynlm.modeling import EntityNLM


@dataclass(frozen=True)
class EntityNLMProposal(StepProposal[Encoded, Chains, Standing]):
    r"""q(z | x): chains over the scores of a trunk of its own, or of p.

    A peeking proposal reads each token before it decides on its latent, so exactly one
    token more than p; then its entity moves. The adapted one asks p of that token:

    .. math::
        q(z_t \mid z_{<t}, x_{\le t}) \propto
        p(z_t \mid z_{<t}, x_{<t}) \, \psi_t(g), \qquad
        \psi_t(g) \approx p(x_t \mid h_t, g)

    where g is the context that z_t gives the token and psi the lower of two tangents
    (``Tangents``), exact where contexts begin: so two softmaxes a token do for all
    contexts of all chains, where p(x_t | h_t, g) itself takes one each. psi is finite
    and positive, so q covers p.

    Source: Pitt and Shephard (1999), the fully adapted auxiliary particle filter;
    Guarniero, Johansen and Lee (2017), twisted models.
    """

    model: EntityNLM
    name: str
    trunk: Trunk | None
    temperature: float
    on_host: ClassVar[bool] = True

    def encode(self, batch: TokenBatch, after: EntityState | None = None) -> Encoded:
        """Read the text and score every step of a chain."""
        encoded = self._read(batch, after)
        if self.temperature == 1.0:
            return encoded
        search = encoded.steps if encoded.steps.twist else None
        steps = encoded.steps.scaled(1.0 / self.temperature)
        return replace(encoded, steps=steps, search=search)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: EntityState | None
    ) -> Encoded:
        """Return what was read, after other chains."""
        return self.model.encode_again(encoded, batch, after)

    def _read(self, batch: TokenBatch, after: EntityState | None) -> Encoded:
        if self.trunk is None:
            adapted = self.name == "adapted"
            return self.model._encode_as_p(batch, after, adapted=adapted)
        trunk, peeks = self.trunk, self.name == "peeking"
        carry = after.carry if after else None
        if peeks:
            if carry is None:  # the token that stands before the text
                one = torch.ones_like(batch.length)
                _, carry = trunk.read(batch.inputs[:, :1], one, None)
            hidden, read = trunk.read(batch.targets, batch.length, carry)
        else:
            hidden, read = trunk.read(batch.inputs, batch.length, carry)
        state = after or EntityState.begin(trunk.first_slot, read, len(batch.length))
        # Entities move towards the state that their mention was predicted from.
        first = state.carry.layers[-1][0] if after else hidden.new_zeros(())
        first = first.expand(len(hidden), hidden.shape[-1])
        update = torch.cat([first[:, None], hidden], 1)[:, :-1]
        steps = trunk.steps(
            hidden,
            update,
            state.position + int(peeks),
            lag=1,
        )
        return Encoded(batch, hidden, steps, state, read)

    def drawn_steps(self, encoded: Encoded) -> ChainSteps:
        """Return the steps that are drawn."""
        return ChainSteps(encoded.steps, encoded.state, encoded.batch.length)

    def searched_steps(self, encoded: Encoded) -> ChainSteps:
        """Return the steps that searches go by.

        The adapted proposal ranks by what stands for log p so far, whatever its
        temperature.
        """
        steps = encoded.search or encoded.steps
        return ChainSteps(steps, encoded.state, encoded.batch.length)

    def histories(self, encoded: Encoded) -> int:
        """Return how many chains of a text a piece follows."""
        return encoded.state.num_chains

    def latents(
        self, encoded: Encoded, found: Sampled[Standing] | Found[Standing]
    ) -> Chains:
        return Chains(*found.columns)

    def log_prob(self, encoded: Encoded, chains: Chains) -> Tensor:
        """Return log q(z_k | x) in nats, (B, K) float64."""
        return encoded.follow(chains).log_prob().sum(-1)

    def moved(
        self, encoded: Encoded, chains: Chains, uniforms: Uniforms
    ) -> tuple[Chains, Tensor]:
        """Take one decision of each chain anew."""
        longest = self.model.config.max_mention_length
        _, length = encoded.batch.on_host
        chains, log_ratio = moved(Chains(*fetched(*chains)), length, longest, uniforms)
        return chains, sent(log_ratio, encoded.hidden.device)

    def advance(self, encoded: Encoded, chains: Chains) -> EntityState:
        """Return the state after the encoded piece."""
        return encoded.after(chains)
