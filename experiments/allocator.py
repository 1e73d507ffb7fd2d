"""Training steps and predictions on the CPU with and without keep_freed_memory, in alternating new processes.

    python experiments/allocator.py --out allocator.json [--rounds 5]    measure
    python experiments/allocator.py [--page docs/benchmark.md]           write the table from committed results

Each process reports its median time per image, page faults per step and peak memory. Losses and detections must be
equal in all processes.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from pages import RESULTS, Script, replace_section

from lambdanets.allocator import keep_freed_memory
from lambdanets.text_tables import markdown_table
from lambdanets_lab.results import read_results, write_results

# Label -> model, keyword arguments, batch size, image size.
TRAINING: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "small LambdaResNet, training, 32x32": ("lambda_resnet20_small", {"num_classes": 10}, 128, 32),
    "ResNet-50, training, 224x224": ("resnet50", {}, 8, 224),
    "ResNet-50 CCLL, training, 224x224": ("resnet50_mixer", {"pattern": "CCLL"}, 8, 224),
    "ResNet-50 LLLL, training, 224x224": ("resnet50_mixer", {"pattern": "LLLL"}, 8, 224),
}
DETECTION = "nuclei detector, prediction, 448x448"


def main() -> None:
    parser = Script(__doc__, "benchmark.md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, help="a row of the table, and default or kept: measure in this process")
    options = parser.parse_args()
    if options.child:
        label, setting = options.child
        print(json.dumps(measure(label, keep_freed=setting == "kept")))
        return
    if options.out is None:
        results = read_results(RESULTS / "epyc-2-cores/allocator.json")["results"]
        replace_section(options.page, "allocator", write_table(results))
        return
    results = {}
    for _ in range(options.rounds):
        for label in (*TRAINING, DETECTION):
            for setting in ("default", "kept"):
                command = [sys.executable, __file__, "--child", label, setting]
                child = subprocess.run(command, check=True, capture_output=True, text=True)
                results.setdefault(label, {}).setdefault(setting, []).append(json.loads(child.stdout))
    for label, settings in results.items():
        checks = {result["check"] for results in settings.values() for result in results}
        assert len(checks) == 1, f"{label}: results differ: {checks}"
    write_results(options.out, {"results": results})


def measure(label: str, keep_freed: bool) -> dict[str, float]:
    """Return milliseconds per image, page faults per step, peak memory in GiB, and a checksum of the last step."""
    if keep_freed:
        assert keep_freed_memory()
    import torch

    import lambdanets as ln

    torch.manual_seed(0)
    if label == DETECTION:
        images = torch.rand(4, 3, 448, 448)
        detector = ln.load("nuclei")
        batch, steps = len(images), 4

        def step() -> float:
            return float(sum(result.scores.sum() for result in detector.predict(images)))

    else:
        name, arguments, batch, size = TRAINING[label]
        model = ln.create_model(name, **arguments).to(memory_format=torch.channels_last)
        images = torch.rand(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
        targets = torch.zeros(batch, dtype=torch.long)
        steps = 20 if size < 100 else 5

        def step() -> float:
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            return loss.item()

    for _ in range(2):
        step()
    faults_before, times = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
    for _ in range(steps):
        start = time.perf_counter()
        checksum = step()
        times.append(1e3 * (time.perf_counter() - start) / batch)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "ms_per_image": statistics.median(times),
        "faults_per_step": (usage.ru_minflt - faults_before) / steps,
        "peak_gib": usage.ru_maxrss / 2**20,
        "check": checksum,
    }


def write_table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Return medians over processes and the range of the speedup, as a table."""
    rows = []
    for label, settings in results.items():
        default, kept = (
            {key: statistics.median(result[key] for result in settings[name]) for key in settings[name][0]}
            for name in ("default", "kept")
        )
        speedups = [
            before["ms_per_image"] / after["ms_per_image"]
            for before, after in zip(settings["default"], settings["kept"], strict=True)
        ]
        rows.append(
            (
                label,
                f"{default['ms_per_image']:.2f}",
                f"{kept['ms_per_image']:.2f}",
                f"{statistics.median(speedups):.2f} ({min(speedups):.2f} to {max(speedups):.2f})",
                f"{default['faults_per_step']:,.0f} / {kept['faults_per_step']:,.0f}",
                f"{default['peak_gib']:.2f} / {kept['peak_gib']:.2f}",
            )
        )
    header = (
        "",
        "default, ms per image",
        "freed memory kept",
        "speedup",
        "page faults per step, default / kept",
        "peak GiB, default / kept",
    )
    return markdown_table(header, *rows) + "\n"


if __name__ == "__main__":
    main()
