"""Stopping where the held-out images get no better."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping


class StopEarly(EarlyStopping):
    """Stops after so many epochs without a better metric; a run that goes on after that stops again at once."""

    def __init__(self, metric: str, patience: int) -> None:
        # not at the end of the epoch, where KeepLast's checkpoint would be written before
        super().__init__(metric, mode="max", patience=patience, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True
