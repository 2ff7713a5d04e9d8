r"""Learners: models whose log-probabilities are compared with those of a language.

A causal LM has exact ones. Those of a latent model are estimates,

.. math:: \log\hat p(x) = \log \frac{1}{K} \sum_{k=1}^{K} w_k,
          \qquad E[\log\hat p(x)] \le \log p_M(x)

so that an error :math:`\log\hat p - \log p_L` is the model's own plus one of the
estimator: noise of the standard error s that comes with each estimate, and a bias of
about :math:`-s^2 / 2`, always towards underestimation.

A latent model scores words, so it can learn a language whose tokens are words: each of
them one word of the checkpoint. Then sequences and texts are one to one, and p(text) is
a probability of the sequence. A sequence is scored as one text with its end, which is
charged once; it is never cut into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lm_latent_eval.distortion.corpus import Corpus
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.estimators import Bound
from lm_latent_eval.inference import estimator_class
from lm_latent_eval.latent import Normalization, offers
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from lm_latent_eval.networks.network import check_positions, is_latent
from lm_latent_eval.scoring.answer import Missed
from lm_latent_eval.scoring.estimates import whole_texts
from lm_latent_eval.scoring.log_likelihoods import LogLikelihoods
from lm_latent_eval.scoring.options import ScoringOptions, parse_device
from lm_latent_eval.scoring.scorer import Scorer
from lm_latent_eval.scoring.texts import Query, Text
from lm_latent_eval.text.unknown_words import UnknownWords
from lm_latent_eval.text.words import END, SPECIAL_WORDS, WordTokenizer

_MOST_NAMED = 10
_OPTIONS = {"estimator", "num_samples", "proposal", "temperature", "seed"}


def load_learner(
    path: str | Path,
    corpus: Corpus,
    *,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> Learner:
    """Load a learner of the language of a corpus.

    Args:
        path: Directory or hub repository of a causal LM, or of one of our models.
        corpus: Sequences of the language: its tokens must be the model's.
        device: Device; None is a GPU if there is one.
        batch_size: Sequences computed together, which moves no number.
        options: For a latent model: ``estimator``, ``num_samples``, ``proposal``,
            ``temperature`` and ``seed``.

    Raises:
        ValueError: If there is no such model, its tokens are others, it has no such
            option, or a latent one cannot score such a corpus.
    """
    if is_latent(path):
        words = words_of(corpus)
        check_whole(corpus)
        checkpoint = load_checkpoint(path, device=parse_device(device))
        return LatentLearner(
            checkpoint, words, corpus.end_id, batch_size=batch_size, **options
        )
    if options:
        raise ValueError(
            f"{path} is a causal LM, whose log-probabilities are exact: it has no "
            f"{', '.join(sorted(options))}"
        )
    language = CausalLanguage.load(
        path,
        begin_id=corpus.begin_id,
        end_id=corpus.end_id,
        device=device,
        batch_size=batch_size or 64,
    )
    check_tokens(language, corpus)
    check_positions(language.model, str(path), corpus.max_length)
    return language


def check_tokens(model: CausalLanguage, corpus: Corpus) -> None:
    """Raise unless the token ids of a model stand for those of a corpus.

    Where the ids of a corpus have no strings, only their number compares.
    """
    size, owner = int(corpus.settings["vocab_size"]), str(corpus.directory)
    if model.vocab_size != size:
        raise ValueError(
            f"{model.name} has {model.vocab_size} token ids and {owner} has {size}: "
            "probabilities compare between models of one tokenizer only"
        )
    if (tokenizer := corpus.tokenizer()) is None:
        return
    if model.tokenizer is None:
        raise ValueError(
            f"{model.name} has no tokenizer to compare with that of {owner}: save the "
            "one it was trained with beside it"
        )
    own, theirs = (
        {id_: token for token, id_ in each.get_vocab().items()}
        for each in (tokenizer, model.tokenizer)
    )
    for id_ in sorted(own | theirs):
        if own.get(id_) != theirs.get(id_):
            raise ValueError(
                f"token {id_} is {theirs.get(id_)!r} for {model.name} and "
                f"{own.get(id_)!r} for {owner}: they have other tokenizers"
            )


def words_of(corpus: Corpus) -> dict[int, str]:
    """Return the word of each token that sequences are made of, or raise."""
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
    """Raise if a sequence was cut at the maximum length."""
    cut = corpus.dataset()["ended"][:].count(False)
    if cut:
        raise ValueError(
            f"{cut} of {corpus.num_sequences} sequences of {corpus.directory} have no "
            f"end: they were cut at {corpus.max_length} tokens, and a model of whole "
            "texts has no probability for a beginning. Draw the corpus with a larger "
            "--max-length"
        )


def ids_in(tokenizer: WordTokenizer, words: Mapping[int, str]) -> dict[int, int]:
    """Return the ids of a checkpoint for the words of a language, by their tokens."""
    ids_of, others = {}, []
    for token, word in words.items():
        ids = tokenizer(word).ids
        if word in SPECIAL_WORDS or len(ids) != 1 or tokenizer.is_unknown(ids[0]):
            others.append(word)
        else:
            ids_of[token] = ids[0]
    if others:
        raise ValueError(
            f"{len(others)} of {len(words)} words of the language are no known word of "
            f"the checkpoint's: {_named(others)}. Train it on text of the "
            "language, with --min-count 1"
        )
    return ids_of


def _named(words: Sequence[str]) -> str:
    more = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class LatentLearner:
    """Latent model that scores sequences of a language of words.

    Random numbers of a sequence follow from the seed and its name: neither batch size
    nor order changes an estimate.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        words: Mapping[int, str],
        end_id: int,
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Match the words of the language, by their tokens, with those of the model.

        Args:
            checkpoint: A latent model.
            words: Token -> word of the language; an unknown word is an error.
            end_id: Token that ends a sequence.
            batch_size: Texts scored together; None is as many as memory allows.
            options: Options as of :func:`load_learner`.

        Raises:
            ValueError: If the model lacks a word of the language or is no distribution
                over texts, or has no such option.
        """
        if wrong := sorted(options.keys() - _OPTIONS):
            raise ValueError(f"no option of a latent learner: {', '.join(wrong)}")
        mass = checkpoint.model.normalization
        if mass in (Normalization.UNNORMALISED, Normalization.BY_LENGTH):
            raise ValueError(
                f"the model is no distribution over texts ({mass}): nothing can be "
                "said of its errors against a language's probabilities"
            )
        self._ids = ids_in(checkpoint.tokenizer, words) | {end_id: END}
        self._words, self._end_id = dict(words), end_id
        self._checkpoint = checkpoint
        how = ScoringOptions.parse({**options, "unk": str(UnknownWords.CLOSED)})
        self._scorer = Scorer(checkpoint, how, batch_size=batch_size, quiet=True)

    @property
    def bound(self) -> Bound:
        return estimator_class(str(self._scorer.options.estimator)).bound

    def score(
        self, sequences: Sequence[Sequence[int]], names: Sequence[str], /
    ) -> LogLikelihoods:
        """Estimate log p of whole sequences.

        Args:
            sequences: Token ids of the language, each with its end.
            names: Names, which random numbers follow from.

        Returns:
            Nats and their errors as the draws tell them (``inf`` at K = 1; 0 for a
            beam, whose distance from log p is unknown). A sequence without words is
            impossible for a model of sentences.

        Raises:
            ValueError: If a sequence has no end or an id without a word, or the
                proposal misses the model's support.
        """
        texts = [
            self._text(row, name, ids)
            for row, (name, ids) in enumerate(zip(names, sequences, strict=True))
        ]
        if offers(self._scorer.model, "sentence_starts"):
            texts = [text for text in texts if text.words != [END]]
        log_p = torch.full((len(sequences),), -torch.inf, dtype=torch.float64)
        stderr = torch.zeros_like(log_p)
        missed = Missed([text.query for text in texts])
        for _, answer in whole_texts(self._scorer.evaluation, texts, missed):
            log_p[answer.index] = answer.estimate.log_evidence
            stderr[answer.index] = answer.estimate.draws_stderr
        missed.tell()
        return LogLikelihoods(log_p, stderr)

    def settings(self) -> dict[str, Any]:
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

    def _text(self, row: int, name: str, ids: Sequence[int]) -> Text:
        if [*ids].count(self._end_id) != 1 or ids[-1] != self._end_id:
            raise ValueError(f"{name} is {[*ids]}: expected one end, at its end")
        if wrong := [token for token in ids if token not in self._ids]:
            raise ValueError(
                f"{name} has the token id {wrong[0]}, which is no word of "
                "the language: is it of another corpus?"
            )
        string = " ".join(self._words[token] for token in ids[:-1])
        return Text(
            Query(row, name, string),
            sentence=0,
            context=[],
            context_costs=[],
            words=[self._ids[token] for token in ids],
            word_costs=[0.0] * len(ids),
            log_spacing=0.0,
            unspelled=0,
            respaced=0,
        )


Learner: TypeAlias = CausalLanguage | LatentLearner
"""Model of the token sequences of a corpus."""
