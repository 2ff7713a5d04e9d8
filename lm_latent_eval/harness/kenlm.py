"""``lm_eval --model kenlm``: n-gram models of KenLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lm_latent_eval.harness.backend import Backend
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.wrappers.ngrams import NGramScorer


class KenLM(Backend):
    """Scores strings with an n-gram model.

    Args:
        pretrained: An ARPA file, or one of KenLM's binary files.
        batch_size: Taken and not used: sentences are scored one by one.
        max_batch_size: The same.
        device: The same; n-grams are looked up by the CPU.

    Raises:
        ModuleNotFoundError: If ``kenlm`` is not installed; names the extra.
        ValueError: If there is no such file, or KenLM cannot read it.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        device: Any = None,
        **unknown: Any,
    ) -> None:
        # --trust_remote_code is about data sets, but lm-eval tells models as well.
        unknown.pop("trust_remote_code", None)
        if unknown:
            raise ValueError(
                f"{next(iter(unknown))!r} is not an argument of kenlm; expected "
                "pretrained"
            )
        if pretrained is None:
            raise ValueError("kenlm needs --model_args pretrained=FILE.arpa")
        scorer = NGramScorer(Path(str(pretrained)))
        super().__init__(scorer, Processes.start(), torch.device("cpu"))

    @property
    def _alias(self) -> str:
        return "kenlm"

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that a cached number depends on, as JSON."""
        return {**super().fingerprint, "model": "kenlm"}
