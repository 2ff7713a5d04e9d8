"""RNNG: sentences written by building binary trees on a stack.

    p(x, z) = prod over actions a of P(a | stack), and P(x_t | stack) at every SHIFT

Symbols: u, E, w -> ``generative.py``; s_ij, log Z -> ``crf.py`` and ``chart.py``; z is
written as REDUCEs before each word (``trees.py``), which makes it a latent a word.
Two families of proposals: the CRF reads a whole sentence and draws whole trees; the
left-to-right ones (``left_to_right.py``) draw the REDUCEs before each word.
Departures: the CRF has word embeddings of its own; newly trained models exclude an end
before one tree stands and charge nothing after it (``only_possible``), so that p is
normalised.
Source: Kim et al. (2019), "Unsupervised Recurrent Neural Network Grammars".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lm_latent_eval.latent import Mass
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.models.proposals import Strengths, check_temperature, chosen
from lm_latent_eval.models.recurrent import initialise
from lm_latent_eval.models.rnng.configuration import RNNGConfig
from lm_latent_eval.models.rnng.crf import CRFProposal, SpanScores
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.left_to_right import WordByWord, next_word
from lm_latent_eval.models.rnng.sentences import ended, known_words
from lm_latent_eval.models.rnng.sequences import follow_moves, score_moves
from lm_latent_eval.models.rnng.stacks import StackState
from lm_latent_eval.models.rnng.trees import Trees, moves
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.sentences import sentence_starts
from lm_latent_eval.text.words import PADDING, START, UNKNOWN


@dataclass(frozen=True)
class Encoded:
    """Pieces of sentences and the stacks that they begin on."""

    batch: TokenBatch
    words: Tensor
    """Targets that the model can utter, (B, T)."""
    ended: Tensor
    """Which texts have their end word, (B,)."""
    state: StackState
    """Of B texts with 1 or K histories."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return int(self.batch.length.max())


class RNNG(Pretrained):
    """A recurrent neural network grammar with its CRF proposal.

    Implements ``LatentLM``, ``LeftToRight``, ``NextToken`` and ``SentenceModel`` for p;
    ``proposal`` gives a matching q. Of a text with its end word p(x) is the probability
    of the sentence, of one without that of all sentences that begin so; unless the
    model has no sentence ends, when whole trees over the text are the sentence.
    """

    config_class = RNNGConfig
    base_model_prefix = "rnng"
    main_input_name = "inputs"
    estimators = ("auto", "mixed", "is", "beam", "smc", "ais")
    """What estimates its likelihoods, the default first."""
    config: RNNGConfig

    def __init__(self, config: RNNGConfig) -> None:
        """Build p and q."""
        super().__init__(config)
        self.generative = GenerativeModel(config)
        self.spans = SpanScores(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        initialise(module)
        if isinstance(module, GenerativeModel):
            nn.init.zeros_(module.bias)

    @property
    def mass(self) -> Mass:
        """What its probabilities of all sentences total."""
        if not self.config.sentence_ends:
            return Mass.BY_LENGTH
        excluded = {PADDING, START} <= {*self.config.never_uttered}
        return Mass.ONE if self.config.only_possible and excluded else Mass.LESS

    def sentence_starts(self, text: str) -> list[int]:
        """Return where each sentence of a document begins, in characters."""
        return sentence_starts(text, self.config.language)

    def encode(self, batch: TokenBatch, after: StackState | None = None) -> Encoded:
        """Note where the texts begin.

        Raises:
            ValueError: If words follow the end of a sentence.
        """
        if after is None:
            empty = torch.zeros_like(batch.length)[:, None]
            after = StackState(self.generative.begin(), empty)
        words = known_words(self.config, batch.targets)
        return Encoded(batch, words, ended(self.config, batch), after)

    def log_joint(self, encoded: Encoded, trees: Trees) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64.

        Identical trees are scored once, and so are actions that several share.
        """
        row, sequence = self._moves(encoded, trees)
        log_p = score_moves(
            self.generative,
            encoded.state.stacks,
            row.flatten(),
            sequence.flatten(0, 1),
        )
        batch = encoded.batch
        unknown = batch.inside & (encoded.words == UNKNOWN)
        cost = batch.unknown_log_prob.masked_fill(~unknown, 0.0).sum(-1)
        return log_p.view_as(row) + cost[:, None]

    def advance(self, encoded: Encoded, trees: Trees) -> StackState:
        """Return the stacks after the encoded piece."""
        row, sequence = self._moves(encoded, trees)
        stacks, last = follow_moves(
            self.generative,
            encoded.state.stacks,
            row.flatten(),
            sequence.flatten(0, 1),
        )
        return StackState(stacks, last.view_as(row))

    def next_token(self, encoded: Encoded, log_w: Tensor) -> Tensor:
        """Predict the first token of an encoded piece, (B, num_words) nats.

        Every number of REDUCEs before it is summed over.
        """
        first = next_word(self.generative, encoded.state, log_w)
        rest = self.config.num_words - self.config.vocab_size
        return F.pad(first, (0, rest), value=-torch.inf)

    @property
    def proposal_names(self) -> list[str]:
        """What ``proposal`` can return, the best first.

        Without sentence ends p is over whole trees, which only the CRF draws.
        """
        if self.config.sentence_ends:
            return ["adapted", "crf", "prior"]
        return ["crf", "adapted", "prior"]

    def proposal(
        self,
        name: str | None = None,
        temperature: float = 1.0,
        strengths: Strengths | None = None,
    ) -> CRFProposal | WordByWord:
        """Return a proposal.

        Args:
            name: ``adapted`` and ``prior`` go from left to right and read the next
                word, or nothing but whether the sentence ends; ``crf`` reads whole
                sentences. None is the first of ``proposal_names``.
            temperature: Divides the proposal's scores.
            strengths: Other ones than its own.

        Raises:
            ValueError: If there is no such proposal or the temperature is not positive.
        """
        check_temperature(temperature)
        name = chosen(name, self.proposal_names)
        strengths = self.strengths(name) if strengths is None else strengths
        if name == "crf":
            return CRFProposal(self, temperature, strengths)
        return WordByWord(self, name, temperature, strengths)

    def untuned(self, name: str) -> Strengths:
        """Return the strengths of a proposal as it was trained."""
        return {"scores": 1.0} | ({"look_ahead": 1.0} if name == "adapted" else {})

    def _moves(self, encoded: Encoded, trees: Trees) -> tuple[Tensor, Tensor]:
        """Return where each latent begins, (B, K), and its moves, (B, K, A)."""
        if self.config.sentence_ends and not self.config.only_possible:
            # The original combines the tree with the end word, and charges for it.
            last = encoded.ended[:, None].long()
            trees = trees._replace(after=trees.after + last)
        sequence = moves(trees, encoded.words, encoded.batch.length)
        return encoded.state.row.expand(sequence.shape[:2]), sequence
