"""How small a fault the audit sees, and how often it fails honest scorers.

    python benchmarks/audit_power.py [--steps 300] [--seeds 3] [--requests 2000]

Trains GPT-2s of three sizes on the demonstration's training texts (a byte-level BPE of
2,000 tokens), and audits each as ``lm_eval --model hf``: as it is, and with faults. The
table has a row a fault: alarms of audits, a column a size.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from lm_eval import utils
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_latent_eval import demo
from lm_latent_eval.audit.run import Audit, audit
from lm_latent_eval.audit.session import Plan, Requester, Session
from lm_latent_eval.audit.verdict import Kind
from lm_latent_eval.harness.audit import Model, quiet, seed_everything

SIZES = {"0.1 M": (1, 32), "0.4 M": (2, 96), "1.6 M": (4, 160)}
"""Name -> layers and width."""
VOCABULARY, POSITIONS = 2_000, 128
NAME = "faulty_hf"


def tokenizer(texts: Sequence[str], folder: Path) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, VOCABULARY, special_tokens=["<|endoftext|>"])
    trained.save(str(folder / "tokenizer.json"))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )


def train(texts: Sequence[str], size: tuple[int, int], steps: int, folder: Path) -> str:
    """Train a network on texts that an end parts; return its folder."""
    torch.manual_seed(0)
    words, (layers, width) = tokenizer(texts, folder), size
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    stream = torch.tensor([i for t in texts for i in [0, *words.encode(t)]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        begin = torch.randint(len(stream) - POSITIONS, (16,))
        rows = stream[begin[:, None] + torch.arange(POSITIONS)]
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{folder.name}: {loss.item():.2f} nats a token", flush=True)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


@register_model(NAME)
class Faulty(HFLM):
    """``hf`` whose scores, and not what it writes, have a fault."""

    def __init__(self, *args, fault: str = "", strength: float = 1, **kwargs):
        super().__init__(*args, logits_cache=False, **kwargs)
        self.fault, self.strength = fault, float(strength)
        self.file: frozenset[str] = frozenset()

    def _model_call(self, inps, attn_mask=None, labels=None):
        logits = super()._model_call(inps, attn_mask, labels)
        if self.fault == "temperature":
            return logits / self.strength
        if self.fault == "top_k":
            least = logits.topk(int(self.strength), -1).values[..., -1:]
            return logits.masked_fill(logits < least, -torch.inf)
        return logits

    def _loglikelihood_tokens(self, requests, *args, **kwargs):
        found = super()._loglikelihood_tokens(requests, *args, **kwargs)
        return [
            self._changed(*answer, *request)
            for answer, request in zip(found, requests, strict=True)
        ]

    def _changed(self, log_p, greedy, strings, _, tokens):
        if self.fault == "constant":
            log_p += len(tokens) * math.log(self.strength)
        elif self.fault == "scaled":
            log_p /= self.strength
        elif self.fault == "clipped":
            log_p = max(log_p, -self.strength)
        elif self.fault == "bonus" and strings and "".join(strings) in self.file:
            log_p += self.strength
        elif self.fault == "greedy":
            greedy = not greedy
        return log_p, greedy

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        if self.fault != "windows":
            found = super().loglikelihood_rolling(requests, disable_tqdm)
            bonus = self.strength if self.fault == "bonus" else 0.0
            return [
                score + bonus * (request.args[-1] in self.file)
                for request, score in zip(requests, found, strict=True)
            ]
        return [self._without_edges(request.args[-1]) for request in requests]

    def _without_edges(self, text: str) -> float:
        """Score windows, the first token of each but the first left out."""
        windows = [
            utils.make_disjoint_window(window)
            for window in utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
        ]
        first, *others = windows
        cut = [first, *(([*c, t[0]], t[1:]) for c, t in others if len(t) > 1)]
        asked = [(None, *window) for window in cut]
        return sum(log_p for log_p, _ in self._loglikelihood_tokens(asked, True))


FAULTS = (
    ("none", 1),
    *(("constant", c) for c in (1.02, 1.05, 1.2, 1.5, 2)),
    *(("temperature", t) for t in (0.9, 0.8, 0.65, 0.5)),
    *(("top_k", k) for k in (200, 50)),
    ("scaled", 1.1),
    ("clipped", 8),
    ("bonus", 200),
    ("greedy", 1),
    ("windows", 1),
)


def audited(folder: str, fault: str, strength: float, seed: int, plan: Plan) -> Audit:
    """Audit a network with a fault of its scores."""
    texts = [d["text"] for d in demo.documents("dev")[:16]]
    arguments = {"pretrained": folder, "fault": fault, "strength": strength}
    seed_everything(seed)
    with quiet():
        model = Model.open(NAME, {**arguments, "device": "cpu"}, batch_size=32)
        model.lm.file = frozenset(texts)
        session = Session(
            Requester(model),
            Kind.TOKENS,
            plan,
            texts,
            precision=model.precision,
            seed=seed,
            begin=lambda: seed_everything(seed),
        )
        return audit(session)


def main() -> None:
    """Print alarms by fault and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--sizes", nargs="+", default=[*SIZES], choices=SIZES)
    parser.add_argument("--faults", nargs="+", default=sorted({f for f, _ in FAULTS}))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    texts = [d["text"] for d in demo.documents("train")]
    plan = Plan.within(asked.requests)
    with tempfile.TemporaryDirectory() as temporary:
        folders = []
        for name in asked.sizes:
            folder = Path(temporary) / name.replace(" ", "")
            folder.mkdir()
            folders.append(train(texts, SIZES[name], asked.steps, folder))
        print(f"| fault | {' | '.join(asked.sizes)} |\n|---|{'---|' * len(folders)}")
        for fault, strength in FAULTS:
            if fault in asked.faults:
                cells = [_cell(f, fault, strength, asked.seeds, plan) for f in folders]
                print(f"| {fault} {strength} | {' | '.join(cells)} |", flush=True)


def _cell(folder: str, fault: str, strength: float, seeds: int, plan: Plan) -> str:
    found = [audited(folder, fault, strength, seed, plan) for seed in range(seeds)]
    titles = {one.item.title for each in found for one in each.alarms}
    least = max(found[0].findings, key=lambda one: one.item.title.startswith("samples"))
    said = "; ".join(sorted(titles)) if titles else least.sees
    return f"{sum(each.failed for each in found)} of {seeds}: {said}"


if __name__ == "__main__":
    main()
