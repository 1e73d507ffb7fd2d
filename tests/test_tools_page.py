"""The Python code of docs/tools.md runs."""

import functools
import re
from pathlib import Path

import pytest
import timm

PAGE = Path(__file__).parents[1] / "docs/tools.md"


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
def test_python_code_of_tools_page_runs(monkeypatch, capsys):
    shallow = {"layers": (1, 1, 1, 1), "lambda_blocks": ((), (), (), (1,))}
    monkeypatch.setattr(timm, "create_model", functools.partial(timm.create_model, **shallow))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    variables: dict[str, object] = {}
    for block in blocks:
        exec(block, variables)
    assert len(variables["pyramid"]) == 5
    assert variables["layer_output"]["layer4.0.conv2"].shape == (2, 128, 4, 4)
    assert (variables["traced"](variables["x"]) - variables["exported"].module()(variables["x"])).abs().max() < 1e-4
    assert capsys.readouterr().out == "['layer4.0.conv2', 'layer4.1.conv2', 'layer4.2.conv2']\n"
