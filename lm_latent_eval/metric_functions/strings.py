"""Functions of strings out of models: a causal LM, a latent LM of ours, a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

from transformers import (
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.networks.causal import CausalReader, Tokens, TokenScores
from lm_latent_eval.networks.network import (
    is_latent,
    load_causal,
    positions_of,
    start_token,
)
from lm_latent_eval.scoring.log_likelihoods import LogLikelihoods
from lm_latent_eval.scoring.model import LatentModel, load
from lm_latent_eval.text.words import encodable

ScoreFunction: TypeAlias = Callable[[list[str]], Sequence[float | Estimate]]
"""Strings -> a log-score of each, nats, or an estimate that knows its error."""
StringScorer: TypeAlias = Callable[[Sequence[str]], LogLikelihoods]
Scorable: TypeAlias = "ScoreFunction | LatentModel | PreTrainedModel | str | Path"


def string_scorer(
    scorer: Scorable,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    **settings: Any,
) -> StringScorer:
    """Make a scorer of strings out of any model.

    Args:
        scorer: A function of strings; a causal LM of ``transformers``, or its
            directory or name on the hub; a latent LM of ours, or its directory.
        tokenizer: Of a causal LM; by default the one saved beside it.
        **settings: For a latent LM, as :meth:`LatentModel.log_likelihood` takes them;
            for a causal LM ``batch_size``.

    Raises:
        TypeError: If it is none of these, or a setting is not one of its own.
        ValueError: If there is no model at that path.
    """
    if isinstance(scorer, str | Path):
        scorer = load(scorer) if is_latent(scorer) else load_causal(scorer)
    if isinstance(scorer, LatentModel):
        return partial(_scored, partial(scorer.log_likelihood, **settings))
    if isinstance(scorer, PreTrainedModel):  # callable too, but not on strings
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(
            scorer.name_or_path, trust_remote_code=False
        )
        return CausalLMScorer(scorer, tokenizer, **settings)
    if settings:
        raise TypeError(f"a function takes no settings; got {', '.join(settings)}")
    if not callable(scorer):
        raise TypeError(
            "scorer must be a function from texts to log-scores, a causal LM of "
            f"transformers, a latent LM, or the path of either; got {scorer!r}"
        )
    return partial(_scored, scorer)


def _scored(function: ScoreFunction, sequences: Sequence[str]) -> LogLikelihoods:
    """Call a function once, with all strings.

    Raises:
        ValueError: If it does not return one score a string.
    """
    scores: Sequence[Any] = function([*sequences])
    if len(scores) != len(sequences):
        raise ValueError(
            f"the scorer gave {len(scores)} scores of {len(sequences)} texts"
        )
    if None in scores:
        text = sequences[[*scores].index(None)]
        raise ValueError(f"the scorer gave None for {text[:60]!r}")
    return LogLikelihoods.of(scores)


@dataclass(frozen=True)
class CausalLMScorer:
    """Scores texts by a causal LM of ``transformers``.

    log p(text | start), where the start is the tokenizer's BOS token or else its EOS
    token, as in lm-eval's rolling log-likelihood; no end is charged.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    batch_size: int = 16

    def __call__(self, sequences: Sequence[str], /) -> LogLikelihoods:
        """Return the log-likelihood of each string, exactly.

        Raises:
            ValueError: As of ``score_tokens``.
        """
        return LogLikelihoods.of([each.total for each in self.score_tokens(sequences)])

    def score_tokens(self, sequences: Sequence[str]) -> list[TokenScores]:
        """Return the log-likelihood of each token of strings.

        Raises:
            ValueError: If dropout is on, the tokenizer has no start, a text is longer
                than the model's window, or it does not fit into memory.
        """
        if self.model.training:
            raise ValueError("the model is in training mode: call its eval() first")
        start = start_token(self.tokenizer)
        if start is None:
            raise ValueError(
                "the tokenizer has neither a BOS nor an EOS token to start by"
            )
        ids = [self._encode(text) for text in sequences]
        window = positions_of(self.model)
        for index, each in enumerate(ids):
            if window is not None and len(each) >= window:
                raise ValueError(
                    f"texts[{index}] has {len(each)} tokens and a start; the "
                    f"model's window is {window}"
                )

        def refusal(tokens: Tokens) -> ValueError:
            return ValueError(
                f"texts[{ids.index(tokens[1:])}] has {len(tokens)} tokens, which do "
                f"not fit into the memory of {self.model.device}: take another device"
            )

        wanted = [((start,), each) for each in ids if each]
        scores = iter(self._reader.score(wanted, self.batch_size, refusal))
        return [next(scores) if each else TokenScores((), ()) for each in ids]

    @cached_property
    def _reader(self) -> CausalReader:
        return CausalReader(self.model, type(self.model).__name__, wide=False)

    def _encode(self, text: str) -> Tokens:
        return tuple(self.tokenizer.encode(encodable(text), add_special_tokens=False))
