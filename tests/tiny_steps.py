"""A tiny model of another package, right or wrong in one way: two states a word."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm_latent_eval.inference.interface import Texts
from lm_latent_eval.models.pretrained import WordsConfig, value
from lm_latent_eval.models.stepwise import Step, StepLM
from lm_latent_eval.testing.case import keys
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.values import Whole

NUM_STATES, VOCABULARY = 3, 6


class TinyConfig(WordsConfig):
    """Nothing to choose."""

    model_type = "tiny_steps"
    vocab_size: int = value(VOCABULARY, Whole(VOCABULARY))


class TinyHMM(StepLM):
    """A hidden Markov model; ``ahead`` is what it expects, which may be nonsense."""

    config_class = TinyConfig
    base_model_prefix = "tiny"
    main_input_name = "inputs"

    def __init__(self, config: TinyConfig, ahead: Tensor | None = None) -> None:
        """Make lopsided scores."""
        super().__init__(config)
        generator = torch.Generator().manual_seed(3)
        size = NUM_STATES + 1, NUM_STATES
        self.transitions = nn.Parameter(torch.randn(size, generator=generator))
        size = NUM_STATES, VOCABULARY
        self.emissions = nn.Parameter(1.5 * torch.randn(size, generator=generator))
        self.ahead = ahead
        self.post_init()

    def read(self, batch: TokenBatch, recurrent: tuple[Tensor, ...]) -> Tensor:
        """Look up the words, (B, T, S)."""
        return self.emissions.log_softmax(-1).T[batch.targets]

    def begin(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the place before all text."""
        return (torch.full_like(batch.length[:, None], NUM_STATES),)

    def step(self, read: Tensor, state: tuple[Tensor, ...], t: int) -> Step:
        """Score the states of token t."""
        (last,) = state
        ahead = None if self.ahead is None else self.ahead[last]
        return Step(self.transitions.log_softmax(-1)[last], read[:, None, t], ahead)

    def take(
        self, read: Tensor, state: tuple[Tensor, ...], choice: Tensor, t: int
    ) -> tuple[Tensor, ...]:
        """Return the state of token t."""
        return (choice,)

    def log_words(self, read: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """Return log p of every next word."""
        (last,) = state
        log_z = self.transitions.log_softmax(-1)[last]
        return (log_z[..., None] + self.emissions.log_softmax(-1)).logsumexp(-2)


def tiny(ahead: Tensor | None = None, kind: type[TinyHMM] = TinyHMM) -> TinyHMM:
    """Return one in float64."""
    return kind(TinyConfig(), ahead).double().eval().requires_grad_(False)


def scored(
    model: TinyHMM, texts: list[list[int]], proposal: str | None = None
) -> Texts:
    """Return texts as estimators take them."""
    batch = TokenBatch.collate(texts, first=2)
    return Texts(model, model.proposal(proposal), batch, keys(len(texts)))


def log_p(model: TinyHMM, text: list[int]) -> float:
    """Return log p of a text by a matrix a word, nats: the forward algorithm."""
    transitions, emissions = model.transitions.softmax(-1), model.emissions.softmax(-1)
    reached, total = transitions[-1], 0.0
    for place, word in enumerate(text):
        if place:
            reached = reached @ transitions[:-1]
        reached = reached * emissions[:, word]
        total += float(reached.sum().log())
        reached = reached / reached.sum()  # long texts would underflow
    return total
