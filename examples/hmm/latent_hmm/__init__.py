r"""A hidden Markov model over words: one latent state a word.

.. math:: p(x, z) = \prod_t p(z_t \mid z_{t-1}) \, p(x_t \mid z_t)

The first state is drawn from the last row of ``transitions``, that of S, the place
before all text. The end of a text is a word like any other.

A walk through the states is a tensor (B, K, T); in what follows B texts have K walks
each, T words and S states. Where a text is shorter, its walks are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.devices import sent, sent_uniforms, wide_zeros, widened
from lm_latent_eval.latent import Beam, Draws, Mass, Uniforms
from lm_latent_eval.models.pretrained import CheckedConfig, Pretrained
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import PADDING, START, UNKNOWN
from lm_latent_eval.values import Rules, Whole


class HMMConfig(CheckedConfig):
    """Sizes: words to utter, words known, states; distinct unknown training words."""

    model_type = "hmm"
    rules: ClassVar[Rules] = {
        "vocab_size": Whole(4),
        "num_words": Whole("vocab_size"),
        "num_states": Whole(1),
        "num_unknown_types": Whole(0),
    }

    def __init__(self, **sizes: Any) -> None:
        """Store the sizes; the missing ones have defaults."""
        self.vocab_size = sizes.pop("vocab_size", 4)
        self.num_words = sizes.pop("num_words", self.vocab_size)
        self.num_states = sizes.pop("num_states", 2)
        self.num_unknown_types = sizes.pop("num_unknown_types", 0)
        super().__init__(**sizes)


@dataclass(frozen=True)
class State:
    """The last state of each walk, (B, K)."""

    last: Tensor

    def select(self, index: Tensor) -> State:
        """Pick texts."""
        return State(self.last[sent(index, self.last.device)])

    def resample(self, index: Tensor) -> State:
        """Pick walks of each text."""
        return State(self.last.gather(1, sent(index, self.last.device)))


@dataclass(frozen=True)
class Encoded:
    """A piece of B texts, and what each state makes of its words."""

    batch: TokenBatch
    before: Tensor
    """The state before the piece, (B, K) or (B, 1)."""
    log_x: Tensor
    """log p(x_t | z_t) of every state, (B, T, S)."""
    ahead: Tensor
    """What a proposal adds to the score of a state, (B, T, S)."""


class HMM(Pretrained):
    """p(x, z): ``LatentLM``, ``LeftToRight`` and ``NextToken``."""

    config_class = HMMConfig
    config: HMMConfig
    base_model_prefix = "hmm"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "is", "beam", "smc")
    proposal_names = ("posterior", "prior")
    mass = Mass.ONE

    def __init__(self, config: HMMConfig) -> None:
        """Start from equal scores."""
        super().__init__(config)
        states = config.num_states
        self.transitions = nn.Parameter(torch.zeros(states + 1, states))
        self.emissions = nn.Parameter(torch.zeros(states, config.vocab_size))
        self.post_init()

    def proposal(self, name: str | None = None, temperature: float = 1.0) -> Proposal:
        """Return q: ``posterior`` knows the words ahead, ``prior`` none."""
        check_temperature(temperature)
        return Proposal(self, chosen(name, self.proposal_names), temperature)

    @property
    def log_transitions(self) -> Tensor:
        """Log p(z_t | z_{t-1}), (S + 1, S)."""
        return widened(self.transitions).log_softmax(-1)

    @property
    def log_emissions(self) -> Tensor:
        """Log p(x_t | z_t), (S, V); padding and the start are no words."""
        never = torch.tensor([PADDING, START], device=self.device)
        scores = widened(self.emissions).index_fill(-1, never, -torch.inf)
        return scores.log_softmax(-1)

    def encode(self, batch: TokenBatch, after: State | None = None) -> Encoded:
        """Look up the words."""
        copied = batch.targets >= self.config.vocab_size
        words = batch.targets.masked_fill(copied, UNKNOWN)
        cost = batch.unknown_log_prob.masked_fill(words != UNKNOWN, 0.0)
        log_x = self.log_emissions.T[words] + cost[..., None]
        log_x = log_x.masked_fill(~batch.inside[..., None], 0.0)
        begin = torch.full_like(batch.length[:, None], self.config.num_states)
        before = begin if after is None else after.last
        return Encoded(batch, before, log_x, torch.zeros_like(log_x))

    def log_joint(self, encoded: Encoded, walks: Tensor) -> Tensor:
        """Return log p(x, z_k), (B, K)."""
        log_z = self.log_transitions[_path(encoded, walks)[..., :-1], walks]
        log_x = encoded.log_x[:, None].expand(*walks.shape, -1)
        log_p = log_z + log_x.gather(-1, walks[..., None])[..., 0]
        return log_p.masked_fill(~encoded.batch.inside[:, None], 0.0).sum(-1)

    def advance(self, encoded: Encoded, walks: Tensor) -> State:
        """Return where the walks end."""
        path = _path(encoded, walks)
        end = encoded.batch.length[:, None, None].expand(*walks.shape[:2], 1)
        return State(path.gather(-1, end)[..., 0])

    def next_token(self, encoded: Encoded, log_w: Tensor) -> Tensor:
        """Return log p of every next word, (B, number of words)."""
        log_z = log_w.log_softmax(-1)[..., None] + self.log_transitions[encoded.before]
        log_p = (log_z.logsumexp(1)[..., None] + self.log_emissions).logsumexp(1)
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(log_p, (0, rest), value=-torch.inf)


@dataclass(frozen=True)
class Proposal:
    """q(z | x): the transitions, times what the words ahead are worth."""

    model: HMM
    name: str
    temperature: float

    def encode(self, batch: TokenBatch, after: State | None = None) -> Encoded:
        """Sum over the states ahead, from the last word backwards."""
        encoded = self.model.encode(batch, after)
        if self.name == "prior":
            return encoded
        log_z = self.model.log_transitions[:-1]
        log_rest = torch.zeros_like(encoded.log_x[:, 0])  # (B, S)
        for t in reversed(range(encoded.log_x.shape[1])):
            encoded.ahead[:, t] = encoded.log_x[:, t] + log_rest
            log_rest = (log_z + encoded.ahead[:, t, None]).logsumexp(-1)
        return encoded

    def advance(self, encoded: Encoded, walks: Tensor) -> State:
        """Return where the walks end."""
        return self.model.advance(encoded, walks)

    def _log_step(self, encoded: Encoded, previous: Tensor, t: int) -> Tensor:
        """Return log q(z_t | z_{t-1}, x) of every state, (B, K, S)."""
        scores = self.model.log_transitions[previous] + encoded.ahead[:, None, t]
        log_q = (scores / self.temperature).log_softmax(-1)
        zero = torch.full_like(log_q, -torch.inf)
        zero[..., 0] = 0.0
        return torch.where(encoded.batch.inside[:, t, None, None], log_q, zero)

    def sample(
        self, encoded: Encoded, uniforms: Uniforms, number: int
    ) -> Draws[Tensor]:
        """Draw K walks, a state at a time."""
        previous = encoded.before.expand(-1, number)
        log_q, walk = wide_zeros(previous.shape, previous.device), []
        for t in range(encoded.log_x.shape[1]):
            log_step = self._log_step(encoded, previous, t)
            u = sent_uniforms(uniforms(t)[..., :1], log_step.device)
            below = log_step.exp().cumsum(-1)[..., :-1] < u
            previous = below.sum(-1)
            log_q = log_q + log_step.gather(-1, previous[..., None])[..., 0]
            walk.append(previous)
        return Draws(torch.stack(walk, -1), log_q)

    def beam(
        self, encoded: Encoded, width: int, score: Tensor | None = None
    ) -> Beam[Tensor]:
        """Keep the walks of largest q."""
        if score is None:
            score = wide_zeros(encoded.before.shape, encoded.before.device)
        path = encoded.before.expand_as(score)[..., None]
        origin = torch.arange(score.shape[1], device=score.device).expand_as(score)
        for t in range(encoded.log_x.shape[1]):
            scores = score[..., None] + self._log_step(encoded, path[..., -1], t)
            states, every = scores.shape[-1], scores.flatten(1)
            score, best = every.topk(min(width, every.shape[1]))
            parent = best // states
            path = path.gather(1, parent[..., None].expand(-1, -1, path.shape[-1]))
            path = torch.cat([path, (best % states)[..., None]], -1)
            origin = origin.gather(1, parent)
        return Beam(path[..., 1:], score, origin)

    def log_prob(self, encoded: Encoded, walks: Tensor) -> Tensor:
        """Return log q(z_k | x), (B, K)."""
        path = _path(encoded, walks)
        steps = (
            self._log_step(encoded, path[..., t], t).gather(-1, walks[..., t, None])
            for t in range(walks.shape[-1])
        )
        return torch.cat(list(steps), -1).sum(-1)


def _path(encoded: Encoded, walks: Tensor) -> Tensor:
    """Put the state before a piece in front of its walks, (B, K, T + 1)."""
    before = encoded.before.expand(walks.shape[:2])
    return torch.cat([before[..., None], walks.expand(len(before), -1, -1)], -1)
