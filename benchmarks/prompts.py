"""Which prompt carries an answer: a small network on questions of arc_easy's form.

``python benchmarks/prompts.py DIR`` trains a GPT-2 on the facts of WebNLG (in the
folder ``LATENT_EVAL_DATA``) in four wordings, and writes into DIR the network, 300 of
the facts as questions in the place of arc_easy's data, and a mixture of five prompts.
It prints what to run there.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.text.files import numbered_lines
from lm_latent_eval.values import parse

QUESTION = "Question: What is the {r} of {s}?\nAnswer: {o}\n"
WORDINGS = {
    QUESTION: 0.35,
    "The {r} of {s} is {o}.\n": 0.4,
    "{s}, {r}: {o}\n": 0.2,
    f"Please answer.\n{QUESTION}": 0.05,
}
"""What is read, and how often."""
PROMPTS = {
    "as it is": "{context}",
    "please": "Please answer.\n{context}",
    "capitals": "ANSWER THE QUESTION BELOW.\n{context}",
    "a sentence": "The country of Denmark is Aarhus.\n{context}",
    "quiz": "Quiz. Choose well.\n\n{context}",
}
STEPS, ROWS, LENGTH, QUESTIONS = 900, 24, 48, 300
Fact = tuple[str, str, str]


def facts(path: Path) -> list[Fact]:
    """Return facts whose relation has one object a subject, and four in all."""
    found = set()
    for _, line in numbered_lines(path):
        for subject, relation, thing in parse(line)["triples"]:
            words = re.sub(r"([a-z])([A-Z])", r"\1 \2", relation.split("(")[0])
            if len(thing) < 30 and len(subject) < 40:
                said = words.replace("_", " ").lower().strip()
                found.add((plain(subject), said, plain(thing)))
    objects: dict[str, set[str]] = {}
    several: dict[tuple[str, str], set[str]] = {}
    for s, r, o in found:
        objects.setdefault(r, set()).add(o)
        several.setdefault((s, r), set()).add(o)
    return sorted(
        (s, r, o)
        for s, r, o in found
        if len(objects[r]) >= 4 and len(several[s, r]) == 1
    )


def plain(name: str) -> str:
    """Return the name of an entity as text."""
    return " ".join(name.replace("_", " ").replace('"', "").split())


def questions(asked: list[Fact], known: list[Fact]) -> list[dict[str, object]]:
    """Return rows as arc_easy has them; wrong options are other objects."""
    rows = []
    for s, r, o in asked:
        options = sorted({thing for _, word, thing in known if word == r} - {o})
        random.shuffle(options)
        options = [*options[:3], o]
        random.shuffle(options)
        rows.append(
            {
                "id": str(len(rows)),
                "question": f"What is the {r} of {s}?",
                "choices": {"text": options, "label": list("ABCD")},
                "answerKey": "ABCD"[options.index(o)],
            }
        )
    return rows


def tokenizer(known: list[Fact]) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [w.format(s=s, r=r, o=o) for s, r, o in known for w in WORDINGS]
    built.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<end>")


def train(known: list[Fact], words: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Train a GPT-2 of two layers."""
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(words),
            n_positions=256,
            n_embd=64,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    begun = time.perf_counter()
    for _ in range(STEPS):
        rows = []
        for _ in range(ROWS):
            row = [0]
            while len(row) < LENGTH:
                s, r, o = random.choice(known)
                [wording] = random.choices([*WORDINGS], [*WORDINGS.values()])
                row += words.encode(wording.format(s=s, r=r, o=o))
            rows.append(row[:LENGTH])
        read = torch.tensor(rows)
        loss = network(read, labels=read).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(
        f"{network.num_parameters():,} parameters, {len(known)} facts, loss "
        f"{loss.item():.3f}, {time.perf_counter() - begun:.0f} s, seed 0"
    )
    return network.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    folder = parser.parse_args().directory
    data = Path(os.environ["LATENT_EVAL_DATA"])
    torch.manual_seed(0)
    random.seed(0)
    known = facts(data / "webnlg" / "train.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    rows = questions(random.sample(known, QUESTIONS), known)
    splits = dict.fromkeys(("train", "validation", "test"), rows)
    write_dataset("allenai/ai2_arc", {"ARC-Easy": splits})
    words = tokenizer(known)
    words.save_pretrained("network")
    train(known, words).save_pretrained("network")
    prompts = [{"name": name, "text": text} for name, text in PROMPTS.items()]
    Path("prompts.yaml").write_text(yaml.safe_dump({"prompts": prompts}))
    print(
        f"cd {folder}; lm_eval --model latent_mixture --tasks arc_easy --device cpu "
        "--batch_size 64 --output_path results "
        "--model_args pretrained=network,mixture=prompts.yaml"
    )
