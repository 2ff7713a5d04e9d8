"""Training of an RNNG on a corpus: on derivations, or on sequences alone."""

from __future__ import annotations

from pathlib import Path

from lm_latent_eval.distortion.languages.corpus import Corpus
from lm_latent_eval.distortion.learners.lexicon import (
    exact_vocabulary,
    texts_of,
    words_of,
)
from lm_latent_eval.distortion.learners.treebank import derivations, parsed
from lm_latent_eval.models.rnng.data import ParsedSentence
from lm_latent_eval.models.rnng.training import Objective, train_rnng
from lm_latent_eval.training.options import Options, RNNGSize


def train_grammar(
    corpus: Corpus,
    dev: Corpus,
    directory: Path,
    *,
    objective: Objective = "supervised",
    num_samples: int = 4,
    size: RNNGSize | None = None,
    options: Options | None = None,
) -> None:
    """Train a model of a language of words, and write its checkpoint.

    Its vocabulary is that of the language, drawn words or not, and has no unknown word:
    all of its mass is on sequences of the language's words.

    Args:
        corpus: What to learn.
        dev: Of the same language: for the learning rate and for stopping.
        directory: Where the checkpoint goes. An interrupted run there is resumed.
        objective: ``supervised`` learns the trees that sequences were drawn by,
            ``unsupervised`` its own.
        num_samples: Trees a sentence, at least 2, if unsupervised.
        size: How large the model is.
        options: How to train.

    Raises:
        ValueError: If the corpora are of different words, sequences were cut, or the
            objective needs trees that there are not.
    """
    words = words_of(corpus)
    if words != words_of(dev):
        raise ValueError(
            f"{corpus.directory} and {dev.directory} have different words: draw both "
            "from one language"
        )
    train_rnng(
        _sentences(corpus, objective),
        _sentences(dev, objective),
        directory,
        objective=objective,
        words=exact_vocabulary(words.values()),
        num_samples=num_samples,
        size=size,
        options=options,
    )


def _sentences(
    corpus: Corpus, objective: Objective
) -> list[ParsedSentence] | list[str]:
    if objective == "supervised":
        return [parsed(derivation) for derivation in derivations(corpus)]
    return texts_of(corpus)
