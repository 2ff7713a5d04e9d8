"""An accelerator that is not there fails where one that is there does.

That it computes where it should not fail is what the laws and ``test_devices.py`` need.
"""

import pytest
import torch

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
