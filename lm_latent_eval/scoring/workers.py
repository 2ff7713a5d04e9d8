"""Scores a corpus by workers of a Ray cluster, each of which loads the model once.

Ray Data reads blocks of texts while others are scored, hands them to the workers, gives
those of a worker that died to another one, and writes what was found as Parquet. A text
has the same name and so the same random numbers as in one process. The output is a
folder: what the numbers depend on (``settings.json``), and files of rows; the same
command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa

from lm_latent_eval.arguments import whole
from lm_latent_eval.extras import require
from lm_latent_eval.file_names import regular
from lm_latent_eval.ledger import folder
from lm_latent_eval.ledger.row_digests import DIGEST, RowDigests
from lm_latent_eval.ledger.settings import Settings, check_format
from lm_latent_eval.parquet import RowFile, RowFileError
from lm_latent_eval.parquet_footer import is_whole
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.files import (
    TASK,
    SeenTexts,
    num_texts_of,
    scored,
    settings_of,
)
from lm_latent_eval.scoring.interface import TextScorer, open_model, scorer_of
from lm_latent_eval.scoring.missed import MissedTextsError
from lm_latent_eval.scoring.options import parse_device, parse_dtype
from lm_latent_eval.scoring.records import (
    FORMAT,
    SCHEMA,
    Record,
    Row,
    answer_of,
    row_of,
    table_of,
)
from lm_latent_eval.text.corpora import stream_texts

logger = logging.getLogger(__name__)

WORDS = 1 << 14
"""The most words of a block: what a worker does at a time, and again if it dies."""
AT_ONCE = 1 << 24
"""Bytes of blocks that are read before any of them can be scored."""
SHARES = 8
"""Blocks that each worker gets, if not more: then all end at about the same time."""
DEATHS = 3
"""How often a worker is started again, and its block given out again, before the run
ends: what kills each worker that gets it would go round for ever."""
KIND = "scored corpus"
BLOCK = SCHEMA.append(pa.field(DIGEST, pa.string()))
"""Columns of the files that workers write."""


@dataclass(frozen=True)
class Opening:
    """How a worker opens its scorer, wherever it runs."""

    checkpoint: str
    """A path or repository that every machine has."""
    options: dict[str, Any]
    model: str | None = None
    revision: str | None = None
    batch_size: int | str | None = None
    max_batch_size: int | str | None = None
    device: str | None = None
    dtype: str | None = None

    @property
    def needs_gpu(self) -> bool:
        """Whether each worker is to have one for itself."""
        device = self.device or parse_device(None).type
        return device.startswith("cuda")

    def scorer(self) -> TextScorer:
        """Load the model.

        Raises:
            ValueError: If there is none, or a setting is impossible.
        """
        opened = open_model(
            self.checkpoint,
            model=self.model,
            revision=self.revision,
            options=self.options,
            dtype=parse_dtype(self.dtype),
            device=parse_device(self.device),
        )
        return scorer_of(
            opened,
            self.options,
            batch_size=self.batch_size,
            max_batch_size=self.max_batch_size,
            quiet=True,
        )


def score_corpus(
    opening: Opening,
    data: Path,
    output: Path,
    *,
    workers: int,
    words: int | None = None,
) -> Record:
    """Score a file of texts on the cluster of ``RAY_ADDRESS``, or on this machine.

    Args:
        opening: How each worker opens the model.
        data: Texts, as ``estimate`` reads them; only this machine reads the file.
        output: A folder that every machine can write to.
        workers: How many; each has a processor, or with a device of CUDA a GPU.
        words: Of a block; None is what gives every worker several.

    Returns:
        The answers of all texts, in their order; unfinished where some have no number
        (``missing``).

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ValueError: If a text cannot be scored, or the folder is of something else.
        RuntimeError: If workers die again and again at the same texts.
    """
    whole("--workers", workers, 1)
    require("ray", extra="ray")
    claimed = settings_of(opening.scorer(), stream_texts(data))
    _refuse_other_files(output)
    with folder.going_on(output, claimed, KIND, "the estimates so far"):
        left = _left(output, claimed)
        if words is None:
            total = sum(len(text.split()) for text in stream_texts(data))
            words = max(1, min(WORDS, total // (SHARES * workers)))
        if any(left):
            texts = claimed["num_texts"], claimed["texts"]
            reader = _Reader(data.resolve(), texts, left, words)
            _run(opening, claimed, reader, output, workers)
        return read(output)


def missing(record: Record) -> MissedTextsError:
    """Return the error of a run that has ended and is not finished."""
    number = record.settings["num_texts"]
    found = {answer.index: answer for answer in record.answers}
    names = {n: f"text/{n}" for n in range(number) if n not in found}
    why = (
        f"text/{min(names)}: the estimator found no latent that the model gives a "
        "probability. Draw more samples, or use a proposal that covers its latents"
    )
    return MissedTextsError(names, why, number).leaving(found, number)


def blocks(
    texts: Iterable[str], left: Sequence[int], words: int
) -> Iterator[dict[int, str]]:
    """Cut the texts that are left into blocks of about so many words.

    Args:
        texts: N of them, read as the blocks are.
        left: N truth values: which ones.
        words: After how many a block ends.

    Example:
        >>> list(blocks(["a b", "c", "d", "e f"], [1, 0, 1, 1], words=3))
        [{0: 'a b', 2: 'd'}, {3: 'e f'}]
    """
    block: dict[int, str] = {}
    size = 0
    for n, text in compress(enumerate(texts), left):
        block[n] = text
        size += len(text.split())
        if size >= words:
            yield block
            block, size = {}, 0
    if block:
        yield block


@dataclass(frozen=True)
class _Reader:
    """Reads a file into blocks, a row each: rows are what Ray Data can cut at."""

    data: Path
    texts: tuple[int, str]
    """How many there are, and their digest."""
    left: Sequence[int]
    words: int

    def __call__(self, _: pa.Table) -> Iterator[pa.Table]:
        seen = SeenTexts(stream_texts(self.data))
        for block in blocks(seen, self.left, self.words):
            yield pa.table({"documents": [[*block]], "texts": [[*block.values()]]})
        if (seen.number, seen.digest) != self.texts:
            raise ValueError(
                f"{self.data} changed while it was read: the output may have answers "
                "to old and new texts; remove it, and begin again"
            )


class _Worker:
    """Scores blocks of texts with a model that it keeps."""

    def __init__(self, opening: Opening, claimed: Settings) -> None:
        self.scorer = opening.scorer()
        self.digests = RowDigests(claimed)

    def __call__(self, rows: pa.Table) -> pa.Table:
        documents, texts = (
            column.combine_chunks().flatten().to_pylist() for column in rows.columns
        )
        found = scored(self.scorer, dict(zip(documents, texts, strict=True)))
        kept: list[Answer] = []
        # A text without a number is told of at the end, by what lacks it.
        with suppress(MissedTextsError):
            for answer in found:
                kept.append(answer)
        return block_of(kept, self.digests)


def block_of(answers: Iterable[Answer], digests: RowDigests) -> pa.Table:
    """Put answers into the rows of a worker's file."""
    rows = table_of([row_of(answer) for answer in answers]).to_pylist()
    return pa.Table.from_pylist([digests.added(row) for row in rows], schema=BLOCK)


