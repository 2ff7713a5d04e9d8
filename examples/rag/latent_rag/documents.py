"""Four documents, and the retriever that counts words, in plain Python."""

from __future__ import annotations

import math

DOCUMENTS = (
    "the river rises in the north and ends in the salt lake",
    "the amber tide was written by hanne brunander in the north",
    "the school of laskhaven stands beside the salt lake",
    "hanne brunander studied at the school and wrote in the town",
)


def retrieve(question: str) -> list[dict[str, object]]:
    """Return all documents, each weighed by p(d | x): for ``latent_mixture``."""
    documents = [document.split() for document in DOCUMENTS]

    def rarity(word: str) -> float:
        return math.log1p(len(documents) / (1 + sum(word in d for d in documents)))

    return [
        {
            "name": f"document {n}",
            "text": text,
            "weight": math.exp(
                math.fsum(rarity(w) for w in question.split() if w in document)
            ),
        }
        for n, (text, document) in enumerate(zip(DOCUMENTS, documents, strict=True))
    ]
