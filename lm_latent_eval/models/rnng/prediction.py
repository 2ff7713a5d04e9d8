"""What p says of the next word, summed over every number of REDUCEs before it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lm_latent_eval.devices import sent, widened
from lm_latent_eval.models.rnng.growth import sent_all, shifts
from lm_latent_eval.models.rnng.joint import Encoded, RNNGJoint
from lm_latent_eval.text.words import END


def next_word(model: RNNGJoint, encoded: Encoded, log_w: Tensor) -> Tensor:
    """Predict the first word of B texts from K weighted histories, (B, V) nats."""
    p, choices = model.generative, model.choices(encoded)
    place = sent(torch.tensor(choices.row[:, 0]), log_w.device)
    which = torch.searchsorted(
        place, encoded.state.row.expand(log_w.shape).contiguous()
    )
    weight = log_w.new_zeros(len(log_w), len(place)).scatter_add(
        1, which, log_w.softmax(-1)
    )
    owner, reduces = choices.possible.nonzero()
    after = choices.row[owner, reduces]
    result = weight.new_zeros(len(weight), model.config.vocab_size)
    for first in range(0, len(after), p.rows_at_once):
        part = slice(first, first + p.rows_at_once)
        size = choices.stacks.size[after[part]]
        where, items, o, r = sent_all(
            log_w.device, after[part], size, owner[part], reduces[part]
        )
        spoken = widened(p.log_words(choices.stacks.top(where), items))
        if model.config.sentence_ends and not model.config.only_possible:
            # The original charges for combining the tree with the end word.
            ends = shifts(choices.stacks, after[part], np.full_like(after[part], END))
            top = p.grown(choices.stacks, ends).state[len(choices.stacks) :, -1, 0]
            spoken[:, END] += p.log_actions(top, items + 1)[1]
        result += (weight[:, o] * choices.log_p[o, r].exp()) @ spoken.exp()
    return result.log()
