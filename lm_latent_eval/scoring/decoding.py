"""Decoding of continuations: greedy or sampled, until a stop string."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.arguments import at_least_0, whole
from lm_latent_eval.estimators.choices import first_of_best
from lm_latent_eval.estimators.estimate import MissedSupportError
from lm_latent_eval.text.encoder import Encoder

logger = logging.getLogger(__name__)

MOST_TOKENS = 256


@dataclass(frozen=True)
class GenerationOptions:
    """The harness's ``generation_kwargs``."""

    until: tuple[str, ...]
    max_tokens: int
    temperature: float
    """0 is greedy decoding."""

    def __post_init__(self) -> None:
        if not all(self.until):
            raise ValueError(
                f"until={self.until!r}: expected strings to stop before, none empty"
            )

    @classmethod
    def parse(cls, kwargs: Any) -> GenerationOptions:
        """Read them.

        Raises:
            ValueError: If they are no dictionary, or a value is out of its range.
        """
        if not isinstance(kwargs, dict):
            raise ValueError(
                f"generation arguments {kwargs!r}: expected a dictionary such as "
                '{"until": ["."], "max_gen_toks": 32}'
            )
        known = {"until", "max_gen_toks", "max_new_tokens", "do_sample", "temperature"}
        if ignored := sorted(kwargs.keys() - known):
            logger.warning(
                "generation arguments without effect: %s", ", ".join(ignored)
            )
        until = kwargs.get("until") or []
        until = [until] if isinstance(until, str) else until
        if not (
            isinstance(until, list | tuple) and all(isinstance(s, str) for s in until)
        ):
            raise ValueError(f"until={until!r}: expected a string or a list of strings")
        name = "max_gen_toks" if "max_gen_toks" in kwargs else "max_new_tokens"
        most = whole(name, kwargs.get(name, MOST_TOKENS), 1)
        sampling = kwargs.get("do_sample")
        temperature = at_least_0(
            "temperature", kwargs.get("temperature", 1.0 if sampling else 0.0)
        )
        if sampling is not None and not sampling:
            temperature = 0.0
        return cls(tuple(stop for stop in until if stop), most, temperature)


@dataclass
class Utterance:
    """A continuation that is being written."""

    context: list[int]
    options: GenerationOptions
    encoder: Encoder
    words: list[int] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self._begin = len(self.encoder.decode(self.context))

    @property
    def ids(self) -> list[int]:
        """Context and continuation."""
        return self.context + self.words

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be written."""
        return self.ended or len(self.words) >= self.options.max_tokens

    def extend(self, log_p: Tensor, u: float) -> None:
        """Add a word.

        Args:
            log_p: Log-probabilities of the words, (number of words,).
            u: A random number in (0, 1).

        Raises:
            MissedSupportError: If no latent of the text so far has a positive weight.
        """
        if self.finished:
            return
        if not bool((log_p > -torch.inf).any()):
            raise MissedSupportError(
                "the proposal misses the model's support: no latent found of the text "
                "so far has a positive weight, so no next word can be predicted. Draw "
                "more samples, or use a proposal that covers the model's latents"
            )
        log_p = log_p.cpu().double().clone()
        if self.encoder.unknown is not None:
            log_p[self.encoder.unknown] = -torch.inf  # it has no spelling to write
        if self.options.temperature == 0:
            word = int(first_of_best(log_p))
        else:
            mass = (log_p / self.options.temperature).softmax(-1).cumsum(-1)
            threshold = torch.tensor(u, dtype=mass.dtype, device=mass.device)
            word = int(torch.searchsorted(mass / mass[-1], threshold, right=True))
        if word == self.encoder.end:
            self.ended = True
            return
        self.words.append(word)
        if self.options.until:  # without, it is written once, at its end
            text = self._written()
            self.ended = any(stop in text for stop in self.options.until)

    def text(self) -> str:
        """Return the continuation up to the first stop string."""
        text = self._written()
        cuts = [text.find(stop) for stop in self.options.until]
        return text[: min((cut for cut in cuts if cut >= 0), default=len(text))]

    def _written(self) -> str:
        return self.encoder.decode(self.ids)[self._begin :]
