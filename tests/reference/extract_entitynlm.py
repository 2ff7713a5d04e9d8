"""Extract the numbers of the original EntityNLM that the tests compare with.

    python tests/reference/extract_entitynlm.py GOLDEN_DIR/entitynlm

writes ``entitynlm/`` beside this file: weights as they are, everything else as ids and
numbers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "entitynlm"


def extract(source: Path) -> dict[str, Any]:
    """Return ids and numbers of configurations A and B."""

    def read(name: str) -> Any:
        return json.loads((source / f"{name}.json").read_text())

    def without(entry: dict[str, Any], *names: str) -> dict[str, Any]:
        return {k: v for k, v in entry.items() if k not in names}

    checks = read("checks")
    return {
        "config": read("config"),
        "cases": [
            {**case, "p": without(case["p"], "penalized_logp")}
            for case in read("cases")
        ],
        "nonpeeking": read("q_nonpeeking"),
        "exact": read("exact"),
        "sampler_support": read("sampler_support_exact"),
        "beam": [without(entry, "z", "logp") for entry in read("beam")],
        "chunks": checks["chunk_check"],
        "padding": checks["padding_check"],
        "total_without_padding": checks["sum_over_x_nonpad_T3_B"],
    }


def main() -> None:
    """Write the extract."""
    source = Path(sys.argv[1])
    HERE.mkdir(exist_ok=True)
    for path in source.glob("entity*.safetensors"):
        shutil.copy(path, HERE / path.name)
    text = json.dumps(extract(source), separators=(",", ":"))
    (HERE / "entitynlm.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
