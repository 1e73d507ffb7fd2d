"""Runs of earlier versions, which are resumed."""

import torch

from lambdanets.training.callbacks import KeepBest
from lambdanets.training.run_log import RunLog


def test_best_epoch_and_patience_of_earlier_checkpoints_are_kept(tmp_path):
    states = {
        "KeepBest{'monitor': 'top1'}": {"best_model_score": torch.tensor(0.75)},
        "StopEarly{'monitor': 'top1', 'mode': 'max'}": {"wait_count": 2},
    }
    callback = KeepBest(tmp_path / "best.ckpt", "top1", patience=3)
    callback.on_load_checkpoint(None, None, {"callbacks": states})
    assert (callback.best, callback.epochs_without_improvement) == (0.75, 2)
    assert RunLog.state_key == "History"
