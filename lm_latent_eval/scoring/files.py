"""Resumable scoring of a corpus into a file of estimates, here or by Ray workers.

The output is JSON lines: first what the numbers depend on, then the row of each text's
record. Until the last text is scored they are in a ledger beside it. The same command
goes on where an interrupted one stopped; with other settings it refuses.

With workers, Ray Data reads blocks of texts while others are scored, hands them out,
and gives those of a worker that died to another one. What they find comes back to the
process that started them, which alone writes. A text has the same name and so the same
random numbers as in one process.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pyarrow as pa

from lm_latent_eval.ledger.database import UNFINISHED, Found, Ledger, remove
from lm_latent_eval.ledger.files import SETTINGS_FILE, LinesFile
from lm_latent_eval.ledger.settings import FormatError, Settings, plain, refuse_others
from lm_latent_eval.options import whole
from lm_latent_eval.registry import require
from lm_latent_eval.scoring.answer import Answer, MissedTextsError
from lm_latent_eval.scoring.interface import TextScorer, open_model, scorer_of
from lm_latent_eval.scoring.options import parse_device, parse_dtype
from lm_latent_eval.scoring.records import FORMAT, Record, Row, answer_of, row_of
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.text.corpora import stream_texts
from lm_latent_eval.text.files import digest
from lm_latent_eval.version import __version__

TASK = "estimate"
KIND = "file of estimates"
Left = Sequence[int]
"""Truth values, one a text: which are to be scored."""


def score_file(
    scorer: TextScorer, texts: Sequence[str], output: Path | None
) -> list[Answer]:
    """Score texts, storing each estimate at once.

    Args:
        scorer: How to score.
        texts: N strings.
        output: The file, new or of an interrupted run; None keeps nothing.

    Returns:
        N answers, in the order of the texts.

    Raises:
        MissedTextsError: If texts have no number; it holds the answers of the others,
            which are in the file.
        ValueError: If the file was made with other settings, another checkpoint or
            other texts, is not such a file or was edited, or another run writes it.
        NoRoomError: If the disk is full.
    """

    def find(left: Left) -> Iterator[Row]:
        for answer in scored(scorer, dict(compress(enumerate(texts), left))):
            yield row_of(answer)

    settings = settings_of(scorer, texts) if output else {}
    if output is not None:
        answers = keep(output, settings, find).answers
        for answer, text in zip(answers, texts, strict=True):
            if answer.text != digest(text):
                raise _file(output).not_one(f"text {answer.index} is another one there")
        return [*answers]
    found: dict[int, Answer] = {}
    try:
        for answer in scored(scorer, dict(enumerate(texts))):
            found[answer.index] = answer
    except MissedTextsError as err:
        raise err.leaving(found, len(texts)) from err.__cause__
    return [found[n] for n in range(len(texts))]


def score(scorer: TextScorer, texts: Sequence[str]) -> Record:
    """Score texts into a record in memory."""
    return Record(TASK, settings_of(scorer, texts), score_file(scorer, texts, None))


def keep(
    output: Path, settings: Settings, find: Callable[[Left], Iterable[Row]]
) -> Record:
    """Score the texts that a file of estimates lacks, then write the file.

    Args:
        output: The file, new or of an earlier run.
        settings: What the numbers depend on (``settings_of``).
        find: Yields rows of the texts that are left, as they are found.

    Returns:
        All that is in the file.

    Raises:
        MissedTextsError: If ``find`` does; what it has found is in the file.
        ValueError: As of ``score_file``.
    """
    if (output / SETTINGS_FILE).exists():
        raise FormatError(
            f"{output} is a folder, as `estimate --workers` wrote in lm-latent-eval "
            "0.2: finish it with that version, or give --output the path of a file"
        )
    if output.exists() and not output.is_file():
        raise ValueError(f"--output {output}: estimates are kept in a regular file")
    file, ledger = _file(output), _ledger(output)
    num_texts, before = num_texts_of(settings), dict[int, Row]()
    if _has_lines(output):
        theirs, before = file.read()
        refuse_others(output, theirs, settings, KIND)
        known = _answers(file, before.items(), num_texts)
        if len(known) == num_texts:
            if ledger.path.exists():  # killed just before it was removed
                remove([ledger.path])
            return _record(settings, known)
    missed = None
    with ledger.going_on(settings, "the estimates so far") as rows:
        for row in before.values():
            rows.add(TASK, (row["document"],), row)
        left = bytearray([True]) * num_texts
        for n in _answers(ledger, _placed(rows), num_texts):
            left[n] = False
        try:
            for row in find(left) if any(left) else ():
                rows.add(TASK, (row["document"],), row)
        except MissedTextsError as err:
            missed = err
        ordered = sorted(rows.keys(TASK))
        file.write(settings, (rows.get(TASK, key).row for key in ordered))
        record = _record(settings, _answers(ledger, _placed(rows), num_texts))
    remove([ledger.path])
    if missed is not None:
        found = {answer.index: answer for answer in record.answers}
        raise missed.leaving(found, num_texts) from missed.__cause__
    return record


def read_record(path: Path) -> Record:
    """Read a file of estimates, or the partial one of an interrupted run.

    Raises:
        ValueError: If it is none, or another version's.
    """
    file, ledger = _file(path), _ledger(path)
    if ledger.path.exists() and not _has_lines(path):
        settings, rows = ledger.read()
        return _read(ledger, settings, _placed(rows))
    settings, lines = file.read()
    return _read(file, settings, lines.items())


def is_there(path: Path) -> bool:
    """Whether there is a file of estimates, finished or partial."""
    return path.exists() or _ledger(path).path.exists()


def _read(
    file: LinesFile | Ledger, settings: Settings, rows: Iterable[tuple[int, Row]]
) -> Record:
    try:
        num_texts = num_texts_of(settings)
    except ValueError as err:
        raise file.not_one(f"its settings say {err}") from err
    return _record(settings, _answers(file, rows, num_texts))


def _record(settings: Settings, found: Mapping[int, Answer]) -> Record:
    answers = [found[n] for n in sorted(found)]
    return Record(TASK, settings, answers, len(found) == num_texts_of(settings))


def scored(scorer: TextScorer, texts: Mapping[int, str]) -> Iterator[Answer]:
    """Yield answers of texts of a corpus, given by their places in it, as found."""
    queries = [Query(n, f"text/{n}", text) for n, text in texts.items()]
    for answer in scorer.score_texts(queries):
        yield answer.about(texts[answer.index])


def _has_lines(path: Path) -> bool:
    """Whether a file is there and, unlike one that ``mktemp`` makes, not empty."""
    return path.exists() and path.stat().st_size > 0


def _file(path: Path) -> LinesFile:
    return LinesFile(path, KIND, FORMAT)


def _ledger(path: Path) -> Ledger:
    return Ledger(_beside(path, UNFINISHED), KIND, FORMAT)


def _beside(path: Path, ending: str) -> Path:
    file = path.resolve()  # a link and what it points to have one
    return file.with_name(f"{file.name}{ending}")


def settings_of(scorer: TextScorer, texts: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a corpus's numbers; reads its texts once."""
    seen = SeenTexts(texts)
    for _ in seen:
        continue
    return {
        "format": FORMAT,
        "lm_latent_eval": __version__,
        "num_texts": seen.number,
        "texts": seen.digest,
        **scorer.fingerprint,
    }


