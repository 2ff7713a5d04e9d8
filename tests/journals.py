"""Lines of journals as somebody writes them who knows their digests."""

from __future__ import annotations

from typing import Any

from lm_latent_eval.ledger import journal


def sealed(head: str, row: dict[str, Any]) -> str:
    """Return the line of a row below a first line, with a digest that fits."""
    plain = {name: value for name, value in row.items() if name != "digest"}
    return journal.sealed(f"{head.rstrip()}\n".encode(), plain).decode().rstrip()
