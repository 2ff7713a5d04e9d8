"""Trains a model that writes steps out, and one that answers at once, as long.

python examples/arithmetic/train.py DIR

writes DIR/cot and DIR/direct, directories of transformers, and DIR/arithmetic.yaml, a
multiple-choice task of lm-eval with questions that neither has seen. Both models have
the same architecture, and are shown as many tokens: direct sequences are shorter, so
there are more of them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from language import CLOSE, END, HINT, HINTED, THINK, Expression, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOKENS = 4_000_000
BATCH = 64
QUESTIONS = 500
OPTIONS = 4
TASK = """\
task: arithmetic
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{options}}}}"
doc_to_target: "{{{{right}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


def example(chance: random.Random, unseen: set[str], thinks: bool) -> tuple[str, str]:
    """Draw a prompt and what is learned after it."""
    expression = Expression.draw(chance)
    while expression.question in unseen:
        expression = Expression.draw(chance)
    prompt, answer = expression.question, str(expression.values[-1])
    if not thinks:
        return prompt, f"{answer}{END}"
    if chance.random() < HINTED:
        prompt = HINT.replace("{question}", prompt).replace("{answer}", answer)
    return f"{prompt}{THINK}", f"{expression.thought(chance)}{CLOSE}{answer}{END}"


def batch(
    tokens: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels, (B, T); prompts and padding are no labels."""
    prompts = [tokens.encode(prompt) for prompt, _ in pairs]
    targets = [tokens.encode(target) for _, target in pairs]
    longest = max(len(p) + len(t) for p, t in zip(prompts, targets, strict=True))
    ids = torch.full((len(pairs), longest), tokens.pad_token_id)
    labels = torch.full_like(ids, -100)
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        both = torch.tensor(prompt + target)
        ids[row, : len(both)] = both
        labels[row, len(prompt) : len(both)] = both[len(prompt) :]
    return ids, labels


def train(
    thinks: bool, unseen: set[str], most_tokens: int, seed: int
) -> LlamaForCausalLM:
    """Train on as many tokens, padding included."""
    torch.manual_seed(seed)
    chance, tokens = random.Random(seed), tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokens),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=128,
            bos_token_id=None,
            eos_token_id=tokens.eos_token_id,
            pad_token_id=tokens.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    shown, steps, begun, loss = 0, 0, time.time(), math.nan
    while shown < most_tokens:
        for group in optimizer.param_groups:  # warm up, then down to nothing
            group["lr"] = 3e-3 * min(shown / most_tokens * 20, 1 - shown / most_tokens)
        ids, labels = batch(
            tokens, [example(chance, unseen, thinks) for _ in range(BATCH)]
        )
        found = model(input_ids=ids, labels=labels).loss
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown, steps, loss = shown + ids.numel(), steps + 1, found.item()
        if steps % 200 == 0:
            print(f"  {shown:,} tokens, loss {loss:.3f}", flush=True)
    print(
        f"{'cot' if thinks else 'direct':6} {model.num_parameters():,} parameters, "
        f"{shown:,} tokens in {steps:,} steps of {BATCH}, loss {loss:.3f}, "
        f"{time.time() - begun:.0f} s",
        flush=True,
    )
    return model


def questions(number: int, seed: int) -> list[dict[str, object]]:
    """Draw questions with four different options."""
    chance = random.Random(seed)
    drawn = [Expression.draw(chance) for _ in range(number)]
    rows: list[dict[str, object]] = []
    for expression in drawn:
        right = expression.values[-1]
        wrong = chance.sample([n for n in range(10) if n != right], OPTIONS - 1)
        options = chance.sample([right, *wrong], OPTIONS)
        rows.append(
            {
                "question": expression.question,
                "options": [str(option) for option in options],
                "right": options.index(right),
            }
        )
    return rows


def main() -> None:
    """Train both models and write the task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="each is shown")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    rows = questions(args.questions, seed=args.seed + 1_000_000)
    data = (args.directory / "questions.jsonl").resolve()
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (args.directory / "arithmetic.yaml").write_text(TASK.format(data=data))
    unseen = {str(row["question"]) for row in rows}
    for name, thinks in (("cot", True), ("direct", False)):
        model = train(thinks, unseen, args.tokens, args.seed)
        model.save_pretrained(args.directory / name)
        tokenizer().save_pretrained(args.directory / name)


if __name__ == "__main__":
    main()
