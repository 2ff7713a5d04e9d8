"""An NKLM small enough to list every latent, over the words of the tiny models."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from lm_latent_eval.models.lrlm.topics import Topics
from lm_latent_eval.models.nklm.configuration import NKLMConfig
from lm_latent_eval.models.nklm.latents import WORD, Copies
from lm_latent_eval.models.nklm.modeling import NKLM
from tests.models.lrlm.tiny import config, topics
from tests.tiny_models import randomised


def nklm(known: Topics | None = None, **changes: Any) -> NKLM:
    """A new NKLM in float64, with random weights; of the tiny topics, or of others."""
    known = known or topics()
    sizes = {
        "num_positions": 3,
        "position_dim": 2,
        "copy_hidden": 3,
        "position_hidden": 3,
        "fact_hidden": 3,
        **known.sizes(),
    }
    model = NKLM(NKLMConfig(**config(**{**sizes, **changes})), known).double()
    return randomised(model, 0, 0.7).eval()


def every_copy(model: NKLM, text: list[int]) -> Copies:
    """All latents of a text that its words allow."""
    known, found = model.knowledge, []
    for topic in range(1, known.num_topics + 1):
        (namings,) = (known.naming_topic == topic).nonzero(as_tuple=True)
        options = []
        for word in text:
            here = [(WORD, 0)]
            for naming in namings.tolist():
                alias = known.alias_words[known.naming_alias[naming]].tolist()
                few = alias[: model.config.num_positions]
                here += [(naming + 1, n) for n, w in enumerate(few) if w == word]
            options.append(here)
        found += [(topic, z) for z in product(*options)]
    places = torch.tensor([z for _, z in found])[None]
    return Copies(
        torch.tensor([topic for topic, _ in found])[None],
        places[..., 0],
        places[..., 1],
    )
