"""Errors caused by a lost rank get an explanation; other errors are raised unchanged."""

import os

import pytest
import torch.distributed as dist

from lambdanets.errors import describe_failure
from lambdanets.training.distributed import all_gather_lists, process_group
from training.runs import become_rank, exit_codes, free_port

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError(f"{GLOO}pair.cc:561] Connection closed by peer [127.0.0.1]:13188. This is typically"), True),
        (dist.DistBackendError("NCCL error: remote process exited\nncclRemoteError: A call failed possibly due"), True),
        (RuntimeError("Socket is a word of the dataset, and Timed out another"), False),
        (dist.DistBackendError("ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA"), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_lost_connections_are_described_and_other_errors_are_not(error, is_lost):
    assert ("connection to another rank was lost" in (describe_failure(error) or "")) == is_lost


def gather_with_a_lost_rank(rank, port, lost_rank):
    """Exit with code 7 if a collective raises the error with the explanation, with code 1 for another error."""
    become_rank(rank, port=port)
    dist.destroy_process_group = lambda: os._exit(2)  # that of NCCL would wait for the other rank
    try:
        with process_group():
            all_gather_lists([rank])
            if rank == lost_rank:
                raise SystemExit(9)
            all_gather_lists([rank])
    except RuntimeError as error:
        os._exit(7 if "connection to another rank was lost" in (describe_failure(error) or "") else 1)


@pytest.mark.forks
@pytest.mark.parametrize("lost_rank", [0, 1])
def test_loss_of_another_rank_in_a_collective_gets_an_explanation(lost_rank):
    port = free_port()
    codes = exit_codes(gather_with_a_lost_rank, [(rank, port, lost_rank) for rank in range(2)])
    assert (codes[lost_rank], codes[1 - lost_rank]) == (9, 7)
