"""Base class of backends over a network that lm-eval's loader loads.

Every argument of ``--model hf`` is understood (dtype, device maps, PEFT, chat
templates, revision), beside the options of the model itself, and quantized directories
are read. lm-eval hands on whatever it is given, and transformers takes any string for
true, so arguments are read here by the types that both declare.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, PreTrainedModel

from lm_latent_eval.files import one_line
from lm_latent_eval.harness.backend import LM_EVAL_DEVICE, Backend
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.models import model_class
from lm_latent_eval.networks.network import Network, refuse_class, refuse_latent
from lm_latent_eval.options import TRUTHS, one_of, truth, whole
from lm_latent_eval.scoring.options import parse_device

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
"""Python's message for an unknown argument."""


def read(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert arguments of ``--model hf`` and of ``from_pretrained``.

    Arguments of other names are for transformers, which knows them once it has a
    network's configuration: see ``refusing``.

    Raises:
        ValueError: If a value is not one that an argument can have.
    """
    declared = _declared()
    return {
        name: _converted(name, value, declared[name]) if name in declared else value
        for name, value in arguments.items()
    }


@contextmanager
def refusing(arguments: Mapping[str, Any], options: Sequence[str]) -> Iterator[None]:
    """Turn errors about unknown arguments or wrong types into messages for users.

    Args:
        arguments: Those that a network is loaded with.
        options: Names of the model's own.

    Raises:
        ValueError: If loading fails by one that is not declared; near names are
            suggested.
    """
    others = [name for name in arguments if name not in _declared()]
    try:
        yield
    except (AttributeError, TypeError, StrictDataclassError) as err:
        match = UNEXPECTED.search(str(err))
        if match and match[1] in others:
            raise ValueError(_unknown(match[1], options)) from err
        if not others:
            raise
        given = ", ".join(f"{name}={arguments[name]!r}" for name in others)
        raise ValueError(
            f"{given}: transformers, which is given what --model hf does not know, "
            f"cannot load the network with that ({one_line(err)})"
        ) from err


def _unknown(name: str, options: Sequence[str]) -> str:
    names = [*options, *_declared()]
    near = difflib.get_close_matches(name, names)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"option={name!r}: expected one of {', '.join(names)}, or an argument that "
        f"transformers loads this network with{hint}"
    )


def _declared() -> dict[str, inspect.Parameter]:
    """Return what lm-eval's loader and transformers declare, by name."""
    functions: tuple[Callable[..., Any], ...] = (
        PreTrainedModel.from_pretrained,
        HFLM.__init__,
    )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: parameter
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in named and name not in ("self", "pretrained")
    }


def _converted(name: str, value: Any, declared: inspect.Parameter) -> Any:
    """Read a value as one of the types of an annotation, the strictest that it has."""
    annotation = declared.annotation
    if not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    kinds = annotation.split(" | ")
    if value is None and ("None" in kinds or declared.default is None):
        return None
    if annotation.startswith("Literal"):
        return one_of(name, value, re.findall(r"""["'](\w+)["']""", annotation))
    if "bool" in kinds and ("str" not in kinds or str(value).lower() in TRUTHS):
        return truth(name, value)
    if "torch.dtype" in kinds:
        return _dtype(name, value)
    if "str" in kinds:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value if is_number and "int" in kinds else _text(name, value, kinds)
    if "int" in kinds:
        return whole(name, value, least=int(name == "max_length"))
    if annotation.startswith("dict") and not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r}: expected a mapping of names to values")
    return value


def _dtype(name: str, value: Any) -> Any:
    """Read the name of a type of torch, or ``auto``."""
    if isinstance(value, torch.dtype) or value == "auto":
        return value
    short = str(value).removeprefix("torch.")
    if not isinstance(getattr(torch, short, None), torch.dtype):
        raise ValueError(
            f"{name}={value!r}: not the name of a type; expected auto, float32, "
            "float64, bfloat16 or float16"
        )
    return short


def _text(name: str, value: Any, kinds: Sequence[str]) -> Any:
    """Read a string; lm-eval has made numbers of those that look like one."""
    if isinstance(value, Mapping) and "dict" in kinds:
        return value
    if isinstance(value, bool | float | Mapping | Sequence) and value != str(value):
        raise ValueError(f"{name}={value!r}: expected text")
    return str(value) if isinstance(value, int | os.PathLike) else value


