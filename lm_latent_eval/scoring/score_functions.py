"""Log-scores of texts from whatever can give them.

A scorer is a function from texts to log-scores in nats, normalised or not; a Hugging
Face causal LM; or one of our latent LMs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.devices import widened
from lm_latent_eval.estimators import Estimate
from lm_latent_eval.memory import Room
from lm_latent_eval.messages import one_line
from lm_latent_eval.models import name_of
from lm_latent_eval.scoring.model import LatentModel, load

ScoreFunction: TypeAlias = Callable[[list[str]], Sequence[float | Estimate]]
"""Texts -> a log-score of each, nats, or an estimate that knows its error."""


def score_function(
    scorer: ScoreFunction | LatentModel | PreTrainedModel | str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **settings: Any,
) -> ScoreFunction:
    """Make a function that scores texts out of any model.

    Args:
        scorer: Such a function; a causal LM of ``transformers``, or its directory or
            name on the hub; a latent LM of ours, or its directory.
        tokenizer: Of a causal LM; by default the one saved beside it.
        **settings: For a latent LM, as :meth:`LatentModel.log_likelihood` takes them;
            for a causal LM ``batch_size``.

    Raises:
        TypeError: If it is none of these, or a setting is not one of its own.
        ValueError: If there is no model at that path.
    """
    if isinstance(scorer, str | Path):
        if is_latent(scorer):
            scorer = load(scorer)
        else:
            try:
                tokenizer = tokenizer or AutoTokenizer.from_pretrained(
                    scorer, trust_remote_code=False
                )
                scorer = AutoModelForCausalLM.from_pretrained(
                    scorer, trust_remote_code=False
                )
            except StrictDataclassError as err:
                raise ValueError(
                    f"{scorer} holds no causal LM ({one_line(err)})"
                ) from err
    if isinstance(scorer, LatentModel):
        latent = scorer
        return lambda texts: latent.log_likelihood(texts, **settings)
    if isinstance(scorer, PreTrainedModel):  # callable too, but not on strings
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(
            scorer.name_or_path, trust_remote_code=False
        )
        return CausalLMScorer(scorer, tokenizer, **settings)
    if not callable(scorer):
        raise TypeError(
            "scorer must be a function from texts to log-scores, a causal LM of "
            f"transformers, a latent LM, or the path of either; got {scorer!r}"
        )
    if settings:
        raise TypeError(f"a function takes no settings; got {', '.join(settings)}")
    return scorer


@dataclass(frozen=True)
class CausalLMScorer:
    """Scores texts by a causal LM of ``transformers``.

    log p(text | start), where the start is the tokenizer's BOS token or else its EOS
    token, as in lm-eval's rolling log-likelihood; no end is charged.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    batch_size: int = 16
    room: Room = field(default_factory=Room, init=False, repr=False, compare=False)

    def __call__(self, texts: list[str]) -> list[float]:
        """Return the log-likelihood of each text, nats.

        Raises:
            ValueError: If dropout is on, the tokenizer has no start, a text is longer
                than the model's window, or it does not fit into memory.
        """
        if self.model.training:
            raise ValueError("the model is in training mode: call its eval() first")
        ids = [[self._start, *self._encode(text)] for text in texts]
        window = getattr(self.model.config, "max_position_embeddings", None)
        for index, each in enumerate(ids):
            if window is not None and len(each) > window:
                raise ValueError(
                    f"texts[{index}] has {len(each) - 1} tokens and a start; the "
                    f"model's window is {window}"
                )
        return list(self._log_likelihoods(ids))

    def _log_likelihoods(self, ids: list[list[int]]) -> Iterator[float]:
        def size(place: int) -> int:
            return len(ids[place])

        def refusal(place: int) -> ValueError:
            return ValueError(
                f"texts[{place}] has {size(place)} tokens, which do not fit into the "
                f"memory of {self.model.device}: take another device"
            )

        def work(places: Sequence[int]) -> list[float]:
            return self._log_likelihood([ids[place] for place in places])

        places = range(len(ids))
        for _, found in self.room.in_batches(
            places, self.batch_size, work, size, refusal
        ):
            yield from found

    @property
    def _start(self) -> int:
        for index in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if isinstance(index, int):
                return index
        raise ValueError("the tokenizer has neither a BOS nor an EOS token to start by")

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @torch.inference_mode()
    def _log_likelihood(self, ids: list[list[int]]) -> list[float]:
        """Score a batch, padded on the right, where a causal model does not look."""
        longest = max(map(len, ids))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        lengths = torch.tensor([len(row) for row in ids])
        inside = torch.arange(longest) < lengths[:, None]
        device = self.model.device
        logits = self.model(
            input_ids=padded.to(device), attention_mask=inside.long().to(device)
        ).logits
        target = padded.masked_fill(~inside, -100)[:, 1:].to(device)
        nats = cross_entropy(
            logits[:, :-1].mT.float(), target, ignore_index=-100, reduction="none"
        )
        found: list[float] = (-widened(nats).sum(-1)).tolist()
        return found


def is_latent(path: str | Path) -> bool:
    """Whether one of our models is there, rather than one of transformers' own."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(str(path))
    except OSError as err:
        raise ValueError(
            f"{path}: no such directory, and not a repository that the hub serves now"
        ) from err
    except RecursionError as err:
        raise ValueError(f"{path} holds no model: it is nested too deeply") from err
    except TypeError as err:  # of older transformers, where JSON is no object
        raise ValueError(f"{path} holds no model: it is no configuration") from err
    if "model_type" not in config:
        raise ValueError(f"{path} holds no model: its config.json is missing")
    return name_of(config.get("model_type")) is not None
