"""Goal: every setting has one typed value and a known origin; every mistake is named together with its remedy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

import dcnr
from dcnr.errors import InvalidInput
from dcnr.settings import (
    ClientSettings,
    Loaded,
    OrchestratorSettings,
    PNodeSettings,
    load_settings,
    render_settings,
    setting,
)

NONE: Mapping[str, str] = {}


def load(home: Path, text: str = "", env: Mapping[str, str] = NONE, **flags: object) -> Loaded[PNodeSettings]:
    """PNode settings with ``text`` as the file."""
    (home / "config.toml").write_text(text, "utf-8")
    return load_settings(PNodeSettings, home=home, env=env, env_prefix="PNODE", flags=flags)


def refused(home: Path, text: str = "", env: Mapping[str, str] = NONE, **flags: object) -> InvalidInput:
    """The refusal that must come."""
    with pytest.raises(InvalidInput) as caught:
        load(home, text, env, **flags)
    return caught.value


def test_defaults_without_a_file(tmp_path: Path) -> None:
    env = {"HOME": "/x", "DCNR_HOME": "/y"}
    for cls, prefix in ((PNodeSettings, "DCNR"), (OrchestratorSettings, "ORCHESTRATOR"), (ClientSettings, "OTHER")):
        loaded = load_settings(cls, home=tmp_path / "absent", env=env, env_prefix=prefix, flags={})
        assert loaded.value == cls()
        assert set(loaded.origins.values()) == {"default"}
    client = load_settings(ClientSettings, home=tmp_path, env=env, env_prefix="DCNR", flags={})
    assert (client.value.home, client.origins["home"]) == ("/y", "environment DCNR_HOME")
    assert (PNodeSettings().listen_host, PNodeSettings().data_port, PNodeSettings().limits.disk_mb) == ("0.0.0.0", 7701, 20_000)


def test_later_origins_win_and_are_remembered(tmp_path: Path) -> None:
    text = 'name = "file"\ndata_port = 1\ncontrol_port = 2\nbootstrap = ["a@h:1"]\n[limits]\ncores = 3\ndevice = "cpu"\n'
    env = {"PNODE_DATA_PORT": "10", "PNODE_CONTROL_PORT": "20", "PNODE_LIMITS_CORES": "1.5", "PNODE_LOG_JSON": "yes", "OTHER": "z"}
    loaded = load(tmp_path, text, {**env, "PNODE_COMPONENTS": "x, y"}, control_port=200, limits_device="cuda", name=None)
    value, origins = loaded.value, loaded.origins
    assert (value.name, value.data_port, value.control_port, value.bootstrap) == ("file", 10, 200, ("a@h:1",))
    assert (value.limits.cores, value.limits.device, value.log_json, value.components) == (1.5, "cuda", True, ("x", "y"))
    assert origins["name"] == origins["bootstrap"] == f"file {tmp_path / 'config.toml'}"
    assert origins["data_port"] == "environment PNODE_DATA_PORT"
    assert origins["limits.cores"] == "environment PNODE_LIMITS_CORES"
    assert origins["control_port"] == "flag --control-port"
    assert origins["limits.device"] == "flag --device"
    assert origins["dht_port"] == "default"


def test_a_whole_number_serves_as_a_number(tmp_path: Path) -> None:
    cores = load(tmp_path, "[limits]\ncores = 2").value.limits.cores
    assert (cores, type(cores)) == (2.0, float)


@pytest.mark.parametrize(
    ("text", "env", "flags", "nearest"),
    [
        ("data_prot = 1", {}, {}, "data_port"),
        ("cores = 1", {}, {}, "limits.cores"),
        ("[limits]\ndevise = 'cpu'", {}, {}, "limits.device"),
        ("[limit]\ncores = 1", {}, {}, "limits.cores"),
        ("", {"PNODE_LIMITS_CORE": "1"}, {}, "PNODE_LIMITS_CORES"),
        ("", {}, {"chekpoint_s": 1}, "checkpoint_s"),
    ],
)
def test_unknown_names_come_with_the_nearest(
    tmp_path: Path, text: str, env: dict[str, str], flags: dict[str, object], nearest: str
) -> None:
    error = refused(tmp_path, text, env, **flags)
    assert error.code == "unknown_setting"
    assert error.details["nearest"] == nearest
    assert nearest in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "data_port = 65536", "data_port = -1", "data_port = true", 'data_port = "1"', "data_port = 1.0", "name = 1", "log_json = 1",
        "checkpoint_s = nan", "checkpoint_s = inf", "bootstrap = 'a'", "bootstrap = [1]", "limits = 1", "name = {}",
        "[limits]\ncores = false", "[limits]\ndevice = 'gpu'", 'log_level = "loud"', "[limits]\nupload_mbit = -1",
    ],
)  # fmt: skip
def test_wrong_values_in_the_file_name_file_key_value_and_expectation(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text)
    assert error.code == "bad_setting"
    assert str(tmp_path / "config.toml") in str(error)
    assert error.remedy
    assert error.details["key"] in str(error)
    assert f"expected {error.details['expected']}" in str(error)


def test_wrong_values_elsewhere(tmp_path: Path) -> None:
    error = refused(tmp_path, env={"PNODE_DATA_PORT": "many"})
    assert error.message == "environment PNODE_DATA_PORT: data_port is 'many', expected a whole number from 0 to 65535"
    assert error.remedy == "correct it, or leave it out: it has a default"
    assert "flag --device" in str(refused(tmp_path, limits_device="tpu"))
    assert "true or false" in str(refused(tmp_path, env={"PNODE_LOG_JSON": "maybe"}))
    assert refused(tmp_path, env={"PNODE_CHECKPOINT_S": "nan"}).details["expected"] == "a number from 1 to 86400"


def test_bounds_are_whole_and_a_value_with_a_unit_is_told_which_one_is_meant(tmp_path: Path) -> None:
    error = refused(tmp_path, limits_memory_mb="1GB")
    assert error.message == "flag --memory-mb: limits.memory_mb is '1GB', expected a whole number from 0 to 16777216"
    assert error.remedy == "in MiB, say 1024"
    assert refused(tmp_path, limits_upload_mbit="fast").message.endswith("expected a number from 0 to 1000000")
    assert refused(tmp_path, limits_upload_mbit="fast").remedy == "in Mbit/s, say 20"


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "[" * 3000 + "]" * 3000])
def test_a_value_that_no_message_can_show_is_refused_with_its_file(tmp_path: Path, value: str) -> None:
    error = refused(tmp_path, f"data_port = {value}")
    assert error.code == "bad_config_file"
    assert str(tmp_path / "config.toml") in error.message


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    assert "config.toml cannot be read" in str(refused(tmp_path, "name = "))
    (tmp_path / "config.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(InvalidInput, match=r"config\.toml cannot be read"):
        load_settings(PNodeSettings, home=tmp_path, env={}, env_prefix="PNODE_", flags={})


def test_rendering_reads_back(tmp_path: Path) -> None:
    odd = 'a "b" \\ \n\t\x7f é 😀 # no comment'
    loaded = load(tmp_path, "[limits]\ncores = 2", name=odd, bootstrap=["x", "y"], log_json=True)
    lines = render_settings(loaded)
    again = load(tmp_path, "\n".join(lines))
    assert again.value == loaded.value
    assert tomllib.loads("\n".join(lines))["limits"]["cores"] == 2.0
    assert f"cores = 2.0  # file {tmp_path / 'config.toml'}" in lines
    assert "data_port = 7701  # default" in lines
    assert set(asdict(loaded.value)) == {key.split(".")[0] for key in loaded.origins}


@dataclass(frozen=True, slots=True)
class Inner:
    depth: int = setting(1, "how deep", low=0, high=9)


@dataclass(frozen=True, slots=True)
class Middle:
    inner: Inner = field(default_factory=Inner)
    plain: str = "no rule needed"


@dataclass(frozen=True, slots=True)
class Outer:
    middle: Middle = field(default_factory=Middle)
    last: int = setting(5, "after a section", low=0)


def test_sections_nest_and_fields_may_follow_them(tmp_path: Path) -> None:
    env = {"T_MIDDLE_INNER_DEPTH": "7"}
    loaded = load_settings(Outer, home=tmp_path, env=env, env_prefix="T", flags={"middle.plain": "x"})
    assert loaded.value == Outer(Middle(Inner(7), "x"), 5)
    (tmp_path / "config.toml").write_text("\n".join(render_settings(loaded)), "utf-8")
    assert load_settings(Outer, home=tmp_path, env={}, env_prefix="T", flags={}).value == loaded.value


def test_names_that_are_resolved_on_first_use_are_listed() -> None:
    assert set(dcnr.__all__) <= set(dir(dcnr)), "notebooks complete what is listed"


def test_import_stays_light() -> None:
    code = (
        "import sys, dcnr.settings; print(sorted({'pydantic', 'pydantic_settings', 'numpy', 'torch', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
