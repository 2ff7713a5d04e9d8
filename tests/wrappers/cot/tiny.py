"""A causal network of six tokens, whose every thought can be listed."""

from __future__ import annotations

import math
from itertools import product
from operator import add

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.cot.model import ThinkingLM, ThoughtScorer
from lm_latent_eval.wrappers.cot.thoughts import Thoughts

WORDS = ("<end>", "<think>", "</think>", "a", "b", "c")
END, THINK, CLOSE = 0, 1, 2
LONGEST = 3
"""Tokens of a thought; there are 156 + 25 of them, some cut short."""
HINT = "{answer} {question}"
MARKS = {"think_start": "<think>", "think_end": "</think>"}
OPTIONS = {**MARKS, "max_think_tokens": LONGEST, "hint": HINT}
QUESTION, ANSWERS = "a b", (" c", " a a", " b")


def tokenizer() -> PreTrainedTokenizerFast:
    """Whatever is not a word of ours is a b."""
    vocabulary = {word: n for n, word in enumerate(WORDS)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="b"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<end>",
        additional_special_tokens=["<think>", "</think>"],
    )


def network(seed: int = 1, dtype: torch.dtype = torch.float64) -> Network:
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=32,
        n_embd=8,
        n_layer=2,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=END,
        eos_token_id=END,
    )
    model = GPT2LMHeadModel(config)
    # Versions of transformers draw their weights in other orders.
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=config.initializer_range)
    return Network.of(model.to(dtype), tokenizer())


def scorer(found: Network, rows: int = 64, questions: int | None = None, **options):
    return ThinkingLM(found).scorer(
        {**OPTIONS, **options}, batch_size=questions, max_batch_size=rows
    )


def asked(trials=1, answers=ANSWERS, questions=None) -> list[Query]:
    """Every answer to one question, so many times, or to each of several."""
    questions = questions or [QUESTION] * trials
    every = [(f"t/{n}", a, q) for n, q in enumerate(questions) for a in answers]
    return [Query(n, *query) for n, query in enumerate(every)]


def keeping(scorer: ThoughtScorer) -> list[Thoughts]:
    """Return the list into which a scorer will put what it thinks."""
    kept: list[Thoughts] = []
    scorer.keep = kept.append
    return kept


@torch.inference_mode()
def log_p(found: Network, pairs, temperature: float = 1.0) -> list[float]:
    """Log p of tokens after others, of each pair in one reading without a cache.

    All pairs together: what pads a row stands after it, where nothing reads it.
    """
    rows = [torch.tensor([*prompt, *after]) for prompt, after in pairs]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    scores = found.model(input_ids=ids).logits / temperature
    read = scores[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return [
        row[len(prompt) - 1 : len(prompt) + len(after) - 1].sum().item()
        for row, (prompt, after) in zip(read, pairs, strict=True)
    ]


def every_thought(longest: int = LONGEST) -> list[tuple[int, ...]]:
    """All that can be drawn: up to its first end, or as long as may be."""
    found = []
    for size in range(1, longest + 1):
        for tokens in product(range(len(WORDS)), repeat=size):
            inner = {END, CLOSE} & {*tokens[:-1]}
            if not inner and (size == longest or tokens[-1] in (END, CLOSE)):
                found.append(tokens)
    return found


def exact(found: Network, question: str, answer: str, close="natural", heat=1.0):
    """p(answer | question), every thought summed over."""
    cut = found.tokenizer.encode
    prompt, target = [*cut(question), THINK], cut(answer)
    thoughts = [z for z in every_thought() if close == "forced" or z[-1] == CLOSE]
    read = [
        [*prompt, *(z[:-1] if z[-1] in (END, CLOSE) else z), CLOSE] for z in thoughts
    ]
    log_p_z = log_p(found, [(prompt, z) for z in thoughts], heat)
    log_p_answer = log_p(found, [(before, target) for before in read], heat)
    return sum(map(math.exp, map(add, log_p_z, log_p_answer)))
