r"""A hidden Markov model as a language, with exact probabilities.

    p(x, z) = p(z_1) p(x_1 | z_1) prod_t p(z_t | z_t-1) p(x_t | z_t)  p(end | z_n)

Symbols: p(z_1) -> ``initial``; p(z_t | z_t-1) -> ``transitions``, whose rows total one
with ``ends``, p(end | z); p(x_t | z_t) -> ``emissions``.
Source: Rabiner (1989), with an end so that sequences of all lengths total one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm_latent_eval.distortion.languages.language import (
    Sample,
    checked_length,
    checked_sequences,
    cumulative,
    endless_uniforms,
    log_p_by_length,
    sequence_key,
)
from lm_latent_eval.distortion.languages.words import (
    BEGIN_ID,
    END,
    END_ID,
    FIRST_WORD,
    LANGUAGE_FILE,
    checked_distribution,
    checked_keys,
    checked_words,
    description_digest,
    word_tokenizer,
    write_description,
)
from lm_latent_eval.scoring.likelihood import ExactModel


class HMM(ExactModel[Sequence[int]]):
    """The language of a hidden Markov model.

    Example:
        >>> weather = HMM({
        ...     "kind": "hmm",
        ...     "words": ["sun", "rain"],
        ...     "initial": {"dry": 1},
        ...     "transitions": {
        ...         "dry": {"dry": 0.5, "wet": 0.25, "</s>": 0.25},
        ...         "wet": {"dry": 0.5, "</s>": 0.5},
        ...     },
        ...     "emissions": {"dry": {"sun": 1}, "wet": {"sun": 0.5, "rain": 0.5}},
        ... })
        >>> weather.log_p([[2, 3, 1], [2, 2]]).exp()  # sun rain; sun sun ..
        tensor([0.0625, 0.6250], dtype=torch.float64)
        >>> round(weather.expected_length, 6)
        3.333333
    """

    begin_id, end_id = BEGIN_ID, END_ID

    def __init__(self, description: Mapping[str, Any]) -> None:
        """Read a description.

        Args:
            description: ``{"kind": "hmm", "words": [word, ...], "initial": {state:
                probability, ...}, "transitions": {state: {state or "</s>":
                probability, ...}, ...}, "emissions": {state: {word: probability, ...},
                ...}}``.

        Raises:
            ValueError: If probabilities do not total one, name what is neither a state
                nor a word, or a state cannot be reached or never comes to an end.
        """
        checked_keys(
            description, "hmm", ("words", "initial", "transitions", "emissions")
        )
        self.words = checked_words(description["words"])
        steps, emissions = description["transitions"], description["emissions"]
        if not isinstance(steps, Mapping) or not isinstance(emissions, Mapping):
            raise ValueError("transitions, emissions: expected a distribution a state")
        if different := sorted(steps.keys() ^ emissions.keys()):
            raise ValueError(f"{different}: in only one of transitions and emissions")
        self.states = states = tuple(steps)
        self._initial = _row(description["initial"], states, "initial")
        after = (*states, END)
        moves = [_row(steps[z], after, f"transitions of {z}") for z in states]
        self._transitions, self._ends = torch.stack(moves).split([len(states), 1], 1)
        self._ends = self._ends[:, 0]
        said = [_row(emissions[z], self.words, f"emissions of {z}") for z in states]
        # (V, states): neither begin nor end is a word.
        self._emitted = torch.nn.functional.pad(torch.stack(said), (FIRST_WORD, 0)).T
        self._check_uses()
        self._description = dict(description)
        self._first_state = cumulative(self._initial.tolist())
        self._next_state = [cumulative(row.tolist()) for row in moves]
        self._word = [cumulative(row.tolist()) for row in said]

    @property
    def vocab_size(self) -> int:
        """Words, begin and end."""
        return FIRST_WORD + len(self.words)

    @property
    def expected_length(self) -> float:
        """Words of a sequence, on average, its end not counted."""
        visits = torch.linalg.inv(torch.eye(len(self.states)) - self._transitions)
        return float((self._initial @ visits).sum())

    def sample(self, seed: int, indices: Sequence[int], max_length: int) -> Sample:
        """Walk from state to state, one random number a state and one a word."""
        checked_length(max_length)
        drawn = [self._walk(sequence_key(seed, i), max_length) for i in indices]
        return Sample(drawn, self.log_p(drawn))

    def log_p(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Sum over all walks (forward algorithm); see :meth:`Language.log_p`."""
        return log_p_by_length(checked_sequences(sequences, self), self._log_p)

    def settings(self) -> dict[str, Any]:
        """Return kind and digest."""
        return {"kind": "hmm", "digest": description_digest(self._description)}

    def save(self, directory: Path) -> None:
        """Write ``language.json`` and the tokenizer."""
        write_description(self._description, directory / LANGUAGE_FILE)
        word_tokenizer(self.words).save_pretrained(directory)

    def _walk(self, key: int, max_length: int) -> list[int]:
        uniform = endless_uniforms(key)
        state = bisect_right(self._first_state, next(uniform))
        ids: list[int] = []
        while len(ids) < max_length:
            if state == len(self.states):
                return [*ids, END_ID]
            ids.append(FIRST_WORD + bisect_right(self._word[state], next(uniform)))
            state = bisect_right(self._next_state[state], next(uniform))
        return ids

    def _log_p(self, ids: Tensor) -> Tensor:
        """Score sequences of one length, (n, length) -> (n,)."""
        log_p = torch.zeros(len(ids), dtype=torch.float64)
        state = self._initial.expand(len(ids), -1)
        for t, token in enumerate(ids.T):
            before = state @ self._transitions if t else state
            ended = state @ self._ends if t else torch.zeros_like(log_p)
            joint = before * self._emitted[token]
            p = joint.sum(1).where(token != END_ID, ended)
            log_p = log_p + p.log()
            state = joint / p.where(p > 0, 1)[:, None]
        return log_p

    def _check_uses(self) -> None:
        reached = _spread(self._initial > 0, self._transitions.T > 0)
        ending = _spread(self._ends > 0, self._transitions > 0)
        for found, what in ((reached, "is never reached"), (ending, "never ends")):
            if lost := [
                z for z, fine in zip(self.states, found, strict=True) if not fine
            ]:
                raise ValueError(f"state {lost[0]} {what}")


def _row(weights: Any, names: Sequence[str], what: str) -> Tensor:
    """Return a distribution over names as a vector, float64."""
    found = checked_distribution(weights, what)
    if wrong := sorted(found.keys() - set(names)):
        raise ValueError(f"{what}: there is no {wrong[0]!r} among {', '.join(names)}")
    row = [found.get(name, 0.0) for name in names]
    return torch.tensor(row, dtype=torch.float64)


def _spread(begin: Tensor, leads: Tensor) -> Tensor:
    """Return which states lie on a path to the first ones, [from, to]."""
    found = begin
    for _ in range(len(begin)):
        found = found | (leads & found).any(1)
    return found
