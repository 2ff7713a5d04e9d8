"""A tiny KGLM checkpoint on disk, and its probabilities by brute force.

Every walk over a text of a few words is listed (``kglm_space``), so what a backend says
of that checkpoint can be held against sums that share none of its code paths: no
batches, no pieces, no particles, no beams.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from lm_latent_eval.harness.answers import score_of
from lm_latent_eval.harness.tasks import request, whole_text
from lm_latent_eval.models import checkpoint
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.modeling import KGLM
from lm_latent_eval.models.recurrent_lm import LSTMLanguageModel
from lm_latent_eval.text.batch import TokenBatch
from lm_latent_eval.text.orthography import BYTES, Orthography, Spacing, Spelling
from lm_latent_eval.text.words import END, START, UNKNOWN, WordTokenizer
from tests import tiny_models
from tests.kglm_space import walks_of
from tests.tiny_models import randomised

UNKNOWN_TYPES = 7
UTTERED = ("the", "fox", "saw", ".")
COPIED = ("Ada", "Bo")
"""Words that only aliases have."""


def tokenizer() -> WordTokenizer:
    words = WordTokenizer.train([" ".join(UTTERED * 2)], copied=COPIED)
    assert words.vocab_size == 4 + len(UTTERED), "premise"
    assert words.num_words == words.vocab_size + len(COPIED), "premise"
    return words


def vocabulary() -> dict[str, int]:
    """What configurations say of it."""
    words = tokenizer()
    return {
        "vocab_size": words.vocab_size,
        "num_words": words.num_words,
        "num_unknown_types": UNKNOWN_TYPES,
    }


def ids(*words: str) -> list[int]:
    """Numbers of words given one by one: no string is cut into words here."""
    number = tokenizer().tokenizer.token_to_id
    special = {"END": END, "?": UNKNOWN}
    return [special[w] if w in special else number(w) for w in words]


def kglm(seed: int = 12, spread: float = 0.85) -> KGLM:
    graph = KnowledgeGraph.build(
        [("Ada", "knows", "Bo")],
        {"Ada": [ids("Ada"), ids("the", "fox")], "Bo": [ids("Bo")]},
        max_aliases=2,
        max_alias_words=2,
    )
    size = {"token_embedding_dim": 4, "hidden_size": 5, **vocabulary()}
    model = tiny_models.kglm(graph, seed=seed, spread=spread, **size)
    for parameter in model.proposals.parameters():
        parameter.mul_(0.3)  # flat proposals: weights of little variance
    return model


def lstm(seed: int = 0, **size: int) -> LSTMLanguageModel:
    size = {"embedding_dim": 4, "hidden_size": 5, **vocabulary(), **size}
    return tiny_models.lstm(seed, 0.7, **size)


def orthography(alphabet: bytes = BYTES, seed: int = 5) -> Orthography:
    """A lopsided spelling model, and white space that was counted on three texts."""
    words = tokenizer()
    spelling = Spelling(alphabet, embedding_dim=3, hidden_size=4).double()
    spelling = randomised(spelling, seed, 0.6).eval()
    spelling.exclude(words.vocabulary)
    texts = ("the fox saw Ada.", "Bo saw .", "the  fox\n")
    return Orthography(spelling, Spacing.train((text, words(text)) for text in texts))


def write(
    directory: Path,
    model: KGLM | LSTMLanguageModel,
    writing: Orthography | None = None,
) -> Path:
    checkpoint.save(model, tokenizer(), directory, model.state_dict(), writing)
    return directory


# -- requests ------------------------------------------------------------------------


def _asked(kind: str, arguments: Iterable[tuple], task: str = "task", first: int = 0):
    return [
        request(kind, given, {}, 0, (task, first + i, 1))
        for i, given in enumerate(arguments)
    ]


def rolling(*texts: str, task: str = "task", first: int = 0) -> list[Instance]:
    return _asked("loglikelihood_rolling", [(text,) for text in texts], task, first)


def log_likelihoods(lm: LM, *texts: str) -> list[float]:
    """What any model of lm-eval says of whole texts, asked as lm-eval asks it."""
    asked = _asked("loglikelihood_rolling", map(whole_text, texts))
    return [score_of(answer) for answer in lm.loglikelihood_rolling(asked)]


def conditional(*pairs: tuple[str, str]) -> list[Instance]:
    return _asked("loglikelihood", pairs)


def generation(*contexts: str, **kwargs) -> list[Instance]:
    return _asked("generate_until", [(context, kwargs) for context in contexts])


# -- the truth -----------------------------------------------------------------------


_walks = cache(walks_of)


class Truth:
    """Probabilities of a tiny KGLM by listing every walk."""

    def __init__(self, model: KGLM, *, penalized: bool = True) -> None:
        self.model = model
        self.penalty = -math.log(UNKNOWN_TYPES) if penalized else 0.0

    def walks(self, num_tokens: int):
        return _walks(self.model, num_tokens)

    def log_p(self, words: list[int], *, only_copied: bool = False) -> float:
        """log p of a text that begins with these words: its end is a word like others.

        A word that only aliases have is an unknown word elsewhere, unless
        ``only_copied``.
        """
        if not words:
            return 0.0
        beyond = -math.inf if only_copied else self.penalty
        cost = [
            self.penalty if w == UNKNOWN else beyond if w >= 4 + len(UTTERED) else 0.0
            for w in words
        ]
        batch = TokenBatch.collate([words], [cost], first=START)
        log_p = self.model.log_joint(self.model.encode(batch), self.walks(len(words)))
        return log_p.logsumexp(-1).item()

    def most_probable(self, words: list[int], *, but: tuple[int, ...] = ()) -> int:
        """The most probable next word."""
        every = [i for i in range(tokenizer().num_words) if i not in but]
        free = Truth(self.model, penalized=False)
        scores = {
            i: free.log_p([*words, i], only_copied=True)
            for i in every
            if i not in self.model.config.never_uttered
        }
        first, second = sorted(scores.values(), reverse=True)[:2]
        assert first > second + 1e-9, "premise: no tie"
        return max(scores, key=lambda i: scores[i])
