"""Scoring of a corpus by workers of Ray, into a file of estimates.

Ray Data reads blocks of texts while others are scored, hands them out, and gives those
of a worker that died to another one. What they find comes back to the process that
started them, which alone writes. A text has the same name and so the same random
numbers as in one process.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn

import pyarrow as pa

from lm_latent_eval.files import one_line
from lm_latent_eval.ledger.journal import Row
from lm_latent_eval.ledger.settings import Settings, plain
from lm_latent_eval.options import whole
from lm_latent_eval.registry import require
from lm_latent_eval.scoring.answer import MissedTextsError
from lm_latent_eval.scoring.files import (
    WHOLE,
    Left,
    Shard,
    blocks,
    every_text,
    keep,
    read_answers,
    scored,
    settings_of,
    texts_of,
)
from lm_latent_eval.scoring.opening import Opening
from lm_latent_eval.scoring.records import row_of
from lm_latent_eval.text.corpora import TextFile

WORDS = 1 << 14
"""Limit of the words of a block: a worker does it at a time, and again if it dies."""
AT_ONCE = 1 << 24
"""Bytes of blocks that are read before any of them can be scored."""
SHARES = 8
"""Minimum of the blocks of each worker: then all end at about the same time."""
DEATHS = 3
"""Restarts of a worker with the same block before the run ends: a block that kills
each worker would go round for ever."""
START = 300.0
"""Seconds in which Ray is to start."""
ROW = pa.schema({"row": pa.string()})
"""Result of a worker: a row of a record, in JSON."""


def score_corpus(
    opening: Opening,
    data: Path,
    output: Path,
    *,
    workers: int,
    gpus_per_worker: float = 1.0,
    shard: Shard = WHOLE,
    words: int | None = None,
) -> None:
    """Score a file of texts on the cluster of ``RAY_ADDRESS``, or on this machine.

    Args:
        opening: Arguments with which each worker opens the model.
        data: Texts, as ``estimate`` reads them; only this machine reads the file.
        output: A file of estimates, new or of an interrupted run.
        workers: Number of workers, each with a processor.
        gpus_per_worker: With a device of CUDA, the GPUs of each, or its share of one.
        shard: The texts to score.
        words: Words of a block; None: so many that every worker gets several blocks.

    Raises:
        MissedTextsError: If texts have no number; the others are in the file.
        ModuleNotFoundError: If Ray is not installed.
        ValueError: If a text cannot be scored, or the file is of something else.
        RayError: If Ray does not start, or workers die again and again.
    """
    whole("--workers", workers, 1)
    if not 0 < gpus_per_worker < math.inf:
        raise ValueError(
            f"--gpus-per-worker {gpus_per_worker}: expected a number above 0, such as "
            "0.125 for eight workers a GPU"
        )
    require("ray", extra="ray")
    # This process only asks what numbers depend on: a GPU's memory is for a worker.
    here = replace(opening, device="cpu") if opening.needs_gpu else opening
    texts = TextFile(data.resolve())
    settings = settings_of(here.scorer(), texts, shard)

    def score(left: Left) -> Iterator[Row]:
        size = words
        if size is None:
            total = sum(len(text.split()) for text in texts)
            size = max(1, min(WORDS, total // (SHARES * workers)))
        reader = _Reader(texts, left, size, settings)
        return _rows(opening, reader, output, workers, gpus_per_worker)

    keep(output, settings, score)
    if lacking := _lacking(output):
        of = len(texts_of(settings))
        why = (
            f"text/{min(lacking)} has no number: no latent that was drawn has a "
            "probability. Draw more samples, or use a proposal that covers its "
            "latents"
        )
        raise MissedTextsError({n: f"text/{n}" for n in lacking}, why, of)


def _lacking(output: Path) -> list[int]:
    """Return the texts that a file of estimates lacks."""
    settings, answers = read_answers(output)
    left = every_text(settings)
    for answer in answers:
        left[answer.index] = False
    return [n for n, lacks in enumerate(left) if lacks]


@dataclass(frozen=True)
class _Reader:
    """Reads a file into blocks, a row each: rows are what Ray Data can cut at."""

    texts: TextFile
    left: Left
    words: int
    settings: Settings

    def __call__(self, _: pa.Table) -> Iterator[pa.Table]:
        for block in blocks(self.texts, self.left, self.words, self.settings):
            yield pa.table({"documents": [[*block]], "texts": [[*block.values()]]})


class _Worker:
    """Scores blocks of texts with a model that it keeps."""

    def __init__(self, opening: Opening) -> None:
        self.scorer = opening.scorer()

    def __call__(self, rows: pa.Table) -> pa.Table:
        documents, texts = (
            column.combine_chunks().flatten().to_pylist() for column in rows.columns
        )
        results: list[str] = []
        # A text without a number is reported at the end.
        with suppress(MissedTextsError):
            for answer in scored(self.scorer, dict(zip(documents, texts, strict=True))):
                results.append(json.dumps(plain(row_of(answer))))
        return pa.table({"row": results}, schema=ROW)


class RayError(OSError):
    """Ray did not start, or failed."""


def _start(ray: Any, num_cpus: int | None, output: Path) -> None:
    """Start Ray, or meet the cluster of ``RAY_ADDRESS``.

    Raises:
        RayError: If it does not answer in time.
    """
    try:
        with _handlers():
            ray.init(num_cpus=num_cpus)
    except Exception as err:  # some are of no narrower kind
        raise RayError(
            f"Ray did not start ({one_line(err)}): what was scored is kept beside "
            f"{output}, and the same command goes on from there, with --workers or "
            "without"
        ) from err


@contextmanager
def _handlers() -> Iterator[None]:
    """Raise a ``TimeoutError`` after ``START`` seconds; keep the handler of SIGTERM.

    Ray sets one that ends in a dump.
    """
    if current_thread() is not main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> NoReturn:
        raise TimeoutError(f"no answer within {START:g} seconds")

    both = signal.SIGTERM, signal.SIGALRM
    before = {signum: signal.getsignal(signum) for signum in both}
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, START)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            if handler is not None:
                signal.signal(signum, handler)


def _rows(
    opening: Opening, reader: _Reader, output: Path, workers: int, gpus: float
) -> Iterator[Row]:
    """Yield rows in the order in which workers finish them."""
    ray = require("ray", extra="ray")
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ValueError(
            "RAY_ADDRESS=ray://...: the file of texts would be looked for on another "
            "machine: log in to one of the cluster, and run this there, with "
            "RAY_ADDRESS=auto"
        )
    # One processor more than there are workers: what cuts blocks needs one.
    starts_ray = not ray.is_initialized()
    if starts_ray:
        _start(ray, None if "RAY_ADDRESS" in os.environ else workers + 1, output)
    # Ray hides from a worker all GPUs but its own, which is the first that it sees.
    opening = replace(opening, device="cuda") if opening.needs_gpu else opening
    try:
        context = ray.data.DataContext.get_current()
        context.raise_original_map_exception = True
        context.target_max_block_size = AT_ONCE
        # One task reads the file, here, and waits while there is enough to score.
        file = ray.data.from_arrow(pa.table({"path": [str(reader.texts)]}))
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        read = file.map_batches(
            reader, batch_format="pyarrow", num_cpus=0, label_selector=here
        )
        rows = read.repartition(target_num_rows_per_block=1).map_batches(
            _Worker,
            fn_constructor_args=(opening,),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=gpus if opening.needs_gpu else 0,
            max_restarts=DEATHS,
            max_task_retries=DEATHS,
        )
        for block in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(json.loads, block["row"].to_pylist())
    except ray.exceptions.RayTaskError as err:
        raise _own(err.cause) from err  # the worker's error, which names the text
    except ray.exceptions.ActorDiedError as err:
        raise RayError(
            f"workers died {DEATHS + 1} times at the same texts; what others found is "
            f"kept beside {output}. Is memory enough? A smaller --batch-size needs "
            f"less ({one_line(err)})"
        ) from err
    except ray.exceptions.RayError as err:
        raise RayError(
            f"Ray failed ({one_line(err)}): what was scored is kept beside {output}, "
            "and the same command goes on from there, with --workers or without"
        ) from err
    finally:
        if starts_ray:
            ray.shutdown()


def _own(error: BaseException) -> BaseException:
    """Return the original error of a worker, without Ray's advice to retry."""
    if error.args and isinstance(error.args[0], str):
        error.args = (error.args[0].partition("\nFailed to ")[0], *error.args[1:])
    return error