def _run(
    opening: Opening, claimed: Settings, reader: _Reader, output: Path, workers: int
) -> None:
    ray = require("ray", extra="ray")
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ValueError(
            "RAY_ADDRESS=ray://...: the file of texts would be looked for on another "
            "machine: log in to one of the cluster, and run this there, with "
            "RAY_ADDRESS=auto"
        )
    # One processor more than there are workers: the one that writes.
    ours = not ray.is_initialized()
    if ours:
        ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else workers + 1)
    # Ray hides from a worker all GPUs but its own, which is the first that it sees.
    opening = replace(opening, device="cuda") if opening.needs_gpu else opening
    try:
        context = ray.data.DataContext.get_current()
        context.raise_original_map_exception = True
        context.target_max_block_size = AT_ONCE
        # One task reads the file, here, and waits while there is enough to score.
        file = ray.data.from_arrow(pa.table({"path": [str(reader.data)]}))
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        read = file.map_batches(
            reader, batch_format="pyarrow", num_cpus=0, label_selector=here
        )
        read.repartition(target_num_rows_per_block=1).map_batches(
            _Worker,
            fn_constructor_args=(opening, claimed),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if opening.needs_gpu else 0,
            max_restarts=DEATHS,
            max_task_retries=DEATHS,
        ).write_parquet(str(output.resolve()))
    except ray.exceptions.RayTaskError as err:
        raise _own(err.cause) from err  # the worker's error, which names the text
    except ray.exceptions.ActorDiedError as err:
        raise RuntimeError(
            f"workers died {DEATHS + 1} times at the same texts; what others found is "
            f"in {output}. Is memory enough? A smaller --batch-size needs less ({err})"
        ) from err
    finally:
        if ours:
            ray.shutdown()


