"""``lm_eval --model latent_cot``: chains of thought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerBase

from lm_latent_eval.arguments import positive, truth
from lm_latent_eval.harness.answers import Scored
from lm_latent_eval.harness.running import running_tasks
from lm_latent_eval.harness.thoughts import ThoughtRecorder, all_answers
from lm_latent_eval.harness.wrappers.arguments import read
from lm_latent_eval.harness.wrappers.base import Wrapper
from lm_latent_eval.networks.served import ServedNetwork
from lm_latent_eval.wrappers.cot.model import ThoughtScorer
from lm_latent_eval.wrappers.cot.prompts import ThoughtOptions


@dataclass(frozen=True)
class Template:
    """The chat template of a tokenizer, as lm-eval's loader of networks writes it."""

    tokenizer: PreTrainedTokenizerBase
    chat_template_args: dict[str, Any]
    apply_chat_template = HFLM.apply_chat_template
    chat_template = HFLM.chat_template


class LatentCoT(Wrapper):
    """``latent_cot``: a causal language model whose latents are its thoughts.

    Answers are scored as log p(answer | question), summed over what is thought before
    them (``wrappers.cot.model``); options are those of ``ThoughtOptions``.

    Args:
        base_url: Of a server that has loaded the network, up to and with ``/v1``:
            it draws and scores thoughts, and ``pretrained`` names the tokenizer.
        request_timeout: Seconds that one request to it may take.
        enable_thinking: Told to the chat template.
        chat_template_args: Told to it as well.
        arguments: Options of thoughts, and every other argument of ``--model hf``.
    """

    model_name = "cot"
    mixes_precision: ClassVar = {"is": ("float16",)}
    # Thoughts are kept beside the process that asks, and all questions have as many.
    shares_requests = False

    def __init__(
        self,
        *args: Any,
        base_url: str | None = None,
        request_timeout: float | str = 600.0,
        enable_thinking: bool | str | None = None,
        chat_template_args: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Check the arguments and load the network.

        Raises:
            ValueError: If the chat template is told to leave thoughts out, or an
                argument is not one that can be.
        """
        given = read({"chat_template_args": chat_template_args})["chat_template_args"]
        given = dict(given or {})
        if enable_thinking is not None:  # hf would refuse likelihoods with it
            given["enable_thinking"] = enable_thinking
        if "enable_thinking" in given:
            given["enable_thinking"] = truth(
                "enable_thinking", given["enable_thinking"]
            )
        if given.get("enable_thinking") is False:
            raise ValueError(
                "enable_thinking=False: latent_cot scores answers after thoughts; "
                "without them use --model hf"
            )
        ours = ThoughtOptions.names()
        ThoughtOptions.parse({n: arguments[n] for n in ours if n in arguments})
        self._base_url = base_url
        self._timeout = positive("request_timeout", request_timeout)
        super().__init__(*args, chat_template_args=given, **arguments)
        self._thoughts = ThoughtRecorder(self._processes, self._loaded.tokenizer.decode)

    def _network(
        self, pretrained: str, device: str, arguments: Mapping[str, Any]
    ) -> Any:
        """Load the network, or ask the server that has."""
        if self._base_url is None:
            return super()._network(pretrained, device, arguments)
        known = ("chat_template_args", "max_length", "trust_remote_code")
        if idle := [name for name in arguments if name not in known]:
            raise ValueError(
                f"{', '.join(idle)}: with base_url the server has loaded the network; "
                "tell the server, and leave it out here"
            )
        network = ServedNetwork.open(
            self._base_url,
            pretrained,
            timeout=self._timeout,
            max_length=arguments.get("max_length"),
        )
        self._loaded = Template(network.tokenizer, arguments["chat_template_args"])
        return network

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[Scored, bool]]:
        """Return log p-hat of answers in nats, and whether they are greedy.

        Hints show all answers of a task's question, whichever of them a cache knows.
        """
        scorer = cast(ThoughtScorer, self._scorer)
        scorer.shown = all_answers(running_tasks())
        with self._thoughts.following(self.fingerprint) as (scorer.keep, scorer.known):
            return super().loglikelihood(requests)

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

    def _about_run(self) -> dict[str, Any]:
        """Leave the thoughts beside the results, too."""
        info = super()._about_run()
        if self.world_size == 1:
            self._thoughts.collect(self.fingerprint)
        if thoughts := self._thoughts.finish(self.fingerprint):
            info["latent_eval"]["thoughts"] = thoughts
        return info

    def _report(self) -> None:
        super()._report()
        self._thoughts.collect(self.fingerprint)
