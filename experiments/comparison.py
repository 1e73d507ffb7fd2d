"""Writes docs/comparison.md and its figures from the results of `lambdanets compare`.

    python experiments/comparison.py measure [--out FILE]    time and memory of a training step with each mixer
    python experiments/comparison.py [--page PAGE]           write the page and its figures from experiments/results

The text about the results is in this file and must be changed by hand.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from frontier import train_step
from pages import RESULTS, Script

from lambdanets import create_model
from lambdanets.allocator import keep_freed_memory
from lambdanets.text_tables import markdown_table
from lambdanets_lab.benchmark.peak_memory import peak_bytes
from lambdanets_lab.results import read_results, time_in_turn, write_results
from lambdanets_lab.studies.catalog import MODEL, MODEL_OPTIONS, STUDIES
from lambdanets_lab.studies.results import read_comparison
from lambdanets_lab.studies.summary import describe_setup, draw_all, table

FASHION_MNIST = RESULTS / "xeon-2-cores/fashion_mnist.json"
CIFAR10 = RESULTS / "epyc-2-cores/cifar10"  # results.json of each command
BATCH = (128, 3, 32, 32)  # of the CIFAR-10 recipe

OPENING = """\
    lambdanets compare mixers,content_position cifar10 --data FOLDER --epochs 10 --learning-rate 0.4 \\
      --variants convolution lambda "Performer, softmax features" "position only"
    lambdanets compare all fashion_mnist --data-root FOLDER --training-images 12000 --epochs 1 --out comparisons/clothes
    lambdanets compare --resume comparisons/clothes     # after an interruption, or in a second process
    lambdanets compare --report comparisons/clothes/results.json    # merges results, for example of different seeds
    lambdanets compare scope digits --variants 3x3 7x7 --seeds 0 1 2 3 4
    lambdanets compare scope --help                     # studies and options

These commands train one network with different mixers in place of its 3x3 convolutions; blocks, recipe, images and
seeds are the same. In Python, `create_model("resnet50_mixer", mixer="axial_attention", pattern="CCLL")` builds such
a network. The network of this page is a ResNet of 20 layers, 16 to 128 channels wide. The mixer is in c4 and c5, which
are three blocks, with maps of 16x16, 8x8 and 8x8 for CIFAR-10. Lambda layers have a scope of 15.

Top-1 is the accuracy in percent on the 10,000 test images after the last epoch, measured in November 2026. A paired
difference is the difference in top-1 to the baseline with the same seed, as mean ± std over seeds and with its 95%
confidence interval by Student's t distribution. The interval covers variation over seeds only, not over test images,
and is not corrected for multiple comparisons."""

CIFAR10_OPENING = """\
## CIFAR-10: 50,000 images, 10 epochs

The recipe of the [model in the package](pretrained.md) with fewer epochs: crops from the image padded by 4 pixels,
flips, one cosine cycle, label smoothing 0.1, EMA. FOLDER has `train/CLASS` and `val/CLASS` with all images, lossless:
on JPEG copies, top-1 of the model in the package is 10 points lower. For torchvision's files, use `--data-root FOLDER`
instead of `--data FOLDER`. A run takes 25 to 60 minutes on one core.

The learning rate was chosen for the convolution, on 10,000 training images held out, after 5 epochs on 25,000 other
training images: top-1 was 70.7 with 0.2 and 72.8 with 0.4. Before, with an EMA of the parameters only, it was 59.5 with
0.05, 66.6 with 0.1, 70.7 with 0.2, 72.1 with 0.4 and 69.8 with 0.8
([results](../experiments/results/epyc-2-cores/cifar10_learning_rate.json)). That EMA did not average the running
statistics of batch norm, which then did not fit the averaged weights. Three runs with it are not part of the tables:
convolution 85.3 and 82.1 with seeds 0 and 1, lambda 85.0 with seed 0: a paired difference of -0.2 for seed 0, which is
+0.9 with the current EMA. The defect was found on 4,000 of the test images
([results](../experiments/results/epyc-2-cores/cifar10_ema_of_parameters.json))."""

CIFAR10_PARAGRAPHS = {
    "mixers": """\
The lambda layer is ahead of the convolution with every seed, by 0.9 to 2.4 points; the interval over three seeds
includes 0. The mean is higher after every epoch. The network with lambda layers has 31% fewer parameters. Its training
step takes 1.35 times as long, so these comparisons are at equal epochs, not at equal time.

The Performer, which is the best mixer on Fashion-MNIST after 188 steps, is the worst of the three here: 1.6 points
behind the convolution, and 3.3 (95% interval 1.7 to 4.9) behind the lambda layer. It has no positional encoding.""",
    "content_position": """\
As in Table 9, position lambdas alone are close to the full layer: 0.3 points behind on average, and ahead with one of
three seeds. Content lambdas alone were not trained here.""",
}

STEPS_OPENING = """\
## Time and memory of a training step

