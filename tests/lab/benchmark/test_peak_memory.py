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