def num_texts_of(settings: Mapping[str, Any]) -> int:
    """Return how many texts there are, by the settings of a file.

    Raises:
        ValueError: If they do not say.
    """
    said = settings.get("num_texts")
    if type(said) is not int or said < 0:
        raise ValueError(f"no num_texts but {said!a:.40}")
    return said


class SeenTexts:
    """Texts that are counted and hashed as they are read."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take texts, of which none is read yet."""
        self.number = 0
        self._texts, self._hash = texts, hashlib.sha256(b"[")

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            comma = ", " if self.number else ""
            self._hash.update(f"{comma}{json.dumps(text)}".encode())
            self.number += 1
            yield text

    @property
    def digest(self) -> str:
        """Of the list, in JSON, of those that were read."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()[:16]


def _placed(rows: Iterable[Found]) -> Iterator[tuple[int, Row]]:
    return ((found.place, found.row) for found in rows)


def _answers(
    file: LinesFile | Ledger, rows: Iterable[tuple[int, Row]], num_texts: int
) -> dict[int, Answer]:
    """Return the answers of rows (place, values), by the place of their texts."""
    places: dict[int, int] = {}
    found: dict[int, Answer] = {}
    for place, row in rows:
        try:
            answer = answer_of(row)
        except ValueError as err:
            raise file.edited(place, str(err)) from err
        if not 0 <= answer.index < num_texts:
            raise file.edited(place, f"there is no text {answer.index}")
        if answer.index in places:
            twice = f"text {answer.index} is in line {places[answer.index]} too"
            raise file.edited(place, twice)
        places[answer.index], found[answer.index] = place, answer
    return found


WORDS = 1 << 14
"""The most words of a block: what a worker does at a time, and again if it dies."""
AT_ONCE = 1 << 24
"""Bytes of blocks that are read before any of them can be scored."""
SHARES = 8
"""Blocks that each worker gets, if not more: then all end at about the same time."""
DEATHS = 3
"""How often a worker is started again, and its block given out again, before the run
ends: what kills each worker that gets it would go round for ever."""
ROW = pa.schema({"row": pa.string()})
"""Result of a worker: a row of a record, in JSON."""


@dataclass(frozen=True)
class Opening:
    """Arguments with which a command, or each of its workers, opens its scorer."""

    checkpoint: str
    """A path or repository, one that every machine has."""
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

    def scorer(self, *, quiet: bool = True) -> TextScorer:
        """Load the model.

        Args:
            quiet: Show no progress.

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
            quiet=quiet,
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
        output: A file of estimates, new or of an interrupted run.
        workers: How many; each has a processor, or with a device of CUDA a GPU.
        words: Of a block; None: so many that every worker gets several blocks.

    Returns:
        The answers of all texts, in their order; unfinished where some have no number
        (``missing``).

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ValueError: If a text cannot be scored, or the file is of something else.
        RuntimeError: If workers die again and again at the same texts.
    """
    whole("--workers", workers, 1)
    require("ray", extra="ray")
    # This process only asks what numbers depend on: a GPU's memory is for a worker.
    here = replace(opening, device="cpu") if opening.needs_gpu else opening
    settings = settings_of(here.scorer(), stream_texts(data))

    def find(left: Left) -> Iterator[Row]:
        size = words
        if size is None:
            total = sum(len(text.split()) for text in stream_texts(data))
            size = max(1, min(WORDS, total // (SHARES * workers)))
        texts = settings["num_texts"], settings["texts"]
        reader = _Reader(data.resolve(), texts, left, size)
        return _found(opening, reader, output, workers)

    return keep(output, settings, find)


def missing(record: Record) -> MissedTextsError:
    """Return the error that names the texts without a number."""
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
    """Cut the remaining texts into blocks of about ``words`` words.

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
                f"{self.data} changed while it was read: what was found may be of old "
                "and of new texts; begin again, with another --output"
            )


