"""``lm_eval --model latent_cot``: chains of thought."""

from __future__ import annotations

from typing import Any, cast

from lm_latent_eval.harness.thoughts import keep_thoughts, placed, told
from lm_latent_eval.harness.wrappers.base import Wrapper
from lm_latent_eval.wrappers.cot.files import Kept
from lm_latent_eval.wrappers.cot.options import NAMES, ThoughtOptions
from lm_latent_eval.wrappers.cot.scorer import ThoughtScorer
from lm_latent_eval.wrappers.cot.thoughts import Thoughts


class LatentCoT(Wrapper):
    """``latent_cot``: a causal language model whose latents are its thoughts.

    Answers are scored as log p(answer | question), summed over what is thought before
    them (``wrappers.cot.model``); options are those of ``ThoughtOptions``.

    Args:
        enable_thinking: Told to the chat template.
        chat_template_args: Told to it as well.
        arguments: Options of thoughts, and every other argument of ``--model hf``.
    """

    model_name = "cot"

    def __init__(
        self,
        *args: Any,
        enable_thinking: bool | None = None,
        chat_template_args: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Check the arguments and load the network.

        Raises:
            ValueError: If the chat template is told to leave thoughts out.
        """
        given = dict(chat_template_args or {})
        if enable_thinking is not None:  # hf would refuse likelihoods with it
            given["enable_thinking"] = enable_thinking
        if given.get("enable_thinking") is False:
            raise ValueError(
                "enable_thinking=False: latent_cot scores answers after thoughts; "
                "without them use --model hf"
            )
        ThoughtOptions.parse({n: arguments[n] for n in NAMES if n in arguments})
        super().__init__(*args, chat_template_args=given, **arguments)
        self._thoughts: list[Thoughts] = []
        self._kept: list[tuple[str, Kept]] = []

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation as the network was trained to read it.

        Raises:
            ValueError: If the template does not begin the model's turn.
        """
        written = super().apply_chat_template(chat_history, add_generation_prompt)
        if add_generation_prompt and chat_history:
            plain = self._loaded.tokenizer.apply_chat_template(
                chat_history, tokenize=False, **self._loaded.chat_template_args
            )
            if plain == written:
                raise ValueError(
                    "the chat template writes no generation prompt, so thoughts would "
                    "go on with the user's turn: leave --apply_chat_template out, or "
                    "give the model a template that heeds add_generation_prompt"
                )
        return written

    def get_model_info(self) -> dict[str, Any]:
        """Say what the numbers are, and leave the thoughts beside the results."""
        info = super().get_model_info()
        files = keep_thoughts(
            self._kept, self.fingerprint, self._loaded.tokenizer.decode
        )
        if self._thoughts:
            info["latent_eval"]["thoughts"] = {**told(self._thoughts), "files": files}
        return info

    def _report(self) -> None:
        super()._report()
        scorer = cast(ThoughtScorer, self._scorer)
        new, scorer.kept = scorer.kept, []
        self._thoughts += self._processes.gather(new)
        self._kept += self._processes.gather(placed(new))


__all__ = ["LatentCoT"]