def _own(error: BaseException) -> BaseException:
    """Take back what Ray appends to errors: how to try again what would fail again."""
    if error.args and isinstance(error.args[0], str):
        error.args = (error.args[0].partition("\nFailed to ")[0], *error.args[1:])
    return error


def _refuse_other_files(output: Path) -> None:
    """Leave a folder alone whose files are not ours."""
    ours = (output / folder.SETTINGS_FILE).exists()
    if not ours and any(output.glob("*.parquet")):
        raise ValueError(
            f"{output} has Parquet files of something else: give --output a new folder"
        )


def _left(output: Path, claimed: Settings) -> bytearray:
    """Return which texts no interrupted run has scored; drop files cut short.

    Raises:
        ValueError: If a file is whole, and has other rows than answers to these texts.
    """
    left = bytearray([True]) * num_texts_of(claimed)
    for path in output.glob("*.parquet"):
        if not is_whole(regular(path)):
            logger.warning("%s was cut short: its texts are scored again", path)
            path.unlink()
            continue
        for answer in _answers(path, claimed):
            left[answer.index] = False
    return left


def _answers(path: Path, claimed: Settings) -> Iterator[Answer]:
    """Yield the answers of a file of rows that is whole.

    Raises:
        ValueError: If it has other rows than answers to these texts, or was edited.
    """
    digests, num_texts = RowDigests(claimed), num_texts_of(claimed)
    try:
        rows = RowFile(path, "file of a worker").rows(BLOCK, sealed=False)
        for place, row in enumerate(rows, start=1):
            answer = _answer(path, place, digests.checked, row)
            if answer.index >= num_texts:
                raise ValueError(f"{path} answers other texts: move it elsewhere")
            yield answer
    except RowFileError as err:
        raise ValueError(f"{err}: move it elsewhere") from err


def _answer(path: Path, place: int, checked: Callable[[Row], Row], row: Row) -> Answer:
    try:
        return answer_of(checked(row))
    except ValueError as err:
        raise ValueError(
            f"{path}, row {place} is not as it was written ({err}): remove the file, "
            "and its texts are scored again"
        ) from err


def read(output: Path) -> Record:
    """Read the rows of a folder, whole or of an interrupted run, as a record.

    Files that were cut short are left out. Workers may go on for a while when the
    process that started them has died, and then score texts that the next run scores as
    well: both find the same, and one counts.

    Raises:
        ValueError: If it is no such folder, or has another file.
    """
    claimed = folder.read(output, KIND, having="num_texts")
    check_format(output, claimed, FORMAT)
    try:
        num_texts = num_texts_of(claimed)
    except ValueError as err:
        raise ValueError(f"{output / folder.SETTINGS_FILE} says {err}") from err
    found: dict[int, Answer] = {}
    for path in sorted(output.glob("*.parquet")):
        if is_whole(regular(path)):
            for answer in _answers(path, claimed):
                found.setdefault(answer.index, answer)
    answers = [found[n] for n in sorted(found)]
    return Record(TASK, claimed, answers, len(found) == num_texts)
