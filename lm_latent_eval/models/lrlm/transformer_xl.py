r"""A Transformer-XL that can be stopped and resumed at any position.

Texts are read in chunks. A word sees the words of its chunk up to itself, and in every
layer what that layer was given at the last ``memory_size`` words before the chunk.
Symbols: distances t = i - j between words have keys R_t of their own,

.. math:: s_{ij} = \frac{(q_i + b_w)^\top k_j + (q_i + b_r)^\top R_{i-j}}{\sqrt D}

The state holds the chunk as far as it was read, so where a text is cut does not matter.
Texts differ in what they have read, and are read one by one.

Departures: none where ``memory_rule`` is ``published``, by which the memory of upper
layers is stale as soon as a chunk and a memory are twice as long as the memory, as the
published models were trained and evaluated; ``clean`` remembers the last words.
Source: Dai et al. (2019); the code of Hayashi et al. (2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lm_latent_eval.models.lrlm.configuration import LRLMConfig

States = tuple[Tensor, ...]
"""What every layer was given, and what the last one returned, (words, H) each."""


@dataclass(frozen=True)
class TextMemory:
    """What is known of one text."""

    memory: States
    """Of earlier chunks."""
    chunk: States
    """Of this one."""


@dataclass(frozen=True)
class TextMemories:
    """What is known of B texts."""

    texts: tuple[TextMemory, ...]

    def select(self, index: Tensor) -> TextMemories:
        return TextMemories(tuple(self.texts[i] for i in index.tolist()))

    def resample(self, index: Tensor) -> TextMemories:
        """Return itself: all latents of a text share what was read."""
        return self


class Layer(nn.Module):
    """Attention and a feed-forward part, each with a residual and a norm."""

    def __init__(self, config: LRLMConfig) -> None:
        super().__init__()
        self.heads, self.pre_norm = config.num_heads, config.pre_norm
        size, inner = config.hidden_size, config.num_heads * config.head_dim
        self.attending = nn.Linear(size, 3 * inner, bias=False)
        self.relative = nn.Linear(size, inner, bias=False)
        self.attended = nn.Linear(inner, size, bias=False)
        self.attention_norm = nn.LayerNorm(size)
        self.inner = nn.Linear(size, config.inner_dim)
        self.outer = nn.Linear(config.inner_dim, size)
        self.feed_norm = nn.LayerNorm(size)

    def forward(
        self, value: Tensor, before: Tensor, distances: Tensor, biases: Tensor
    ) -> Tensor:
        """Read words that follow others.

        Args:
            value: The words, (n, H).
            before: Those before them, (m, H).
            distances: Encodings of the distances 0 .. m + n - 1, (m + n, H).
            biases: b_w and b_r, (2, heads, D).
        """
        every = torch.cat([before, value])
        normed = self.attention_norm(every) if self.pre_norm else every
        query, key, content = (
            part.unflatten(-1, (self.heads, -1))
            for part in self.attending(normed).chunk(3, -1)
        )
        query = query[len(before) :]
        far = self.relative(distances).unflatten(-1, (self.heads, -1))
        place = torch.arange(len(every), device=value.device)
        distance = place[len(before) :, None] - place
        by_word = torch.einsum("ihd,jhd->hij", query + biases[0], key)
        by_distance = torch.einsum("ihd,thd->hit", query + biases[1], far)
        reached = distance.clamp_min(0).expand(self.heads, -1, -1)
        scores = (by_word + by_distance.gather(-1, reached)) / key.shape[-1] ** 0.5
        weight = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
        seen = torch.einsum("hij,jhd->ihd", weight, content).flatten(1)
        output: Tensor = value + self.attended(seen)
        if self.pre_norm:
            return output + self._feed(self.feed_norm(output))
        output = self.attention_norm(output)
        return self.feed_norm(output + self._feed(output))  # type: ignore[no-any-return]

    def _feed(self, value: Tensor) -> Tensor:
        return self.outer(self.inner(value).relu())  # type: ignore[no-any-return]


class TransformerXL(nn.Module):
    """Layers over chunks with a memory, called as ``RecurrentStack`` is."""

    frequencies: Tensor
    """Of the sinusoids that encode distances, (H / 2,)."""

    def __init__(self, config: LRLMConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        if config.embedding_dim != size:
            self.project = nn.Linear(config.embedding_dim, size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.biases = nn.Parameter(torch.zeros(2, config.num_heads, config.head_dim))
        steps = torch.arange(0, size, 2) / size
        self.register_buffer("frequencies", 10000.0**-steps)

    def forward(
        self, value: Tensor, length: Tensor, carry: TextMemories | None = None
    ) -> tuple[Tensor, TextMemories]:
        """Run over padded texts.

        Args:
            value: (B, T, embedding_dim).
            length: Real places of each text, (B,).
            carry: Where each text stands; None is the beginning.

        Returns:
            The top layer's outputs (B, T, H), and where each text now stands.
        """
        size = self.config.hidden_size
        if self.config.embedding_dim != size:
            value = self.project(value)
        if carry is None:
            nothing = (value.new_zeros(0, size),) * (len(self.layers) + 1)
            carry = TextMemories((TextMemory(nothing, nothing),) * len(value))
        outputs = value.new_zeros(*value.shape[:2], size)
        texts = []
        for b, number in enumerate(length.tolist()):
            output, past = self._read(value[b, :number], carry.texts[b])
            outputs[b, :number] = output
            texts.append(past)
        return outputs, TextMemories(tuple(texts))

    def _read(self, value: Tensor, past: TextMemory) -> tuple[Tensor, TextMemory]:
        """Read words of one text, (n, H), chunk by chunk."""
        outputs = [value[:0]]
        while len(value):
            room = self.config.chunk_size - len(past.chunk[0])
            states = self._states(value[:room], past)
            outputs.append(states[-1])
            chunk = tuple(
                torch.cat(pair) for pair in zip(past.chunk, states, strict=True)
            )
            past = replace(past, chunk=chunk)
            if len(value) >= room:
                nothing = tuple(state[:0] for state in chunk)
                past = TextMemory(self._remembered(past), nothing)
            value = value[room:]
        return torch.cat(outputs), past

    def _states(self, value: Tensor, past: TextMemory) -> States:
        """Return what every layer is given at some words of a chunk, and the output."""
        reach = len(past.memory[0]) + len(past.chunk[0]) + len(value)
        step = torch.arange(reach, device=value.device, dtype=value.dtype)
        angle = step[:, None] * self.frequencies.to(value.dtype)
        distances = torch.cat([angle.sin(), angle.cos()], -1)
        states = [value]
        for layer, memory, chunk in zip(
            self.layers, past.memory, past.chunk, strict=False
        ):
            before = torch.cat([memory, chunk])
            states.append(layer(states[-1], before, distances, self.biases))
        return tuple(states)

    def _remembered(self, past: TextMemory) -> States:
        """Return the memory after a chunk has been read to its end."""
        size, earlier = self.config.memory_size, len(past.memory[0])
        end = earlier + len(past.chunk[0])
        start = max(0, end - size)
        remembered = []
        for memory, chunk in zip(past.memory, past.chunk, strict=True):
            if self.config.memory_rule == "published" and start >= size:
                # As it was written: what is taken off stays off for the other layers.
                start, end = start - size, end - size
                remembered.append(chunk[start:end])
            else:
                remembered.append(torch.cat([memory, chunk])[start:end])
        return tuple(remembered)
