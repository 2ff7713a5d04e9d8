"""A server of completions over a tiny network, which can be made to misbehave.

It speaks the protocol of vLLM's (``/v1/models``, ``/v1/completions`` with token ids,
``prompt_logprobs`` and ``return_token_ids``) over real HTTP. What it answers was
compared with vLLM 0.32 field by field; it is no measure of speed.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from lm_latent_eval.networks.network import Network


@dataclass
class Tampering:
    """How a server differs from an honest one."""

    heat: float = 1.0
    """Temperature that it draws at, whatever it is asked."""
    lacks: str = ""
    """A field that it does not return."""
    failures: list[int] = field(default_factory=list)
    """States of HTTP that the next requests get; 0 is a connection that breaks."""
    pause: float = 0.0
    """Seconds that it takes."""
    repeats: bool = False
    """Whether one draw is returned n times."""
    processed: bool = False
    """Whether log-probabilities of draws are those of the temperature."""
    longest: int | None = None
    """Tokens after which it stops by itself."""


class Answering:
    """Answers requests by a network."""

    def __init__(self, network: Network, tampering: Tampering) -> None:
        """Take a network and how to misbehave."""
        self.network, self.tampering = network, tampering
        self.bodies: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def models(self) -> dict[str, Any]:
        """Say what there is."""
        model = {"id": "tiny", "root": self.network.name, "max_model_len": 32}
        if self.tampering.lacks == "max_model_len":
            del model["max_model_len"]
        return {"object": "list", "data": [model]}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        with self._lock:
            self.bodies.append(body)
            prompts = body["prompt"]
            prompts = prompts if isinstance(prompts[0], list) else [prompts]
            choices = [
                self._choice(body, prompt, sample)
                for prompt in prompts
                for sample in range(body.get("n", 1))
            ]
        for index, choice in enumerate(choices):
            choice["index"] = index
            choice.pop(self.tampering.lacks, None)
        return {"choices": choices[::-1]}

    @torch.inference_mode()
    def _choice(self, body, prompt, sample):
        read = None
        if "prompt_logprobs" in body:
            rows = self._log_p(prompt)[:-1]
            read = [None, *map(self._named, rows, prompt[1:])]
        sample = 0 if self.tampering.repeats else sample
        seed = (body.get("seed") or 0) + sample
        generator = torch.Generator().manual_seed(seed)
        tokens, said, reason = [], [], "length"
        longest = min(body["max_tokens"], self.tampering.longest or 99)
        for _ in range(longest):
            row = self._log_p(prompt + tokens)[-1]
            heated = (row / self.tampering.heat).log_softmax(-1)
            token = int(heated.exp().multinomial(1, generator=generator))
            tokens.append(token)
            said.append(self._named(heated if self.tampering.processed else row, token))
            if token in body.get("stop_token_ids", ()):
                reason = "stop"
                break
        found = {"token_ids": tokens, "finish_reason": reason, "prompt_logprobs": read}
        if body.get("logprobs") is not None:
            found["logprobs"] = {
                "token_logprobs": [
                    row[str(token)]["logprob"]
                    for row, token in zip(said, tokens, strict=True)
                ],
                "top_logprobs": [
                    {f"token_id:{t}": each["logprob"] for t, each in row.items()}
                    for row in said
                ],
            }
        return found

    def _log_p(self, tokens):
        """Read each sequence once: thousands of thoughts are a hundred of them."""
        if (read := self._known.get(tuple(tokens))) is None:
            logits = self.network.model(input_ids=torch.tensor([tokens])).logits
            read = self._known[tuple(tokens)] = logits[0].log_softmax(-1)
        return read

    def _named(self, row, token):
        def value(t):
            return max(row[t].item(), -9999.0)

        names = dict.fromkeys([token, int(row.argmax())])
        return {str(t): {"logprob": value(t), "rank": 1} for t in names}


@contextmanager
def serving(network: Network, tampering: Tampering | None = None):
    """Yield the URL of a server, and what it has been asked."""
    answering = Answering(network, tampering or Tampering())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(answering.models())

        def do_POST(self):
            size = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(size))
            wrong = answering.tampering
            if wrong.failures:
                state = wrong.failures.pop(0)
                if state:
                    said = {"error": {"message": "as the test wants it"}}
                    return self._send(said, state)
                return self.connection.close()
            time.sleep(wrong.pause)
            self._send(answering.complete(body))

        def _send(self, said, state=200):
            content = json.dumps(said).encode()
            try:
                self.send_response(state)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:  # who asked has gone
                pass

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", answering
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
