"""A network behind a completions server such as vLLM.

The tokenizer is local, the weights are not: token ids go in and log-probabilities
come out, so no string is tokenized twice. Requests turn off all that a sampler could
do to the model's own distribution, and the draws are tested: see ``Honesty``.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from lm_latent_eval.files import one_line
from lm_latent_eval.networks.network import text_ends, tokenizer_digest
from lm_latent_eval.values import parse

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Settings that draw from the model's own distribution, against its
``generation_config``."""
Table = NDArray[np.float64]
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
"""HTTP status codes that another try may not meet."""
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further try."""
IMPOSSIBLE = -9999.0
"""Stand-in of vLLM for minus infinity, which JSON lacks."""
UNFAIR = math.log(1e6)
"""Log of the capital at which draws are refused, see ``Honesty``."""
LIKELIEST = 5
"""Number of most probable tokens that a server returns with each draw."""
LEAST_REST = 1e-4
"""Lower bound of the probability of all other tokens, above rounding."""


class ServerError(ValueError):
    """Error of a server that does not answer, or not with the fields needed."""


@dataclass(frozen=True)
class Completion:
    """Tokens that a server has drawn."""

    tokens: tuple[int, ...]
    log_p: tuple[float, ...]
    """Log p of each token, nats."""
    likeliest: tuple[dict[int, float], ...]
    """Log p of the ``LIKELIEST`` most probable tokens at each position, and of the
    drawn one, nats."""
    reason: str
    """Reason of the end."""


@dataclass(frozen=True)
class Server:
    """A model that a server has loaded.

    Attributes:
        url: URL up to and with ``/v1``.
        model: Name of the model in requests.
        root: Source of the model as reported by the server.
        max_length: Largest number of tokens read at once; None if not reported.
        timeout: Largest time of one request, in seconds.
    """

    url: str
    model: str
    root: str
    max_length: int | None
    timeout: float

    @classmethod
    def find(cls, base_url: str, name: str, timeout: float) -> Server:
        """Find a server's only model or the named one.

        Raises:
            ServerError: If the address is invalid, the server does not answer, or has
                several models of other names.
        """
        url = base_url.rstrip("/").removesuffix("/completions")
        if not url.startswith(("http://", "https://")):
            raise ServerError(
                f"base_url={base_url}: expected an address such as "
                "http://localhost:8000/v1"
            )
        reply = _asked(f"{url}/models", None, timeout)
        models = [m for m in reply.get("data") or () if isinstance(m, dict)]
        named = [m for m in models if name in (m.get("id"), m.get("root"))]
        candidates = named or models
        if len(candidates) != 1 or not isinstance(candidates[0].get("id"), str):
            names = ", ".join(str(model.get("id")) for model in models) or "none"
            raise ServerError(
                f"{url} serves {names}: give the one that is meant as pretrained=..."
            )
        [model] = candidates
        length = model.get("max_model_len")
        return cls(
            url,
            model["id"],
            str(model.get("root") or model["id"]),
            length if isinstance(length, int) else None,
            timeout,
        )

    def draw(
        self,
        prompt: Sequence[int],
        num_samples: int,
        *,
        seed: int,
        most_tokens: int,
        stops: Sequence[int],
    ) -> list[Completion]:
        """Draw continuations of a prompt, independently.

        Args:
            prompt: Token ids.
            num_samples: Number of continuations.
            seed: Seed of the first; the n-th has seed + n.
            most_tokens: Largest length of each.
            stops: The only tokens that end one.

        Raises:
            ServerError: If the reply lacks a field, which is named.
        """
        answer = self._complete(
            {
                **NEUTRAL,
                "prompt": list(prompt),
                "n": num_samples,
                "seed": seed,
                "max_tokens": most_tokens,
                "logprobs": LIKELIEST,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,  # strings may be equal
                "ignore_eos": True,
                "stop_token_ids": list(stops),
            },
            num_samples,
        )
        return [self._drawn(choice) for choice in answer]

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        spelled: Callable[[int], str | None] = lambda token: None,
    ) -> list[list[float]]:
        """Log p of every token of sequences but the first, nats.

        Args:
            sequences: Token ids.
            spelled: Decodes a token, to compare with the server's string without white
                space; None is not compared.

        Raises:
            ServerError: If the reply lacks a field, which is named, or has other
                tokens.
        """
        answer = self._complete(
            {
                **NEUTRAL,
                "prompt": [list(sequence) for sequence in sequences],
                "max_tokens": 1,
                "prompt_logprobs": 1,
            },
            len(sequences),
        )
        return [
            self._read(choice, sequence, spelled)
            for choice, sequence in zip(answer, sequences, strict=True)
        ]

    def _complete(self, body: dict[str, Any], count: int) -> list[dict[str, Any]]:
        url = f"{self.url}/completions"
        reply = _asked(url, {"model": self.model, **body}, self.timeout)
        choices = reply.get("choices")
        if not isinstance(choices, list) or len(choices) != count:
            raise ServerError(f"{url} returned no {count} choices")
        with self._lacking("choices with their index"):
            return sorted(choices, key=lambda choice: int(choice.get("index", 0)))

    def _drawn(self, choice: dict[str, Any]) -> Completion:
        with self._lacking("token_ids of what it draws (return_token_ids=true)"):
            tokens = tuple(map(operator.index, choice["token_ids"]))
            if not tokens:
                raise ValueError("there is none")
        with self._lacking(f"log-probabilities of draws (logprobs={LIKELIEST})"):
            reply = choice["logprobs"]
            log_p = tuple(map(_nats, reply["token_logprobs"]))
            rows = reply["top_logprobs"]
            if not len(log_p) == len(rows) == len(tokens):
                raise ValueError(f"{len(log_p)} of {len(tokens)} tokens")
            likeliest = tuple(
                {int(name.rpartition(":")[2]): _nats(p) for name, p in row.items()}
                for row in rows
            )
            if min(map(len, likeliest)) < LIKELIEST:
                raise ValueError(f"fewer than {LIKELIEST} tokens of a place")
        return Completion(tokens, log_p, likeliest, str(choice.get("finish_reason")))

    def _read(
        self,
        choice: dict[str, Any],
        sequence: Sequence[int],
        spelled: Callable[[int], str | None],
    ) -> list[float]:
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(sequence):
            raise self._lacks("log-probabilities of prompts (prompt_logprobs=1)")
        log_p = []
        for token, row in zip(sequence[1:], rows[1:], strict=True):
            with self._lacking("log-probabilities of prompts by token"):
                entry = row.get(str(token))
                nats = None if entry is None else _nats(entry["logprob"])
            if nats is None:
                raise self._lacks(f"the log-probability of token {token} of a prompt")
            ours, theirs = spelled(token), entry.get("decoded_token")
            if ours and isinstance(theirs, str) and ours.strip() != theirs.strip():
                raise ServerError(
                    f"{self.url} writes token {token} as {theirs!a:.40}, and the "
                    f"tokenizer of pretrained= as {ours!a:.40}: it has loaded another "
                    "model. Give that one's directory or repository"
                )
            log_p.append(nats)
        return log_p

    @contextmanager
    def _lacking(self, what: str) -> Iterator[None]:
        try:
            yield
        except ServerError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as err:
            raise self._lacks(what) from err

    def _lacks(self, what: str) -> ServerError:
        return ServerError(
            f"{self.url} does not return {what}: latent_cot needs it. Servers of vLLM "
            "do (0.10.2 and later)"
        )


@dataclass(frozen=True)
class Positions:
    """Positions of a completion: their most probable tokens, and all others as one."""

    p: Table
    """Probabilities in descending order, (T, LIKELIEST + 1), all others last."""
    drawn: NDArray[np.int64]
    """Column of the drawn token, (T,)."""
    in_output: NDArray[np.bool_]
    """Mask of tokens that were drawn before, (T, LIKELIEST + 1)."""
    in_text: NDArray[np.bool_]
    """Mask of tokens that were drawn before or are in the prompt, (T, LIKELIEST +
    1)."""

    @classmethod
    def of(cls, completion: Completion, prompt: Sequence[int]) -> Positions:
        shape = len(completion.tokens), LIKELIEST + 1
        p = np.zeros(shape)
        drawn = np.full(shape[0], LIKELIEST)
        in_output, in_text = np.zeros(shape, bool), np.zeros(shape, bool)
        output, text = set[int](), {*prompt}
        pairs = zip(completion.tokens, completion.likeliest, strict=True)
        for position, (token, row) in enumerate(pairs):
            # An extra token was drawn from all others. Ranks cannot show that, since
            # ties are ordered by the draw.
            if len(row) > LIKELIEST:
                row = {other: nats for other, nats in row.items() if other != token}
            best = sorted(row.items(), key=lambda pair: -pair[1])
            for rank, (other, log_p) in enumerate(best):
                p[position, rank] = math.exp(log_p)
                in_output[position, rank] = other in output
                in_text[position, rank] = other in text
                if other == token:
                    drawn[position] = rank
            output.add(token)
            text.add(token)
        p[:, -1] = np.maximum(1 - p.sum(1), LEAST_REST)
        return cls(p, drawn, in_output, in_text)


Sampler = Callable[[Positions], Table]
"""Weights of tokens under another sampler, (T, 6)."""


def _heated(temperature: float) -> Sampler:
    return lambda positions: positions.p ** (1 / temperature)


def _top_k(k: int) -> Sampler:
    return lambda positions: positions.p * (np.arange(LIKELIEST + 1) < k)


def _top_p(share: float) -> Sampler:
    return lambda positions: positions.p * (positions.p.cumsum(1) - positions.p < share)


def _min_p(share: float) -> Sampler:
    def weights(positions: Positions) -> Table:
        kept: Table = positions.p * (positions.p >= share * positions.p[:, :1])
        return kept

    return weights


def _repeated(nats: float, *, prompt: bool) -> Sampler:
    def weights(positions: Positions) -> Table:
        seen = positions.in_text if prompt else positions.in_output
        penalised: Table = positions.p * np.exp(-nats * seen)
        return penalised

    return weights


SAMPLERS: dict[str, Sampler] = {
    **{
        f"temperature {t:g}": _heated(t)
        for t in (0.3, 0.6, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.6)
    },
    **{f"top_k {k}": _top_k(k) for k in (1, 2, 3, 5)},
    **{f"top_p {share:g}": _top_p(share) for share in (0.8, 0.9, 0.95, 0.98)},
    **{f"min_p {share:g}": _min_p(share) for share in (0.05, 0.1)},
    **{
        f"tokens of the text before penalised by {nats:g} nats": _repeated(
            nats, prompt=True
        )
        for nats in (0.3, 1.0, 3.0)
    },
    **{
        f"drawn tokens penalised by {nats:g} nats": _repeated(nats, prompt=False)
        for nats in (0.3, 1.0)
    },
}
"""Samplers that a server could use instead, by name: the bets of ``Honesty``."""


class Honesty:
    r"""Test by betting that drawn tokens follow the model's own distribution.

    .. math:: C_j = \prod_t \frac{q_j(x_t)}{p(x_t)}, \qquad
        C = \frac{1}{J} \sum_j C_j

    p gives the probabilities of the most probable tokens of a position and of all
    others together; q_j are those of another sampler. If draws follow p, C has mean 1
    at most, and reaches a million in one run of a million of any length (Ville's
    inequality). If they follow q_j, log C grows by its divergence from p with every
    token.
    """

    def __init__(self) -> None:
        self._log_capital = np.zeros(len(SAMPLERS))
        self._growth = np.zeros(len(SAMPLERS))
        self.num_tokens = 0

    def add(self, completion: Completion, prompt: Sequence[int]) -> None:
        """Add a completion of a prompt.

        Raises:
            ServerError: If draws are of another distribution.
        """
        positions = Positions.of(completion, prompt)
        every = np.arange(len(positions.drawn))
        self.num_tokens += len(every)
        for j, weights in enumerate(SAMPLERS.values()):
            q = weights(positions)
            q /= q.sum(1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = np.log(q / positions.p)
                self._growth[j] += np.where(q > 0, q * gain, 0.0).sum()
            self._log_capital[j] += gain[every, positions.drawn].sum()
        if np.logaddexp.reduce(self._log_capital) >= UNFAIR + math.log(len(SAMPLERS)):
            name = [*SAMPLERS][int(self._log_capital.argmax())]
            raise ServerError(
                "what the server draws is not of the model's own distribution: its "
                f"{self.num_tokens:,} tokens are much more probable by {name}. "
                "Temperature 1, no top-p, no top-k and no penalties were asked for: "
                "start the server without any of its own"
            )

    @property
    def noticed(self) -> dict[str, bool]:
        """Whether so many draws reveal a sampler on average, by its name."""
        needed = UNFAIR + math.log(len(SAMPLERS))
        pairs = zip(SAMPLERS, self._growth.tolist(), strict=True)
        return {name: growth >= needed for name, growth in pairs}


def _nats(value: Any) -> float:
    if not isinstance(value, int | float) or math.isnan(value) or value > 1e-3:
        raise ServerError(f"the server returned a log-probability of {value!a:.40}")
    return -math.inf if value <= IMPOSSIBLE else min(float(value), 0.0)


def _asked(url: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
    """Send a request, and retry while that may help.

    Raises:
        ServerError: If there is no answer.
    """
    for wait in (*WAITS, None):
        try:
            return _once(url, body, timeout)
        except urllib.error.HTTPError as err:
            with err:
                why = f"{err.code}: {_message(err.read())}"
            if err.code not in PASSING:
                raise ServerError(f"{url} refused ({why})") from err
        except (OSError, HTTPException, ValueError) as err:
            why = one_line(err)
        if wait is None:
            raise ServerError(
                f"{url} gave no answer in {len(WAITS) + 1} tries ({why}). When the "
                "server is there again, the same command goes on with the next question"
            )
        time.sleep(wait)
    raise AssertionError


def _once(url: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        reply = parse(response.read().decode(), infinities=True)
    if not isinstance(reply, dict):
        raise ValueError("the answer is no JSON object")
    return reply


def _message(content: bytes) -> str:
    try:
        reply = parse(content.decode(), infinities=True)
        error = reply.get("error", reply)
        text = str(error.get("message", error))
    except (ValueError, AttributeError):
        text = content.decode("utf-8", "replace")
    return one_line(ValueError(text))


@dataclass(frozen=True)
class ServedNetwork:
    """A served network with its tokenizer: token ids in, log-probabilities out."""

    server: Server
    tokenizer: PreTrainedTokenizerBase
    name: str
    """Source of the tokenizer: a directory or a repository."""
    digest: str
    """Digest of the tokenizer and of the server's name of the model; the weights are
    unknown."""
    max_length: int
    """Largest number of tokens that it reads at once."""
    text_ends: list[int]
    honesty: Honesty = field(default_factory=Honesty, compare=False)
    _spelled: dict[int, str | None] = field(default_factory=dict, compare=False)
    computed_in = "as served"
    device = torch.device("cpu")

    @classmethod
    def open(
        cls, base_url: str, name: str, *, timeout: float, max_length: int | None = None
    ) -> ServedNetwork:
        """Find the server's model, and load the tokenizer.

        Args:
            base_url: URL up to and with ``/v1``.
            name: Directory or repository of the model, for its tokenizer.
            timeout: Largest time of a request, in seconds.
            max_length: Largest number of tokens read at once; None is the server's.

        Raises:
            ValueError: If there is no tokenizer, no answer, or no largest length of a
                prompt.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as err:
            raise ValueError(
                f"pretrained={name}: no tokenizer ({one_line(err)}). With base_url, "
                "give the directory or repository that the server has loaded"
            ) from err
        server = Server.find(base_url, name, timeout)
        length = max_length or server.max_length
        if length is None:
            raise ValueError(
                f"{server.url} does not say how long a prompt may be: give max_length"
            )
        sha = hashlib.sha256(f"{server.model}\0{server.root}".encode())
        sha.update(tokenizer_digest(tokenizer).encode())
        digest = sha.hexdigest()[:16]
        ends = text_ends(_generation(name), tokenizer)
        return cls(server, tokenizer, name, digest, length, ends)

    def spelled(self, token: int) -> str | None:
        """Decode a token; None if a server may write it differently.

        Servers differ on added tokens, and on tokens that are part of a character.
        """
        if token not in self._spelled:
            written = str(self.tokenizer.decode([token]))
            added = token in self.tokenizer.added_tokens_decoder
            self._spelled[token] = None if added or "\ufffd" in written else written
        return self._spelled[token]

    @property
    def about(self) -> dict[str, Any]:
        """Description for results, as JSON."""
        return {
            "checkpoint_digest": self.digest,
            "served_model": self.server.model,
            "base_url": self.server.url,
        }


def _generation(name: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(name, trust_remote_code=False)
    except OSError:
        return None
