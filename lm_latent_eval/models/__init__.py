"""Latent language models, a folder a paper; this table alone knows them by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_latent_eval.models.checkpoint import load as load

MODELS = {
    "entitynlm": "lm_latent_eval.models.entitynlm.modeling:EntityNLM",
    "kglm": "lm_latent_eval.models.kglm.modeling:KGLM",
    "lrlm": "lm_latent_eval.models.lrlm.modeling:LRLM",
    "lstm": "lm_latent_eval.models.lstm.modeling:LSTMLanguageModel",
    "nklm": "lm_latent_eval.models.nklm.modeling:NKLM",
    "rnn": "lm_latent_eval.models.rnn.modeling:RNNLanguageModel",
    "rnng": "lm_latent_eval.models.rnng.modeling:RNNG",
    "srnn": "lm_latent_eval.models.srnn.modeling:SentenceRNN",
}
"""Name -> class. A new model joins with its folder and one line."""


def model_class(name: str) -> Any:
    """Import a model class by its name in ``MODELS``.

    Raises:
        ValueError: If there is none; the nearest names are listed.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS) or sorted(MODELS)
        raise ValueError(f"no latent model {name!r}; there is {', '.join(near)}")
    module, _, attribute = MODELS[name].partition(":")
    return getattr(import_module(module), attribute)


def __getattr__(name: str) -> Any:
    """Import ``load`` on first use: it needs torch."""
    if name == "load":
        return import_module("lm_latent_eval.models.checkpoint").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
