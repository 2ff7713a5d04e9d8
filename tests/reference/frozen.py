"""Numbers of every latent model, estimator and proposal, frozen at version 0.2.

``frozen.json`` holds log-likelihoods in nats of a few texts and a few continuations
under five seeds, and their exact values by enumeration. Commit faf8fba computed them,
and they are never written anew: ``tests/test_frozen.py`` lists whose random streams
have changed since.

Weights are uniform numbers of Philox by parameter name, so they depend on no version of
torch. Everything is asked in strings, of ``lm_latent_eval.load``: nothing here knows
how an estimator works.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lm_latent_eval
from lm_latent_eval import demo
from lm_latent_eval.latent import Normalization
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.words import END, SPECIAL_WORDS, START
from lm_latent_eval.uniforms import stream_key, uniforms
from tests import tiny_causal
from tests.conftest import PROJECT
from tests.test_laws import TINY_MODELS, write_with_words

FILE = Path(__file__).parent / "frozen.json"
NUM_SAMPLES = {"is": 100, "smc": 200, "beam": 5}
"""K of tiny models."""
DRAWN = ("is", "smc")
"""Estimators that draw; what the others find is deterministic."""
STDDEV = {"lda": 1.2, "kglm": 0.5, "hmm": 0.7, "tokens": 0.25}
"""Of weights, where it is not 0.7."""


@dataclass(frozen=True)
class Frozen:
    """A model, what it is asked, and how exact answers are enumerated."""

    name: str
    model: Any
    weights: str
    """Digest of its parameters."""
    texts: Sequence[str]
    continuations: Sequence[tuple[str, str]]
    """Contexts with what follows them."""
    exact: Callable[[], list[float]]
    """Enumerate log-likelihoods of texts and continuations, nats; none if it cannot."""
    num_samples: Mapping[str, int] = field(default_factory=lambda: NUM_SAMPLES)
    """K of each estimator."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More than every model has."""

    def answers(
        self, entry: str, seed: int, places: Sequence[int] | None = None
    ) -> tuple[list[float], list[float]]:
        """Return log-likelihoods and their errors as draws tell them, nats.

        Of all texts, or of those at some places.
        """
        texts = [self.texts[n] for n in places] if places else self.texts
        estimator, *proposal = entry.split()
        asked = {"estimator": estimator, "seed": seed, **self.options}
        if proposal:
            asked |= {"num_samples": self.num_samples[estimator]}
        if proposal and self.name != "tokens":  # which has one
            asked |= {"proposal": proposal[0]}
        found = self.model.log_likelihood(texts, **asked)
        if self.continuations:
            contexts, texts = zip(*self.continuations, strict=True)
            found += self.model.log_likelihood(texts, contexts=contexts, **asked)
        return [e.log_evidence for e in found], [e.draws_stderr for e in found]


