"""The Trainer of transformers, with the loss and batches of learners."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainingArguments

from lm_latent_eval.distortion.learners.options import TrainingOptions
from lm_latent_eval.distortion.learners.sequences import IGNORED, Batches

AfterEpoch = Callable[["LearnerTrainer", float], float]
"""Takes the trainer and the training loss of an epoch, returns the validation loss."""


class LearnerTrainer(Trainer):
    r"""Minimises nats per token by Adam, which is AdamW without decay.

    .. math:: -\sum_i \log p(x_i) \Big/ \sum_i |x_i|

    over the sequences i of a batch. The learning rate is halved at the end of an epoch
    whose validation loss is not below the lowest one before it. The paper says "if
    validation loss increases at the end of an epoch": the two differ only where a loss
    falls that has risen above the lowest.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        checkpoints: Path,
        batches: Batches,
        after_epoch: AfterEpoch,
        options: TrainingOptions,
        device: torch.device,
    ) -> None:
        """Prepare the training.

        Args:
            model: What learns.
            checkpoints: Folder that the state after an epoch goes into.
            batches: What it learns from.
            after_epoch: Called at the end of an epoch.
            options: How to train.
            device: Where to compute.

        Raises:
            ValueError: If several processes or an impossible device are asked for.
        """
        if device.index:
            raise ValueError(
                f"device={device}: name the GPU by CUDA_VISIBLE_DEVICES instead"
            )
        arguments = TrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            optim="adamw_torch",
            learning_rate=options.learning_rate,
            adam_epsilon=1e-8,
            weight_decay=0.0,
            max_grad_norm=options.max_grad_norm,
            lr_scheduler_type="reduce_lr_on_plateau",
            lr_scheduler_kwargs={
                "factor": 0.5,
                "patience": 0,
                "threshold": 0,
                "eps": 0,
            },
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,  # the best and the last; of 1, the last goes at the end
            metric_for_best_model="loss",
            greater_is_better=False,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
            use_cpu=device.type == "cpu",
        )
        if arguments.world_size > 1:
            raise ValueError(
                "a learner is trained by one process: do not launch several"
            )
        super().__init__(model, arguments, eval_dataset=[])
        self.remove_callback(PrinterCallback)
        model.config.use_cache = True  # which Trainer sets, for the saved model as well
        self._batches, self._after_epoch, self._options = batches, after_epoch, options
        self._nats = torch.zeros((), dtype=torch.float64, device=arguments.device)
        self._tokens = torch.zeros_like(self._nats)

    @property
    def learning_rate(self) -> float:
        """Of the last update."""
        optimizer: Any = self.optimizer
        return float(optimizer.param_groups[0]["lr"])

    def get_train_dataloader(self) -> Any:
        """Return the batches; they are no DataLoader, and need no more than this."""
        return self._batches

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Add the gradient of a batch, computed a micro-batch at a time."""
        model.train()
        inputs = self._prepare_inputs(inputs)
        num_tokens = (inputs["labels"] != IGNORED).sum()
        total = torch.zeros_like(self._nats)
        at_once = self._options.computed_at_once
        ids, labels = (inputs[n].split(at_once) for n in ("input_ids", "labels"))
        for some, targets in zip(ids, labels, strict=True):
            nats = self._nats_of(model, some, targets)
            self.accelerator.backward(nats / num_tokens)
            total += nats.detach()
        self._nats += total
        self._tokens += num_tokens
        return (total / num_tokens).float()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the validation loss, after an epoch."""
        train_loss = (self._nats / self._tokens).item()
        self._nats.zero_()
        self._tokens.zero_()
        metrics = {"eval_loss": self._after_epoch(self, train_loss)}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count none: the Trainer would walk over all parameters at every step."""
        return 0

    def _nats_of(self, model: nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of -log p of the targets."""
        with torch.autocast(
            input_ids.device.type, torch.bfloat16, enabled=self._options.bf16
        ):
            logits = model(input_ids=input_ids, use_cache=False).logits
            return F.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
