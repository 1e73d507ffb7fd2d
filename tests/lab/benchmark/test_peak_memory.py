"""Measured peak memory is exact."""

import torch

from lambdanets_lab.benchmark.peak_memory import peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


def test_peak_is_the_sum_of_simultaneous_allocations():
    def work():
        first = torch.empty(MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first, second
        torch.empty(2 * MIB, dtype=torch.uint8)

    assert peak_bytes(work, CPU) == 3 * MIB


def test_earlier_allocations_do_not_count():
    before = torch.ones(MIB)
    assert peak_bytes(lambda: before.sigmoid_(), CPU) == 0


def test_peak_of_a_backward_pass_is_reproducible():
    layer, x = torch.nn.Conv2d(4, 4, 3, padding=1), torch.randn(2, 4, 9, 9)

    def work():
        layer.zero_grad(set_to_none=True)
        layer(x).sum().backward()

    work()
    layer.zero_grad(set_to_none=True)
    peaks = []
    for _ in range(2):
        peaks.append(peak_bytes(work, CPU))
        layer.zero_grad(set_to_none=True)
    assert peaks[0] == peaks[1] > 4 * (2 * 4 * 9 * 9)
