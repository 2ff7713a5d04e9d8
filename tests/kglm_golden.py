"""Golden configurations of the original KGLM, converted."""

from __future__ import annotations

from functools import cache

import pytest

from lm_latent_eval.convert.kglm import convert
from lm_latent_eval.models.checkpoint import Checkpoint, load_checkpoint
from tests.allennlp_archive import files, write_directory, write_tar
from tests.kglm_archives import golden_archive, knowledge


@pytest.fixture(scope="session")
def golden(tmp_path_factory):
    """Convert configuration A, B or C with both proposals, once."""
    folder = tmp_path_factory.mktemp("golden")

    @cache
    def converted(name: str) -> Checkpoint:
        convert(
            write_tar(folder / f"{name}.tar.gz", files(*golden_archive(name))),
            folder / name,
            proposals=[
                write_directory(
                    folder / f"{name}-{offset}",
                    files(*golden_archive(name, proposal=True, offset=offset)),
                )
                for offset in (True, False)
            ],
            **knowledge(folder),
        )
        return load_checkpoint(folder / name, expected="kglm")

    return converted
