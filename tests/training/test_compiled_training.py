from dataclasses import replace

import torch
from torch import nn

from lambdanets.training import run
from training.runs import assert_same_result, interrupted_run, resume


def test_compiled_run_resumes_bit_identically_with_the_same_tensor_names(quick, tmp_path, monkeypatch):
    compiled_modules = []
    compile_module = nn.Module.compile

    def compile_eagerly(self, *arguments, **options):
        compiled_modules.append(self)
        compile_module(self, backend="eager")  # the graph is traced, but not compiled

    monkeypatch.setattr(nn.Module, "compile", compile_eagerly)
    # all steps have the same number of images, so the model is traced once
    quick = replace(quick, model="test_resnet", model_options={}, image_size=32, batch_size=8, epochs=2, ema_decay=0.9)
    run.start(quick, tmp_path / "plain")
    assert not compiled_modules
    folder = interrupted_run(replace(quick, compile=True), tmp_path / "compiled", monkeypatch, step=3)
    resume(folder)
    assert len(compiled_modules) == 2
    assert_same_result(tmp_path / "plain", folder)
    names = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert not any("_orig_mod" in name for name in names)
