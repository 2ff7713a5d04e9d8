"""How thoughts are written, and how many: checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from lm_latent_eval.arguments import positive, whole
from lm_latent_eval.options import OptionTable, choice, option

QUESTION, ANSWER = "{question}", "{answer}"
PROPOSALS = ("prior", "hinted")
CLOSINGS = ("natural", "forced")
UNTIL = ("samples", "decided")
SAID = "what the chat template says"


def _string(name: str, value: Any) -> str | None:
    return None if value is None else str(value)


def _end(name: str, value: Any) -> str | None:
    if value == "":
        raise ValueError("think_end='': a thought ends with it, so it cannot be empty")
    return _string(name, value)


def _hint(name: str, value: Any) -> str:
    if missing := [part for part in (QUESTION, ANSWER) if part not in str(value)]:
        raise ValueError(
            f"hint={value!r} lacks {missing[0]}: give the prompt that shows an answer, "
            "such as '{question} (The answer is {answer}.)'"
        )
    return str(value)


@dataclass(frozen=True)
class ThoughtOptions(OptionTable):
    """What moves a number of ``latent_cot``.

    Attributes:
        think_start: What opens a thought. Empty, a thought begins where the question
            ends.
        think_end: What closes it, white space before the answer included.
        max_think_tokens: The most that a thought has, ``think_end`` included.
        num_samples: K, thoughts a question.
        until: When a question has thoughts enough: ``samples``, when it has K;
            ``decided``, when its most probable answer is certain at 95 % (K at most).
        close: What becomes of a thought that does not close itself: ``natural``, it
            answers nothing (p is a sub-probability); ``forced``, ``think_end`` is put
            after it, which is another model.
        model_temperature: Divides the network's scores, in thoughts and answers alike:
            another p, not another proposal.
        proposal: ``prior``, the model's own thoughts about the question; ``hinted``,
            half of them from prompts that show an answer.
        hint: The prompt that shows one, with ``{question}`` and ``{answer}`` in it.
        seed: Of all random numbers.
    """

    think_start: str | None = option(None, _string, unset=SAID)
    think_end: str | None = option(None, _end, unset=SAID)
    max_think_tokens: int = option(512, partial(whole, least=1))
    num_samples: int = option(32, partial(whole, least=1))
    until: str = choice("samples", UNTIL)
    close: str = choice("natural", CLOSINGS)
    model_temperature: float = option(1.0, positive)
    proposal: str = choice("prior", PROPOSALS)
    hint: str = option("{question}\n(The answer is {answer}.)\n", _hint)
    seed: int = option(0, partial(whole, least=0))
