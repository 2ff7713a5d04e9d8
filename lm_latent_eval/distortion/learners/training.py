"""Training of a learner: best weights, history, and scores after each epoch.

A folder holds the model as ``from_pretrained`` takes it (of the epoch with the lowest
validation loss) with its tokenizer, and

    settings.json        what the result depends on
    history.jsonl        an epoch a line
    trajectories/train   the first training sequences, scored after each epoch
    trajectories/test    the first test sequences
    checkpoints/         only while the training is not complete

Source: LeBrun, Sordoni and O'Donnell (2022), sections 3.3, 4.2, 4.3, A.1.1, A.1.3.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

import lm_latent_eval
from lm_latent_eval.distortion.languages.causal import CausalLanguage
from lm_latent_eval.distortion.languages.corpus import Corpus, TokenIds
from lm_latent_eval.distortion.learners.architectures import Start
from lm_latent_eval.distortion.learners.data import (
    IGNORED,
    Batches,
    CorpusData,
    TextData,
    TrainingData,
    check_apart,
)
from lm_latent_eval.distortion.learners.options import Epoch, History, TrainingOptions
from lm_latent_eval.distortion.learners.scores import nats_per_token, score_epoch
from lm_latent_eval.distortion.sources import Unchanged
from lm_latent_eval.ledger.files import SETTINGS_FILE, going_on
from lm_latent_eval.ledger.settings import Settings
from lm_latent_eval.options import whole
from lm_latent_eval.scoring.options import parse_device
from lm_latent_eval.text.files import read_text
from lm_latent_eval.text.strict_json import parse


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
        output: Path,
        data: TrainingData,
        dev: CorpusData | TextData,
        options: TrainingOptions,
        tracked: Mapping[Path, Unchanged],
        device: torch.device,
        *,
        quiet: bool,
    ) -> None:
        """Prepare the training of a model; see :func:`train_learner`.

        Sequences that are tracked go by the folder of their trajectory.

        Raises:
            ValueError: If several processes or an impossible device are asked for.
        """
        if device.index:
            raise ValueError(
                f"device={device}: name the GPU by CUDA_VISIBLE_DEVICES instead"
            )
        arguments = TrainingArguments(
            output_dir=str(output / CHECKPOINTS),
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
        self._output, self._data, self._dev = output, data, dev
        self._options, self._tracked, self._quiet = options, tracked, quiet
        self._nats = torch.zeros((), dtype=torch.float64, device=arguments.device)
        self._tokens = torch.zeros_like(self._nats)
        self._since = time.perf_counter()

    def get_train_dataloader(self) -> Any:
        """Return the batches, an iterable in place of a DataLoader."""
        return Batches(self._data, self._options, self._quiet)

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
        """Score the model, write down how it is doing, return the validation loss."""
        epoch = len(History.of(self.state.log_history).epochs) + 1
        train_loss = (self._nats / self._tokens).item()
        optimizer: Any = self.optimizer
        learning_rate = float(optimizer.param_groups[0]["lr"])  # of the last update
        if not math.isfinite(train_loss):
            raise FloatingPointError(
                f"the training diverged in epoch {epoch} (its loss is {train_loss}): "
                f"lower the learning rate, which is {learning_rate:g}"
            )
        self._nats.zero_()
        self._tokens.zero_()
        vocabulary = self._data.vocabulary
        learner = CausalLanguage(
            self.model,
            1.0,
            vocabulary.begin_id,
            vocabulary.end_id,
            name="the model in training",
            batch_size=self._options.computed_at_once,
        )
        dev_loss = nats_per_token(learner, self._dev.sequences(0))
        for trajectory, source in self._tracked.items():
            score_epoch(learner, source, trajectory, epoch)
        now = time.perf_counter()
        record = Epoch(
            epoch=epoch,
            train_nats_per_token=train_loss,
            dev_nats_per_token=dev_loss,
            learning_rate=learning_rate,
            sequences_seen=epoch * self._data.num_sequences,
            updates=self.state.global_step,
            seconds=now - self._since,
        )
        self._since = now
        # The Trainer keeps its log in every checkpoint.
        self.state.log_history.append(vars(record))
        History.of(self.state.log_history).write(self._output)
        self.say(
            f"epoch {epoch}: nats a token, train -> dev: {train_loss:.4f} -> "
            f"{dev_loss:.4f}; learning rate {learning_rate:g}; {record.seconds:.1f} s"
        )
        metrics = {"eval_loss": dev_loss}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count none: the Trainer would walk over all parameters at every step."""
        return 0

    def say(self, line: str) -> None:
        """Tell the user, unless nothing is to be printed."""
        if not self._quiet:
            print(line, file=sys.stderr)

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


CHECKPOINTS = "checkpoints"
TRAJECTORIES = "trajectories"
_STATE_FILE = "trainer_state.json"  # the Trainer writes it last
_COMPLETE = "checkpoints.done"


