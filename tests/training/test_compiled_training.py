from dataclasses import replace

import torch
from torch import nn

from lambdanets.training import run
from training.runs import assert_same_end, broken_off


def test_a_compiled_model_trains_is_averaged_and_goes_on_under_the_same_names(quick, tmp_path, monkeypatch):
    compiled = []
    compile_module = nn.Module.compile

    def compile_plainly(self, *arguments, **options):
        compiled.append(self)
        compile_module(self, backend="eager")  # the graphs of torch.compile, run as they are

    monkeypatch.setattr(nn.Module, "compile", compile_plainly)
    quick = replace(quick, model="resnet10t", image_size=32, ema_decay=0.9)
    run.start(quick, tmp_path / "plain")
    assert not compiled
    folder = broken_off(replace(quick, compile=True), tmp_path / "compiled", monkeypatch)
    run.resume(folder)
    assert len(compiled) == 2
    assert_same_end(tmp_path / "plain", folder)
    names = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert not any("_orig_mod" in name for name in names)
