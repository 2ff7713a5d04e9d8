"""Scoring of canonical segmentations, and search for others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.memory import MemoryLimit
from lm_latent_eval.networks.causal import Tokens, TokenScores
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.pieces import Piece
from lm_latent_eval.wrappers.tokens.proposals import (
    LookAhead,
    PathProposal,
    TemperedNextToken,
    Unigram,
    frequencies,
)
from lm_latent_eval.wrappers.tokens.walk import (
    SegmentationWalk,
    Stretch,
    WalkPlan,
    search,
)

ROWS = 256
"""Sequences that the network goes on with together, where no batch size is given."""


class Walker:
    """A network that segmentations are read by, under one choice of options."""

    def __init__(
        self,
        network: Network,
        options: TokensOptions,
        *,
        batch_size: int | None,
        most_rows: int | None,
    ) -> None:
        """Take a network.

        Args:
            network: The causal LM.
            options: How to sum.
            batch_size: Sequences that it reads together; None is as many as memory
                allows.
            most_rows: The most that it goes on with together.
        """
        self._network, self._options = network, options
        self._batch_size = batch_size
        self._rows = batch_size or most_rows or ROWS
        self._reader, self._memory_of_walks = network.reader(wide=False), MemoryLimit()

    def scores(
        self, pieces: Sequence[Piece]
    ) -> dict[tuple[Tokens, Tokens], TokenScores]:
        """Score canonical segmentations, equal ones once."""
        wanted = list(dict.fromkeys(p.scored for p in pieces if p.scored[1]))
        found = self._reader.score(wanted, self._batch_size)
        return dict(zip(wanted, found, strict=True))

    def walk(
        self,
        pieces: Sequence[Piece],
        names: Sequence[str],
        scores: Mapping[tuple[Tokens, Tokens], TokenScores],
        plan: WalkPlan,
    ) -> list[SegmentationWalk]:
        """Search and draw segmentations.

        Args:
            pieces: Strings.
            names: What the random numbers of each follow from.
            scores: Of their canonical segmentations.
            plan: How many.

        Raises:
            ValueError: If ``exact`` would have too many, or a text does not fit into
                memory; the error names the text.
        """
        if self._options.estimator == "exact":
            self._check_size(pieces, names)
        stretches = []
        for piece in pieces:
            one = scores[piece.scored].log_p[piece.leading :]
            room = self._network.positions + 1 - len(piece.given)
            stretches.append(
                Stretch(piece.given, piece.summed, piece.tokens, one, room)
            )
        # What is given the same is read once, together; nothing is padded.
        order = sorted(
            range(len(pieces)), key=lambda n: (len(pieces[n].given), pieces[n].given, n)
        )
        walks: dict[int, SegmentationWalk] = {}

        def work(places: Sequence[int]) -> list[SegmentationWalk]:
            return search(
                self._network,
                [stretches[n] for n in places],
                plan,
                self._proposal,
                [stream_key(self._options.seed, f"\0{names[n]}") for n in places],
            )

        def size(place: int) -> int:
            return len(pieces[place].given) + len(pieces[place].tokens)

        def refusal(place: int) -> ValueError:
            return ValueError(
                f"{names[place]}: {size(place)} tokens with num_samples="
                f"{self._options.num_samples} do not fit into the memory of "
                f"{self._network.device}: give fewer samples or another device"
            )

        while order:
            batch = self._together(order, stretches)
            for some, found in self._memory_of_walks.in_batches(
                batch, len(batch), work, size, refusal
            ):
                walks.update(zip(some, found, strict=True))
            order = order[len(batch) :]
        return [walks[n] for n in range(len(pieces))]

    def _check_size(self, pieces: Sequence[Piece], names: Sequence[str]) -> None:
        limit = self._options.max_segmentations
        for piece, name in zip(pieces, names, strict=True):
            if (most := piece.summed.num_prefixes) > limit:
                raise ValueError(
                    f"{name}: estimator=exact would read 10^{math.log10(most):.1f} "
                    f"beginnings of segmentations; max_segmentations={limit}. Use "
                    "estimator=mixed"
                )

    def _together(self, order: list[int], stretches: list[Stretch]) -> list[int]:
        """Return the next texts that are read together."""
        texts = max(1, self._rows // max(1, self._options.num_samples))
        size = len(stretches[order[0]].given)
        return [n for n in order[:texts] if len(stretches[n].given) == size]

    def _proposal(self, stretch: Stretch) -> PathProposal:
        temperature = self._options.temperature
        if self._options.proposal == "lm":
            return TemperedNextToken(stretch.lattice, temperature)
        if self._options.proposal == "ahead":
            return LookAhead(stretch.lattice, stretch.log_rest, temperature)
        return Unigram(stretch.lattice, self._frequencies, temperature)

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        size = self._network.model.config.get_text_config().vocab_size
        return frequencies(self._network.tokenizer, size)
