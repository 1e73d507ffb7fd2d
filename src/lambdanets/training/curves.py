"""A run's curves: curves.png, and TensorBoard."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from lambdanets.files import atomic_open
from lambdanets.training.history import History, Row

Panels = Sequence[tuple[str, Sequence[str]]]
_COLOURS = {"train": "#94a3b8", "val": "#1d4ed8"}


class Curves(Callback):
    """Draws curves.png after an epoch, unless it was drawn within the last minute."""

    def __init__(self, folder: Path, history: History, panels: Panels) -> None:
        self._path = folder / "curves.png"
        self._history = history
        self._panels = panels
        self._drawn = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if time.monotonic() - self._drawn > 60:
            draw_curves(self._history.rows, self._history.metrics, self._panels, self._path)
            self._drawn = time.monotonic()


def draw_curves(rows: Sequence[Row], metrics: Sequence[str], panels: Panels, path: Path) -> None:
    """Measures of training and validation against the step, from the rows of metrics.csv.

    panels: a title and the metrics below it; where these are several, the parts of a panel are told apart by colour.
    """
    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axis, (title, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in names:
            for split, colour in _COLOURS.items():
                column = 3 + metrics.index(name)
                chosen = [row for row in rows if row[2] == split and row[column] is not None]
                if not chosen:
                    continue
                axis.plot(
                    [row[0] for row in chosen],
                    [row[column] for row in chosen],
                    color=colour if len(names) == 1 else None,
                    label=split if len(names) == 1 else name,
                    marker="o" if split == "val" else None,
                    markersize=3,
                )
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    with atomic_open(path) as file:
        figure.savefig(file, format="png", dpi=110)


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, into tensorboard/. resumed_at: the step of the run's checkpoint, after which rows are purged.

    Each row is in its file before a checkpoint is written that knows of it, so that a run that resumes from there takes
    back what came after, and no more.
    """

    def __init__(self, folder: Path, resumed_at: int) -> None:
        super().__init__(folder, name="", version="tensorboard", purge_step=resumed_at + 1)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        self.experiment.flush()

    def save(self) -> None:
        """Nothing: all is written, and hparams.yaml would repeat recipe.json."""
