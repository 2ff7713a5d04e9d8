"""The model: any causal LM of transformers, as one of strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoModelForCausalLM

from lm_latent_eval.networks.causal import check_causal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.base import NetworkModel
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.scorer import TokensScorer
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


class SegmentedLM(NetworkModel):
    """A causal LM that scores strings by all of their segmentations."""

    auto_class = AutoModelForCausalLM
    table = TokensOptions

    def __init__(self, network: Network) -> None:
        """Take a network.

        Raises:
            ValueError: If it is no causal LM, or its tokenizer a slow one.
        """
        self.network = network
        size = network.model.config.get_text_config().vocab_size
        self.vocabulary = ByteVocabulary.of(network.tokenizer, size)
        check_causal(network.model)

    def scorer(
        self,
        options: Mapping[str, Any],
        /,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        quiet: bool = False,
    ) -> TokensScorer:
        """Choose settings: see ``TextModel`` and ``TokensOptions``."""
        return TokensScorer(
            self.network,
            self.vocabulary,
            TokensOptions.parse(options),
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            quiet=quiet,
        )
