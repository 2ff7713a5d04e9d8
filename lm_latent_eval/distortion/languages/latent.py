r"""A latent language model of words as a language with exact probabilities.

.. math:: p(x) = \sum_z p(x, z), \qquad
          x_t \sim p(x_t \mid x_{<t}, z_{<t}), \quad
          z_t \sim p(z_t \mid z_{<t}, x_{\le t})

A draw is ancestral: word and latent in turn, and the latents are thrown away. Both
factors are exact, as predictions sum over z_t and the proposal is the best that reads
no further than x_t. The probability is a sum over every latent, one by one. So it is
known of sequences with few latents only, and others are refused.

Departures: none. EntityNLM and KGLM are no languages, since their predictions leave out
choices of a probability of 1e-6 or less, and their latents are too many for a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.devices import sent
from lm_latent_eval.distortion.languages.language import (
    BEGIN_ID,
    END_ID,
    FIRST_WORD,
    LANGUAGE_FILE,
    Language,
    Sample,
    checked_sequences,
    checked_words,
    log_p_by_length,
    sequence_key,
    word_tokenizer,
    write_description,
)
from lm_latent_eval.inference.simulation import simulate
from lm_latent_eval.latent import Normalization
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.models.pretrained import Pretrained
from lm_latent_eval.options import whole
from lm_latent_eval.text.words import END, PADDING, START

MOST_WORDS = 10
"""Largest number of words of a sequence with several latents: with a word more, an RNNG
has nearly four times as many trees to sum over."""
_SEQUENCES = 256
"""Default number of sequences drawn or scored together; moves no number."""
_LATENTS_AT_ONCE = 1 << 14
"""Largest number of latents summed together, except of one sequence; moves no number.
"""


class LatentLanguage(Language):
    """The texts that a checkpoint of words generates.

    Its words are those that the model can utter, the unknown word among them if the
    model does not exclude it. In float32 a draw on the edge between two words can
    depend on how many are drawn together; a model in float64 draws the same everywhere.
    """

    begin_id, end_id = BEGIN_ID, END_ID

    def __init__(
        self, checkpoint: Checkpoint, *, batch_size: int | None = None
    ) -> None:
        """Number the words.

        Args:
            checkpoint: A model with an ``exact_proposal`` (an RNNG, or one without
                latents) and its vocabulary.
            batch_size: The most sequences drawn or scored together, which moves no
                number; None is 256.

        Raises:
            ValueError: If the probabilities of the model do not total one, its latents
                cannot be summed, or a word has white space in it.
        """
        given = _SEQUENCES if batch_size is None else batch_size
        self._batch_size = whole("batch_size", given, 1)
        self._checkpoint, self._model = checkpoint, _checked(checkpoint)
        self._proposal = self._model.proposal(self._model.exact_proposal)
        config = self._model.config
        excluded = {PADDING, START, END, *config.never_uttered}
        uttered = [i for i in range(config.vocab_size) if i not in excluded]
        try:
            self.words = checked_words([checkpoint.tokenizer.word(i) for i in uttered])
        except ValueError as err:
            raise ValueError(f"{checkpoint.directory}: {err}") from err
        # What the model calls each token.
        self._ids = torch.tensor([START, END, *uttered])

    @property
    def vocab_size(self) -> int:
        return FIRST_WORD + len(self.words)

    @torch.inference_mode()
    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        if self._has_too_many(whole("max_length", max_length, 1)):
            num_latents = _count(self._model.num_latents(max_length))
            raise ValueError(
                f"max_length={max_length}: a sequence without its end can have "
                f"{max_length} words, and {num_latents} latents to sum over. Give a "
                f"max_length of {MOST_WORDS} or less"
            )
        keys = [sequence_key(seed, index) for index in indices]
        drawn: list[list[int]] = []
        for start in range(0, len(keys), self._batch_size):
            drawn += self._draw(keys[start : start + self._batch_size], max_length)
        return Sample(drawn, self.log_p(drawn))

    @torch.inference_mode()
    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        checked = checked_sequences(sequences, self)
        self._check_words([len(ids) - (ids[-1] == END_ID) for ids in checked])
        return log_p_by_length(checked, self._log_p)

    def settings(self) -> dict[str, Any]:
        return {
            "kind": "latent",
            "model": self._checkpoint.name,
            "digest": self._checkpoint.digest,
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def save(self, directory: Path) -> None:
        where = {"kind": "latent", "path": str(self._checkpoint.directory)}
        write_description(where, directory / LANGUAGE_FILE)
        word_tokenizer(self.words).save_pretrained(directory)

    def _draw(self, keys: Sequence[int], max_length: int) -> list[list[int]]:
        drawn = dict(
            simulate(
                self._model,
                self._proposal,
                keys,
                start=START,
                end=END,
                most=max_length,
                costs=lambda words: [0.0] * len(words),
                device=self._model.device,
            )
        )
        tokens = {word: token for token, word in enumerate(self._ids.tolist())}
        return [
            [tokens[word] for word in drawn[place].words] for place in range(len(keys))
        ]

    def _log_p(self, ids: Tensor) -> Tensor:
        """Score sequences of one length, (n, length) -> (n,)."""
        length, ended = ids.shape[1], ids[:, -1] == END_ID
        log_p = torch.empty(len(ids), dtype=torch.float64)
        for chosen, num_words in ((ended, length - 1), (~ended, length)):
            (rows,) = chosen.nonzero(as_tuple=True)
            together = _LATENTS_AT_ONCE // self._model.num_latents(num_words)
            at_once = min(self._batch_size, max(1, together))
            for where in rows.split(at_once) if len(rows) else ():
                words = sent(self._ids[ids[where]], self._model.device)
                log_p[where] = self._model.log_marginal(words).cpu()
        return log_p

    def _has_too_many(self, num_words: int) -> bool:
        return num_words > MOST_WORDS and self._model.num_latents(num_words) > 1

    def _check_words(self, num_words: Sequence[int]) -> None:
        long = [n for n, words in enumerate(num_words) if self._has_too_many(words)]
        if long:
            most = num_words[long[0]]
            num_latents = _count(self._model.num_latents(most))
            raise ValueError(
                f"{len(long)} of {len(num_words)} sequences have more than "
                f"{MOST_WORDS} words: sequence {long[0]} has {most}, and {num_latents} "
                "latents to sum over. Draw them with a smaller max_length"
            )


def _checked(checkpoint: Checkpoint) -> Pretrained:
    model: Pretrained = checkpoint.model
    directory = checkpoint.directory
    if model.normalization is not Normalization.ONE:
        raise ValueError(
            f"{directory}: the probabilities of a language total one, and those of "
            f"this model do not ({model.normalization})"
        )
    if model.exact_proposal is None:
        raise ValueError(
            f"{directory} holds a {checkpoint.name} model, whose latents cannot be "
            "summed: the probabilities of a language are exact. An rnng and an "
            "lstm can be one"
        )
    if END in model.config.never_uttered:
        raise ValueError(
            f"{directory}: the model never utters the end of a text: train one that "
            "does"
        )
    return model


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**9 else "more than a billion"
