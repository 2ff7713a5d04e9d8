r"""A mixture of causal language models with one tokenizer: a latent a document.

.. math:: p(x) = \sum_z p(z) \prod_t p(x_t \mid x_{<t}, z)

Which of the models writes the document is all that is latent, so the sum is done as it
stands and every answer is exact. Word by word it says the same,

.. math:: p(x_t \mid x_{<t}) = \sum_z p(z \mid x_{<t}) \, p(x_t \mid x_{<t}, z)

and those marginals are all that scoring, greedy checks and generation need. A text
begins after the tokenizer's end token and ends with it.

The directory: ``config.json`` with the prior, a folder with the tokenizer, and a folder
a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm_latent_eval.extend import (
    Answer,
    Estimate,
    GenerationOptions,
    Normalization,
    Query,
    TextModel,
    TextScorer,
    verify_manifest,
    write_manifest,
)

CONFIG, TOKENIZER = "config.json", "tokenizer"


@dataclass(frozen=True)
class Mixture(TextModel, TextScorer):
    """A ``TextModel`` and, as there is nothing to choose, its own ``TextScorer``."""

    prior: Tensor
    """p(z), (Z,)."""
    models: list[Any]
    """Z causal language models."""
    tokenizer: Any
    digest: str
    """Of all files."""

    normalization = (
        Normalization.BELOW_ONE
    )  # a string can be cut into tokens in more ways than one

    @classmethod
    def open_directory(
        cls, directory: Path, *, dtype: torch.dtype | None, device: torch.device
    ) -> Mixture:
        """Open what ``write`` has written."""
        config = json.loads((directory / CONFIG).read_text())
        folders = [directory / f"model_{z}" for z in range(len(config["prior"]))]
        models = [
            AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype or "auto", trust_remote_code=False
            )
            for folder in folders
        ]
        every = (directory, directory / TOKENIZER, *folders)
        return cls(
            torch.tensor(config["prior"], dtype=torch.float64, device=device),
            [model.to(device).eval() for model in models],
            AutoTokenizer.from_pretrained(
                directory / TOKENIZER, trust_remote_code=False
            ),
            "-".join(verify_manifest(folder)[:8] for folder in every),
        )

    def scorer(self, options: Mapping[str, Any], /, **_: Any) -> Mixture:
        """Refuse options: nothing is drawn, and texts are scored one by one."""
        if options:
            raise ValueError(
                f"{next(iter(options))!r} is not an argument of a mixture: it is exact"
            )
        return self

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that a number depends on."""
        dtypes = [str(model.dtype) for model in self.models]
        return {"model": "mixture", "checkpoint": self.digest, "dtype": dtypes}

    @property
    def about(self) -> dict[str, Any]:
        """What results say."""
        number = sum(model.num_parameters() for model in self.models)
        return {
            "checkpoint_digest": self.digest,
            "model_num_parameters": number,
            "latent_eval": {
                "estimator": "exact",
                "mass": str(self.normalization),
                "vocabulary": f"{len(self.tokenizer)} tokens",
            },
        }

    @torch.inference_mode()
    def log_marginals(self, ids: Sequence[int]) -> Tensor:
        """Return log p(x_t | x_<t) of every token at every place, (T + 1, V)."""
        end = self.tokenizer.eos_token_id
        tokens = torch.tensor([[end, *ids]], device=self.prior.device)
        log_p = torch.stack(
            [model(tokens).logits[0].double().log_softmax(-1) for model in self.models]
        )  # (Z, T + 1, V)
        read = log_p[:, :-1].gather(-1, tokens[:, 1:, None].expand(len(log_p), -1, -1))
        past = torch.nn.functional.pad(read[..., 0].cumsum(-1), (1, 0))
        log_z = (self.prior.log()[:, None] + past).log_softmax(0)  # given x_<t
        return (log_z[..., None] + log_p).logsumexp(0)

    def _answer(self, query: Query, *, ended: bool) -> Answer:
        encoded = self.tokenizer(
            query.context + query.text,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        ids = list(encoded["input_ids"])
        # A token across the border belongs to the continuation.
        border = sum(end <= len(query.context) for _, end in encoded["offset_mapping"])
        log_p = self.log_marginals(ids)
        predicted = [*ids, self.tokenizer.eos_token_id] if ended else ids
        targets = torch.tensor(predicted, device=log_p.device)[border:]
        log_p = log_p[border : len(predicted)]
        total = log_p.gather(-1, targets[:, None]).sum().item()
        return Answer(
            query.index,
            Estimate.exact(total, num_tokens=len(targets)),
            stream=query.name,
            is_greedy=bool((log_p.argmax(-1) == targets).all()),
        )

    def score_texts(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of whole texts, their ends included."""
        for query in queries:
            yield self._answer(query, ended=True)

    def score_continuations(self, queries: Sequence[Query]) -> Iterator[Answer]:
        """Yield log p of texts given their contexts."""
        for query in queries:
            yield self._answer(query, ended=False)

    def generate(
        self, queries: Sequence[tuple[Query, GenerationOptions]]
    ) -> Iterator[tuple[int, str]]:
        """Yield the most probable next token after the other, until a stop string."""
        for query, options in queries:
            yield query.index, self._continuation(query.context, options)

    def _continuation(self, context: str, options: GenerationOptions) -> str:
        if options.temperature:
            raise ValueError("a mixture is not sampled from here: set temperature to 0")
        ids = self.tokenizer.encode(context, add_special_tokens=False)
        given, text = len(ids), ""
        while len(ids) - given < options.max_tokens:
            best = int(self.log_marginals(ids)[-1].argmax())
            if best == self.tokenizer.eos_token_id:
                break
            ids.append(best)
            text = self.tokenizer.decode(ids[given:])
            cuts = [text.find(stop) for stop in options.until if stop in text]
            if cuts:
                return text[: min(cuts)]
        return text


def write(
    directory: Path, models: Sequence[Any], tokenizer: Any, prior: Sequence[float]
) -> None:
    """Write a mixture of causal language models that have one tokenizer."""
    parts = {f"model_{z}": model for z, model in enumerate(models)}
    for name, part in {TOKENIZER: tokenizer, **parts}.items():
        part.save_pretrained(directory / name)
        write_manifest(directory / name)
    config = {"model_type": "mixture", "prior": list(prior)}
    (directory / CONFIG).write_text(json.dumps(config))
    write_manifest(directory)
