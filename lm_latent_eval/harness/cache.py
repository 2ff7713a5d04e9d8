"""Guard against ``--use_cache`` entries from other settings.

lm-eval keys its cache by the request alone. The fingerprint of model and estimator is
stored beside the answers, and a cache with another one is refused. An answer is in the
file before the next one is asked for, so a run that is killed loses none.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lm_eval.api.model import CacheHook

from lm_latent_eval.ledger.settings import differences

FINGERPRINT = "lm_latent_eval fingerprint"


class CacheMismatchError(ValueError):
    """A cache whose numbers come from another model or other settings."""


class GuardedHook(CacheHook):
    """Puts answers into a cache of the same settings, one at a time.

    Attributes:
        dbdict: The cache, or None where there is none.
    """

    def __init__(self, cache_hook: CacheHook, fingerprint: dict[str, Any]) -> None:
        """Store the fingerprint in a new cache; compare it with that of an old one.

        Args:
            cache_hook: What lm-eval gives.
            fingerprint: Everything that an answer depends on.

        Raises:
            CacheMismatchError: If the cache was made with other settings, or by a model
                that left no fingerprint.
            OSError: If the cache is damaged or cannot be written.
        """
        self.dbdict = cache_hook.dbdict
        if self.dbdict is not None:
            # It logs every error, thirty lines of it, and raises it as well.
            logging.getLogger("sqlitedict").setLevel(logging.CRITICAL)
            with _one_line(self.dbdict):
                _guard(self.dbdict, fingerprint)

    def add_partial(self, attr: str, req: Iterable[Any], res: Any) -> None:
        """Write an answer.

        Raises:
            OSError: If the cache cannot be written.
        """
        if self.dbdict is not None:
            with _one_line(self.dbdict):
                super().add_partial(attr, req, res)
                self.dbdict.commit()


@contextmanager
def _one_line(answers: Any) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as err:
        raise OSError(
            f"{answers.filename} cannot be used ({err}): if the disk is full or "
            "another program uses the file, end that and repeat the command, which "
            "goes on from the answers in it; if it is damaged, remove it"
        ) from err


def _guard(answers: Any, fingerprint: dict[str, Any]) -> None:
    where = answers.filename
    mine = json.loads(json.dumps(fingerprint))
    theirs = answers.get(FINGERPRINT)
    if theirs is None:
        if len(answers):
            raise CacheMismatchError(
                f"{where} holds {len(answers)} answers of a model that left no "
                "fingerprint: give --use_cache another path"
            )
        answers[FINGERPRINT] = mine
        answers.commit()
        return
    if different := differences(theirs, mine):
        raise CacheMismatchError(
            f"{where} was made with other settings ({different}): give --use_cache "
            "another path, or repeat the settings"
        )
