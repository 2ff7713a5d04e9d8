"""EntityNLM: a language model that remembers whom a text has mentioned.

    p(x, z) = prod_t p(z_t | z_<t, x_<t) p(x_t | z_<=t, x_<t)
    z_t = (entity, remaining)

The paper's (r_t, e_t, l_t), whether, which and how much longer an entity, are one pair:
r_t = 1 where the entity is not 0. Symbols: h_t -> ``hidden``; R -> ``mention``; lambda
-> ``distance``; W_e, W_d -> ``slot``, ``gate``; the dynamic embeddings e -> ``slots``.
The factor of z_t is in ``latents.py``, the factor of x_t in ``network.py``. All lengths
of mentions are possible everywhere, so a mention may run past the end of the text, and
p is normalised over z.
Proposals: p's own decisions, each weighed by what p says of x_t under it (``adapted``),
or not (``prior``); a trunk like that of p, trained to predict z_t from the text before
x_t (``nonpeeking``) or with x_t (``peeking``).
Departures from the released code: no noise is added to new slots; impossible chains
have probability 0 where the code did not look; proposals decide on every token, with
annotations aligned; new models exclude padding and start from prediction.
Source: Ji et al. (2017), sections 3 and 4; the code of Logan et al. (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lm_latent_eval.inference.ragged import in_parts
from lm_latent_eval.inference.steps import Found, Sampled
from lm_latent_eval.inference.unfolding import StepProposal
from lm_latent_eval.latent import Description, Span, Uniforms, marked
from lm_latent_eval.models.entitynlm.configuration import EntityNLMConfig
from lm_latent_eval.models.entitynlm.given_chains import Encoded, GivenChains
from lm_latent_eval.models.entitynlm.latents import NOBODY, Chains, EntityState
from lm_latent_eval.models.entitynlm.network import Trunk, Words
from lm_latent_eval.models.entitynlm.steps import (
    ChainSteps,
    weighted_contexts,
)
from lm_latent_eval.models.pretrained import TrainedModel
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.text.batch import TokenBatch

READING_MOST = ("peeking", "nonpeeking")
"""Names of trained proposals, the one that reads most of the text first."""


class GenerativeModel(nn.Module):
    """p(x, z): the trunk's chain and its words."""

    def __init__(self, config: EntityNLMConfig) -> None:
        super().__init__()
        self.trunk = Trunk(config)
        self.words = Words(config, self.trunk.token_embeddings)


