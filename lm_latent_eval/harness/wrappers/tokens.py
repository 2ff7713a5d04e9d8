"""``lm_eval --model latent_tokens``: tokenizations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance

from lm_latent_eval.harness.wrappers.base import Wrapper
from lm_latent_eval.text.words import encodable


class LatentTokens(Wrapper):
    """``latent_tokens``: a causal LM, summed over the tokenizations of a string.

    Options are those of ``wrappers.tokens.options.TokensOptions``. Text is generated as
    by ``--model hf``.
    """

    model_name = "tokens"

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that a cached number or text depends on, as JSON."""
        thinking = getattr(self._loaded, "think_end_token", None)
        return {**super().fingerprint, "think_end_token": thinking}

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Continue contexts, token by token, as ``--model hf`` does.

        A context without tokens is replaced by the start token.

        Raises:
            ValueError: If the start token has no string, or a context ends within a
                character.
        """
        self._loaded.set_cache_hook(self.cache_hook)
        begun = [
            instance if self._tokens(instance.args[0]) else self._begun(instance)
            for instance in requests
        ]
        texts: list[str] = self._loaded.generate_until(begun, disable_tqdm)
        for instance, each, text in zip(requests, begun, texts, strict=True):
            if each is not instance:
                self.cache_hook.add_partial("generate_until", instance.args, text)
        return texts

    def _tokens(self, context: str) -> list[int]:
        tokens: list[int] = self._loaded.tok_encode(encodable(context))
        return tokens

    def _begun(self, instance: Instance) -> Instance:
        """Request after the start token."""
        token = self._loaded.prefix_token_id
        begin = self._loaded.tok_decode([token], skip_special_tokens=False)
        if self._tokens(begin) != [token]:
            raise ValueError(
                f"the context {instance.args[0]!r} has no tokens, and {begin!r}, which "
                f"is what the tokenizer writes for the token {token}, before every "
                "text, is not read as that: give a context"
            )
        return replace(instance, arguments=(begin, *instance.args[1:]))