def fill(model: nn.Module, name: str) -> str:
    """Give every parameter numbers that its name determines; return their digest."""
    digest = hashlib.sha256()
    with torch.no_grad():
        for parameter, weight in sorted(model.named_parameters()):
            key = stream_key(0, f"{name}/{parameter}")
            drawn = uniforms(key, [0], -(-weight.numel() // 4)).ravel()
            bound = math.sqrt(3) * STDDEV.get(name, 0.7)
            values = (2 * drawn - 1)[: weight.numel()] * bound
            weight.copy_(torch.from_numpy(values).view(weight.shape))
            digest.update(parameter.encode() + values.tobytes())
    return digest.hexdigest()[:16]


# -- models of words ------------------------------------------------------------------

TEXTS = {
    1: ("the Ada the", "Ada", "the quick the Ada", "the the Ada Ada", ""),
    2: ("the fox the the", "fox", "fox the quick fox", "the the fox fox the", ""),
}
"""By how many words a model utters: ``fox`` is the second, ``Ada`` is copied where
there is one, and ``quick`` unknown."""
CONTINUATIONS = {
    1: (("the Ada", " the Ada"), ("the Ada", " the"), ("Ada the", " quick")),
    2: (("the fox", " the fox"), ("the fox", " fox"), ("fox the", " quick the")),
}
LONGER = ("the fox fox the fox the the", "fox", "fox fox the quick the fox")
"""For trees, of which shorter texts have few; and an empty text is no sentence."""


def _of_words(name: str, directory: Path) -> Frozen:
    """Write and open a model whose units are words."""
    if name == "hmm":
        model, listed = _hmm()
    else:
        tiny = TINY_MODELS[name]
        model = tiny.build()

        def listed(ids: list[int]) -> Any:
            return tiny.latents(model, ids)

    weights = fill(model, name)
    write_with_words(model, directory)
    opened = lm_latent_eval.load(
        directory,
        model="latent_hmm:HMM" if name == "hmm" else name,
        dtype="float64",
        device="cpu",
    )
    num_uttered = model.config.vocab_size - len(SPECIAL_WORDS)
    texts, continuations = TEXTS[num_uttered], CONTINUATIONS[num_uttered]
    if name == "lda":  # whole texts alone have a probability, given their lengths
        texts, continuations = texts[:-1], ()
    elif name == "rnng":
        texts = LONGER

    def log_p(text: str, *, whole: bool) -> float:
        read = opened.checkpoint.encoder()(text)
        ends = [END] * (
            whole
            and model.normalization in (Normalization.ONE, Normalization.BELOW_ONE)
        )
        ids = [*read.ids, *ends]
        costs = [[*read.log_unknown, *(0.0 for _ in ends)]]
        encoded = model.encode(TokenBatch.collate([ids], costs, first=START))
        found: float = model.log_joint(encoded, listed(ids)).logsumexp(-1).item()
        return found

    def exact() -> list[float]:
        return [log_p(text, whole=True) for text in texts] + [
            log_p(context + text, whole=False) - log_p(context, whole=False)
            for context, text in continuations
        ]

    return Frozen(name, opened, weights, texts, continuations, exact)


def _hmm() -> tuple[Any, Callable[[list[int]], Any]]:
    """Return the example's model, and what lists its walks."""
    folder = str(PROJECT / "examples" / "hmm")
    if folder not in sys.path:
        sys.path.append(folder)
    from latent_hmm import HMM, HMMConfig

    config = HMMConfig(vocab_size=6, num_states=3, num_unknown_types=7)

    def every_walk(ids: list[int]) -> torch.Tensor:
        return torch.tensor([[*itertools.product(range(3), repeat=len(ids))]])

    return HMM(config).double().eval().requires_grad_(False), every_walk


# -- segmentations --------------------------------------------------------------------


def _tokens(directory: Path) -> Frozen:
    """Write and open a causal LM that scores strings by their segmentations."""
    tokenizer = tiny_causal.letters()
    network = tiny_causal.network(tokenizer)
    weights = fill(network.model, "tokens")
    network.model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    opened = lm_latent_eval.load(
        directory, model="latent_tokens", dtype="float64", device="cpu"
    )
    texts = ("aabaabab", "abbaabab", "baab", "b")
    continuations = (("aab", "abab"), ("aab", "b"), ("baa", "baba"))
    listed = tiny_causal.Listed(network, 1)
    strings = {z: s for z, s in listed.strings.items() if z}

    def written(text: str, *, over: bool = False) -> Iterator[tuple[int, ...]]:
        """List segmentations, or those whose last token alone may write ``over``."""
        for z, string in strings.items():
            if string == text or (over and string.startswith(text)):
                yield z
            elif text.startswith(string):
                rest = written(text.removeprefix(string), over=over)
                yield from ((*z, *more) for more in rest)

    def log_p(text: str, *, over: bool = False) -> float:
        return math.log(sum(map(listed.p, written(text, over=over))))

    def exact() -> list[float]:
        return [log_p(text) for text in texts] + [
            log_p(context + text) - log_p(context, over=True)
            for context, text in continuations
        ]

    return Frozen(
        "tokens",
        opened,
        weights,
        texts,
        continuations,
        exact,
        {"is": 100, "beam": 3},
        {"context_tokens": "all"},
    )


def opened(name: str, directory: Path) -> Frozen:
    """Write a tiny model to a directory, and open it."""
    return _tokens(directory) if name == "tokens" else _of_words(name, directory)


def demonstration() -> Frozen:
    """Return the demonstration's model with ten of its texts, which nobody enumerates.

    In float64: rounding of float32 could flip a draw on another processor. Filters have
    fifty particles, since fewer do not tell their error.
    """
    model = lm_latent_eval.load(demo.CHECKPOINT, dtype="float64", device="cpu")
    return Frozen(
        "demonstration",
        model,
        "as shipped",
        demo.texts("dev")[:10],
        (),
        list,
        {**dict.fromkeys(NUM_SAMPLES, 20), "smc": 50},
    )
