"""A model survives its directory, and starts where its configuration says."""

from __future__ import annotations

import pytest
import torch

from lm_latent_eval.models.rnng.modeling import RNNG
from lm_latent_eval.models.rnng.networks import RNNGConfig
from tests.models.rnng import reference

SET_BY_THE_LIBRARY = ("architectures", "dtype", "transformers_version")


@pytest.mark.parametrize("options", [{}, {"sentence_ends": False, "dropout": 0.2}])
def test_a_saved_model_is_the_same_model(tmp_path, options):
    rnng = reference.tiny(num_unknown_types=3, **options)
    rnng.save_pretrained(tmp_path)
    again = RNNG.from_pretrained(tmp_path)
    for field in vars(RNNGConfig()):
        if not field.startswith("_") and field not in SET_BY_THE_LIBRARY:
            assert getattr(again.config, field) == getattr(rnng.config, field), field
    assert again.state_dict().keys() == rnng.state_dict().keys()
    for name, weight in rnng.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def test_new_models_start_small_and_even():
    torch.manual_seed(0)
    rnng = RNNG(RNNGConfig(vocab_size=50, hidden_size=16, proposal_size=8))
    for name, weight in rnng.named_parameters():
        if name.endswith("bias") or "bias_" in name:
            assert (weight == 0).all(), name
        elif name == "spans.score.2.weight":
            assert (weight == 1).all()
        else:
            assert 0 < weight.abs().max() < 1, name
            assert weight.std() > 0.03, name


def test_dropout_is_for_training_alone():
    rnng = reference.tiny(dropout=0.5)
    trees = reference.trees([reference.every_tree(4)], "eos")
    batch = reference.batch([[4, 5, 5, 4]], "eos")

    def log_probs():
        proposal = rnng.proposal("crf")
        log_q = proposal.log_prob(proposal.encode(batch), trees)
        return rnng.log_joint(rnng.encode(batch), trees), log_q

    calm = log_probs()
    assert all(torch.equal(a, b) for a, b in zip(calm, log_probs(), strict=True))
    rnng.train()
    torch.manual_seed(0)
    assert all((a != b).any() for a, b in zip(calm, log_probs(), strict=True))


@pytest.mark.parametrize("only_possible", [True, False])
def test_weights_of_either_kind_can_be_trained_further(only_possible):
    rnng = reference.tiny(only_possible=only_possible)
    trees = reference.trees([reference.every_tree(4)], "eos")
    batch = reference.batch([[4, 5, 5, 4]], "eos")
    for parameter in rnng.generative.parameters():
        parameter.requires_grad_()
    rnng.log_joint(rnng.encode(batch), trees).sum().backward()
    slopes = [p.grad for p in rnng.generative.parameters() if p.grad is not None]
    assert len(slopes) > 5
    assert all(slope.isfinite().all() and slope.any() for slope in slopes)
