"""``latent_tokens`` beside ``--model hf``, on lm-eval's own tasks."""

from __future__ import annotations

import json

import lm_eval
import pytest
from lm_eval.models.huggingface import HFLM
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from lm_latent_eval.harness.wrappers import LatentTokens
from tests import tiny_causal
from tests.stock_tasks import PAGES, PAIRS, PASSAGES, TASKS, log_likelihoods, tasks
from tests.tiny_checkpoint import conditional, generation, rolling

SENTENCES = [
    "The miller's daughter counted twelve geese before the rain came down.",
    "Nobody in the valley had seen a bridge as old as this one.",
    "He wrote 17 letters, and she answered none of them; so it went.",
    "Geese, ducks and a grey heron: the pond behind the mill was theirs.",
    "Ada saw the fox, and the fox saw Ada; Bo saw a zebra.",
    *(text for pair in PAIRS for text in pair),
    *PASSAGES,
    *(page for page, *_ in PAGES),
]
SPECIAL = ["<s>", "</s>"]


def byte_level():
    """As GPT-2: bytes, merges, and no mark of its own around a text."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL[1:],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    built.train_from_iterator(SENTENCES, trainer)
    return tiny_causal.fast(built, eos_token="</s>")


def byte_fallback():
    """As Llama 2: spaces as letters, bytes for what has no token, a mark before."""
    built = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    built.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    built.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    built.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    built.train_from_iterator(SENTENCES, trainer)
    state = json.loads(built.to_str())
    # Tokens of bytes are no special ones: the trainer only puts them first.
    state["added_tokens"] = state["added_tokens"][:3]
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return tiny_causal.fast(
        Tokenizer.from_str(json.dumps(state)),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def word_pieces():
    """As BERT: words, and their parts."""
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=["[UNK]", "[SEP]"],
        show_progress=False,
    )
    built.train_from_iterator(SENTENCES, trainer)
    return tiny_causal.fast(built, eos_token="[SEP]", unk_token="[UNK]")


KINDS = {"bytes": byte_level, "fallback": byte_fallback, "words": word_pieces}


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory):
    """A network of 48 positions with a tokenizer of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = KINDS[request.param]()
    network = tiny_causal.model(len(tokenizer), positions=48)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def evaluate(lm):
    return lm_eval.simple_evaluate(
        model=lm, tasks=TASKS, task_manager=tasks(), bootstrap_iters=0
    )


LONG = " ".join(SENTENCES[:5])
PAIRED = [
    ("The miller's daughter", " counted twelve geese."),
    ("The mil", "ler's daughter"),
    ("Nobody in ", "the valley"),
    ("", "Geese, ducks"),
    (LONG, " and so on"),
    (LONG + " Ada", " saw the fox"),
]


def test_canonical_is_hf(directory):
    """Beginnings, ends, windows, and contexts longer than the window."""
    hf = HFLM(pretrained=str(directory), device="cpu")
    ours = LatentTokens(pretrained=str(directory), device="cpu", estimator="canonical")
    texts = [*SENTENCES[:4], LONG, "a"]
    assert ours.loglikelihood_rolling(rolling(*texts)) == pytest.approx(
        hf.loglikelihood_rolling(rolling(*texts)), rel=1e-10
    )
    found = ours.loglikelihood(conditional(*PAIRED))
    for (log_p, greedy), (wanted, whether) in zip(
        found, hf.loglikelihood(conditional(*PAIRED)), strict=True
    ):
        assert log_p == pytest.approx(wanted, rel=1e-10)
        assert greedy is whether
    asked = generation("The miller", until=["."], max_gen_toks=8)
    assert ours.generate_until(asked) == hf.generate_until(asked)


@pytest.mark.usefixtures("stock_data")
def test_canonical_is_hf_on_stock_tasks(directory):
    hf = evaluate(HFLM(pretrained=str(directory), device="cpu"))
    ours = evaluate(
        LatentTokens(pretrained=str(directory), device="cpu", estimator="canonical")
    )
    for task, metrics in hf["results"].items():
        for name, value in metrics.items():
            if isinstance(value, float):
                assert ours["results"][task][name] == pytest.approx(value, rel=1e-10)
    found, wanted = log_likelihoods(ours), log_likelihoods(hf)
    assert found.keys() == wanted.keys()
    for key, answers in wanted.items():
        for one, other in zip(found[key], answers, strict=True):
            if isinstance(other, tuple):
                assert one[0] == pytest.approx(other[0], rel=1e-10)
                assert one[1] == other[1]
            else:
                assert one == pytest.approx(other, rel=1e-10)
