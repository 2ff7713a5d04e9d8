"""Training learns what was copied, by the original's rule."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.checkpoint import load_checkpoint
from lm_latent_eval.models.nklm.training import Annotator, _loss, copied, train_nklm
from lm_latent_eval.training.options import NKLMSize, Options
from tests.models.lrlm.reference import NAMES, document, numbers, original, topics
from tests.tiny_models import annotated

SIZE = NKLMSize(
    embedding_dim=8, hidden_size=9, num_layers=1, fact_dim=4, num_pieces=50, dropout=0.0
)


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_is_the_originals(name):
    """Against its annotations of documents whose names overlap and share texts."""
    known = topics(name, original(name, "nklm"))
    seen = 0
    for case in numbers(name)["nklm"]:
        if case["annotation"] != "gold":
            continue
        topic = known.number(case["id"])
        first, _ = known.facts_of(torch.tensor(topic))
        listed = []
        for naming in (known.naming_topic == topic).nonzero()[:, 0].tolist():
            start, _ = known.namings_of(known.naming_fact[naming])
            words = known.alias_words[known.naming_alias[naming]]
            listed.append((naming, naming - int(start), words[words >= 0].tolist()))
        source, offset = copied(document(name, case["id"])["words"], listed)
        relation = [int(known.naming_fact[s - 1] - first) if s else -1 for s in source]
        assert relation == case["rel"][:-1]
        assert [o if s else -1 for s, o in zip(source, offset, strict=True)] == case[
            "pos"
        ][:-1]
        seen += sum(map(bool, source))
    assert seen > 3, "premise: something was copied"


def test_training_learns_and_the_checkpoint_scores_alike(tmp_path):
    texts = annotated(20)
    options = Options(epochs=3, batch_size=4, learning_rate=0.03)
    model = train_nklm(texts, texts[:6], tmp_path, size=SIZE, options=options)
    loaded = load_checkpoint(tmp_path, expected="nklm")
    annotate = Annotator(loaded.model.knowledge, loaded.tokenizer, 8)
    items = [item for text in texts if (item := annotate(text)) is not None]
    assert sum(any(source) for _, _, source, _ in items) > 15, "premise: copied words"
    assert torch.equal(_loss(model, items), _loss(loaded.model, items))
    tokens = sum(len(words) for words, *_ in items)
    assert (
        _loss(model, items) / tokens < 0.8 * torch.tensor(model.config.vocab_size).log()
    )
