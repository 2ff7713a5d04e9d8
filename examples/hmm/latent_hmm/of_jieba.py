"""Writes the hidden Markov model of jieba: ``python -m latent_hmm.of_jieba DIR``.

jieba (MIT) finds unknown Chinese words by the states of characters: begin, middle and
end of a word, or a word by itself. A text is characters with spaces between them.

Departures: its emission probabilities total 1.15 to 1.35 a state, and are normalised
here; and it has no ends of texts. Here a text ends after each character with the
probability ``END_SHARE``; one that ends within a word goes to a state that no text
comes out of.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from latent_hmm import HMM, HMMConfig
from lm_latent_eval.extend import END, UNKNOWN, WordTokenizer, save_checkpoint

STATES = "BMES"
ENDED, LOST, FIRST = 4, 5, 6
"""States after the four of characters, and the row of what a text begins with."""
END_SHARE = 1 / 20
NEVER = -1e5
"""Log-probability of what cannot be: weights are finite."""


def write(
    directory: Path,
    start: Mapping[str, float],
    transitions: Mapping[str, Mapping[str, float]],
    emissions: Mapping[str, Mapping[str, float]],
) -> HMM:
    """Write a checkpoint of jieba's tables of log-probabilities; return its model."""
    characters = sorted({c for row in emissions.values() for c in row})
    words = WordTokenizer.of_words(characters, already_cut=True)
    config = HMMConfig(vocab_size=words.vocab_size, num_states=6)
    model = HMM(config).double().requires_grad_(False)
    rows, spoken = model.transitions.fill_(NEVER), model.emissions.fill_(NEVER)
    for z, state in enumerate(STATES):
        rows[FIRST, z] = max(start[state], NEVER)
        for following, log_p in transitions[state].items():
            rows[z, STATES.index(following)] = log_p + math.log1p(-END_SHARE)
        rows[z, ENDED if state in "ES" else LOST] = math.log(END_SHARE)
        for character, log_p in emissions[state].items():
            spoken[z, words.tokenizer.token_to_id(character)] = log_p
    for z, word in ((ENDED, END), (LOST, UNKNOWN)):
        rows[z, z] = spoken[z, word] = 0.0
    save_checkpoint(model, words, directory, model.state_dict())
    return model


if __name__ == "__main__":
    from jieba import finalseg

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    write(
        parser.parse_args().directory,
        finalseg.start_P,
        finalseg.trans_P,
        finalseg.emit_P,
    )