class EntityNLM(TrainedModel):
    config_class = EntityNLMConfig
    base_model_prefix = "entitynlm"
    main_input_name = "inputs"
    estimators = ("auto", "dpf", "is", "beam", "smc")
    """Supported estimators, the default first."""
    config: EntityNLMConfig

    def __init__(self, config: EntityNLMConfig) -> None:
        """Build p and the trained q's."""
        super().__init__(config)
        self.generative = GenerativeModel(config)
        self.proposals = nn.ModuleDict(
            {name: Trunk(config) for name in config.proposals}
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def describe(
        self,
        words: Sequence[str],
        chains: Chains,
        decode: Callable[[Sequence[int]], str],
    ) -> Description:
        entity, left = (part[0, 0, : len(words)].tolist() for part in chains)
        spans, start = [], 0
        while start < len(words):
            end = min(start + 1 + left[start], len(words))
            if entity[start] != NOBODY:
                label = f"entity {entity[start]}"
                spans.append(Span(start, end, label, entity[start]))
            start = end
        return marked(words, spans)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Words) and not self.config.tie_weights:
            nn.init.uniform_(module.weight, -0.1, 0.1)

    # -- p(x, z) --------------------------------------------------------------------

    def encode(self, batch: TokenBatch, after: EntityState | None = None) -> Encoded:
        """Read the tokens before each target and score every step of a chain."""
        return self._encode_as_p(batch, after)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: EntityState | None
    ) -> Encoded:
        return replace(encoded, batch=batch, state=after or encoded.state)

    def log_joint(self, encoded: Encoded, chains: Chains) -> Tensor:
        """Log p(x, z_k) in nats, (B, K) float64."""
        given = encoded.follow(chains)
        return (given.log_prob() + self.log_words(encoded, given)).sum(-1)

    def log_words(self, encoded: Encoded, given: GivenChains) -> Tensor:
        """Log p(x_t | z_k, x_<t) in nats, (B, K, T) float64; 0 past the end."""
        return self.generative.words.log_prob(
            encoded.hidden, encoded.batch, *given.contexts()
        )

    def advance(self, encoded: Encoded, chains: Chains) -> EntityState:
        return encoded.after(chains)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece from K weighted histories.

        Every choice of the chain at this token is summed over, except the least
        probable ones, which together have a probability below ``NEGLIGIBLE``.

        Pieces have one token, whose target is ignored; ``log_w`` is (B, K) nats. The
        result is (B, num_words) nats.
        """
        result = encoded.hidden.new_full(
            (len(log_w), self.config.num_words), -torch.inf
        )
        mixtures = weighted_contexts(encoded.steps, encoded.state, log_w)
        for b, (weight, context) in enumerate(mixtures):
            prob = result.new_zeros(self.config.vocab_size)
            for w, c in in_parts(self.config.vocab_size, weight, context):
                hidden = encoded.hidden[b, :1].expand_as(c)
                prob = prob + w @ self.generative.words.log_words(hidden, c).exp()
            result[b, : self.config.vocab_size] = prob.log()
        return result

    # -- q(z | x) -------------------------------------------------------------------

    @property
    def proposal_names(self) -> list[str]:
        trained = (name for name in READING_MOST if name in self.proposals)
        return ["adapted", *trained, "prior"]

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> EntityNLMProposal:
        """Build a proposal.

        Args:
            name: ``adapted`` (default), ``prior`` or one of ``config.proposals``.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        trunks: dict[str, Any] = {"adapted": None, "prior": None, **self.proposals}
        name = chosen(name, self.proposal_names)
        return EntityNLMProposal(self, name, trunks[name], temperature)

    # -- shared by p and its prior --------------------------------------------------

    def _encode_as_p(
        self,
        batch: TokenBatch,
        after: EntityState | None,
        *,
        adapted: bool = False,
    ) -> Encoded:
        """Read each token before its target; entities move once it has been read."""
        trunk = self.generative.trunk
        carry = after.carry if after else None
        hidden, carry = trunk.read(batch.inputs, batch.length, carry)
        state = after or EntityState.begin(trunk.first_slot, carry, len(batch.length))
        twist = None
        if adapted:
            # Initial contexts: no mention yet, or a new entity.
            at = torch.stack([torch.zeros_like(trunk.first_slot), trunk.first_slot])
            twist = self.generative.words.tangents(hidden, batch, at)
        steps = trunk.steps(
            hidden,
            hidden,
            state.position,
            lag=0,
            twist=twist,
        )
        return Encoded(batch, hidden, steps, state, carry)


# -- proposals ----------------------------------------------------------------------


@dataclass(frozen=True)
class EntityNLMProposal(StepProposal):
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
        encoded = self._read(batch, after)
        if self.temperature == 1.0:
            return encoded
        search = encoded.steps if encoded.steps.twist else None
        steps = encoded.steps.scaled(1.0 / self.temperature)
        return replace(encoded, steps=steps, search=search)

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: EntityState | None
    ) -> Encoded:
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
        return ChainSteps(encoded.steps, encoded.state, encoded.batch.length)

    def searched_steps(self, encoded: Encoded) -> ChainSteps:
        """Steps of searches.

        The adapted proposal ranks by its approximation of log p at any temperature.
        """
        steps = encoded.search or encoded.steps
        return ChainSteps(steps, encoded.state, encoded.batch.length)

    def histories(self, encoded: Encoded) -> int:
        return encoded.state.num_chains

    def latents(self, encoded: Encoded, found: Sampled | Found) -> Chains:
        return Chains(*found.columns)

    def log_prob(self, encoded: Encoded, chains: Chains) -> Tensor:
        """Log q(z_k | x) in nats, (B, K) float64."""
        return encoded.follow(chains).log_prob().sum(-1)

    def advance(self, encoded: Encoded, chains: Chains) -> EntityState:
        return encoded.after(chains)
