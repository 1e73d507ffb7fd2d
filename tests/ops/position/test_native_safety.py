"""The native engine under sanitizers, after forks and interrupts, with few threads; wheels."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from interactions import needs_native

from lambdanets.ops import position_interaction
from lambdanets.ops.position.native import FOLDER
from scripts import ROOT, load_script

# Teams of threads for one task, tasks in turn, and tiles whose sums are ordered.
SIZES = {"one task": (30, 30, 4), "many tasks": (9, 9, 70), "tiles": (150, 20, 4)}


def run(name="many tasks"):
    """Return the output and all gradients."""
    height, width, v = SIZES[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, height * width, 5), (7, 7, 5), (1, height * width, v)
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    y = position_interaction(*inputs, (height, width), algorithm="native")
    return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]


def digest():
    """A hash of the results of all sizes."""
    return hashlib.sha256(b"".join(x.numpy().tobytes() for name in SIZES for x in run(name))).hexdigest()


@pytest.mark.slow
def test_sanitizers_find_no_errors_in_random_problems():
    command = [sys.executable, ROOT / "native/sanitize.py", "--quick", "--problems", "16"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 2:
        pytest.skip("needs gcc with its sanitizers, which the system's package manager installs")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "16 problems" in result.stdout


class Digests(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return digest()


@needs_native
@pytest.mark.forks
def test_data_loader_workers_compute_after_threads_of_their_parent():
    torch.set_num_threads(2)
    expected = digest()
    loader = torch.utils.data.DataLoader(Digests(), num_workers=2, multiprocessing_context="fork", timeout=60)
    assert [batch[0] for batch in loader] == [expected] * 4


@needs_native
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_eight_callers_with_teams_of_threads_get_the_same_bits(count):
    def call(_):
        torch.set_num_threads(count)
        return digest()

    expected = digest()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(call, range(8))] == [expected] * 8


@needs_native
def test_kernel_shares_threads_of_pytorch_beside_another_openmp_runtime():
    lines = (
        "import psutil, sklearn.datasets, torch, lambdanets",  # scikit-learn brings a runtime
        "torch.set_num_threads(2)",
        "(torch.randn(600, 600) @ torch.randn(600, 600)).add_(1)",
        "threads = psutil.Process().num_threads()",
        "lambdanets.LambdaLayer2d(64, scope=15)(torch.randn(2, 64, 28, 28))",
        "print(psutil.Process().num_threads() - threads)",
    )
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=300)
    assert result.stdout.strip() == "0", result.stderr


@needs_native
@pytest.mark.slow
def test_fewer_threads_than_asked_for_are_right():
    folders = [str(Path(__file__).parents[depth]) for depth in (0, 2)]
    code = f"import sys; sys.path[:0] = {folders}\nimport test_native_safety as tests\n"
    code += "tests.torch.set_num_threads(5)\nprint(tests.digest())"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "3", "OMP_DYNAMIC": "true"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert result.stdout.strip() == digest(), result.stderr


@needs_native
def test_a_call_after_an_interrupt_is_right():
    expected = digest()
    inputs = [torch.ones(shape) for shape in ((1, 1, 2**16, 8), (15, 15, 8), (1, 2**16, 32))]

    def compute_until_interrupted():
        threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()  # os.kill would end Windows' process
        while True:
            position_interaction(*inputs, (256, 256), algorithm="native")

    with pytest.raises(KeyboardInterrupt):
        compute_until_interrupted()
    assert digest() == expected


@pytest.fixture
def wheels():
    return load_script("native/wheels.py")


@pytest.mark.parametrize(
    ("python", "processor", "expected"),
    [
        ("linux-aarch64", "aarch64", "manylinux_2_17_aarch64"),
        ("macosx-11.0-arm64", "x86_64", "macosx_11_0_arm64"),  # a build for another machine
        ("macosx-10.13-universal2", "arm64", "macosx_11_0_arm64"),
        ("win-amd64", "ARM64", "win_amd64"),  # emulated
        ("linux-riscv64", "riscv64", None),
        ("freebsd-14.1-release-amd64", "amd64", None),
    ],
)
def test_the_engine_is_built_for_the_platform_of_python(wheels, monkeypatch, python, processor, expected):
    monkeypatch.setattr("sysconfig.get_platform", lambda: python)
    monkeypatch.setattr("platform.machine", lambda: processor)
    assert wheels.platform_of_this_machine() == expected


@needs_native
def test_libraries_export_only_their_entry_points(wheels):
    for path in FOLDER.iterdir():
        faults = wheels.find_faults(path.read_bytes(), path.suffix)
        assert not [fault for fault in faults if fault.startswith("exports")], path.name


@pytest.mark.skipif(sys.platform != "linux", reason="examines a library of PyTorch for Linux")
def test_checks_of_wheels_report_a_library_of_another_kind(wheels):
    faults = " ".join(wheels.find_faults(Path(torch._C.__file__).read_bytes(), ".so"))
    assert "PyInit__C" in faults
    assert "needs libtorch_python.so" in faults