Forward and backward pass of the same network on 128 images of 32 x 32, {threads} threads of an {processor}, float32,
timings interleaved; memory is the peak of what PyTorch allocates, without weights
(`python experiments/comparison.py measure`). Top-1 is the mean of the runs on this page."""

FASHION_MNIST_OPENING = """\
## Fashion-MNIST: 12,000 images, one epoch

All mixers, in 188 training steps on an Intel Xeon; 64 of the 75 runs that the second command above plans were trained.
Four mixers over 7x7 neighborhoods have one seed each, since a step takes 3 to 10 times as long; three others, two of
"none on keys" and one of "no batch norm", were not trained for lack of time."""

PARAGRAPHS = {
    "mixers": """\
Every mixer with three seeds has a higher mean than the 3x3 convolution. The paired gain is 2.0 points for the Performer
with softmax features, 1.9 for axial attention, 1.5 for the lambda layer and the Performer with ReLU features, and 1.4
for efficient attention. The intervals of the Performer (softmax) and of efficient, double and global attention are
above 0; that of the lambda layer begins at -0.02. Three seeds are too few to rank the best five, and three of the five
have no positional encoding. Among the mixers with three seeds, the lambda layer gives the network with the fewest
parameters.

With seed 0, the only one that all mixers have, the lambda layer (+0.8) is 7th of 14; patchwise attention (+2.2), the
Performer with softmax features (+1.9) and local relation (+1.3) lead.""",
    "performer": """\
The Performer is 0.5 ± 0.6 points ahead of the lambda layer with softmax features, and no difference was found with ReLU
features (-1.48 to +1.51): three seeds are too few to rank them. Without positions, which the Performer does not use
either, the mean of the lambda layer is below both, which is not resolved. It has one set of keys for all heads, the
Performer one for each of its eight heads; on these images, more keys may compensate for missing positions.""",
    "content_position": """\
As in Table 9, position lambdas alone are only 0.3 ± 0.3 points behind the full layer. Content lambdas alone are 0.7 ±
0.3 points behind (95% interval -0.1 to 1.6), much less than the 9.6 points on ImageNet. Here two of four stages are
convolutions before the first lambda layer, and the maps are small, so less position information may be missing.""",
    "scope": """\
One lambda layer has maps of 14x14, the other two 7x7: scopes of 15, 23 and 31 differ only in the first layer, and there
only in offsets of more than 7. Their top-1 differs by at most 0.34 ± 0.71; 3x3 and 7x7 are about 1 point lower, and no
difference is resolved. In Table 10, on maps four times as wide, scopes above 15 do not improve accuracy either.""",
    "normalization": """\
On ImageNet, removing batch norm costs 2.2 points, normalizing the queries too 0.3, L2 instead of softmax on keys 0.4,
and no normalization of keys 8.4. Here all intervals include 0, or there is a single seed: 188 training steps do not
show the paper's effect.""",
}

SETUP = """\
### Setup

{setup}

- The mixer runs once on 14x14 maps and twice on 7x7 maps.
- The seed determines the initial weights, the 12,000 training images, and their order and augmentation. The 10,000 test
  images are always the same.
- Learning rate, warm-up and weight decay are those of the recipe, and were not tuned for any mixer.
- The runs are of three commits of this package, which the results name, also within pairs. `lambda` and `15x15` are the
  same network, trained with seed 0 at two of these commits: their top-1 is equal.

One epoch on a fifth of a small dataset shows how fast mixers learn from few images. It does not show their accuracy
after full training or on large images, where lambda layers are strong according to the paper. `python
experiments/comparison.py` writes this page from the results."""

CLOSING = """\
## Mixers

| mixer | source | implementation |
|---|---|---|
| `convolution` | He et al. 2016 | PyTorch's convolution |
| `channel_attention` | Hu et al. 2018, squeeze-and-excitation | PyTorch's convolution, timm's SEModule |
| `double_attention` | Chen et al. 2018, A2-Nets | `lambda_interaction`: content lambda, normalized queries |
| `efficient_attention` | Shen et al. 2018 | `lambda_interaction`: one content lambda per head |
| `augmented_attention` | Bello et al. 2019 | convolution and SDPA in parallel, 2-D relative logits |
| `global_attention` | Vaswani et al. 2017; Bello et al. 2019 | SDPA, 2-D relative logits |
| `axial_attention` | Ho et al. 2019; Wang et al. 2020 | SDPA along the height, then the width, relative logits |
| `local_attention` | Ramachandran et al. 2019 | SDPA over tiles with halos, 7x7, relative logits |
| `local_relation` | Hu et al. 2019, LR-Net | sums of shifted maps, 7x7 |
| `pairwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `patchwise_attention` | Zhao et al. 2020, SAN | sums of shifted maps, 7x7 |
| `performer_relu` | Choromanski et al. 2020 | linear attention with random features and ReLU |
| `performer_softmax` | Choromanski et al. 2020 | linear attention with random features that approximate softmax |
| `lambda` | Bello 2021 | `LambdaLayer2d` |

The docstrings in `lambdanets_lab.mixers` have the equations, the costs, and the differences from the original.
Tests compare each mixer with a reference implementation that loops over positions."""


