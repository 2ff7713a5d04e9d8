"""Base of models over a network: opening, fingerprints, windows."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from tqdm import tqdm

from lm_latent_eval.estimators import MissedSupportError
from lm_latent_eval.networks.network import Network
from lm_latent_eval.options import OptionTable
from lm_latent_eval.scoring.interface import TextModel, TextScorer
from lm_latent_eval.scoring.options import parse_batch_size

logger = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound=OptionTable)
ScorerT = TypeVar("ScorerT", bound=TextScorer, covariant=True)


class NetworkModel(TextModel, Generic[OptionsT, ScorerT]):
    """A ``TextModel`` over a network of transformers."""

    auto_class: ClassVar[Any]
    """Class of transformers that loads the network."""
    table: ClassVar[type[Any]]
    """Class of its options, an ``OptionTable``."""

    @abstractmethod
    def __init__(self, network: Network) -> None: ...

    @classmethod
    def open_directory(
        cls, directory: Path, *, dtype: torch.dtype | None, device: torch.device
    ) -> Self:
        """Open a directory of transformers: see ``TextModel.open_directory``.

        Raises:
            ValueError: If it holds no such network, or one with code of its own, which
                only ``lm_eval`` with ``trust_remote_code=True`` opens.
        """
        return cls(Network.open(cls.auto_class, directory, dtype=dtype, device=device))

    @classmethod
    def options(cls) -> type[OptionsT]:
        return cls.table

    def scorer(
        self,
        options: Mapping[str, Any],
        /,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | str | None = None,
        quiet: bool = False,
    ) -> ScorerT:
        """Build the scorer, with a warning of options without effect.

        Raises:
            ValueError: If an option is unknown, or a value is impossible or does not
                suit the network.
        """
        chosen: OptionsT = self.table.parse(options)
        if idle := [name for name in chosen.idle if name in options]:
            logger.warning(
                "%s: no effect on likelihoods by the other options", ", ".join(idle)
            )
        most = parse_batch_size(max_batch_size, "max_batch_size")
        sizes = parse_batch_size(batch_size), most
        return self._scorer(chosen, *sizes, quiet)

    @abstractmethod
    def _scorer(
        self, options: OptionsT, batch_size: int | None, most: int | None, quiet: bool
    ) -> ScorerT:
        """Build the scorer.

        Args:
            options: Settings.
            batch_size: Number of texts scored together; None is as many as memory
                allows.
            most: Largest batch size; None is the model's own.
            quiet: Show no progress.
        """


class NetworkScorer(TextScorer):
    """Base class of a ``TextScorer`` over a network."""

    name: ClassVar[str]
    """Name of the model."""
    network: Any
    """Network with a ``digest`` and a description for results (``about``)."""
    settings: dict[str, Any]
    """All that a number depends on besides network and query, as JSON."""
    described: dict[str, Any]
    """Description of the numbers for results, as JSON."""
    quiet: bool

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that numbers depend on besides the query, as JSON."""
        network = {"model": self.name, "checkpoint": self.network.digest}
        return {**network, **self.settings, "mass": str(self.normalization)}

    @property
    def about(self) -> dict[str, Any]:
        """Description of model and numbers for results, as JSON."""
        description = {
            **self.described,
            "computed_in": self.settings.get("computed_in", self.settings["dtype"]),
            "mass": str(self.normalization),
        }
        return {**self.network.about, "latent_eval": description}

    def progress(self, total: int, title: str, unit: str) -> Any:
        return tqdm(total=total, desc=title, unit=f" {unit}", disable=self.quiet)


def windows(
    length: int, first: int, step: int, reach: int
) -> Iterator[tuple[int, int, int]]:
    """Cut a text that is longer than a network's window.

    Args:
        length: Number of tokens of the text.
        first: Largest number of tokens predicted in the first window.
        step: Largest number of tokens predicted in each later one.
        reach: Number of tokens of a later window, with the context.

    Yields:
        Start of a window, start and end of its predicted tokens.

    Example:
        >>> list(windows(10, first=4, step=4, reach=5))
        [(0, 0, 4), (3, 4, 8), (5, 8, 10)]
        >>> list(windows(3, first=4, step=4, reach=5)), list(windows(0, 4, 4, 5))
        ([(0, 0, 3)], [])
    """
    start, stop = 0, min(first, length)
    while start < stop:
        yield (stop - reach if start else 0), start, stop
        start, stop = stop, min(stop + step, length)


def warn_of_cut(lost: Sequence[int], max_length: int) -> None:
    """Warn of contexts that were cut.

    Args:
        lost: Number of unread tokens of each context.
        max_length: Largest number of tokens that the network reads at once.
    """
    if cut := sum(count > 0 for count in lost):
        logger.warning(
            "%d of %d contexts are cut: up to %d of their first tokens are left out, "
            "since the network reads %d at once (max_length)",
            cut,
            len(lost),
            max(lost),
            max_length,
        )


def framed(
    tokens: Sequence[int], inner: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Tokens before and after inner ones; None if these do not occur."""
    for first in range(len(tokens) - len(inner) + 1):
        after = first + len(inner)
        if [*tokens[first:after]] == [*inner]:
            return [*tokens[:first]], [*tokens[after:]]
    return None


def no_probability(where: str) -> MissedSupportError:
    """Error of a text with probability zero.

    Args:
        where: Condition of that, such as "under some of the masks".
    """
    return MissedSupportError(
        "the network gives some token of the text a probability of zero (a score of "
        f"-inf) {where}, and log p has no number for that"
    )
