r"""A causal language model that thinks before it answers; its thoughts are latents.

.. math:: p(a \mid x) = \sum_z p(z \mid x)\, p(a \mid x, z)

Symbols: x -> a question with ``think_start`` after it; z -> a thought, the tokens up
to and with ``think_end``; a -> the tokens of an answer, as the tokenizer cuts it. A
thought that is not closed after ``max_think_tokens`` tokens, or ends as a text does,
answers nothing, so that p(. | x) is a sub-probability (``close=natural``); with
``close=forced`` ``think_end`` is put after it, and p is another model.
Source: Wei et al. (2022) for thoughts; Phan et al. (2023), section 2, for answers as
marginals over them; Zelikman et al. (2022), section 3.2, for prompts that show an
answer; the mixture and its weights: Owen and Zhou (2000), defensive sampling.
"""

from __future__ import annotations

from transformers import AutoModelForCausalLM

from lm_latent_eval.networks.causal import check_causal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.networks.served import ServedNetwork
from lm_latent_eval.wrappers.base import NetworkModel
from lm_latent_eval.wrappers.cot.drawing import FIRST
from lm_latent_eval.wrappers.cot.marks import Marks
from lm_latent_eval.wrappers.cot.options import ThoughtOptions
from lm_latent_eval.wrappers.cot.scorer import ThoughtScorer

ROWS = 128
"""Sequences read at once where nobody says how many."""


class ThinkingLM(NetworkModel[ThoughtOptions, ThoughtScorer]):
    """A ``TextModel`` whose latents are thoughts."""

    auto_class = AutoModelForCausalLM
    table = ThoughtOptions

    def __init__(self, network: Network | ServedNetwork) -> None:
        """Take a network.

        Raises:
            ValueError: If it is no causal language model.
        """
        self.network = network
        if isinstance(network, Network):
            check_causal(network.model)

    def _scorer(
        self,
        options: ThoughtOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> ThoughtScorer:
        """Return the scorer.

        ``batch_size`` is of questions whose thoughts are drawn at once, and ``most`` of
        sequences that the network reads at once.
        """
        if isinstance(self.network, ServedNetwork) and options.model_temperature != 1:
            raise ValueError(
                f"model_temperature={options.model_temperature:g}: a server returns "
                "log-probabilities of temperature 1 alone. Leave base_url out, or the "
                "temperature"
            )
        rows = most or ROWS
        first = FIRST if options.until == "decided" else options.num_samples
        questions = batch_size or max(rows // first, 1)
        marks = Marks.of(self.network, options)
        return ThoughtScorer(self.network, options, marks, questions, rows, quiet)
