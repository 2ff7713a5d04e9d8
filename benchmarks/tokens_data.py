"""Write data of stock tasks out of the demonstration corpus, for docs/tokens.md.

    python benchmarks/tokens_data.py --data corpus/test.jsonl

Pages for ``wikitext``, passages for ``lambada_openai`` and pairs for one task of BLiMP,
in the working directory, where ``lm_eval`` finds them with ``HF_HUB_OFFLINE=1``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lm_latent_eval.harness.tasks import write_dataset
from lm_latent_eval.text.corpora import read_texts

PAGES, PASSAGES, PAIRS = slice(0, 30), slice(30, 80), slice(80, 130)


def main() -> None:
    """Write the three data sets."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    texts = read_texts(parser.parse_args().data)
    pages = [{"page": text} for text in texts[PAGES]]
    write_dataset(
        "EleutherAI/wikitext_document_level",
        {"wikitext-2-raw-v1": dict.fromkeys(("train", "validation", "test"), pages)},
    )
    passages = [{"text": first_sentence(text)} for text in texts[PASSAGES]]
    write_dataset("EleutherAI/lambada_openai", {"default": {"test": passages}})
    pairs = [
        {"sentence_good": f"{good}.", "sentence_bad": f"{swapped(good)}."}
        for good in map(first_sentence, texts[PAIRS])
    ]
    write_dataset("nyu-mll/blimp", {"adjunct_island": {"train": pairs}})


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop."""
    return text.split(".")[0]


def swapped(sentence: str) -> str:
    """Swap the third and the second word from the end."""
    *before, third, second, last = sentence.split()
    return " ".join([*before, second, third, last])


if __name__ == "__main__":
    main()
