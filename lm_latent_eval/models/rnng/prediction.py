"""Next-word distribution, summed over the numbers of REDUCEs before it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lm_latent_eval.devices import widened
from lm_latent_eval.models.rnng.generative import GenerativeModel
from lm_latent_eval.models.rnng.growth import sent_all, shifts
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.models.rnng.stacks import Integers, Stacks
from lm_latent_eval.text.words import END


def next_word(model: RNNGJoint, encoded: Encoded, log_w: Tensor) -> Tensor:
    """Predict the first word of B texts from K weighted histories, (B, V) nats."""
    p, choices = model.generative, model.choices(encoded)
    place = choices.row[:, 0]
    (which,) = sent_all(log_w.device, place.searchsorted(encoded.state.row))
    weight = log_w.new_zeros(len(log_w), len(place)).scatter_add(
        1, which.expand(log_w.shape), log_w.softmax(-1)
    )
    owner, reduces = choices.possible.nonzero()
    after = choices.row[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    log_end = _log_end(p, choices.stacks, after) if _charges(model) else None
    for first in range(0, len(after), p.rows_at_once):
        part = slice(first, first + p.rows_at_once)
        size = choices.stacks.size[after[part]]
        where, items, o, r = sent_all(
            log_w.device, after[part], size, owner[part], reduces[part]
        )
        spoken = widened(p.log_words(choices.stacks.top(where), items))
        if log_end is not None:
            spoken[:, END] += log_end[part]
        result += (weight[:, o] * choices.log_p[o, r].exp()) @ spoken.exp()
    return result.log()


def _charges(model: RNNGJoint) -> bool:
    """Whether combining the tree with the end word has a price, as in the original."""
    return model.config.sentence_ends and not model.config.only_possible


def _log_end(model: GenerativeModel, stacks: Stacks, after: Integers) -> Tensor:
    """Return that price after each of some stacks, nats, (R,)."""
    grown = model.grown(stacks, shifts(stacks, after, np.full_like(after, END)))
    (items,) = sent_all(grown.state.device, grown.size[len(stacks) :])
    log_reduce: Tensor = model.log_actions(grown.state[len(stacks) :, -1, 0], items)[1]
    return log_reduce
