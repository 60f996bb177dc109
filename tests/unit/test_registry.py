"""Goal: the allow-list imports no torch; what is outside the tree works once the configuration names its file or module, and only then; and whatever is
wrong with it is said with the name that was given and what to do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcnr.cli.errors import show
from dcnr.errors import InvalidInput
from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.specs import Registry, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from vnode.registry import default_registry, registry_with

OUTSIDE = """
from __future__ import annotations

from dataclasses import dataclass

from dcnr.specs import ComponentPlan, Fields


@dataclass(frozen=True, slots=True)
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
GRAPH = """
[model]
name = "m"
num_classes = 2
[model.input]
dtype = "float32"
shape = [3]
[model.target]
dtype = "int64"
shape = []
[train]
passes = 1
batch_size = 4
seed = 1
[data]
train = "dataset:d#train"
validation = "dataset:d#validation"
test = "dataset:d#test"
[[vnode]]
id = "a"
component = "scale"
inputs = ["input"]
[vnode.objective]
name = "local_ce"
[vnode.optimizer]
name = "sgd"
lr = 0.1
"""


def written(directory: Path, text: str, name: str = "scale.py") -> str:
    """The path of a file with that text."""
    (directory / name).write_text(text)
    return str(directory / name)


def refused(*sources: str) -> InvalidInput:
    """What is said of them."""
    with pytest.raises(InvalidInput) as caught:
        registry_with(sources)
    assert caught.value.details["source"] == sources[-1]
    assert repr(sources[-1]) in caught.value.message
    assert caught.value.remedy
    return caught.value


def test_specs_and_stages_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from vnode.registry import registry_with; import vnode.compute, vnode.state, vnode.schedules, dcnr.stages;"
        "assert 'scale' in registry_with(sys.argv[1:]).components; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, written(tmp_path, OUTSIDE)], check=True, timeout=60)


def test_an_outside_component_trains_when_named(tmp_path: Path) -> None:
    from vnode.torch_compute import TorchCompute
    from vnode.torch_stage import initial_state

    assert "scale" not in default_registry().components
    registry = registry_with([written(tmp_path, OUTSIDE)])
    vnode = VNodeSpec("a", "scale", {"start": 0.5}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1})
    (stage,) = stages_of([vnode], registry, TensorSpec("float32", (3,)), TensorSpec("int64", ()), 2)
    compute = TorchCompute(stage, registry, num_batches=1, seed=0)
    compute.restore(initial_state(stage, registry, seed=0, model="m", graph="", num_batches=1))
    import torch

    result = compute.learn(0, [torch.ones(2, 3)], torch.tensor([0, 1]), 0)
    assert torch.equal(result.output, torch.full((2, 3), 0.5))


