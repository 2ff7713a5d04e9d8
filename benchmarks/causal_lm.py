"""Train a small GPT-2 on a text, to stand beside word-level models in bits per byte.

    python benchmarks/causal_lm.py --data train.jsonl --dev dev.jsonl --output gpt2
    lm_eval --model hf --model_args pretrained=gpt2 --tasks latent_perplexity \
        --metadata '{"text_file": "dev.jsonl"}'

A byte-level BPE tokenizer of the text, a few layers, one pass after the other over the
texts in random order; the weights of the best pass are kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval.text.corpora import read_texts

END = "<|endoftext|>"


def main() -> None:
    """Train and save tokenizer and model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    texts, dev = read_texts(args.data), read_texts(args.dev)
    torch.manual_seed(0)
    tokenizer = train_tokenizer(texts, args.vocab_size)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=args.width,
        n_layer=args.layers,
        n_head=4,
        n_positions=512,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = GPT2LMHeadModel(config)
    train_ids, dev_ids = (encode(tokenizer, part) for part in (texts, dev))
    steps = args.epochs * -(-len(texts) // args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.learning_rate, total_steps=steps
    )
    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        for batch in batches(train_ids, args.batch_size):
            total, tokens = loss(model, batch)
            optimizer.zero_grad()
            (total / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            parts = [loss(model, b) for b in batches(dev_ids, args.batch_size)]
        mean = float(sum(t for t, _ in parts)) / sum(n for _, n in parts)
        print(f"epoch {epoch + 1}: {mean:.4f} nats a BPE token", file=sys.stderr)
        if mean < best:
            best = mean
            model.save_pretrained(args.output)
            tokenizer.save_pretrained(args.output)


def train_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, which loses no byte."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=vocab_size, special_tokens=[END])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=END, bos_token=END, pad_token=END
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """Put the end before and after each text, as the harness does before it."""
    end = tokenizer.eos_token_id
    return [[end, *ids, end] for ids in tokenizer(texts)["input_ids"]]


def batches(texts: list[list[int]], size: int) -> list[list[list[int]]]:
    """Cut into batches of similar length, in random order."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    parts = [order[i : i + size] for i in range(0, len(order), size)]
    return [[texts[i] for i in parts[b]] for b in torch.randperm(len(parts))]


def loss(model: GPT2LMHeadModel, texts: list[list[int]]) -> tuple[torch.Tensor, int]:
    """Return nats and tokens of a batch."""
    longest = max(map(len, texts))
    ids = torch.tensor([t + [-100] * (longest - len(t)) for t in texts])
    logits = model(ids.clamp_min(0)[:, :-1]).logits
    total = F.cross_entropy(
        logits.transpose(1, 2), ids[:, 1:], ignore_index=-100, reduction="sum"
    )
    return total, int((ids[:, 1:] >= 0).sum())


if __name__ == "__main__":
    main()
