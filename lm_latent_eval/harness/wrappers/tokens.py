"""``lm_eval --model latent_tokens``: tokenizations."""

from __future__ import annotations

from lm_eval.api.instance import Instance

from lm_latent_eval.harness.wrappers.base import Wrapper


class LatentTokens(Wrapper):
    """``latent_tokens``: a causal LM, summed over the tokenizations of a string.

    Its own options are those of ``wrappers.tokens.options.TokensOptions``. Text is
    generated as by ``--model hf``.
    """

    model_name = "tokens"

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Continue contexts, token by token, as ``--model hf`` does."""
        self._loaded.set_cache_hook(self.cache_hook)
        texts: list[str] = self._loaded.generate_until(requests)
        return texts


__all__ = ["LatentTokens"]
