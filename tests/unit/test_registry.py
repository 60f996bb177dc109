"""Goal: the allow-list imports no torch, and a component from outside the tree works once the configuration names it, and only
then.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcnr.errors import InvalidInput, Refused
from dcnr.specs import TensorSpec
from dcnr.stages import VNodeSpec, stages_of
from vnode.registry import default_registry, registry_with

OUTSIDE = """
from dataclasses import dataclass
from dcnr.specs import ComponentPlan, Fields

@dataclass(frozen=True)
class Scale:
    name: str = "scale"
    stateful: bool = True

    def check(self, config, inputs):
        with Fields(config, self.name) as f:
            f.number("start", 1.0, low=0.0, high=2.0)
        return ComponentPlan(inputs[0], num_parameters=1)

    def build(self, config, inputs):
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.factor = torch.nn.Parameter(torch.full((1,), config.get("start", 1.0)))

            def forward(self, x):
                return x * self.factor

        return Module()

SPEC = Scale()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scale_package.py").write_text(OUTSIDE)
    info = tmp_path / "scale_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scale-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dcnr.components]\nscale = scale_package:SPEC\nadd = scale_package:SPEC\nliar = scale_package:SPEC\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_specs_and_stages_need_no_torch() -> None:
    program = (
        "import sys; from vnode.registry import default_registry; import vnode.compute, vnode.state, vnode.schedules, dcnr.stages;"
        "default_registry(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.usefixtures("installed")
def test_an_outside_component_trains_when_named() -> None:
    from vnode.torch_compute import TorchCompute
    from vnode.torch_stage import initial_state

    assert "scale" not in default_registry().components
    registry = registry_with(default_registry(), components=["scale"])
    vnode = VNodeSpec("a", "scale", {"start": 0.5}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1})
    (stage,) = stages_of([vnode], registry, TensorSpec("float32", (3,)), TensorSpec("int64", ()), 2)
    compute = TorchCompute(stage, registry, num_batches=1, seed=0)
    compute.restore(initial_state(stage, registry, seed=0, model="m", graph="", num_batches=1))
    import torch

    result = compute.learn(0, [torch.ones(2, 3)], torch.tensor([0, 1]), 0)
    assert torch.equal(result.output, torch.full((2, 3), 0.5))


@pytest.mark.usefixtures("installed")
def test_own_names_absent_names_and_wrong_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="our own"):
        registry_with(default_registry(), components=["add"])
    with pytest.raises(InvalidInput, match="another name"):
        registry_with(default_registry(), components=["liar"])
    with pytest.raises(InvalidInput):
        registry_with(default_registry(), components=["../x"])
    with pytest.raises(Refused) as caught:
        registry_with(default_registry(), objectives=["nowhere"])
    assert caught.value.code == "component_not_installed"
