"""Gradient descent with early stopping, progress and resumption.

Several parts (a generative model, its proposals) train side by side on the same
batches: each has its own loss, its own learning rate and its own best epoch, and stops
when it no longer improves.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from lm_latent_eval.ledger.files import StateFile, only_writer
from lm_latent_eval.ledger.settings import Settings, differences
from lm_latent_eval.training.options import Options

ItemT = TypeVar("ItemT")


def state_file(directory: Path) -> Path:
    """Path of a run's checkpoint, beside the directory."""
    return _beside(directory, "training_state.pt")


@contextmanager
def only_trainer(directory: Path) -> Iterator[None]:
    """Lock a directory against other training runs.

    A completed run leaves neither lock nor state.

    Args:
        directory: Folder of the checkpoint.

    Raises:
        BusyError: If another run is training there.
    """
    lock = _beside(directory, "training.lock")
    with only_writer(directory, "the finished epochs", lock=lock, passing=True):
        yield
        state_file(directory).unlink(missing_ok=True)


def _beside(directory: Path, name: str) -> Path:
    directory = directory.resolve()
    return directory.with_name(f"{directory.name}.{name}")


@dataclass(frozen=True)
class Part(Generic[ItemT]):
    """A module and its loss."""

    module: nn.Module
    loss: Callable[[Sequence[ItemT]], Tensor]
    """Negative log-probability of a batch in nats, summed."""


