"""Errors caused by a lost rank get an explanation; other errors are raised unchanged."""

import os

import pytest
import torch.distributed as dist

from lambdanets.errors import InputError
from lambdanets.training.distributed import all_reduce_sum, process_group, report_lost_connection
from training.runs import become_rank, exit_codes, free_port

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"{GLOO}pair.cc:561] Connection closed by peer [127.0.0.1]:13188. This is typically caused by"),
        dist.DistNetworkError("The client socket has timed out after 2000ms while trying to connect to (host, 29811)."),
        dist.DistBackendError(
            "NCCL error: remote process exited\nncclRemoteError: A call failed possibly due to a ..."
        ),
    ],
    ids=lambda error: str(error)[-40:],
)
def test_lost_connection_errors_get_an_explanation(error):
    with pytest.raises(InputError, match="connection to another rank was lost"), report_lost_connection():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Socket is a word of the dataset, and Timed out another"),
        RuntimeError("[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] 80 vs 8"),
        dist.DistBackendError("ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"),
    ],
    ids=lambda error: str(error)[:40],
)
def test_other_runtime_errors_are_not_reported_as_lost_connections(error):
    with pytest.raises(RuntimeError) as raised, report_lost_connection():
        raise error
    assert raised.value is error


def all_reduce_with_a_lost_rank(rank, port, lost_rank):
    """Exit with code 7 if an all-reduce raises the error with the explanation, with code 1 for another error."""
    become_rank(rank, port=port)
    try:
        with process_group():
            all_reduce_sum(rank)
            if rank == lost_rank:
                os._exit(9)
            all_reduce_sum(rank)
    except InputError as error:
        os._exit(7 if "connection to another rank was lost" in str(error) else 1)


@pytest.mark.forks
@pytest.mark.parametrize("lost_rank", [0, 1])
def test_loss_of_another_rank_in_a_collective_gets_an_explanation(lost_rank):
    port = free_port()
    codes = exit_codes(all_reduce_with_a_lost_rank, [(rank, port, lost_rank) for rank in range(2)])
    assert (codes[lost_rank], codes[1 - lost_rank]) == (9, 7)
