"""Latent language models as lm-eval models: ``lm_eval --model latent_kglm``.

``latent`` takes whatever a directory holds, models of other packages too; each of the
other names takes one model of ours.
"""

from __future__ import annotations

from typing import Any

import torch

from lm_latent_eval.demo import CHECKPOINT
from lm_latent_eval.devices import use_one_thread
from lm_latent_eval.harness.backend import LM_EVAL_DEVICE, Backend
from lm_latent_eval.harness.processes import Processes
from lm_latent_eval.models import without_prefix
from lm_latent_eval.models.checkpoint import Checkpoint
from lm_latent_eval.scoring.opening import open_model, scorer_of
from lm_latent_eval.scoring.options import parse_device, parse_dtype


class Latent(Backend):
    """``latent``: scores strings with the latent language model of a directory.

    Arguments are those of ``OpeningOptions`` and ``ScoringOptions`` (docs/options.md).
    A model that scores strings its own way has options of its own in place of the
    latter.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        model: str | None = None,
        revision: str | None = None,
        log_weights: bool | str = False,
        batch_size: int | str | None = "auto",
        max_batch_size: int | str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = "auto",
        **options: Any,
    ) -> None:
        """Check the arguments and load the checkpoint."""
        # --trust_remote_code is about data sets, but lm-eval tells models as well.
        options.pop("trust_remote_code", None)
        processes = Processes.start()
        # lm_eval passes its default where no device is given.
        chosen = None if device == LM_EVAL_DEVICE else device
        where = processes.device or parse_device(chosen)
        if pretrained == "":
            raise ValueError(
                "pretrained= is empty: name a directory or a repository, or leave it "
                "out for the embedded model"
            )
        model = model and without_prefix(model)
        if model not in (None, self.model_name) and self.model_name is not None:
            raise ValueError(
                f"model={model}: {self._alias} takes {self.model_name} models alone; "
                "use --model latent"
            )
        self.checkpoint = open_model(
            self._named(pretrained),
            model=model or self.model_name,
            revision=None if revision is None else str(revision),
            options=options,
            dtype=parse_dtype(dtype),
            device=where,
        )
        if isinstance(self.checkpoint, Checkpoint):
            use_one_thread(self.checkpoint.model, where)
        scorer = scorer_of(
            self.checkpoint,
            options,
            batch_size=batch_size,
            max_batch_size=max_batch_size,
            quiet=processes.rank != 0,
        )
        super().__init__(scorer, processes, where, log_weights=log_weights)


class LatentKGLM(Latent):
    """``latent_kglm``: a knowledge graph language model."""

    model_name = "kglm"
    default_checkpoint = CHECKPOINT


class LatentEntityNLM(Latent):
    """``latent_entitynlm``: a language model that remembers entities."""

    model_name = "entitynlm"


class LatentLDA(Latent):
    """``latent_lda``: a topic model, which scores whole texts by their known words."""

    model_name = "lda"


class LatentLRLM(Latent):
    """``latent_lrlm``: a latent relation LM, whose log-likelihoods are exact sums."""

    model_name = "lrlm"


class LatentLSTM(Latent):
    """``latent_lstm``: a recurrent LM without latents; log-likelihoods are exact."""

    model_name = "lstm"


class LatentNKLM(Latent):
    """``latent_nklm``: a neural knowledge LM, which copies words out of facts."""

    model_name = "nklm"


class LatentRNNG(Latent):
    """``latent_rnng``: a recurrent neural network grammar; documents are sentences."""

    model_name = "rnng"


class LatentSRNN(Latent):
    """``latent_srnn``: a sentence-level RNN, whose scores are not normalised."""

    model_name = "srnn"
