"""The LSTM against its equations, its state, and its folder on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from lm_latent_eval.distortion.learners.lstm import (
    LSTMForCausalLM,
    LSTMForCausalLMConfig,
)
from tests.test_ladder import imports


def lstm(vocab_size: int = 4, num_layers: int = 2) -> LSTMForCausalLM:
    """A model with weights large enough that its predictions are lopsided."""
    torch.manual_seed(0)
    config = LSTMForCausalLMConfig(
        vocab_size=vocab_size,
        embedding_dim=3,
        hidden_size=5,
        num_layers=num_layers,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LSTMForCausalLM(config).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_()
    return model


def by_hand(model: LSTMForCausalLM, ids: list[int]) -> torch.Tensor:
    """log p of every token after each one, by the equations."""
    layers, size = model.config.num_layers, model.config.hidden_size
    h, c = torch.zeros(2, layers, size, dtype=torch.float64)
    found, parameters = [], dict(model.lstm.named_parameters())
    for token in ids:
        x = model.embeddings.weight[token]
        for k in range(layers):
            gates = torch.zeros(4 * size, dtype=torch.float64)
            for side, value in (("ih", x), ("hh", h[k])):
                gates += parameters[f"weight_{side}_l{k}"] @ value
                gates += parameters[f"bias_{side}_l{k}"]
            i, f, g, o = gates.chunk(4)
            c[k] = f.sigmoid() * c[k] + i.sigmoid() * g.tanh()
            h[k] = x = o.sigmoid() * c[k].tanh()
        narrow = model.projection.weight @ x + model.projection.bias
        logits = model.embeddings.weight @ narrow + model.output.bias
        found.append(logits - logits.exp().sum().log())
    return torch.stack(found)


@torch.no_grad()
def test_predictions_are_those_of_the_equations():
    model, ids = lstm(), [0, 2, 3, 3, 2]
    found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    torch.testing.assert_close(found, by_hand(model, ids), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_state_continues_where_it_was():
    model = lstm()
    ids = torch.randint(0, 4, (3, 7))
    whole = model(ids).logits
    first = model(ids[:, :3], use_cache=True)
    state = first.past_key_values
    assert state.get_seq_length() == 3
    state.batch_select_indices(torch.tensor([2, 0]))
    second = model(ids[[2, 0], 3:], past_key_values=state, use_cache=True)
    assert second.past_key_values.get_seq_length() == 7
    torch.testing.assert_close(first.logits, whole[:, :3], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second.logits, whole[[2, 0], 3:], rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_read(side):
    model = lstm()
    ids = torch.tensor([[2, 3, 1, 2, 2], [3, 2, 3, 0, 0], [1, 0, 0, 0, 0]])
    lengths = [5, 3, 1]
    starts = torch.tensor([5 - n if side == "left" else 0 for n in lengths])
    ids = torch.stack([row.roll(int(n)) for row, n in zip(ids, starts, strict=True)])
    places, ends = torch.arange(5), starts + torch.tensor(lengths)
    mask = (places >= starts[:, None]) & (places < ends[:, None])
    found = model(ids, attention_mask=mask.long(), use_cache=True)
    after = model(
        torch.full((3, 1), 3),
        attention_mask=torch.cat([mask, torch.ones(3, 1)], 1).long(),
        past_key_values=found.past_key_values,
    )
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        alone = model(torch.cat([ids[row, start:end], torch.tensor([3])])[None]).logits
        read = torch.cat([found.logits[row, start:end], after.logits[row]])
        torch.testing.assert_close(read, alone[0], rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_generates_what_is_most_probable():
    model = lstm(6)
    prompts = [[2, 3, 5], [4]]
    ids = torch.tensor([[0, 2, 3, 5], [0, 0, 0, 4]])
    mask = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])
    found = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=5,
        min_new_tokens=5,
        pad_token_id=0,
    )
    for prompt, row in zip(prompts, found.tolist(), strict=True):
        log_p = by_hand(model, [*prompt, *row[-5:-1]])[-5:]
        log_p[:, 1] = -torch.inf  # no end before the fifth
        assert row[-5:] == log_p.argmax(-1).tolist()


@pytest.fixture
def saved(tmp_path):
    """Return some ids, their log-probabilities, and write the model."""
    model = lstm()
    model.save_pretrained(tmp_path / "model")
    ids = torch.tensor([[0, 2, 3, 1]])
    return ids, model(ids).logits.log_softmax(-1)


def test_folder_loads_here(saved, tmp_path):
    ids, expected = saved
    load = AutoModelForCausalLM.from_pretrained
    again = load(tmp_path / "model", dtype=torch.float64)
    assert type(again) is LSTMForCausalLM
    assert again.output.weight is again.embeddings.weight
    found = again.eval()(ids).logits.log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    [code] = (tmp_path / "model").glob("*.py")
    assert not any(n.startswith("lm_latent_eval") for n in imports(code.read_text()))


@pytest.mark.nightly
def test_folder_loads_where_the_package_is_missing(saved, tmp_path):
    _, expected = saved
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A; "
        f"m = A.from_pretrained({str(tmp_path / 'model')!r}, trust_remote_code=True, "
        "dtype=torch.float64); "
        "torch.save(m.eval()(torch.tensor([[0, 2, 3, 1]])).logits.log_softmax(-1), "
        f"{str(tmp_path / 'there.pt')!r}); "
        "assert not any(n.split('.')[0] == 'lm_latent_eval' for n in sys.modules)"
    )
    there = {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | there)
    found = torch.load(tmp_path / "there.pt")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
