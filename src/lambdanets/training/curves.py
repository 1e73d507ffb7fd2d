"""Learning curves: draws curves.png and logs to TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from lambdanets.files import atomic_open

Row = list[Any]  # a line of metrics.csv; None where nothing was measured
Panels = Sequence[tuple[str, Sequence[str]]]  # title and metrics of each panel
_COLORS = {"train": "#94a3b8", "val": "#1d4ed8"}


def draw_curves(rows: Sequence[Row], metrics: Sequence[str], panels: Panels, path: Path) -> None:
    """Plot training and validation metrics against the step, with epochs on a second axis.

    rows: rows of metrics.csv. metrics: their columns after the first three. panels: title and metrics of each panel; in
    a panel with several metrics, each metric has its own color.
    """
    steps_per_epoch = max((row[0] / row[1] for row in rows if row[2] == "val"), default=0)
    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in names:
            for split, color in _COLORS.items():
                column = 3 + metrics.index(name)
                measured = [row for row in rows if row[2] == split and row[column] is not None]
                if not measured:
                    continue
                axis.plot(
                    [row[0] for row in measured],
                    [row[column] for row in measured],
                    color=color if len(names) == 1 else None,
                    label=split if len(names) == 1 else name,
                    marker="o" if split == "val" else None,
                    markersize=3,
                )
        axis.set(xlabel="step", title=title)
        if steps_per_epoch:
            to_epochs = (lambda step: step / steps_per_epoch, lambda epoch: epoch * steps_per_epoch)
            axis.secondary_xaxis("top", functions=to_epochs).set_xlabel("epoch")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)


class TensorBoard(TensorBoardLogger):
    """Lightning's TensorBoard logger, with event files in tensorboard/.

    Rows are flushed immediately: rows that a checkpoint contains are then also in the event file.

    resumed_at: step of the checkpoint that the run resumes from; TensorBoard discards later rows.
    """

    def __init__(self, folder: Path, resumed_at: int) -> None:
        super().__init__(folder, name="", version="tensorboard", purge_step=resumed_at + 1)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.experiment.flush()

    def save(self) -> None:
        """Do not write hparams.yaml: recipe.json has the hyperparameters."""