def stage_of(tmp_path: Path, text: str) -> tuple[Stage, Registry]:
    """The only stage of a graph with a component from outside."""
    registry = registry_with([written(tmp_path, text)])
    vnode = VNodeSpec("a", "scale", {}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1})
    (stage,) = stages_of([vnode], registry, TensorSpec("float32", (3,)), TensorSpec("int64", ()), 2)
    return stage, registry


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("return ComponentPlan(", "return ComponentPlan(inputs[7], ", "a: scale: check() fails: IndexError"),
        (
            "return ComponentPlan(inputs[0], num_parameters=1)",
            "return None",
            "a: scale: check() gives a NoneType, not a ComponentPlan",
        ),
    ],
)
def test_an_outside_check_that_fails_is_a_refusal_of_the_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right: str, wrong: str, told: str
) -> None:
    """An orchestrator checks the graphs of others with it, and goes on."""
    assert right in OUTSIDE
    with pytest.raises(InvalidInput) as caught:
        stage_of(tmp_path, OUTSIDE.replace(right, wrong))
    assert (caught.value.code, caught.value.message, caught.value.details["vnode"]) == ("bad_component", told, "a")
    assert caught.value.remedy
    show(caught.value)
    said = f"said: IndexError: list index out of range ({tmp_path / 'scale.py'}, line " if "IndexError" in told else ""
    assert said in capsys.readouterr().err, "whoever gave the command reads what others do not"


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("return Module()", "raise ValueError('no such width')", "does not work: ValueError"),
        ("return x * self.factor", "raise KeyError('x')", "does not work: KeyError"),
        (
            "return x * self.factor",
            "return (x * self.factor)[:, :2]",
            "its output for 2 samples is [2, 2], and check() says [3] for each",
        ),
        ("return x * self.factor", "return x.double()", "its output is float64, and check() says float32"),
    ],
)
def test_what_would_fail_on_every_pnode_fails_before_the_job_is_signed(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    from vnode.torch_trial import tried_state

    assert right in OUTSIDE
    stage, registry = stage_of(tmp_path, OUTSIDE.replace(right, wrong))
    with pytest.raises(InvalidInput) as caught:
        tried_state(stage, registry, seed=0, model="m", graph="", num_batches=1)
    assert caught.value.code == "bad_component"
    assert told in caught.value.message
    assert caught.value.remedy


def test_a_module_is_as_good_as_a_file_and_one_source_may_hold_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = OUTSIDE.replace("SPEC = Scale()", "SPEC = (Scale(), Scale('double'))")
    written(tmp_path, twice, "scale_module.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry_with(["scale_module", "scale_module"])
    assert set(found.components) - set(default_registry().components) == {"scale", "double"}
    assert found.objectives == default_registry().objectives


def test_what_has_no_weights_or_not_says_stands_where_it_belongs(tmp_path: Path) -> None:
    objective = OUTSIDE.replace("    stateful: bool = True\n", "")
    found = registry_with([written(tmp_path, objective)])
    assert "scale" in found.objectives
    assert found.components.keys() == default_registry().components.keys()


def test_a_graph_alone_makes_nothing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a job is looked up in the registry and nowhere else, however importable it is; whose machine it is learns what to set."""
    ran = tmp_path / "ran"
    written(tmp_path, f"{OUTSIDE}\nopen({str(ran)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match="unknown component 'scale'") as caught:
        stages_of_graph(graph_from_toml(GRAPH), default_registry())
    assert "setting components" in caught.value.remedy
    assert not ran.exists()
    assert [stage.id for stage in stages_of_graph(graph_from_toml(GRAPH), registry_with(["scale"]))] == ["a"]
    assert ran.exists()


def test_own_names_absent_sources_and_wrong_specs_are_refused(tmp_path: Path) -> None:
    ours = written(tmp_path, OUTSIDE.replace('"scale"', '"add"'), "ours.py")
    assert (refused(ours).code, "one of our own" in refused(ours).message) == ("name_taken", True)
    first, second = written(tmp_path, OUTSIDE), written(tmp_path, OUTSIDE, "second.py")
    taken = refused(first, second)
    assert (taken.code, first in taken.message) == ("name_taken", True)
    for absent in (str(tmp_path / "absent.py"), "no_such_module_here", "no_such_module_here.inner", "../x", "scale-1"):
        assert refused(absent).code == "component_not_found", absent


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no SPEC"),
        ("SPEC = ()", "has no SPEC"),
        ("SPEC = 7", "a int without check and build"),
        (OUTSIDE.replace("SPEC = Scale()", "SPEC = Scale"), "has the class Scale"),
        (OUTSIDE.replace('"scale"', '"../x"'), "nobody could use"),
        (OUTSIDE.replace('"scale"', "7"), "without name"),
        ("1 / 0", "fails while it is loaded: ZeroDivisionError: division by zero"),
        ("import no_such_module_here", "fails while it is loaded: ModuleNotFoundError"),
        ("def f(", "fails while it is loaded: SyntaxError"),
    ],
)
def test_what_holds_no_spec_is_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    found = refused(written(tmp_path, text))
    assert found.code == "bad_component"
    assert told in found.message


def test_a_module_that_itself_lacks_something_is_not_called_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "import no_such_module_here", "lacking_module.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "No module named 'no_such_module_here'" in refused("lacking_module").message
    assert refused("lacking_module").code == "bad_component"


def test_what_imports_torch_at_once_is_refused_where_there_is_none(tmp_path: Path) -> None:
    """The daemon has no torch, and its memory is counted without."""
    program = (
        "import sys; from dcnr.errors import InvalidInput; from vnode.registry import registry_with\n"
        "try: registry_with(sys.argv[1:])\nexcept InvalidInput as error: print(error.code, error.remedy)"
    )
    (tmp_path / "torch.py").write_text("")
    path = written(tmp_path, f"{OUTSIDE}\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport torch")
    said = subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60, capture_output=True, text=True).stdout
    assert said.startswith("bad_component import torch inside build()")
