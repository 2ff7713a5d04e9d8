"""Answers queries by a masked diffusion model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Normalization
from lm_latent_eval.networks.masked import MaskedReader
from lm_latent_eval.scoring.answer import Answer
from lm_latent_eval.scoring.decoding import GenerationOptions
from lm_latent_eval.scoring.missed import Missed
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.base import NetworkScorer
from lm_latent_eval.wrappers.mdm.batches import answer_all
from lm_latent_eval.wrappers.mdm.estimating import (
    TargetEstimate,
    check_length,
    compared,
    estimated,
)
from lm_latent_eval.wrappers.mdm.generation import Writer
from lm_latent_eval.wrappers.mdm.options import HOW, MDMOptions
from lm_latent_eval.wrappers.mdm.predictions import Blocks, Requests
from lm_latent_eval.wrappers.mdm.source import Source
from lm_latent_eval.wrappers.mdm.texts import Cut, TokenCutter

CONDITIONED = "nats, given the number of tokens; ends are not modelled and not counted"
COUNTED = (
    "nats; the number of tokens is paid in rolling log-likelihoods, and given of "
    "continuations"
)


class MDMScorer(NetworkScorer):
    """A ``TextScorer``: one model under one choice of settings."""

    name = "mdm"
    network: Source

    def __init__(
        self,
        source: Source,
        denoiser: MaskedReader,
        options: MDMOptions,
        *,
        quiet: bool,
    ) -> None:
        """Choose what the options leave open.

        Raises:
            ValueError: If the network reads too few tokens for any text, or scores no
                first token.
        """
        self.network, self.denoiser, self.quiet = source, denoiser, quiet
        ends = "conditioned" if source.lengths is None else "counted"
        self.options = replace(
            options,
            ends=options.ends or ends,
            mask_token=str(denoiser.mask),
            logit_shift=denoiser.shift,
        )
        self.cut = TokenCutter(
            source.tokenizer,
            denoiser.mask,
            source.max_length,
            source.start if denoiser.shift else None,
        )
        if denoiser.shift and not self.cut.before:
            raise ValueError(
                "logit_shift=1: the scores of a text's first token are those of the "
                "place before it, and the tokenizer has no token that could stand "
                "there: give prefix_token_id"
            )
        causal = self.options.attention == "block_causal"
        self.blocks = Blocks(self.options.block_length, denoiser.mask, causal)
        self.lengths = source.lengths if self.options.ends == "counted" else None
        counted = self.lengths is not None
        # With p(number of tokens) some of it is on other cuts of the same strings.
        self.normalization = (
            Normalization.BELOW_ONE if counted else Normalization.BY_LENGTH
        )
        chosen = {
            **self.options.chosen,
            "process": self.options.said,
            "scored_as": "documents",
        }
        self.settings = {
            "dtype": source.computed_in,
            "max_length": source.max_length,
            **chosen,
            "lengths": self.lengths.digest if self.lengths else None,
            "vocabulary": source.digest,
            "tokens_are": "tokens, and the end" if counted else "tokens",
        }
        self.described = {
            **chosen,
            "how": HOW[self.options.name].format_map(asdict(self.options)),
            "vocabulary": f"{denoiser.num_scores} tokens",
            "units": COUNTED if counted else CONDITIONED,
            "windows": f"{self.cut.room} tokens at once; of longer texts windows "
            f"of at most {max(1, self.cut.room // 2)} more, given those before",
        }

    # -- likelihoods ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of whole texts, as they are found.

        Raises:
            MissedTextsError: At the end, if a text has no probability.
            ValueError: If a text cannot be scored; the error names the query.
        """
        yield from self._answers(queries, self.cut.whole, estimated)

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of texts after their contexts, as they are found.

        Raises:
            MissedTextsError: At the end, if a text has no probability.
            ValueError: If a text cannot be scored; the error names the query.
        """
        yield from self._answers(queries, self.cut.continuation, compared)

    def _answers(
        self,
        queries: Sequence[Query],
        cut: Callable[[Query], Cut],
        ask: Callable[[int, MDMOptions, int], Requests[TargetEstimate]],
    ) -> Iterator[Answer]:
        """Score what queries are cut into, and put their windows together."""
        if self.options.guidance:
            raise ValueError(
                f"guidance={self.options.guidance:g} is for generation: guided "
                "scores are those of another model, which nobody has trained. Use "
                "guidance=0 for likelihoods"
            )
        missed = Missed(queries)
        cuts, jobs, owners, number = [], [], [], []
        for n, query in enumerate(queries):
            with naming(query):
                cuts.append(cut(query))
                targets = [
                    (f"{query.name}/window {w}" if w else query.name, b, block)
                    for w, target in enumerate(cuts[n].targets)
                    for b, block in enumerate(self.blocks.of(target))
                ]
                for part, (name, b, block) in enumerate(targets):
                    check_length(len(block), self.options)
                    key = stream_key(
                        self.options.seed, f"{name}/block {b}" if b else name
                    )
                    requests = ask(len(block), self.options, key)
                    jobs.append((block, _set_aside(query, requests, missed)))
                    owners.append((n, part))
                number.append(len(targets))
        whole = cut == self.cut.whole
        title = f"likelihoods by unmasking ({self.options.name})"
        with self.progress(len(cuts), title, "texts") as bar:
            for each in cuts:
                if not each.targets:
                    yield self._answer(each, [], 0, whole)
                    bar.update()
            parts: dict[int, dict[int, TargetEstimate | None]] = {}
            passes = [0] * len(cuts)
            for job, found in answer_all(self.denoiser, self.options.process, jobs):
                n, place = owners[job]
                parts.setdefault(n, {})[place] = found.value
                passes[n] += found.passes
                if len(parts[n]) == number[n]:
                    blocks = [part for _, part in sorted(parts.pop(n).items())]
                    known = [part for part in blocks if part is not None]
                    if len(known) == len(blocks):
                        yield self._answer(cuts[n], known, passes[n], whole)
                    bar.update()
        missed.tell()

    def _answer(
        self, cut: Cut, blocks: Sequence[TargetEstimate], passes: int, whole: bool
    ) -> Answer:
        """Multiply blocks, and the probability of their number of tokens."""
        factors = [part.estimate for part in blocks]
        if whole and self.lengths:
            log_p = self.lengths.log_p(cut.num_tokens)
            factors.append(self._exact(log_p, 1))
        estimate = Estimate.product(factors or [self._exact(0.0, 0)])
        if self.options.bounds == "lower":
            estimate = replace(estimate, upper=None, upper_stderr=None)
        if self.network.rounds and estimate.bound in (Bound.EXACT, Bound.STRICT_LOWER):
            # Nothing was drawn, so rounding is its only error, and nobody knows that.
            estimate = replace(
                estimate, bound=Bound.NONE, stderr=None, upper=None, upper_stderr=None
            )
        return Answer(
            cut.query.index,
            estimate,
            f"{self.options.seed}/{cut.query.name}",
            unspelled=cut.unknown,
            respaced=int(cut.lossy),
            sentences=max(1, len(blocks)),
            is_greedy=not whole and all(part.is_greedy for part in blocks),
            evaluations=passes,
        )

    def _exact(self, log_p: float, num_tokens: int) -> Estimate:
        name = self.options.name
        by = "exact" if name == "auto" else name
        known = Estimate.exact(log_p, num_tokens=num_tokens, estimator=by)
        return replace(known, upper=log_p, upper_stderr=0.0)

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield index and continuation of every query's context."""
        writer = Writer(self.denoiser, self.cut, self.options, self.blocks)
        with self.progress(len(queries), "unmasking", "generations") as bar:
            for written in writer.write(queries):
                yield written
                bar.update()


def _set_aside(
    query: Query, requests: Requests[TargetEstimate], missed: Missed
) -> Requests[TargetEstimate | None]:
    """Name the query in what an estimator refuses; None of what has no support."""
    found = None
    with missed.aside(query):
        found = yield from requests
    return found
