"""The Python of docs/tools.md."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/tools.md"


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
def test_python_of_the_tools_page_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["pyramid"]) == 5
    assert names["layer_output"]["layer4.0.conv2"].shape == (2, 128, 4, 4)
    assert (names["traced"](names["x"]) - names["exported"].module()(names["x"])).abs().max() < 1e-4
    assert capsys.readouterr().out == "['layer4.0.conv2', 'layer4.1.conv2', 'layer4.2.conv2']\n"
