"""Lines of journals as somebody writes them who knows their digests."""

from __future__ import annotations

import json
from typing import Any

from lm_latent_eval.ledger.settings import DIGEST, RowDigests


def sealed(head: str, row: dict[str, Any]) -> str:
    """Return the line of a row below a first line, with a digest that fits."""
    plain = {name: value for name, value in row.items() if name != DIGEST}
    return json.dumps(RowDigests(json.loads(head)).added(plain))
