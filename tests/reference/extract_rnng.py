"""Extract the numbers of the original RNNG that the tests compare with.

    python tests/reference/extract_rnng.py GOLDEN_DIR/rnng

writes ``rnng/`` beside this file: weights as they are, everything else as ids and
numbers, without the words.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "rnng"
DIGITS = 12
JOINT = (
    "actions",
    "word_log_probs",
    "action_log_probs",
    "log_p_words",
    "log_p_actions",
    "log_joint",
)


def extract(sentence: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of one sentence."""
    kept = {key: sentence[key] for key in ("n", "ids", "q", "replay")}
    kept["trees"] = [
        {key: tree[key] for key in ("actions", "spans", "score", "log_q")}
        | {ends: {key: tree[ends][key] for key in JOINT} for ends in ("no_eos", "eos")}
        for tree in sentence["trees"]
    ]
    for key in ("exact", "exact_logp_only"):
        if key in sentence:
            kept[key] = sentence[key]
    return kept


def rounded(value: Any) -> Any:
    """Round every number to ``DIGITS`` decimals."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def main() -> None:
    """Write the extract."""
    HERE.mkdir(exist_ok=True)
    for model in "ABC":
        source = Path(sys.argv[1]) / model
        shutil.copyfile(source / "weights.safetensors", HERE / f"{model}.safetensors")
        golden = json.loads((source / "golden.json").read_text())
        sentences = [rounded(extract(s)) for s in golden["sentences"]]
        text = json.dumps(sentences, separators=(",", ":"))
        (HERE / f"{model}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
