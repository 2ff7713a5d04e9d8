"""A server of completions over a tiny network, which can be made to misbehave.

It speaks the protocol of vLLM's (``/v1/models``, ``/v1/completions`` with token ids,
``prompt_logprobs`` and ``return_token_ids``) over real HTTP. What it answers was
compared with vLLM 0.32 field by field; it is no measure of speed.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from lm_latent_eval.networks.network import Network


@dataclass
class Tampering:
    """How a server differs from an honest one.

    Attributes:
        heat: Temperature that it draws at, whatever it is asked.
        top_k: Most probable tokens that it draws from; 0 is all.
        lacks: A field that it does not return.
        failures: States of HTTP that the next requests get; at 0 the connection breaks.
        pause: Seconds that it takes.
        repeats: Whether one draw is returned n times.
        processed: Whether log-probabilities of draws are those of the temperature.
        longest: Tokens after which it stops by itself.
        writes: How it writes every token; None is as its tokenizer does.
    """

    heat: float = 1.0
    top_k: int = 0
    lacks: str = ""
    failures: list[int] = field(default_factory=list)
    pause: float = 0.0
    repeats: bool = False
    processed: bool = False
    longest: int = 99
    writes: str | None = None


class Answering:
    """Answers requests by a network."""

    def __init__(self, network: Network, tampering: Tampering) -> None:
        self.network, self.tampering = network, tampering
        self.bodies = []
        self._lock = threading.Lock()
        # Each sequence is read once: thousands of thoughts are a hundred of them.
        self._log_p = cache(self._read)

    def models(self):
        model = {"id": "tiny", "root": self.network.name, "max_model_len": 32}
        model.pop(self.tampering.lacks, None)
        return {"object": "list", "data": [model]}

    def complete(self, body):
        with self._lock:
            self.bodies.append(body)
            prompts = body["prompt"]
            prompts = prompts if isinstance(prompts[0], list) else [prompts]
            numbers = range(body.get("n", 1))
            choices = [
                self._choice(body, tuple(p), n) for p in prompts for n in numbers
            ]
        for index, choice in enumerate(choices):
            choice["index"] = index
            choice.pop(self.tampering.lacks, None)
        return {"choices": choices[::-1]}

    def _choice(self, body, prompt, sample):
        wrong = self.tampering
        seed = (body.get("seed") or 0) + (0 if wrong.repeats else sample)
        generator = torch.Generator().manual_seed(seed)
        tokens, said, reason = (), [], "length"
        for _ in range(min(body["max_tokens"], wrong.longest)):
            row = self._log_p(prompt + tokens)[-1]
            heated = (row / wrong.heat).log_softmax(-1)
            if wrong.top_k:
                least = heated.topk(wrong.top_k).values[-1]
                heated = heated.masked_fill(heated < least, -torch.inf).log_softmax(-1)
            token = int(heated.exp().multinomial(1, generator=generator))
            tokens += (token,)
            shown = heated if wrong.processed else row
            said.append(named(shown, token, body.get("logprobs") or 1))
            if token in body.get("stop_token_ids", ()):
                reason = "stop"
                break
        found = {"token_ids": tokens, "finish_reason": reason}
        if "prompt_logprobs" in body:
            rows = self._log_p(prompt)[:-1]
            read = [None]
            for row in (named(*pair, 1) for pair in zip(rows, prompt[1:], strict=True)):
                read.append({str(t): self._about(t, p) for t, p in row.items()})
            found["prompt_logprobs"] = read
        if body.get("logprobs") is not None:
            pairs = zip(said, tokens, strict=True)
            top = [{f"token_id:{t}": p for t, p in row.items()} for row in said]
            drawn = [row[token] for row, token in pairs]
            found["logprobs"] = {"token_logprobs": drawn, "top_logprobs": top}
        return found

    def _about(self, token, log_p):
        written = self.network.tokenizer.decode([token])
        if self.tampering.writes is not None:
            written = self.tampering.writes
        return {"logprob": log_p, "rank": 1, "decoded_token": written}

    @torch.inference_mode()
    def _read(self, tokens):
        logits = self.network.model(input_ids=torch.tensor([tokens])).logits
        return logits[0].log_softmax(-1)


def named(row, token, number):
    """Log p of a token and of the most probable ones; JSON has no infinity."""
    best = row.topk(min(number, len(row))).indices.tolist()
    return {t: max(row[t].item(), -9999.0) for t in (token, *best)}


@contextmanager
def serving(network: Network, tampering: Tampering | None = None):
    """Yield the URL of a server, and what it has been asked."""
    answering = Answering(network, tampering or Tampering())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(answering.models())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            wrong = answering.tampering
            if not wrong.failures:
                time.sleep(wrong.pause)
                self._send(answering.complete(body))
            elif state := wrong.failures.pop(0):
                self._send({"error": {"message": "as the test wants it"}}, state)
            else:
                self.connection.close()

        def _send(self, said, state=200):
            content = json.dumps(said).encode()
            with suppress(OSError):  # who asked may have gone
                self.send_response(state)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    how = {"poll_interval": 0.01}
    thread = threading.Thread(target=server.serve_forever, kwargs=how)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", answering
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