def read_cifar10() -> dict[str, Any]:
    """Read and merge the results on CIFAR-10."""
    return read_comparison(*sorted(CIFAR10.glob("*.json")))


def measure(out: Path, *, repeats: int = 20, seconds: float = 4) -> None:
    """Measure quartiles of the seconds and the peak memory of a training step with each variant, timed in turn."""
    runs: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    images = torch.randn(BATCH).contiguous(memory_format=torch.channels_last)
    for variant in {v.name: v for study in STUDIES.values() for v in study.variants.values()}.values():
        torch.manual_seed(0)
        options = MODEL_OPTIONS | variant.options
        network = create_model(MODEL, num_classes=10, **options).to(memory_format=torch.channels_last)
        run = runs[variant.name] = functools.partial(train_step, network.train(), images)
        run()
        results[variant.name] = {"peak_bytes": peak_bytes(run, torch.device("cpu"))}
    for name, times in time_in_turn(runs, repeats=repeats, seconds=seconds, on_progress=print).items():
        results[name]["seconds"] = times
    write_results(out, {"variants": results, "batch": BATCH, "threads": torch.get_num_threads()})


def steps_table(studies: dict[str, dict[str, Any]], steps: dict[str, Any]) -> str:
    """Time and memory of a training step beside the mean top-1 on each data set, fastest first."""
    rows_by_data: dict[str, dict[str, Any]] = {data: {} for data in studies}
    labels = {}
    for data, results in studies.items():
        for study, prefix in (("content_position", "lambda, "), ("mixers", "")):
            for row in results[study]["variants"]:
                rows_by_data[data][row["variant"]] = row
                labels[row["variant"]] = prefix + row["label"]
    baseline = 1e3 * steps["variants"]["convolution"]["seconds"]["median"]
    table_rows = []
    for name in sorted(labels, key=lambda name: steps["variants"][name]["seconds"]["median"]):
        step = steps["variants"][name]
        low, median, high = (1e3 * step["seconds"][key] for key in ("lower_quartile", "median", "upper_quartile"))
        time = [f"{median:.0f} ({low:.0f} to {high:.0f})", f"{median / baseline:.2f}"]
        memory = f"{step['peak_bytes'] / steps['batch'][0] / 2**20:.2f}"
        top1 = [format_top1(rows[name]) if name in rows else "" for rows in rows_by_data.values()]
        table_rows.append([labels[name], *time, memory, *top1])
    header = ["variant", "training step, ms (quartiles)", "relative to convolution", "memory, MiB per image"]
    return markdown_table([*header, *(f"top-1, {data}" for data in studies)], *table_rows)


def format_top1(row: dict[str, Any]) -> str:
    """The mean over the seeds, in percent, marked if there is only one."""
    one_seed = " (one seed)" if row["seeds"] == 1 else ""
    return f"{100 * row['mean_top1']:.1f}{one_seed}"


def page(fashion_mnist: dict[str, Any], cifar10: dict[str, Any], steps: dict[str, Any]) -> str:
    """The text of docs/comparison.md: one section per study, with a figure, a table and a paragraph."""
    sections = ["# Mixers compared", OPENING, CIFAR10_OPENING]
    for name, study in cifar10["studies"].items():
        if len(study["variants"]) > 1:
            question = STUDIES[name].question
            sections += [f"### {question}", f"![CIFAR-10: {question}](comparison/cifar10/{name}.png)"]
            sections += [table(study), CIFAR10_PARAGRAPHS[name]]
            sections.append(f"![Top-1 on CIFAR-10 after each epoch, {name}](comparison/cifar10/{name}_curves.png)")
    studies = {"CIFAR-10": cifar10["studies"], "Fashion-MNIST": fashion_mnist["studies"]}
    machine = {"threads": steps["threads"], "processor": steps["hardware"]["processor"]}
    sections += [STEPS_OPENING.format(**machine), steps_table(studies, steps)]
    sections.append(FASHION_MNIST_OPENING)
    for name, study in fashion_mnist["studies"].items():
        question = STUDIES[name].question
        sections += [f"### {question}", f"![Fashion-MNIST: {question}](comparison/{name}.png)"]
        sections += [table(study), PARAGRAPHS[name]]
    return "\n\n".join([*sections, SETUP.format(setup=describe_setup(fashion_mnist)), CLOSING]) + "\n"


def main() -> None:
    parser = Script(__doc__, "comparison.md", RESULTS / "xeon-2-cores/mixer_steps.json")
    parser.add_argument("action", choices=["measure", "write"], nargs="?", default="write")
    options = parser.parse_args()
    if options.action == "measure":
        keep_freed_memory()
        measure(options.out)
        return
    fashion_mnist, cifar10 = read_comparison(FASHION_MNIST), read_cifar10()
    options.page.write_text(page(fashion_mnist, cifar10, read_results(options.out)), encoding="utf-8")
    figures = options.page.with_name("comparison")
    draw_all(fashion_mnist, figures)
    draw_all(cifar10, figures / "cifar10")


if __name__ == "__main__":
    main()
