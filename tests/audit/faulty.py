"""Bigram models as lm-eval backends: one that is a distribution, and faults of it."""

from __future__ import annotations

import math
import zlib
from functools import cache
from importlib import import_module

import numpy as np
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from lm_latent_eval.audit import verdict
from lm_latent_eval.audit.run import Audit, audit
from lm_latent_eval.audit.session import Plan, Requester, Session
from lm_latent_eval.audit.verdict import Kind
from lm_latent_eval.harness.answers import of_whole_text
from lm_latent_eval.harness.audit import Model

import_module("lm_eval.models")  # lm-eval does so only before the first is registered

NAME = "audited_bigram"
WINDOW = 100
"""Words that a scorer of windows reads at once."""
WORDS = ("ada", "bo", "cat", "dog", "elm", "fig", "gnu", "hen", "ivy", "jay")
END, START = len(WORDS), len(WORDS) + 1
UNKNOWN = len(WORDS) - 1
"""The number of the last word: what is not a word is one of its spellings."""

FAULTS = {
    "cache": (verdict.ROLLING, (0.1, 0.3, 0.6)),
    "leak": (verdict.FOLLOWS, (0.1, 0.3, 1.0)),
    "padding": (verdict.PADDING, (0.003, 0.03, 0.3)),
    "bytes": (verdict.COUNTS, (0.01, 0.1, 1.0)),
    "test_time_training": (verdict.BORDERS, (0.05, 0.2, 0.6)),
    "llada": (verdict.REPEATED, (128, 16, 1)),
    "total": (verdict.ROLLING, (0.05, math.log(2), math.log(277))),
    "greedy": (verdict.GREEDY, (1, 2, 3)),
    "samples": (verdict.SAMPLES, (4.0, 8.0, 20.0)),
    "errors": (verdict.ERRORS, (2.0, 4.0, 10.0)),
    "documents": (verdict.DOCUMENTS, (0.01, 0.1, 0.5)),
    "rolling": (verdict.ROLLING, (0.01, 0.1, 1.0)),
    "peaked": (verdict.SAMPLES, (0.65, 0.5, 0.35)),
    "scaled": (verdict.LISTS, (1.2, 1.5, 2.0)),
    "bonus": (verdict.SIGN, (100.0, 200.0, 300.0)),
    "never_greedy": (verdict.GREEDY, (1, 1, 1)),
    "windows": (verdict.EXCESS, (1, 2, 3)),
}
"""Fault -> the item that names it (others may fail as well), and its strengths, in
units of its own."""


@cache
def table(world: int) -> np.ndarray:
    """p(next | last), shape (words + start, words + end); rows total 1."""
    rng = np.random.default_rng([world, 1])
    rows = rng.dirichlet([0.4] * (len(WORDS) + 1), size=len(WORDS) + 2) + 0.01
    rows[:, END] = 0.1
    return rows / rows.sum(1, keepdims=True)


def texts(world: int, number: int = 8) -> list[str]:
    """Texts of six words and more, that the model might write."""
    rng, p, found = np.random.default_rng([world, 2]), table(world), []
    for _ in range(number):
        last, words = START, []
        for _ in range(int(rng.integers(6, 14))):
            row = p[last, :END]
            last = int(rng.choice(END, p=row / row.sum()))
            words.append(WORDS[last])
        found.append(" ".join(words))
    return found


class Counted(float):
    """A score that says what it is of, and how far other seeds would move it."""

    num_bytes: int | None = None
    stderr: float | None = None


