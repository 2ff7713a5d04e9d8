"""How often the audit fails scorers that have no fault.

    python benchmarks/audit_clean.py [--audits 60] [--requests 2000]

Five kinds of scorer are audited with as many seeds each, every time with other bigrams
or other weights: bytes; a BPE that stays inside words; a BPE across words, whose
answers are encoded by themselves; words of a closed vocabulary, by counts; and an LSTM
over words of ours. All are distributions by construction. The level of an audit is 5 %.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lm_latent_eval import demo
from lm_latent_eval.audit.run import Audit, audit
from lm_latent_eval.audit.session import Plan, Requester, Session
from lm_latent_eval.audit.verdict import Kind
from lm_latent_eval.harness.audit import Model, quiet, seed_everything
from lm_latent_eval.models.checkpoint import save
from lm_latent_eval.models.recurrent_lm import LSTMConfig, LSTMLanguageModel
from lm_latent_eval.text.words import WordTokenizer

NAME = "clean_bigram"
KINDS = {
    "bytes": Kind.STRINGS,
    "bpe": Kind.TOKENS,
    "bpe across words": Kind.ANSWERS,
    "words": Kind.WORDS,
    "lstm": Kind.WORDS,
}
"""Scorers, and what each is a distribution over."""
VOCABULARY, SMOOTHING = 400, 0.02
UNKNOWN = "a"
"""The word that all words outside of the vocabulary are taken for."""


@cache
def train_texts() -> list[str]:
    """Return the demonstration's training texts."""
    return [document["text"] for document in demo.documents("train")]


@cache
def tokenizer(scorer: str) -> Tokenizer:
    """Train the tokenizer of a scorer of bigrams."""
    if scorer == "words":
        made = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(vocab_size=VOCABULARY)
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=scorer == "bpe"
        )
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=256 if scorer == "bytes" else VOCABULARY,
            initial_alphabet=alphabet,
        )
    made.train_from_iterator(train_texts(), trainer)
    return made


@cache
def counts(scorer: str, seed: int) -> np.ndarray:
    """Return log p(next | last) by the counts of half of the texts; the start is last.

    Shape (tokens + 1, tokens), each row smoothed and totalling 1.
    """
    words, rng = tokenizer(scorer), np.random.default_rng(seed)
    number = words.get_vocab_size()
    p = np.full((number + 1, number), SMOOTHING / number)
    for text in rng.permutation(train_texts())[: len(train_texts()) // 2]:
        ids = words.encode(str(text)).ids
        np.add.at(p, ([number, *ids[:-1]], ids), 1.0)
    return np.log(p / p.sum(1, keepdims=True))


@register_model(NAME)
class Bigrams(LM):
    """Bigrams of tokens as a backend of lm-eval; no end of a text is charged."""

    def __init__(self, scorer: str, seed: int = 0, **_: object) -> None:
        super().__init__()
        self.scorer, self.words = scorer, tokenizer(scorer)
        self.logs = counts(scorer, int(seed))
        self.start = len(self.logs) - 1
        self.chance = np.random.default_rng(int(seed))

    def _tokens(self, context: str, answer: str) -> tuple[list[int], list[int]]:
        """Cut a request as lm-eval's ``hf`` does, or each part by itself."""
        if self.scorer == "bpe across words":
            return self._ids(context), self._ids(answer)
        space = len(context) - len(context.rstrip())
        if space and self.scorer == "bpe":
            context, answer = context[:-space], context[-space:] + answer
        before = self._ids(context)
        return before, self._ids(context + answer)[len(before) :]

    def _ids(self, text: str) -> list[int]:
        return list(self.words.encode(text).ids)

    def _answer(self, context: str, answer: str) -> tuple[float, bool]:
        before, after = self._tokens(context, answer)
        rows = self.logs[[[self.start, *before][-1], *after[:-1]]]
        scores = rows[np.arange(len(after)), after]
        return float(scores.sum()), bool((rows.argmax(1) == after).all())

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        found = [self._answer(*request.args) for request in requests]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        found = [self._answer("", request.args[-1])[0] for request in requests]
        for request, score in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        return [self._written(*request.args) for request in requests]

    def _written(self, context: str, how: dict[str, Any]) -> str:
        last, found = [self.start, *self._ids(context)][-1], []
        for _ in range(how["max_gen_toks"]):
            p = np.exp(self.logs[last])
            last = int(self.chance.choice(len(p), p=p / p.sum()))
            if not how["do_sample"]:
                last = int(p.argmax())
            found.append(last)
        if self.scorer != "words":
            return str(self.words.decode(found))
        written = " ".join(str(self.words.id_to_token(n)) for n in found)
        return f" {written}" if context else written


def lstm(seed: int, folder: Path) -> dict[str, str]:
    """Write an LSTM of random weights; return what opens it."""
    words = WordTokenizer.train(train_texts(), min_count=4)
    torch.manual_seed(seed)
    sizes = {"vocab_size": words.vocab_size, "num_words": words.num_words}
    config = LSTMConfig(**sizes, embedding_dim=8, hidden_size=16)
    model = LSTMLanguageModel(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    save(model, words, folder, model.state_dict())
    return {"pretrained": str(folder)}


def audited(scorer: str, seed: int, plan: Plan) -> Audit:
    """Audit a scorer of a seed."""
    texts = [document["text"] for document in demo.documents("dev")[:16]]
    with tempfile.TemporaryDirectory() as folder, quiet():
        name, arguments = NAME, {"scorer": scorer, "seed": seed}
        if scorer == "lstm":
            name, arguments = "latent_lstm", lstm(seed, Path(folder))
        model = Model.open(name, arguments, device="cpu", batch_size=32)
        begin: Callable[[], object] = lambda: seed_everything(seed)  # noqa: E731
        session = Session(
            Requester(model),
            KINDS[scorer],
            plan,
            texts,
            precision=model.precision,
            seed=seed,
            begin=begin,
        )
        begin()
        return audit(session)


def main() -> None:
    """Print alarms by kind of scorer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=60)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--scorers", nargs="+", default=[*KINDS], choices=KINDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan.within(asked.requests)
    print("| scorer | kind | alarms | items |\n|---|---|---|---|")
    for scorer in asked.scorers:
        found = [audited(scorer, seed, plan) for seed in range(asked.audits)]
        alarms = sum(each.failed for each in found)
        said = sorted({one.item.title for each in found for one in each.alarms})
        cells = [scorer, KINDS[scorer], f"{alarms} of {asked.audits}", "; ".join(said)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
