"""RNNG with its proposals; ``joint.py`` has p(x, z)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lm_latent_eval.latent import Description, Uniforms
from lm_latent_eval.models.proposals import check_temperature, chosen
from lm_latent_eval.models.rnng.choices import log_marginal, next_word
from lm_latent_eval.models.rnng.crf import CRFProposal, num_trees
from lm_latent_eval.models.rnng.finished import FinishedTrees
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.models.rnng.left_to_right import WordByWord
from lm_latent_eval.models.rnng.networks import RNNGConfig
from lm_latent_eval.models.rnng.trees import Trees, described
from lm_latent_eval.text.counts import sentence_starts


class RNNG(RNNGJoint):
    """A recurrent neural network grammar with its CRF proposal.

    p(x) of a text with an end word is the probability of the sentence. Without an end
    word it is the probability of all sentences that begin so, or, in a model without
    sentence ends, of all trees over the text.
    """

    config_class = RNNGConfig
    base_model_prefix = "rnng"
    main_input_name = "inputs"
    estimators: Sequence[str] = ("auto", "dpf", "is", "beam", "smc")
    """Supported estimators, the default first."""

    def __init__(self, config: RNNGConfig) -> None:
        super().__init__(config)
        if not config.sentence_ends:  # filters stop at words, where trees are several
            self.estimators = tuple(name for name in self.estimators if name != "smc")
        self.post_init()  # type: ignore[no-untyped-call]

    def sentence_starts(self, text: str) -> list[int]:
        return sentence_starts(text, self.config.language)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats.

        The REDUCEs before it are summed over.
        """
        first = next_word(
            self.generative, self.choices(encoded), encoded.state.row, log_w
        )
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def describe(
        self, words: Sequence[str], trees: Trees, decode: Callable[[Sequence[int]], str]
    ) -> Description:
        return described(words, trees)

    exact_proposal = "exactly adapted"

    def num_latents(self, num_words: int) -> int:
        return num_trees(num_words)

    def log_marginal(self, words: Tensor) -> Tensor:
        """Sum over all trees of texts of one length; see ``LatentLM``.

        The model must be normalised (``only_possible``).
        """
        return log_marginal(self.generative, words)

    proposal_names = ("adapted", "crf", "prior")
    """Names of proposals, the best first."""

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> CRFProposal | WordByWord | FinishedTrees:
        """Build a proposal.

        Args:
            name: ``adapted`` goes from left to right and reads the next word; ``prior``
                reads only whether the sentence ends; ``crf`` reads whole sentences.
                None is the first of ``proposal_names``. ``exact_proposal`` is
                ``adapted`` with all choices listed.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If the name is unknown or the temperature is not positive.
        """
        check_temperature(temperature)
        if name == self.exact_proposal:
            return WordByWord(self, "adapted", temperature, exact=True)
        name = chosen(name, self.proposal_names)
        if name == "crf":
            return CRFProposal(self, temperature)
        by_word = WordByWord(self, name, temperature)
        return by_word if self.config.sentence_ends else FinishedTrees(name, by_word)
