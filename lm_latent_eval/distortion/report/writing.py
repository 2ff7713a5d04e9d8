"""Writers of measurements: JSON, and token sequences as text and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.statistics import ErrorBin
from lm_latent_eval.files import write_text
from lm_latent_eval.report.tabular import Table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def readable(text: str) -> str:
    r"""Write characters that cannot be shown as Python writes them.

    Example:
        >>> readable("two\nlines")
        'two\\nlines'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    r"""Write a sequence of tokens; without a tokenizer, their numbers.

    Tokens of bytes need not make characters, least of all in perturbed sequences. What
    is left over is written as Python writes bytes, ``\xe2``, since a replacement
    character would say nothing.
    """
    ids = [*map(int, ids)]
    if tokenizer is None:
        return " ".join(map(str, ids))
    text = str(tokenizer.decode(ids))
    if REPLACEMENT in text and (found := _bytes(ids, tokenizer)) is not None:
        text = found.decode(errors="backslashreplace")
    return readable(text)


def _bytes(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> bytes | None:
    """Return the bytes of tokens; None if they are not made of bytes."""
    pieces = "".join(map(str, tokenizer.convert_ids_to_tokens(ids)))
    if not all(piece in _BYTES for piece in pieces):
        return None
    return bytes(_BYTES[piece] for piece in pieces)


def _byte_level() -> dict[str, int]:
    """Return the character by which byte-level encodings write a byte -> the byte.

    Bytes that are printable in Latin-1 stand for themselves, the others for characters
    from 256 on, in their order (GPT-2; Radford et al., 2019).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


REPLACEMENT = "\ufffd"
_BYTES = _byte_level()


def sample_table(corpus: Corpus, num_sequences: int) -> Table:
    """Return the first sequences of a corpus as a table.

    Args:
        corpus: What to read.
        num_sequences: How many, or all there are.

    Raises:
        ValueError: If the number is below 1.
    """
    if num_sequences < 1:
        raise ValueError(f"num_sequences={num_sequences}: expected at least 1")
    indices = corpus.indices[:num_sequences]
    found = corpus.reader()(indices)
    tokenizer = corpus.tokenizer()
    rows = []
    for ids, ended, log_p in zip(
        found.ids, found.ended.tolist(), found.log_p.tolist(), strict=True
    ):
        words = ids[:-1] if ended else ids
        text = shown(words, tokenizer) + ("" if ended else " …")
        rows.append([text, log_p])
    return Table(["x", "log p"], rows, number="{:.4f}".format)


def write_json(stem: Path, found: Mapping[str, Any]) -> None:
    """Write measurements, dataclasses among them, into ``STEM.json``.

    What is infinite or no number is written as a string: JSON has neither.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(dict(found)), indent=1, allow_nan=False)
    write_text(stem.with_name(f"{stem.name}.json"), text + "\n")


def plain(value: Any) -> Any:
    """Return a measurement as JSON has it.

    Example:
        >>> plain({"mean": float("nan"), "counts": (1, 2)})
        {'mean': 'nan', 'counts': [1, 2]}
    """
    if isinstance(value, ErrorBin):
        return plain(asdict(value) | {"underestimates": value.underestimates})
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
