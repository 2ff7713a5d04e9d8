r"""Latent language models as learners, whose log p is estimated.

A latent model scores words, so it can learn a language whose tokens are words: each of
them one word of the checkpoint. Then sequences and texts are one to one, and p(text) is
a probability of the sequence.

An estimate is

.. math:: \log\hat p(x) = \log \frac{1}{K} \sum_{k=1}^{K} w_k,
          \qquad E[\log\hat p(x)] \le \log p_M(x)

so that an error :math:`\log\hat p - \log p_L` is the model's own plus one of the
estimator: noise of the standard error s that comes with each estimate, and a bias of
about :math:`-s^2 / 2`, always towards underestimation. A sequence is scored as one text
with its end, which is charged once; it is never cut into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.latent import Normalization, SentenceModel
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.options import ScoringOptions
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.sequence_scorer import LogLikelihoods
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import END, SPECIAL_WORDS, WordTokenizer

_MOST_NAMED = 10


def words_of(corpus: Corpus) -> dict[int, str]:
    """Return the word of each token that sequences are made of.

    Raises:
        ValueError: If the tokens are not words.
    """
    tokenizer = corpus.tokenizer()
    if not (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and isinstance(tokenizer.backend_tokenizer.model, WordLevel)
    ):
        raise ValueError(
            f"{corpus.directory}: its tokens are not words, and a model of words gives "
            "sequences of other tokens no probability; draw a corpus from a grammar"
        )
    return {
        token: str(tokenizer.convert_ids_to_tokens(token))
        for token in corpus.alphabet()
    }


def check_whole(corpus: Corpus) -> None:
    """Raise if a sequence was cut at the maximum length.

    Raises:
        ValueError: If there is such a one.
    """
    cut = sum(batch["ended"].false_count for batch in corpus.record_batches())
    if cut:
        raise ValueError(
            f"{cut} of {corpus.num_sequences} sequences of {corpus.directory} have no "
            f"end: they were cut at {corpus.max_length} tokens, and a model of whole "
            "texts has no probability for a beginning. Draw the corpus with a larger "
            "--max-length"
        )


def ids_in(tokenizer: WordTokenizer, words: Mapping[int, str]) -> dict[int, int]:
    """Return what a checkpoint calls the words of a language, by their tokens.

    Raises:
        ValueError: If the checkpoint lacks a word, or cuts it into several.
    """
    found, others = {}, []
    for token, word in words.items():
        ids = tokenizer(word).ids
        if word in SPECIAL_WORDS or len(ids) != 1 or tokenizer.is_unknown(ids[0]):
            others.append(word)
        else:
            found[token] = ids[0]
    if others:
        raise ValueError(
            f"{len(others)} of {len(words)} words of the language are no known word of "
            f"the checkpoint's: {_named(others)}. Train it on text of the "
            "language, with --min-count 1"
        )
    return found


def _named(words: Sequence[str]) -> str:
    more = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class LatentLearner:
    """Scores sequences of a language of words with a latent model.

    The random numbers of a sequence follow from the seed and its number; neither batch
    size nor order changes an estimate.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        words: Mapping[int, str],
        end_id: int,
        options: ScoringOptions | None = None,
        *,
        batch_size: int | str | None = None,
    ) -> None:
        """Match the words of the language, by their tokens, with those of the model.

        Unknown words are errors, so ``unk`` is closed. As many texts are scored
        together as memory allows, where no ``batch_size`` is given.

        Raises:
            ValueError: If the model lacks a word of the language or is no distribution
                over texts, or for options that do not apply.
        """
        options = options or ScoringOptions()
        if options.target_stderr is not None:
            raise ValueError(
                "target_stderr: sequences of a corpus are compared at one number of "
                "samples: give num_samples"
            )
        if options.unk not in (None, UnknownWords.CLOSED):
            raise ValueError(
                f"unk={options.unk!r}: a learner knows every word of its language, and "
                "its vocabulary is closed"
            )
        mass = checkpoint.model.normalization
        if mass in (Normalization.UNNORMALISED, Normalization.BY_LENGTH):
            raise ValueError(
                f"the model is no distribution over texts ({mass}): nothing can be "
                "said of its errors against a language's probabilities"
            )
        self._ids = ids_in(checkpoint.tokenizer, words) | {end_id: END}
        self._words, self._end_id = dict(words), end_id
        self._checkpoint = checkpoint
        options = replace(options, unk=str(UnknownWords.CLOSED))
        self._scorer = Scorer(checkpoint, options, batch_size=batch_size, quiet=True)

    @property
    def bound(self) -> Bound:
        """On which side of log p_M its numbers are."""
        return estimator_class(str(self._scorer.options.estimator)).bound

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        indices: Sequence[int] | None = None,
        /,
    ) -> LogLikelihoods:
        """Estimate log p of whole sequences.

        Args:
            sequences: Token ids of the language, each with its end.
            indices: Their numbers, which random numbers follow from.

        Returns:
            Nats and their errors as the draws tell them (``inf`` at K = 1; 0 for a
            beam, whose distance from log p is unknown). A sequence without words is
            impossible for a model of sentences.

        Raises:
            ValueError: If a sequence has no end or an id without a word, or the
                proposal misses the model's support.
        """
        indices = range(len(sequences)) if indices is None else indices
        texts = [
            self._text(place, index, ids)
            for place, (index, ids) in enumerate(zip(indices, sequences, strict=True))
        ]
        if isinstance(self._scorer.model, SentenceModel):
            texts = [text for text in texts if text.words != [END]]
        log_p = torch.full((len(sequences),), -torch.inf, dtype=torch.float64)
        stderr = torch.zeros_like(log_p)
        missed = Missed([text.query for text in texts])
        for _, answer in self._scorer.whole_texts.parts(texts, missed):
            log_p[answer.index] = answer.estimate.log_evidence
            stderr[answer.index] = answer.estimate.draws_stderr
        missed.tell()
        return LogLikelihoods(log_p, stderr)

    def settings(self) -> dict[str, Any]:
        """Return what its numbers depend on, for a JSON file."""
        model, options = self._checkpoint.model, self._scorer.options
        return {
            "kind": "latent",
            "model": self._checkpoint.name,
            "digest": self._checkpoint.digest,
            "mass": str(model.normalization),
            "dtype": str(model.dtype).removeprefix("torch."),
            "estimator": options.estimator,
            "num_samples": options.num_samples,
            "proposal": options.proposal,
            "temperature": options.temperature,
            "seed": options.seed,
        }

    def _text(self, place: int, index: int, ids: Sequence[int]) -> Text:
        if [*ids].count(self._end_id) != 1 or ids[-1] != self._end_id:
            raise ValueError(
                f"sequence {index} is {[*ids]}: expected one end, at its end"
            )
        if wrong := [token for token in ids if token not in self._ids]:
            raise ValueError(
                f"sequence {index} has the token id {wrong[0]}, which is no word of "
                "the language: is it of another corpus?"
            )
        string = " ".join(self._words[token] for token in ids[:-1])
        return Text(
            Query(place, f"text/{index}", string),
            sentence=0,
            context=[],
            context_costs=[],
            words=[self._ids[token] for token in ids],
            word_costs=[0.0] * len(ids),
            log_spacing=0.0,
            unspelled=0,
            respaced=0,
        )
