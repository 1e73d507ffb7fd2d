import torch

from lambdanets.ops.precision import without_tf32_convolutions

CUDNN = torch.backends.cudnn.conv


def test_gpu_convolutions_do_not_use_tf32():
    before = CUDNN.fp32_precision
    with without_tf32_convolutions(torch.device("cuda")):
        assert CUDNN.fp32_precision == "ieee"
    assert CUDNN.fp32_precision == before
    with without_tf32_convolutions(torch.device("cpu")):
        assert CUDNN.fp32_precision == before


def test_last_overlapping_context_restores_the_precision_setting():
    before = CUDNN.fp32_precision
    first, second = (without_tf32_convolutions(torch.device("cuda")) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert CUDNN.fp32_precision == "ieee"
    second.__exit__(None, None, None)
    assert CUDNN.fp32_precision == before
