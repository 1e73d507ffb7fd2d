"""Writes the table of keep_freed_memory in docs/training.md: training steps and predictions with and without it.

    python experiments/allocator.py [--page docs/training.md]

Processes with and without it took turns, each with its median time per image, page faults per step and peak memory.
The script that measured is that of the commit in the results.
"""

import statistics

from pages import RESULTS, PageScript, replace_section

from lambdanets.text_tables import markdown_table
from lambdanets_lab.results import read_results


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


def main() -> None:
    page = PageScript(__doc__, "training.md").parse_args().page
    replace_section(page, "allocator", write_table(read_results(RESULTS / "epyc-2-cores/allocator.json")["results"]))


if __name__ == "__main__":
    main()
