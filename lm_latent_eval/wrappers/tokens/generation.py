"""Generation by the network's own tokens."""

from __future__ import annotations

from typing import Any

import torch

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.uniforms import uniforms


def generate(
    network: Network, given: tuple[int, ...], options: GenerationOptions, key: int
) -> str:
    """Continue tokens until a stop string, greedily or by chance.

    Args:
        network: What gives tokens their probability.
        given: Tokens of the context.
        options: How.
        key: Of the random numbers.

    Returns:
        What is written before the first stop string.
    """
    tokenizer: Any = network.tokenizer
    reading = network.reader().begin(torch.tensor([given], device=network.device))
    written: list[int] = []
    text = ""
    while len(written) < options.max_tokens:
        token = _next(reading.log_p[0], options.temperature, key, len(written))
        if token == tokenizer.eos_token_id:
            break
        written.append(token)
        text = str(tokenizer.decode(written, skip_special_tokens=True))
        cuts = [at for stop in options.until if (at := text.find(stop)) >= 0]
        if cuts:
            return text[: min(cuts)]
        if len(written) < options.max_tokens:
            reading.read(torch.tensor([[token]], device=network.device))
    return text


def _next(log_p: torch.Tensor, temperature: float, key: int, step: int) -> int:
    if temperature == 0:
        return int(log_p.argmax())
    mass = (log_p.cpu().double() / temperature).softmax(-1).cumsum(-1)
    uniform = torch.tensor(uniforms(key, (0, step), 1)[0, 0])
    return int(torch.searchsorted(mass / mass[-1], uniform, right=True))
