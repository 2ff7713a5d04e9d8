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

    Of a text with its end word p(x) is the probability of the sentence, of one without
    that of all sentences that begin so; unless the model has no sentence ends, when
    whole trees over the text are the sentence.
    """

    config_class = RNNGConfig
    base_model_prefix = "rnng"
    main_input_name = "inputs"
    estimators: Sequence[str] = ("auto", "mixed", "dpf", "is", "beam", "smc")
    """What estimates its likelihoods, the default first."""

    def __init__(self, config: RNNGConfig) -> None:
        super().__init__(config)
        if not config.sentence_ends:  # filters stop at words, where trees are several
            self.estimators = tuple(name for name in self.estimators if name != "smc")
        self.post_init()  # type: ignore[no-untyped-call]

    def sentence_starts(self, text: str) -> list[int]:
        """Return where each sentence of a document begins, in characters."""
        return sentence_starts(text, self.config.language)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats.

        Every number of REDUCEs before it is summed over.
        """
        first = next_word(
            self.generative, self.choices(encoded), encoded.state.row, log_w
        )
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    def describe(
        self, words: Sequence[str], trees: Trees, decode: Callable[[Sequence[int]], str]
    ) -> Description:
        """Write a tree in brackets: see ``LatentLM``."""
        return described(words, trees)

    exact_proposal = "exactly adapted"

    def num_latents(self, num_words: int) -> int:
        """Count the binary trees over a number of words."""
        return num_trees(num_words)

    def log_marginal(self, words: Tensor) -> Tensor:
        """Sum over all trees of texts of one length; see ``LatentLM``.

        The model must be normalised (``only_possible``).
        """
        return log_marginal(self.generative, words)

    proposal_names = ("adapted", "crf", "prior")
    """What ``proposal`` can return, the best first."""

    def proposal(
        self, name: str | None = None, temperature: float = 1.0
    ) -> CRFProposal | WordByWord | FinishedTrees:
        """Return a proposal.

        Args:
            name: ``adapted`` and ``prior`` go from left to right and read the next
                word, or nothing but whether the sentence ends; ``crf`` reads whole
                sentences, and so do the others without sentence ends, when p is over
                whole trees. None is the first of ``proposal_names``. The
                ``exact_proposal`` is ``adapted`` where that spares no work.
            temperature: Divides the proposal's scores.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        if name == self.exact_proposal:
            return WordByWord(self, "adapted", temperature, exact=True)
        name = chosen(name, self.proposal_names)
        if name == "crf":
            return CRFProposal(self, temperature)
        by_word = WordByWord(self, name, temperature)
        return by_word if self.config.sentence_ends else FinishedTrees(name, by_word)
