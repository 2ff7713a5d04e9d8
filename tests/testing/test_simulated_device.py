"""An accelerator that is not there fails where one that is there does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.simulated_device import SIMULATED, simulated_device


def test_devices_do_not_mix():
    with simulated_device():
        there = torch.ones(3, device=SIMULATED)
        assert there.device == torch.device(SIMULATED)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2.0] * 3  # as CUDA does
        with pytest.raises(RuntimeError, match=r"add.*\(3,\) on sim:0, \(3,\) on cpu"):
            there + torch.ones(3)
        with pytest.raises(TypeError, match="can't convert sim:0"):
            there.numpy()


def test_the_host_waits_for_what_is_copied_to_it():
    with simulated_device() as work:
        here = torch.zeros(3)
        there = torch.ones(3).to(SIMULATED, non_blocking=True)
        assert work.num_waits == 0
        for copy in (
            lambda: there.to("cpu", non_blocking=True),
            lambda: here.copy_(there, non_blocking=True),
        ):
            with pytest.raises(RuntimeError, match="leave non_blocking out"):
                copy()
        assert here.copy_(there).tolist() == there.cpu().tolist() == [1.0] * 3
        assert work.num_waits == 2


def test_what_is_made_of_data_lies_where_it_is_asked_to():
    before = torch.tensor, torch.as_tensor
    with simulated_device():
        for make in (torch.tensor, torch.as_tensor):
            assert make([1, 2], device=SIMULATED).device.type == "sim"
            assert make([1, 2]).device.type == "cpu"
        assert torch.ones(1, device=SIMULATED).new_tensor([4]).device.type == "sim"
    assert before == (torch.tensor, torch.as_tensor), "torch is as it was"


def test_indices_may_lie_on_the_host():
    with simulated_device():
        there = torch.arange(5, device=SIMULATED)
        assert there[torch.tensor([1, 3])].tolist() == [1, 3]
        assert there[[0, 4]].tolist() == [0, 4]
        there[1:3] = 9
        assert there.tolist() == [0, 9, 9, 3, 4]


def test_a_device_may_have_no_float64():
    with simulated_device(float64=False):
        there = torch.ones(3, device=SIMULATED)
        assert (there + 1).sum().cpu().double().item() == 6.0
        for make in (
            there.double,
            lambda: torch.zeros(2, dtype=torch.float64, device=SIMULATED),
            lambda: torch.ones(2, dtype=torch.float64).to(SIMULATED),
            lambda: there.sum(dtype=torch.float64),
        ):
            with pytest.raises(TypeError, match="sim:0 has no float64"):
                make()
    with simulated_device():
        assert torch.ones(3, device=SIMULATED).double().dtype is torch.float64


@pytest.mark.parametrize(
    "build", [nn.Linear, lambda *size: nn.LSTM(*size, batch_first=True, num_layers=2)]
)
def test_modules_and_their_gradients_are_those_of_the_cpu(build):
    torch.manual_seed(0)
    module, given = build(3, 2), torch.randn(2, 4, 3)

    def outputs(module, given):
        found = module(given)
        out = found[0] if isinstance(found, tuple) else found
        (out**2).sum().backward()
        return [out, *(parameter.grad for parameter in module.parameters())]

    here = outputs(copy.deepcopy(module), given)
    with simulated_device() as work:
        there = outputs(module.to(SIMULATED), given.to(SIMULATED))
        found = [tensor.detach().cpu() for tensor in there]
    assert work.num_launches >= len(found), "premise: they were computed there"
    torch.testing.assert_close(found, [tensor.detach() for tensor in here])
