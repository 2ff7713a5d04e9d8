"""A masked diffusion model with its tokenizer: a ``TextModel``."""

from __future__ import annotations

from typing import Self

import torch
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerBase

from lm_latent_eval.memory import MOST_ROWS
from lm_latent_eval.networks.masked import Logits, MaskedReader, probe
from lm_latent_eval.networks.network import Network
from lm_latent_eval.wrappers.base import NetworkModel
from lm_latent_eval.wrappers.mdm.lengths import Lengths
from lm_latent_eval.wrappers.mdm.options import MDMOptions
from lm_latent_eval.wrappers.mdm.scorer import MDMScorer
from lm_latent_eval.wrappers.mdm.source import Source


class MaskedDiffusion(NetworkModel[MDMOptions, MDMScorer]):
    """Scores strings by a network that predicts masked tokens."""

    auto_class = AutoModelForMaskedLM
    table = MDMOptions

    def __init__(self, network: Network | Source) -> None:
        """Take a network with its tokenizer.

        Args:
            network: A bidirectional one: of ``AutoModelForMaskedLM``, or a published
                diffusion model that runs its own code.

        Raises:
            ValueError: If the directory's ``lengths.json`` is damaged.
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
        lengths: Lengths | None = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Take a function from tokens to scores instead of a model.

        It may ask another process, with another version of transformers.

        Args:
            logits: Tokens (B, T), int64, some of them the mask -> scores (B, T, V) of
                what stands at each place.
            tokenizer: Whose tokens they are.
            version: What its numbers depend on: a name of the weights. Caches and
                interrupted runs are told apart by it.
            max_length: Tokens that it reads at once.
            lengths: How many tokens texts have, if that is to be paid.
            device: Where tokens go.
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
                lengths,
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
        if options.ends == "counted" and source.lengths is None:
            raise ValueError(
                f"ends=counted: {source.name} has no lengths.json, which says how many "
                "tokens texts have (`train mdm` writes it): use ends=conditioned"
            )
        denoiser = MaskedReader(
            logits,
            mask,
            shift,
            probe(logits, mask, source.device, source.name),
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
        found = self.source.tokenizer.get_vocab().get(given)
        if found is None:
            raise ValueError(f"mask_token={given!r}: the tokenizer has no such token")
        return int(found)
