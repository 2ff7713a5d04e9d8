"""``TextScorer`` of string probabilities, summed over segmentations."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lm_latent_eval.estimators import Estimate
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Normalization
from lm_latent_eval.networks.causal import Tokens, TokenScores
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.missed import Missed
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.base import NetworkScorer
from lm_latent_eval.wrappers.tokens.continuations import ContinuationCutter
from lm_latent_eval.wrappers.tokens.encoding import Encoding
from lm_latent_eval.wrappers.tokens.estimating import continuation, windows
from lm_latent_eval.wrappers.tokens.estimators import WalkEstimator
from lm_latent_eval.wrappers.tokens.generation import generate
from lm_latent_eval.wrappers.tokens.options import TokensOptions
from lm_latent_eval.wrappers.tokens.pieces import Continuation, Piece
from lm_latent_eval.wrappers.tokens.vocabulary import ByteVocabulary
from lm_latent_eval.wrappers.tokens.walk import SegmentationWalk
from lm_latent_eval.wrappers.tokens.walking import Walker
from lm_latent_eval.wrappers.tokens.whole import WholeTextCutter

logger = logging.getLogger(__name__)

QUERIES = 256
"""Queries that are answered before the next ones are looked at."""
UNITS = {
    "none": "nats; texts end at a token border, and their ends are not counted",
    "prefix": "nats; of all texts that begin so",
    "eos": "nats; ends counted",
}


class TokensScorer(NetworkScorer):
    """Scores strings with a causal LM under one choice of options."""

    name = "tokens"
    network: Network

    def __init__(
        self,
        network: Network,
        vocabulary: ByteVocabulary,
        options: TokensOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> None:
        """Take a network.

        Args:
            network: The causal LM.
            vocabulary: What its tokens write.
            options: How to sum.
            batch_size: Sequences that the network reads together, but at least the
                segmentations of one text; None is as many as memory allows.
            most: The most that they take.
            quiet: Show no progress.

        Raises:
            ValueError: If an option does not suit the network.
        """
        self.network, self._options, self.quiet = network, options, quiet
        self._encoding = Encoding(network, vocabulary, options)
        if self._encoding.starts_twice and not quiet:
            logger.warning(
                "the tokenizer puts %s before a text, which follows one anyhow: as hf "
                "does, whole texts follow two, and log p of the second one is added. "
                "With add_bos_token=False they follow one",
                self._encoding.begin,
            )
        self._whole_texts = WholeTextCutter(self._encoding)
        self._continuations = ContinuationCutter(self._encoding)
        self._walker = Walker(
            network,
            options,
            batch_size=batch_size,
            most_rows=most,
        )
        plain = options.estimator == "canonical"
        self._estimator = None if plain else WalkEstimator.of(options)
        self.normalization = (
            Normalization.BELOW_ONE if options.end == "eos" else Normalization.BY_LENGTH
        )
        chosen = {**asdict(options), "scored_as": "documents"}
        self.settings = {
            "dtype": str(network.model.dtype),
            "computed_in": str(network.computed_in),
            **chosen,
            "window": [network.max_length, network.positions],
            "prefix_token": network.prefix_token,
            "adds_special": network.adds_special,
            "vocabulary": network.digest,
            "tokens_are": "canonical tokens",
        }
        self.described = {**chosen, "units": UNITS[options.end]}

    # -- whole texts ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts, as they are found.

        Raises:
            MissedTextsError: At the end, if a text has no probability.
            ValueError: If a text cannot be scored; the error names the query.
        """
        return (answer for answer, _ in self.explore(queries))

    def explore(
        self, queries: Sequence[Query]
    ) -> Iterator[tuple[Answer, list[SegmentationWalk]]]:
        """Yield answers of whole texts, with the segmentations of every window.

        Raises:
            MissedTextsError: At the end, if a text has no probability.
            ValueError: If a text cannot be scored; the error names the query.
        """
        missed = Missed(queries)
        with self._bar(len(queries), "texts") as bar:
            for some in _some(queries):
                cut = []
                for query in some:
                    with naming(query):
                        cut.append(self._whole_texts.cut(query.text))
                names = [
                    f"{query.name}/window {n}" if n else query.name
                    for query, pieces in zip(some, cut, strict=True)
                    for n in range(len(pieces))
                ]
                pieces = [piece for pieces in cut for piece in pieces]
                scores = self._walker.scores(pieces)
                walks = iter(self._walks(pieces, names, scores))
                for query, of_query in zip(some, cut, strict=True):
                    found = [next(walks) for _ in of_query if self._estimator]
                    with missed.aside(query):
                        yield self._whole(query, of_query, found, scores), found
                    bar.update()
        missed.tell()

    def _whole(
        self,
        query: Query,
        pieces: Sequence[Piece],
        walks: Sequence[SegmentationWalk],
        scores: Mapping[tuple[Tokens, Tokens], TokenScores],
    ) -> Answer:
        """Put the windows of a text together."""
        plain = [scores[piece.scored] for piece in pieces]
        canonical_only = self._estimator is None
        restores = canonical_only and self._whole_texts.restores(query.text)
        parts = windows(self._estimator, pieces, plain, walks, restores=restores)
        return Answer(
            query.index,
            Estimate.product(parts),
            self._stream(query),
            sentences=len(parts),
            evaluations=sum(part.num_samples for part in parts),
            canonical=math.fsum(one.total for one in plain),
        )

    # -- continuations ----------------------------------------------------------------

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of texts after their contexts, as they are found.

        They are greedy where greedy decoding writes their canonical segmentation.

        Raises:
            MissedTextsError: At the end, if a text has no probability.
            ValueError: If a text cannot be scored; the error names the query.
        """
        missed = Missed(queries)
        with self._bar(len(queries), "continuations") as bar:
            for some in _some(queries):
                asked = []
                for query in some:
                    with naming(query):
                        asked.append(self._continuations.read(query))
                scores = self._walker.scores([p for one in asked for p in one.pieces])
                walks = self._sums(some, asked, scores)
                for query, one in zip(some, asked, strict=True):
                    plain = scores.get(one.plain.scored)
                    with missed.aside(query):
                        estimate = continuation(
                            self._estimator, query, one, plain, walks
                        )
                        yield Answer(
                            query.index,
                            estimate,
                            self._stream(query),
                            is_greedy=all(plain.greedy) if plain else not query.text,
                            evaluations=estimate.num_samples,
                        )
                    bar.update()
        missed.tell()

    def _sums(
        self,
        queries: Sequence[Query],
        asked: Sequence[Continuation],
        scores: Mapping[tuple[Tokens, Tokens], TokenScores],
    ) -> dict[Hashable, SegmentationWalk]:
        """Walk through texts and through their contexts, by name and piece.

        Options of one question share their context, and its random numbers.
        """
        sums = {
            (query.name, piece): piece
            for query, one in zip(queries, asked, strict=True)
            for piece in (one.context, one.whole)
            if piece is not None and self._estimator is not None
        }
        found = self._walks([*sums.values()], [name for name, _ in sums], scores)
        return dict(zip(sums, found, strict=True))

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context, by its own tokens."""
        with self._bar(len(queries), "generations") as bar:
            for query, options in queries:
                given = self._encoding.given(query.context, options.max_tokens)
                key = stream_key(self._options.seed, f"utter\0{query.name}")
                yield query.index, generate(self.network, given, options, key)
                bar.update()

    # -- shared -----------------------------------------------------------------------

    def _walks(
        self,
        pieces: Sequence[Piece],
        names: Sequence[str],
        scores: Mapping[tuple[Tokens, Tokens], TokenScores],
    ) -> list[SegmentationWalk]:
        if self._estimator is None:
            return []
        return self._walker.walk(pieces, names, scores, self._estimator.plan)

    def _stream(self, query: Query) -> str:
        return f"{self._options.seed}/{query.name}"

    def _bar(self, total: int, unit: str) -> Any:
        title = f"segmentations ({self._options.estimator})"
        return self.progress(total, title, unit)


def _some(queries: Sequence[Query]) -> Iterator[Sequence[Query]]:
    for first in range(0, len(queries), QUERIES):
        yield queries[first : first + QUERIES]
