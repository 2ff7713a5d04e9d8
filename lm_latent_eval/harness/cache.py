"""Keeps lm-eval's ``--use_cache`` from answering with numbers of other settings.

lm-eval keys its cache by the request alone. The fingerprint of model and estimator is
stored beside the answers, and a cache with another one is refused.
"""

from __future__ import annotations

import json
from typing import Any

FINGERPRINT = "lm_latent_eval fingerprint"


class CacheMismatchError(ValueError):
    """A cache whose numbers come from another model or other settings."""


def guard_cache(cache_hook: Any, fingerprint: dict[str, Any]) -> None:
    """Store the fingerprint in a new cache; compare it with that of an old one.

    Raises:
        CacheMismatchError: If the cache was made with other settings, or by a model
            that left no fingerprint.
    """
    answers = cache_hook.dbdict
    if answers is None:
        return
    where = getattr(answers, "filename", "the cache")
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
    different = [k for k in sorted(mine | theirs) if mine.get(k) != theirs.get(k)]
    if different:
        changes = ", ".join(
            f"{k}={theirs.get(k)} there and {mine.get(k)} here" for k in different
        )
        raise CacheMismatchError(
            f"{where} was made with other settings ({changes}): give --use_cache "
            "another path, or repeat the settings"
        )