class _Worker:
    """Scores blocks of texts with a model that it keeps."""

    def __init__(self, opening: Opening) -> None:
        self.scorer = opening.scorer()

    def __call__(self, rows: pa.Table) -> pa.Table:
        documents, texts = (
            column.combine_chunks().flatten().to_pylist() for column in rows.columns
        )
        found: list[str] = []
        # A text without a number is reported at the end.
        with suppress(MissedTextsError):
            for answer in scored(self.scorer, dict(zip(documents, texts, strict=True))):
                found.append(json.dumps(plain(row_of(answer))))
        return pa.table({"row": found}, schema=ROW)


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM, where Ray sets one that ends in a dump."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if handler is not None and current_thread() is main_thread():
        signal.signal(signal.SIGTERM, handler)


def _found(
    opening: Opening, reader: _Reader, output: Path, workers: int
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
    ours = not ray.is_initialized()
    if ours:
        with _own_handler():
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
        rows = read.repartition(target_num_rows_per_block=1).map_batches(
            _Worker,
            fn_constructor_args=(opening,),
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if opening.needs_gpu else 0,
            max_restarts=DEATHS,
            max_task_retries=DEATHS,
        )
        for block in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(json.loads, block["row"].to_pylist())
    except ray.exceptions.RayTaskError as err:
        raise _own(err.cause) from err  # the worker's error, which names the text
    except ray.exceptions.ActorDiedError as err:
        raise RuntimeError(
            f"workers died {DEATHS + 1} times at the same texts; what others found is "
            f"kept beside {output}. Is memory enough? A smaller --batch-size needs "
            f"less ({err})"
        ) from err
    finally:
        if ours:
            ray.shutdown()


def _own(error: BaseException) -> BaseException:
    """Return the original error of a worker, without Ray's advice to retry."""
    if error.args and isinstance(error.args[0], str):
        error.args = (error.args[0].partition("\nFailed to ")[0], *error.args[1:])
    return error
