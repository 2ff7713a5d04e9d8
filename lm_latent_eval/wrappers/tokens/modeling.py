"""``TextModel`` of any causal LM, as a distribution over strings."""

from __future__ import annotations

from transformers import AutoModelForCausalLM

from lm_latent_eval.networks.causal import check_causal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.base import NetworkModel
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.scorer import TokensScorer
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary


class SegmentedLM(NetworkModel[TokensOptions, TokensScorer]):
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

    def _scorer(
        self,
        options: TokensOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> TokensScorer:
        return TokensScorer(
            self.network, self.vocabulary, options, batch_size, most, quiet
        )