class Trainer(Generic[ItemT]):
    """Trainer of several parts on a list of items, resumable."""

    def __init__(
        self,
        parts: dict[str, Part[ItemT]],
        *,
        size: Callable[[ItemT], int],
        options: Options,
        directory: Path,
        about: Mapping[str, Any] | None = None,
        unit: str = "texts",
    ) -> None:
        """Prepare.

        Args:
            parts: Name -> part; their modules share no parameters.
            size: Number of predicted tokens of an item, the unit of printed losses.
            options: Options of training.
            directory: Folder of the checkpoint; the state is kept beside it.
            about: Further settings that identify the run: sizes of the model.
            unit: Name of the items in messages.
        """
        self.parts, self.size, self.options = parts, size, options
        self.about, self.unit = dict(about or {}), unit
        self.directory, self.state = directory, StateFile(state_file(directory))
        self.optimizers = {
            name: torch.optim.Adam(part.module.parameters(), lr=options.learning_rate)
            for name, part in parts.items()
        }
        self.epoch = 0
        self.best: dict[str, dict[str, Tensor]] = {}
        self.best_loss = dict.fromkeys(parts, float("inf"))
        self.waited = dict.fromkeys(parts, 0)
        self.history: list[dict[str, Any]] = []

    def run(self, train: Sequence[ItemT], dev: Sequence[ItemT]) -> list[dict[str, Any]]:
        """Train until every part has stopped; leave each at its best epoch.

        An interrupted run is resumed. A run with other options, sizes or texts starts
        anew, with a message; the earlier state is renamed.

        Returns:
            One record an epoch: nats a token by part, on training and development text.

        Raises:
            ValueError: If training or development data are empty, or the earlier state
                is damaged.
            FloatingPointError: If a loss is not finite.
        """
        for items, what in ((train, "training"), (dev, "development")):
            if not sum(map(self.size, items)):
                raise ValueError(
                    f"there are no {self.unit} in the {what} data, or none that can be "
                    "used: give others"
                )
        texts = hashlib.sha256(repr((train, dev)).encode()).hexdigest()[:16]
        settings = {**asdict(self.options), **self.about, "digest of the texts": texts}
        del settings["device"]
        if before := self.state.read(device="cpu"):
            self._resume(settings, *before)
        elif (self.directory / "config.json").exists():
            _say(f"{self.directory} holds a checkpoint: it is replaced at the end")
        _say(
            f"training {', '.join(self.parts)}: {len(train):,} {self.unit}, "
            f"{len(dev):,} to validate with"
        )
        while self.epoch < self.options.epochs and self._active():
            # Each epoch has its own seed, so a resumed run equals an undisturbed one.
            torch.manual_seed(self.options.seed * 1_000_003 + self.epoch)
            record: dict[str, Any] = {"epoch": self.epoch + 1}
            record["train"] = self._train_epoch(train)
            record["dev"] = self.evaluate(dev, self._active())
            self._after_epoch(record)
            self.history.append(record)
            self.epoch += 1
            self._save(settings)
            _say(_line(record))
        for name, part in self.parts.items():
            part.module.load_state_dict(self.best[name])
        return self.history

    def evaluate(
        self, items: Sequence[ItemT], names: Iterable[str]
    ) -> dict[str, float]:
        """Nats a token of each part."""
        tokens = sum(map(self.size, items))
        losses = {}
        for name in names:
            part = self.parts[name]
            part.module.eval()
            batches = list(self._batches(items, None))
            with torch.no_grad():
                total = sum(
                    float(part.loss(batch))
                    for batch in _bar(batches, f"validate {name}")
                )
            losses[name] = total / tokens
        return losses

    def _train_epoch(self, items: Sequence[ItemT]) -> dict[str, float]:
        active, seen = self._active(), 0
        totals = dict.fromkeys(active, 0.0)
        for name in active:
            self.parts[name].module.train()
        order = torch.randperm(len(items)).tolist()
        batches = list(self._batches(items, order))
        bar = _bar(batches, f"epoch {self.epoch + 1}")
        for batch in bar:
            tokens = sum(map(self.size, batch))
            seen += tokens
            for name in active:
                loss = self.parts[name].loss(batch)
                totals[name] += float(loss.detach())
                self.optimizers[name].zero_grad()
                (loss / tokens).backward()
                nn.utils.clip_grad_norm_(
                    self.parts[name].module.parameters(), self.options.clip
                )
                self.optimizers[name].step()
            bar.set_postfix({name: f"{totals[name] / seen:.3f}" for name in active})
        return {name: total / seen for name, total in totals.items()}

    def _batches(
        self, items: Sequence[ItemT], order: Sequence[int] | None
    ) -> Iterable[list[ItemT]]:
        size = self.options.batch_size
        if order is None:
            by_length = sorted(range(len(items)), key=lambda i: self.size(items[i]))
            for start in range(0, len(items), size):
                yield [items[i] for i in by_length[start : start + size]]
            return
        pool = size * 50
        batches = []
        for start in range(0, len(order), pool):
            near = sorted(
                order[start : start + pool], key=lambda i: self.size(items[i])
            )
            batches += [near[i : i + size] for i in range(0, len(near), size)]
        for b in torch.randperm(len(batches)).tolist():
            yield [items[i] for i in batches[b]]

    def _after_epoch(self, record: dict[str, Any]) -> None:
        for name, loss in record["dev"].items():
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"training {name} diverged in epoch {self.epoch + 1} (its loss is "
                    f"{loss}): lower the learning rate"
                )
            if loss < self.best_loss[name]:
                self.best_loss[name], self.waited[name] = loss, 0
                state = self.parts[name].module.state_dict()
                self.best[name] = {k: v.detach().clone() for k, v in state.items()}
            else:
                self.waited[name] += 1
                for group in self.optimizers[name].param_groups:
                    group["lr"] /= 2

    def _active(self) -> list[str]:
        return [n for n in self.parts if self.waited[n] < self.options.patience]

    def _save(self, settings: Settings) -> None:
        state = {
            "epoch": self.epoch,
            "modules": {n: p.module.state_dict() for n, p in self.parts.items()},
            "optimizers": {n: o.state_dict() for n, o in self.optimizers.items()},
            "best": self.best,
            "best_loss": self.best_loss,
            "waited": self.waited,
            "history": json.dumps(self.history),
        }
        self.state.write(settings, state)

    def _resume(
        self, settings: Settings, theirs: Settings, state: dict[str, Any]
    ) -> None:
        """Resume from the checkpoint, or rename it if its settings differ."""
        if different := self._differences(theirs, state, settings):
            aside = self.state.set_aside()
            _say(
                f"starting anew: the run before into {self.directory} was another "
                f"({different}). Its state is now {aside}: give it back its name and "
                "repeat that command to go on with it instead"
            )
            return
        for name, part in self.parts.items():
            part.module.load_state_dict(state["modules"][name])
            self.optimizers[name].load_state_dict(state["optimizers"][name])
        self.epoch, self.best = state["epoch"], state["best"]
        self.best_loss, self.waited = state["best_loss"], state["waited"]
        self.history = json.loads(state["history"])
        _say(f"resuming after epoch {self.epoch} ({self.state.path})")

    def _differences(
        self, theirs: Settings, state: dict[str, Any], settings: Settings
    ) -> str:
        """Differences of another run's settings, as a message; "" if equal."""
        # Only the number of epochs may grow.
        if state["epoch"] > self.options.epochs:
            return f"it has {state['epoch']} epochs behind it"
        others = differences({**theirs, "epochs": 0}, {**settings, "epochs": 0})
        modules = {name: part.module.state_dict() for name, part in self.parts.items()}
        if others or _shapes(state["modules"]) == _shapes(modules):
            return others
        return f"it trained {', '.join(state['modules'])} of other shapes"


def _shapes(modules: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: tensor.shape for key, tensor in tensors.items()}
        for name, tensors in modules.items()
    }


def _bar(batches: Sequence[list[ItemT]], what: str) -> Any:
    return tqdm(batches, desc=what, unit="batch", leave=False, disable=None)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _line(record: dict[str, Any]) -> str:
    parts = (
        f"{name} {record['train'][name]:.4f} -> {loss:.4f}"
        for name, loss in record["dev"].items()
    )
    return f"epoch {record['epoch']}: nats a token, train -> dev: " + "; ".join(parts)