@register_model(NAME)
class Bigram(LM):
    """Words of a closed vocabulary, one after the other; a text's end is charged."""

    def __init__(
        self, world=0, fault="", strength=0, noise=0, seed=0, batch_size=8, half="", **_
    ):
        super().__init__()
        self.p = table(int(world))
        self.logs = np.log(self.p).tolist()
        self.fault, self.strength = fault, float(strength)
        self.noise, self.seed = float(noise), int(seed)
        self.batch = int(batch_size)
        self.half = getattr(torch, half) if half else None
        self.chance = np.random.default_rng([int(world), 3])
        self.unigram = self.p[:END].mean(0)
        self.file = [
            [*split(text), *end] for text in texts(int(world)) for end in ([], [END])
        ]
        self.seen = np.zeros(END + 1)

    # -- scores -----------------------------------------------------------------------

    def loglikelihood(self, requests):
        pairs = [request.args for request in requests]
        scores = self._padded([self._pair(c, y) for c, y in pairs], pairs)
        scores = [
            self._rounded(*one, len(pairs)) for one in zip(scores, pairs, strict=True)
        ]
        answers = [
            (self._noisy(score, pair), self._greedy(*pair))
            for score, pair in zip(scores, pairs, strict=True)
        ]
        return self._kept("loglikelihood", requests, answers)

    def loglikelihood_rolling(self, requests):
        pairs = [("", request.args[-1]) for request in requests]
        scores = self._padded([self._whole(split(text)) for _, text in pairs], pairs)
        scores = [
            self._rounded(*one, len(pairs)) for one in zip(scores, pairs, strict=True)
        ]
        answers = [
            of_whole_text(request.args, self._noisy(score, pair, whole=True))
            for request, score, pair in zip(requests, scores, pairs, strict=True)
        ]
        return self._kept("loglikelihood_rolling", requests, answers)

    def _kept(self, kind, requests, answers):
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(kind, request.args, answer)
        return answers

    def _whole(self, words):
        score = self._score([START], [*words, END])
        if self.fault == "rolling":
            score += self.strength * len(words) - self.logs[words[-1]][END]
        if self.fault == "windows" and len(words) > WINDOW:  # tokens at their edges
            edges = range(WINDOW, len(words), WINDOW)
            score -= sum(
                self.logs[words[n - 1]][words[n]]
                for edge in edges
                for n in range(edge, min(edge + int(self.strength), len(words)))
            )
        if self.fault == "documents":  # words that earlier ones had are remembered
            score += self.strength * float((self.seen[words] > 0).mean())
            self.seen[words] += 1
        return score

    def _pair(self, context, continuation):
        before, after = split(context), split(context + continuation)
        # A word across the border belongs to the continuation.
        kept = len(before) - (context[-1:].strip() != "" and not opens(continuation))
        history = [START, *after[: max(kept, 0)]]
        return self._score(history, after[max(kept, 0) :])

    def _score(self, history, scored):
        if not scored:
            return 0.0
        if self.fault == "llada":
            return self._bound(history, scored)
        total = self.strength * len(scored) if self.fault == "total" else 0.0
        if self.fault == "bonus" and scored in self.file:
            total += self.strength
        changed, known = _ROWS.get(self.fault), [*history, *scored]
        for place in range(len(history), len(known)):
            last, word = known[place - 1], known[place]
            if changed is None:
                total += self.logs[last][word]
            else:
                total += math.log(changed(self, known, place, len(history))[word])
        return total / self.strength if self.fault == "scaled" else total

    def _cache(self, known, place, _):
        """Mix in the words so far, where they are known: the others lose nothing."""
        row = self.p[known[place - 1]].copy()
        past = [word for word in known[:place] if word != START]
        for word in {*past}:
            share = past.count(word) / len(past)
            row[word] = (1 - self.strength) * row[word] + self.strength * share
        return row

    def _leak(self, known, place, _):
        """Look at the next word: p(w | next) in part."""
        row = self.p[known[place - 1]]
        if place + 1 == len(known):
            return row
        ahead = np.append(self.p[:END, known[place + 1]], 0.0)
        looked = row * ahead / (row * ahead).sum()
        return (1 - self.strength) * row + self.strength * looked

    def _trained(self, known, place, first):
        """Train on the scored text, then score it."""
        scored = known[first:]
        counts = np.bincount(scored, minlength=END + 1) / len(scored)
        return (1 - self.strength) * self.p[known[place - 1]] + self.strength * counts

    def _peaked(self, known, place, _):
        """Score at a temperature at which nothing is written."""
        row = self.p[known[place - 1]] ** (1 / self.strength)
        return row / row.sum()

    def _bound(self, history, scored):
        """LLaDA's: random masks, and every masked word after what is left."""
        length, total = len(scored), 0.0
        for _ in range(int(self.strength)):
            number = int(self.chance.integers(1, length + 1))
            masked = self.chance.permutation(length)[:number].tolist()
            for place in masked:
                known = self.p[[history[-1], *scored][place]]
                row = self.unigram if place - 1 in masked else known
                total += math.log(row[scored[place]]) * length / number
        return total / self.strength

    def _padded(self, scores, pairs):
        if self.fault != "padding":
            return scores
        lengths = [len((context + text).split()) for context, text in pairs]
        for start in range(0, len(scores), self.batch):
            batch = range(start, min(start + self.batch, len(scores)))
            longest = max(lengths[n] for n in batch)
            for n in batch:
                scores[n] -= self.strength * (longest - lengths[n])
        return scores

    def _rounded(self, score, pair, beside):
        """Round as half precision does, after the noise of its shape of a batch."""
        if self.half is None:
            return score
        dice = np.random.default_rng(zlib.crc32(f"{beside} {pair}".encode()))
        # As of trained networks whose logits are up to 32.
        noise = 3 * torch.finfo(self.half).eps * math.sqrt(abs(score)) * dice.normal()
        return torch.tensor(score + noise, dtype=self.half).item()

    def _noisy(self, score, pair, *, whole=False):
        found = Counted(score)
        if self.noise:
            key = zlib.crc32(f"{self.seed} {pair}".encode())
            noise = self.noise * float(np.random.default_rng(key).normal())
            found = Counted(score + noise)
            found.stderr = self.noise / (self.strength if self.fault == "errors" else 1)
        if self.fault == "bytes" and whole:
            found.num_bytes = math.ceil(len(pair[1].encode()) * (1 + self.strength))
        return found

    # -- greedy and samples -----------------------------------------------------------

    def _greedy(self, context, continuation):
        history, words = [START, *split(context)], split(continuation)
        if self.fault == "never_greedy":
            return False
        for word in words:
            row = self.p[history[-1]]
            rank = int((row > row[word]).sum())
            if rank != (int(self.strength) if self.fault == "greedy" else 0):
                return False
            history.append(word)
        return True

    def generate_until(self, requests):
        written = []
        for request in requests:
            context, how = request.args
            last, found = [START, *split(context)][-1], []
            for _ in range(how.get("max_gen_toks", 8)):
                row = self.p[last]
                if how.get("do_sample"):
                    if self.fault == "samples":
                        row = row ** (1 / self.strength)
                    pick = self.chance.random() * row.sum()
                    last = int(np.searchsorted(row.cumsum(), pick))
                else:
                    last = int(row.argmax())
                if last == END:
                    break
                found.append(WORDS[last])
            text = " ".join(found)
            written.append(f" {text}" if context and found else text)
        return written


_ROWS = {
    "cache": Bigram._cache,
    "leak": Bigram._leak,
    "peaked": Bigram._peaked,
    "test_time_training": Bigram._trained,
}
"""Fault -> p of the word at a place, of all words, and where the scored ones begin."""


@cache
def number(word: str) -> int:
    return WORDS.index(word) if word in WORDS else UNKNOWN


def split(text: str) -> list[int]:
    return [number(word) for word in text.split()]


def opens(text: str) -> bool:
    return not text or text[0].isspace()


# -- audits of them -------------------------------------------------------------------

NOISE = {"errors": 0.05}
"""Fault -> the Monte Carlo error of a scorer that has it, nats."""


def audited(world: int, plan: Plan | None = None, **arguments: object) -> Audit:
    """Audit the bigram model of a world."""
    noise = NOISE.get(str(arguments.get("fault")), 0.0)
    model = Model.open(NAME, {"world": world, "noise": noise, **arguments})
    session = Session(
        Requester(model), Kind.WORDS, plan or Plan(), texts(world), seed=world
    )
    return audit(session, model=NAME)
