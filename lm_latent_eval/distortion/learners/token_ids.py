"""Checks that language and learner agree on their token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from transformers import PreTrainedTokenizerBase

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.languages.tokenizer import load_tokenizer


@dataclass(frozen=True)
class TokenIds:
    """Token ids, and what they stand for.

    Attributes:
        owner: Whose they are, for messages.
        size: How many ids there are.
        begin_id: What a sequence follows.
        end_id: What it ends with.
        tokenizer: None where ids have no strings.
    """

    owner: str
    size: int
    begin_id: int
    end_id: int
    tokenizer: PreTrainedTokenizerBase | None

    @classmethod
    def of(cls, corpus: Corpus) -> Self:
        """Return that of a corpus."""
        names = ("vocab_size", "begin_id", "end_id")
        size, begin_id, end_id = (int(corpus.settings[name]) for name in names)
        return cls(str(corpus.directory), size, begin_id, end_id, corpus.tokenizer())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return that of a tokenizer's directory.

        Raises:
            ValueError: If there is none, or it has no begin or end of a sequence.
        """
        tokenizer = load_tokenizer(path)
        if tokenizer is None:
            raise ValueError(f"{path} is not the directory of a tokenizer")
        begin_id, end_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        if not isinstance(begin_id, int) or not isinstance(end_id, int):
            raise ValueError(
                f"the tokenizer of {path} names no token for the begin or the end of a "
                "sequence: set its bos_token and eos_token"
            )
        return cls(str(path), len(tokenizer), begin_id, end_id, tokenizer)

    def check_tokens(
        self, owner: str, size: int, tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        """Raise unless somebody else's ids stand for the same tokens.

        Where the ids of this vocabulary have no strings, only the numbers compare.

        Raises:
            ValueError: If they do not; names the first id that differs.
        """
        if size != self.size:
            raise ValueError(
                f"{owner} has {size} token ids and {self.owner} has {self.size}: "
                "probabilities compare between models of one tokenizer only"
            )
        if self.tokenizer is None:
            return
        if tokenizer is None:
            raise ValueError(
                f"{owner} has no tokenizer to compare with that of {self.owner}: save "
                "the one it was trained with beside it"
            )
        ours, theirs = _tokens(self.tokenizer), _tokens(tokenizer)
        for id_ in sorted(ours | theirs):
            if ours.get(id_) != theirs.get(id_):
                raise ValueError(
                    f"token {id_} is {theirs.get(id_)!r} for {owner} and "
                    f"{ours.get(id_)!r} for {self.owner}: they have other tokenizers"
                )

    def check(self, other: TokenIds) -> None:
        """Raise unless another vocabulary is the same.

        Raises:
            ValueError: If it is another one.
        """
        self.check_tokens(other.owner, other.size, other.tokenizer)
        ours, theirs = (self.begin_id, self.end_id), (other.begin_id, other.end_id)
        if ours != theirs:
            raise ValueError(
                f"sequences begin and end with the tokens {theirs} in {other.owner} "
                f"and {ours} in {self.owner}"
            )


def _tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {id_: token for token, id_ in tokenizer.get_vocab().items()}
