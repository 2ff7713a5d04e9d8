"""Local copies of the data sets of lm-eval's own tasks.

A task names its data by a repository of the hub. Without a network it reads the folder
of that name in the working directory, if there is one: Parquet files, and a
``README.md`` that lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import metadata_save

from lm_latent_eval.text.digests import digest


def write_dataset(
    folder: str | Path,
    configs: Mapping[str, Mapping[str, Iterable[Mapping[str, Any]]]],
) -> None:
    """Write a folder that a stock task reads in place of a repository of the hub.

    Args:
        folder: Called like the repository (``dataset_path`` in the task's YAML), in
            the directory where ``lm_eval`` will be run.
        configs: For every ``dataset_name``, for every split, the rows; a data set
            without a name is ``default``. They replace what was there.

    Raises:
        ValueError: If a split has no rows, or rows of different columns.
    """
    listed = []
    for config, splits in configs.items():
        files = []
        for split, rows in splits.items():
            rows = [dict(row) for row in rows]
            if not rows:
                raise ValueError(f"{folder}: split {split!r} of {config!r} has no rows")
            if odd := next((r for r in rows if r.keys() != rows[0].keys()), None):
                raise ValueError(
                    f"{folder}: in split {split!r} of {config!r} one row has the "
                    f"columns {', '.join(rows[0])}, another {', '.join(odd)}"
                )
            # ``datasets`` keeps what it has read under the names of the files, not
            # under their contents: other rows need another name, or it is asked in
            # vain for them, from any directory.
            path = Path(config) / f"{split}-{digest(repr(rows))}.parquet"
            (Path(folder) / config).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_parquet(Path(folder) / path)
            files.append({"split": split, "path": path.as_posix()})
        listed.append({"config_name": config, "data_files": files})
    metadata_save(Path(folder) / "README.md", {"configs": listed})