class CausalLM(HFLM):
    """lm-eval's loader, for causal language models."""

    def _get_backend(self, config: Any, **more: Any) -> None:
        """Refuse other networks in a line."""
        refuse_class(config, str(config.name_or_path), AutoModelForCausalLM)
        super()._get_backend(config, **more)


BITS = ("load_in_8bit", "load_in_4bit")


class Wrapper(Backend):
    """A latent model over a network of transformers.

    Args:
        pretrained: Directory or hub repository.
        batch_size: Sequences that the network reads together, or ``auto``. Moves no
            number.
        max_batch_size: The most that ``auto`` takes.
        device: Where to compute.
        log_weights: Whether records beside the results keep log-weights.
        arguments: Options of the model, and every other argument of ``--model hf``.
    """

    loader: ClassVar[type[HFLM]] = CausalLM
    reads: ClassVar[str] = "AutoModelForCausalLM"
    such_as: ClassVar[str] = "GPT-2"
    """Kind of networks, for error messages."""
    mixes_precision: ClassVar[Mapping[str | None, tuple[str, ...]]] = {}
    """Values of ``mixed_precision_dtype`` by estimator: types whose
    rounding is below the Monte Carlo error (docs/errors.md)."""

    def __init__(
        self,
        pretrained: str | None = None,
        batch_size: int | str | None = "auto",
        max_batch_size: int | str | None = None,
        device: str | torch.device | None = None,
        log_weights: bool | str = False,
        **arguments: Any,
    ) -> None:
        """Check the arguments and load the network."""
        pretrained = self._named(pretrained)
        expected = f"networks of transformers ({self.reads}), such as {self.such_as}"
        refuse_latent(pretrained, self._alias, expected)
        model: Any = model_class(self.model_name or "")
        names = model.options().names()
        options = {name: arguments.pop(name) for name in names if name in arguments}
        self._refuse_misspelled(arguments, names)
        arguments = read(arguments)
        # None would have transformers ask at the terminal.
        arguments["trust_remote_code"] = bool(arguments.get("trust_remote_code"))
        estimator = getattr(model.options().parse(options), "estimator", "is")
        mixed = str(arguments.get("mixed_precision_dtype") or "").split(".")[-1]
        allowed = self.mixes_precision.get(estimator, ())
        if mixed and mixed not in allowed:
            raise ValueError(
                f"mixed_precision_dtype={mixed}: its rounding moves a log-likelihood "
                f"by more than draws of {self._alias} with estimator={estimator} do: "
                + " or ".join([*allowed, "leave it out"])
            )
        if device not in (None, LM_EVAL_DEVICE):
            parse_device(device)
        if old := next((name for name in BITS if arguments.get(name)), None):
            raise ValueError(
                f"{old}: transformers 5 takes this argument no longer, so --model hf "
                "does not either. Save the network quantized (from_pretrained(..., "
                f"quantization_config=BitsAndBytesConfig({old}=True)), then "
                "save_pretrained) and give that directory"
            )
        processes = Processes.start()
        with refusing(arguments, names):
            network = self._network(pretrained, str(device or "cuda"), arguments)
        scorer = model(network).scorer(
            options,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            quiet=processes.rank != 0,
        )
        super().__init__(
            scorer,
            processes,
            network.device,
            log_weights=log_weights,
        )

    def _network(
        self, pretrained: str, device: str, arguments: Mapping[str, Any]
    ) -> Any:
        """Load the network, and keep what wrote its chat template."""
        self._loaded: Any = self.loader(
            pretrained=pretrained, device=device, **arguments
        )
        return Network.of(
            self._loaded.model,
            self._loaded.tokenizer,
            max_length=self._loaded.max_length,
            prefix_token=self._loaded.prefix_token_id,
            adds_special=self._loaded.add_bos_token,
            mixed_precision=self._loaded.mixed_precision_dtype,
        )

    def _refuse_misspelled(self, arguments: dict[str, Any], own: Any) -> None:
        """Refuse misspelled options; pass on arguments of transformers."""
        declared = inspect.signature(HFLM.__init__).parameters
        for name in arguments.keys() - declared.keys():
            if near := difflib.get_close_matches(name, own, n=1, cutoff=0.8):
                raise ValueError(
                    f"{name!r} is not an argument of {self._alias}: did you mean "
                    f"{near[0]}?"
                )

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation as the network was trained to read it."""
        written: str = self._loaded.apply_chat_template(
            chat_history, add_generation_prompt
        )
        return written

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template itself, for the results."""
        template: str | None = self._loaded.chat_template(chat_template)
        return template