def train_learner(
    output: Path,
    start: Start,
    data: TrainingData,
    dev: CorpusData | TextData,
    options: TrainingOptions,
    *,
    test: Corpus | None = None,
    track: int = 10_000,
    device: torch.device | str | None = None,
    quiet: bool = False,
) -> History:
    """Train a learner, or go on with an interrupted training.

    On a CPU, an interrupted training ends with the weights of one that was not.

    Args:
        output: Folder of the model. Where it is complete, nothing is done.
        start: A configuration or a pretrained model.
        data: What to train on.
        dev: What the validation loss is of.
        options: How to train.
        test: What to score after every epoch, besides the training corpus.
        track: At most so many sequences of each.
        device: Where to compute; None is a GPU if there is one.
        quiet: Print nothing.

    Raises:
        ValueError: If the folder is of another training, the data do not fit together,
            or the model cannot learn them.
        FloatingPointError: If the loss is no finite number.
    """
    output = Path(output).resolve()
    others = {} if test is None else {"test": test}
    for owner in (dev.vocabulary, *map(TokenIds.of, others.values())):
        data.vocabulary.check(owner)
    validated = {"validation": dev.corpus} if isinstance(dev, CorpusData) else {}
    check_apart(data, options.epochs, validated | others, "trained on")
    check_apart(dev, 1, others, "validated with")
    whole("track", track, 1)
    settings: Settings = {
        "lm_latent_eval": lm_latent_eval.__version__,
        "start": start.settings(),
        "options": options.settings(),
        "data": data.settings(),
        "dev": dev.settings(),
        "test": test.settings if test else None,
        "track": track,
    }
    # What cannot be trained has no folder.
    if (output / "config.json").exists() and not (output / SETTINGS_FILE).exists():
        raise ValueError(f"{output} holds another model: give the output another path")
    model = None
    if not _is_complete(output):
        lengths = [data.max_length, dev.max_length, test.max_length if test else 0]
        _ = data.num_sequences, dev.num_sequences  # of texts: reads them
        with _undisturbed():
            model = start.build(data.vocabulary, max(lengths), options.seed)
    with going_on(output, settings, "training", "the finished epochs"):
        shutil.rmtree(output / _COMPLETE, ignore_errors=True)  # of a killed run
        if not _is_complete(output):  # nor by another run meanwhile
            if isinstance(data, CorpusData):
                others["train"] = data.corpus
            tracked = {
                output / TRAJECTORIES / name: Unchanged(
                    corpus, num_sequences=min(track, corpus.num_sequences)
                )
                for name, corpus in others.items()
            }
            how = {"dev": dev, "tracked": tracked, "device": parse_device(device)}
            with _undisturbed():
                _go_on(output, model, data, options, quiet=quiet, **how)
            _finish(output, History.read(output), data.vocabulary)
        return History.read(output)


def _go_on(
    output: Path,
    model: Any,
    data: TrainingData,
    options: TrainingOptions,
    **others: Any,
) -> None:
    """Train from the last checkpoint on, if there is more to do."""
    checkpoint = _last_checkpoint(output / CHECKPOINTS)
    done = len(_history(checkpoint).epochs) if checkpoint else 0
    if done >= options.epochs:
        return
    trainer = LearnerTrainer(model, output, data, options=options, **others)
    trainer.say(
        f"training {type(model).__name__}, {model.num_parameters():,} parameters: "
        f"{data.num_sequences:,} sequences an epoch"
    )
    if checkpoint:
        trainer.say(f"resuming after epoch {done}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def _last_checkpoint(checkpoints: Path) -> Path | None:
    """Return the last checkpoint that is whole; remove those that are not."""
    while checkpoints.exists() and (found := get_last_checkpoint(checkpoints)):
        try:
            _history(Path(found))
            return Path(found)
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(found)
    return None


def _history(checkpoint: Path) -> History:
    state = parse(read_text(checkpoint / _STATE_FILE), infinities=True)
    return History.of(state["log_history"])


def _is_complete(output: Path) -> bool:
    return (output / "config.json").exists() and not (output / CHECKPOINTS).exists()


def _finish(output: Path, history: History, vocabulary: TokenIds) -> None:
    """Put the best model and its tokenizer into the folder, remove the checkpoints."""
    checkpoints = output / CHECKPOINTS
    with _undisturbed():
        model: Any = AutoModelForCausalLM.from_pretrained(
            checkpoints / f"checkpoint-{history.best.updates}",
            dtype="auto",
            trust_remote_code=False,
        )
        model.save_pretrained(output)
    if vocabulary.tokenizer is not None:
        vocabulary.tokenizer.save_pretrained(output)
    # The folder is complete from this renaming on, however long removing takes.
    shutil.rmtree(checkpoints.replace(output / _COMPLETE))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Silence transformers, and undo what the Trainer does to global random numbers."""
    numbers, others = random.getstate(), np.random.get_state()
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(others)
            logging.set_verbosity(verbosity)
            if shown:
                logging.enable_progress_bar()
