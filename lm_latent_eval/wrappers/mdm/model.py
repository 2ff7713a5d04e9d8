"""A masked diffusion model with its tokenizer: ``TextModel`` and ``TextScorer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from lm_latent_eval.devices import MOST_ROWS
from lm_latent_eval.estimators import Bound, Estimate
from lm_latent_eval.inference.streams import stream_key
from lm_latent_eval.latent import Description, Normalization, Span, marked
from lm_latent_eval.networks.masked import Logits, MaskedReader, probe
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.answer import Answer, Missed
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.inside.latents import BestLatents, ranked
from lm_latent_eval.scoring.texts import Query, naming
from lm_latent_eval.wrappers.base import NetworkModel, NetworkScorer, warn_of_cut
from lm_latent_eval.wrappers.mdm.estimators import (
    TargetEstimate,
    check_choices,
    check_length,
    compared,
    estimated,
)
from lm_latent_eval.wrappers.mdm.generation import Writer
from lm_latent_eval.wrappers.mdm.options import HOW, MDMOptions
from lm_latent_eval.wrappers.mdm.orders import best_paths
from lm_latent_eval.wrappers.mdm.source import Cut, Source, TokenCutter
from lm_latent_eval.wrappers.mdm.targets import Blocks, answer_all
from lm_latent_eval.wrappers.mdm.unmasking import Requests

UNITS = "nats, given the number of tokens; ends are not modelled and not counted"


class MDMScorer(NetworkScorer):
    name = "mdm"
    normalization = Normalization.BY_LENGTH
    network: Source

    def __init__(
        self,
        source: Source,
        denoiser: MaskedReader,
        options: MDMOptions,
        *,
        quiet: bool,
    ) -> None:
        """Fill in the options that depend on the network.

        Raises:
            ValueError: If the network reads too few tokens for any text, or scores no
                first token.
        """
        self.network, self.denoiser, self.quiet = source, denoiser, quiet
        self.options = replace(
            options,
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
        chosen = {
            **self.options.chosen,
            "process": self.options.description,
            "scored_as": "documents",
        }
        self.settings = {
            "dtype": source.computed_in,
            "max_length": source.max_length,
            **chosen,
            "vocabulary": source.digest,
            "tokens_are": "tokens",
        }
        self.described = {
            **chosen,
            "how": HOW[self.options.name].format_map(asdict(self.options)),
            "vocabulary": f"{denoiser.num_scores} tokens",
            "units": UNITS,
            "windows": f"{self.cut.room} tokens at once; of longer texts windows "
            f"of at most {max(1, self.cut.room // 2)} more, given those before",
        }

    # -- likelihoods ------------------------------------------------------------------

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of whole texts in the order of completion.

        Raises:
            MissedTextsError: At the end, if a text has probability zero.
            ValueError: If a text cannot be scored; the error names the query.
        """
        yield from self._answers(queries, self.cut.whole, estimated)

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p-hat of texts after their contexts, as ``score_texts`` does."""
        yield from self._answers(queries, self.cut.continuation, compared)

    def _answers(
        self,
        queries: Sequence[Query],
        cut: Callable[[Query], Cut],
        ask: Callable[[int, MDMOptions, int], Requests[TargetEstimate]],
    ) -> Iterator[Answer]:
        missed = Missed(queries)
        cuts, jobs, owners, num_blocks = [], [], [], []
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
                num_blocks.append(len(targets))
        warn_of_cut([each.lost for each in cuts], self.network.max_length)
        whole = cut == self.cut.whole
        title = f"likelihoods by unmasking ({self.options.name})"
        with self.progress(len(cuts), title, "texts") as bar:
            for each in cuts:
                if not each.targets:
                    yield self._answer(each, [], whole)
                    bar.update()
            parts: dict[int, dict[int, TargetEstimate | None]] = {}
            for job, result in answer_all(self.denoiser, self.options.process, jobs):
                n, index = owners[job]
                parts.setdefault(n, {})[index] = result.value
                if len(parts[n]) == num_blocks[n]:
                    blocks = [part for _, part in sorted(parts.pop(n).items())]
                    scored = [part for part in blocks if part is not None]
                    if len(scored) == len(blocks):
                        yield self._answer(cuts[n], scored, whole)
                    bar.update()
        missed.tell()

    def _answer(
        self, cut: Cut, blocks: Sequence[TargetEstimate], whole: bool
    ) -> Answer:
        factors = [part.estimate for part in blocks]
        if not factors:
            name = "exact" if self.options.name == "auto" else self.options.name
            factors = [Estimate.exact(0.0, num_tokens=0, estimator=name)]
        estimate = Estimate.product(factors)
        if self.network.mixed_precision and estimate.bound in (
            Bound.EXACT,
            Bound.STRICT_LOWER,
        ):
            # Without draws rounding is the only error, which is not estimated.
            estimate = replace(estimate, bound=Bound.NONE, stderr=None)
        return Answer(
            cut.query.index,
            estimate,
            f"{self.options.seed}/{cut.query.name}",
            unspelled=cut.unknown,
            respaced=int(cut.lossy),
            sentences=max(1, len(blocks)),
            is_greedy=not whole and all(part.is_greedy for part in blocks),
        )

    # -- orders -----------------------------------------------------------------------

    def best_latents(self, queries: Sequence[Query], top: int) -> Iterator[BestLatents]:
        """Yield the most probable orders of unmasking of each block of texts.

        Raises:
            ValueError: If a text cannot be scored; the error names the query.
        """
        width, process = self.options.num_samples, self.options.process
        tokenizer = self.network.tokenizer
        for query in queries:
            with naming(query):
                targets = self.cut.whole(query).targets
                blocks = [block for each in targets for block in self.blocks.of(each)]
                for block in blocks:
                    check_choices(len(block), process)
            jobs = [(block, best_paths(len(block), width, process)) for block in blocks]
            answered = answer_all(self.denoiser, process, jobs)
            for n, found in sorted(answered, key=lambda pair: pair[0]):
                words = [str(tokenizer.decode([t])) for t in blocks[n].tokens]
                describe = partial(_order, words, found.value.steps)
                paths = found.value
                best = ranked(paths.log_p, top, not paths.pruned, describe)
                yield BestLatents(query.index, words, best)

    # -- generation -------------------------------------------------------------------

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        ends = self.network.ends
        writer = Writer(self.denoiser, self.cut, self.options, self.blocks, ends)
        with self.progress(len(queries), "unmasking", "generations") as bar:
            for written in writer.write(queries):
                yield written
                bar.update()


def _order(words: Sequence[str], steps: Tensor, path: int) -> Description:
    """Describe at which step a path reveals each token."""
    spans = [Span(n, n + 1, str(t), t) for n, t in enumerate(steps[path].tolist())]
    return marked(words, spans)


def _set_aside(
    query: Query, requests: Requests[TargetEstimate], missed: Missed
) -> Requests[TargetEstimate | None]:
    """Name the query in errors of an estimator; None if p is zero."""
    result = None
    with missed.aside(query):
        result = yield from requests
    return result


class MaskedDiffusion(NetworkModel[MDMOptions, MDMScorer]):
    auto_class = AutoModelForMaskedLM
    table = MDMOptions

    def __init__(self, network: Network | Source) -> None:
        """Take a network with its tokenizer.

        Args:
            network: A bidirectional one: of ``AutoModelForMaskedLM``, or a published
                diffusion model with code of its own.
        """
        self.source = network if isinstance(network, Source) else Source.of(network)

    @classmethod
    def of_function(
        cls,
        logits: Logits,
        tokenizer: PreTrainedTokenizerBase,
        *,
        version: str,
        max_length: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Take a function from tokens to scores instead of a network.

        It may call another process, with another version of transformers.

        Args:
            logits: Tokens (B, T), int64, some of them the mask -> scores (B, T, V) at
                each position.
            tokenizer: Its tokenizer.
            version: Name of the weights, which identifies caches and interrupted runs.
            max_length: Largest number of tokens read at once.
            device: Device of the tokens.
        """
        return cls(
            Source(
                logits,
                tokenizer,
                version,
                version,
                max_length,
                torch.device(device),
                tokenizer.mask_token_id,
                0,
                tokenizer.bos_token_id,
                {"checkpoint_digest": version, "model_device": str(device)},
            )
        )

    def _scorer(
        self,
        options: MDMOptions,
        batch_size: int | None,
        most: int | None,
        quiet: bool,
    ) -> MDMScorer:
        source = self.source
        mask = self._mask(options.mask_token)
        options = options.chosen_for(source.attention, source.block_length)
        logits = source.reading(str(options.attention), options.block_length)
        shift = source.shift if options.logit_shift is None else options.logit_shift
        if shift is None:
            raise ValueError(
                f"{source.name}: nothing says whether the scores of a place are its "
                "own or those of the token after it: give logit_shift=0 (LLaDA, MDLM, "
                "BERT) or logit_shift=1 (Dream)"
            )
        alone = options.attention == "block_causal" and options.block_length == 1
        denoiser = MaskedReader(
            logits,
            mask,
            shift,
            probe(logits, mask, source.device, source.name, alone=alone),
            source.device,
            batch_size=batch_size,
            most=most or MOST_ROWS,
            mask_is_word=options.convention == "llada",
        )
        return MDMScorer(source, denoiser, options, quiet=quiet)

    def _mask(self, given: str | None) -> int:
        if given is None:
            if self.source.mask is None:
                raise ValueError(
                    f"{self.source.name}: neither tokenizer nor configuration has a "
                    "token that masks: give mask_token, its name or number"
                )
            return self.source.mask
        if given.isdecimal():
            return int(given)
        mask = self.source.tokenizer.get_vocab().get(given)
        if mask is None:
            raise ValueError(f"mask_token={given!r}: the tokenizer has no such token")
        return int(mask)
