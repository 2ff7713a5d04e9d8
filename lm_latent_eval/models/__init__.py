"""The table of latent language models; a folder or module a paper."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.registry import Registry

MODELS = {
    "entitynlm": "lm_latent_eval.models.entitynlm.modeling:EntityNLM",
    "kglm": "lm_latent_eval.models.kglm.modeling:KGLM",
    "lda": "lm_latent_eval.models.lda.modeling:LDA",
    "lrlm": "lm_latent_eval.models.lrlm.modeling:LRLM",
    "lstm": "lm_latent_eval.models.recurrent_lm:LSTMLanguageModel",
    "nklm": "lm_latent_eval.models.nklm.modeling:NKLM",
    "rnng": "lm_latent_eval.models.rnng.modeling:RNNG",
    "srnn": "lm_latent_eval.models.srnn:SentenceRNN",
}
"""Name -> class. Models of other packages join by an entry point."""

WRAPPERS = {
    "cot": "lm_latent_eval.wrappers.cot.model:ThinkingLM",
    "mdm": "lm_latent_eval.wrappers.mdm.model:MaskedDiffusion",
    "tokens": "lm_latent_eval.wrappers.tokens.model:SegmentedLM",
}
"""Name -> class of a wrapper of transformers' networks. Its directories are those of
the network, so it is chosen by name, never by ``model_type``."""

TYPES = {
    "latent_eval_lda": "lda",
    "latent_eval_lstm": "lstm",
    "latent_eval_rnng": "rnng",
    "latent_eval_srnn": "srnn",
}
"""``model_type`` of ``config.json`` -> name, if they differ."""

REGISTRY = Registry("lm_latent_eval.models", "latent model", MODELS | WRAPPERS)


def model_class(name: str) -> Any:
    """Import a model class by its name, or from ``package.module:Class``.

    Raises:
        ValueError: If the name is unknown; the nearest names are listed.
    """
    return REGISTRY[name]


def without_prefix(name: str) -> str | None:
    """Model of lm-eval's ``--model latent_NAME``.

    None for ``latent`` alone, which takes any directory.
    """
    if name == "latent":
        return None
    return name if name in REGISTRY else name.removeprefix("latent_")


def name_of(model_type: object) -> str | None:
    """Name of the model with a ``model_type``, if there is one.

    No model is imported.
    """
    if not isinstance(model_type, str) or ":" in model_type:
        return None
    if model_type in TYPES.values():  # "lstm" is a model of others
        return None
    name = TYPES.get(model_type, model_type)
    return name if name in REGISTRY and name not in WRAPPERS else None


def known_types() -> list[str]:
    types = {name: model_type for model_type, name in TYPES.items()}
    names = [name for name in REGISTRY.names() if name not in WRAPPERS]
    return sorted(types.get(name, name) for name in names)
