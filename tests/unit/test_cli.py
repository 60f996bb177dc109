"""Goal: every command parses what it says, exits with the code of its error, prints JSON and nothing else where asked, and tells people what to do next."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_rig import APPS, homes_below, run

from dcnr import __version__
from dcnr.cli import errors, foreground, output
from dcnr.cli.homes import settings_of
from dcnr.errors import ERROR_CLASSES, NotRunning, Refused, TimedOut, Unavailable
from dcnr.settings import PNodeSettings
from trust.identity import NodeKey

MNIST = Path(__file__).parents[2] / "examples" / "mnist" / "model.toml"


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes_below(tmp_path, monkeypatch)


def failing(error: Exception) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    return app


def test_lists_of_commands_hold_whole_sentences() -> None:
    """What a command is for stands in one sentence that fits the list on a terminal of 80 columns."""

    def cut(group: Any, path: str) -> Iterator[str]:
        room = 80 - 2 - 6 - max(map(len, group.commands))
        for name, command in group.commands.items():
            if not command.get_short_help_str(room).endswith("."):
                yield f"{path} {name}"
            if hasattr(command, "commands"):
                yield from cut(command, f"{path} {name}")

    assert [line for name, app in APPS.items() for line in cut(typer.main.get_command(app), name)] == []


@pytest.mark.parametrize("name", sorted(APPS))
def test_version_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{name} --version") == 0
    assert capsys.readouterr().out.strip() == __version__
    assert run(f"{name} --help") == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    ["pnode nonsense", "pnode start --cores many", "orchestrator start --control-port x", "dcnr model validate", "dcnr job watch --interval 0"],
)  # fmt: skip
def test_wrong_usage_is_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


@pytest.mark.parametrize(
    "line", ["pnode status --json", "pnode why", "pnode stop", "orchestrator status", "orchestrator stop", "dcnr local status"]
)
def test_not_running_is_3_with_the_next_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "next: " in captured.err
    assert ("--home" in captured.err) == (not line.startswith("dcnr"))  # it starts on the very home that was asked about


def test_who_has_joined_a_network_is_not_asked_for_a_node_of_it(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = homes / "pnode"
    assert run("pnode status") == 3
    assert f"next: pnode start --bootstrap HOST:PORT --home {home}\n" in capsys.readouterr().err
    home.mkdir()
    (home / "network.pb").touch()
    assert run("pnode status") == 3
    assert f"next: pnode start --home {home}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("dcnr network create --name x --orchestrator 127.0.0.1:7700", "ID@HOST:PORT, with the id that orchestrator key prints"),
        ("dcnr model submit", "dcnr model submit model.toml"),
        ("dcnr model validate none.toml", "name a graph in TOML or JSON"),
        ("dcnr model submit --draft none.json", "name a file that --save-draft wrote"),
    ],
)
def test_wrong_input_is_2_with_what_would_be_right(line: str, remedy: str, homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 2
    assert remedy in capsys.readouterr().err
    assert not list(homes.rglob("*.pem")), "nothing was made"


@pytest.mark.parametrize(
    "more",
    [
        "--save-draft e.json", "--key k.pem", "--idempotency-key one", "--checkpoint-s 5", "--checkpoint-steps 5", "--unit-batches 5",
        "--lead-batches 5", "--batches-per-s 5", "--settling-deadline-s 5", "--expires-after-s 5", "--from-manifest abc", "--anew",
        "--weights w.safetensors",
    ],
)  # fmt: skip
def test_a_draft_is_not_submitted_where_something_is_wanted_that_it_does_not_say(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: no option is ignored, even where its value is the usual one."""
    monkeypatch.chdir(tmp_path)
    assert run(f"dcnr model submit --draft d.json {more} --home {tmp_path} --json") == 2
    said = capsys.readouterr().err
    assert f"{more.split()[0]} can change nothing about a draft" in said
    assert "bad_arguments" in said
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_none_is_refused_in_our_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert (run("pnode start --memory-mb 1GB"), run("orchestrator start --control-port x")) == (2, 2)
    said = capsys.readouterr().err
    assert "limits.memory_mb is '1GB', expected a whole number from 0 to 16777216" in said
    assert "next: in MiB, say 1024" in said
    assert "control_port is 'x', expected a whole number from 0 to 65535" in said


def test_a_key_of_a_gateway_says_whose_it_is_for_beside_the_key_itself(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dcnr gateway key add bob --scope node-owner --home", str(homes)) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("dcnr_")
    assert len(captured.out.split()) == 1, "only the key, for a shell that keeps it"
    assert str(homes) in captured.err
    assert "--owner" in captured.err


def test_a_network_that_nobody_serves_is_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dcnr job list --json --bootstrap 127.0.0.1:1") == 4
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run(f"dcnr network create --name x --orchestrator {'cd' * 20}@127.0.0.1:1 --out", str(tmp_path / "x")) == 0
    assert run("dcnr job list --network", str(tmp_path / "x" / "network.json")) == 4
    said = capsys.readouterr().err
    assert (said.count("cdcdcdcd"), said.count("127.0.0.1:1 ")) == (1, 1), "who does not answer, and where, is told once"
    assert run("dcnr job list") == 2, "no network known: a usage error that says what to give"
    assert "--bootstrap" in capsys.readouterr().err


def test_the_network_of_the_home_is_asked_also_where_its_id_is_given(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = f"dcnr network create --name x --orchestrator {'cd' * 20}@127.0.0.1:1 --json --out"
    assert run(made, str(homes / "dcnr")) == 0
    network_id = json.loads(capsys.readouterr().out)["network_id"]
    assert run(f"dcnr job list --network-id {network_id}") == 4
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run(f"dcnr job list --network-id {'ef' * 20}") == 5
    assert "wrong_network" in capsys.readouterr().err


def test_a_wrong_network_is_refused_with_the_code_that_a_node_would_give(homes: Path) -> None:
    """In a process of its own: `start` has the logs of the whole process go to its standard error."""
    made = f"dcnr network create --name x --orchestrator {'cd' * 20}@127.0.0.1:1 --out"
    assert run(made, str(homes / "x")) == 0
    ended = subprocess.run(
        [sys.executable, "-m", "dcnr.cli.pnode", "start", "--network-id", "ef" * 20, "--memory-mb", "512", "--network", str(homes / "x" / "network.json")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 5, ended.stderr
    assert "wrong_network" in ended.stderr


def test_every_error_class_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {NotRunning: 3, Unavailable: 4, Refused: 5, TimedOut: 6}
    for cls in ERROR_CLASSES:
        for wrapped in (False, True):
            error = cls("it broke", code="broke", remedy="mend it", part="left")
            app = failing(ExceptionGroup("tasks", [error]) if wrapped else error)
            assert errors.exit_code(app, "x", []) == cls.exit_code == wanted.get(cls, cls.exit_code)
            text = capsys.readouterr().err
            assert text == "error: it broke\n  why: broke (part=left)\n  next: mend it\n"


def test_bugs_keep_their_traceback() -> None:
    app = failing(ExceptionGroup("tasks", [Refused("no"), KeyError("bug")]))
    with pytest.raises(ExceptionGroup):
        errors.exit_code(app, "x", [])


def test_orchestrator_key_is_made_once_and_kept_private(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("orchestrator key") == 0
    first = capsys.readouterr().out.strip()
    assert run("orchestrator key --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["node_id"] == first == NodeKey.load(homes / "orchestrator" / "key.pem").node_id
    (homes / "orchestrator" / "key.pem").chmod(0o644)
    assert run("orchestrator key") == 5
    assert "chmod 600" in capsys.readouterr().err


def test_commands_to_copy_hold_where_a_path_has_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "my home"
    assert run(f"dcnr network create --name garden --orchestrator {'a' * 40} --out", str(home)) == 0
    words = shlex.split(capsys.readouterr().out.partition("next: ")[2])
    assert words == ["orchestrator", "start", "--network", str(home / "network.json")]
    (home / "key.pem").chmod(0o644)
    assert run("dcnr network key --home", str(home)) == 5
    words = shlex.split(capsys.readouterr().err.partition("next: ")[2].partition(";")[0])
    assert words == ["chmod", "600", str(home / "key.pem")]


def test_an_ipv6_address_without_brackets_is_told_how_to_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"dcnr network create --name garden --orchestrator {'a' * 40}@::1:7700 --out"
    assert run(line, str(tmp_path / "m")) == 2
    assert "next: write host:port or [ipv6]:port" in capsys.readouterr().err


def test_validate_names_vnode_field_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dcnr model validate --json", str(MNIST)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [stage["vnode"] for stage in told["stages"]] == ["conv1", "conv2", "conv3", "conv4"]
    bad = tmp_path / "model.toml"
    text = MNIST.read_text().replace("kernel = 5", "kernel = 4")
    bad.write_text(text)
    assert run("dcnr model validate", str(bad)) == 2
    line = next(number for number, content in enumerate(text.splitlines(), 1) if content == 'id = "conv1"')
    said = capsys.readouterr().err
    assert f"{bad}:{line}" in said
    assert "kernel" in said
    assert run("dcnr model validate", str(tmp_path / "none.toml")) == 2


def test_config_show_tells_origins(homes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    home = homes / "pnode"
    home.mkdir()
    (home / "config.toml").write_text("data_port = 0\n[limits]\ncores = 2.0\n")
    monkeypatch.setenv("PNODE_LIMITS_CORES", "3")
    assert run("pnode config show --json") == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["limits.cores"] == {"value": 3.0, "origin": "environment PNODE_LIMITS_CORES"}
    assert settings["data_port"]["origin"].startswith("file ")
    assert run("pnode config show --origin") == 0
    assert "# environment PNODE_LIMITS_CORES" in capsys.readouterr().out
    (home / "config.toml").write_text('name = "one  # of two"\n')
    assert run("pnode config show") == 0
    shown = capsys.readouterr().out
    assert ('name = "one  # of two"\n' in shown, "  # file" in shown) == (True, False)
    (home / "config.toml").write_text("data_prot = 0\n")
    assert run("pnode config show") == 2
    assert "did you mean 'data_port'?" in capsys.readouterr().err


def test_wrong_settings_stop_the_daemons_before_anything_is_touched(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pnode start --cores -1 --bootstrap 127.0.0.1:1") == 2
    assert "limits.cores" in capsys.readouterr().err
    assert run("orchestrator start --control-port 70000") == 2
    assert not (homes / "pnode").exists()
    assert not (homes / "orchestrator").exists()


def test_texts_for_people() -> None:
    assert [output.duration(value) for value in (0.4, 59, 61, 3661)] == ["0 s", "59 s", "1 min 1 s", "1 h 1 min"]
    assert [output.size(value) for value in (12, 2048, 3 * 2**20, 5 * 2**30)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
    assert output.table(("a", "number"), [("x", 1), ("long", 22)]) == "a     number\nx          1\nlong      22"


def test_commands_start_without_grpc_torch_and_numpy() -> None:
    heavy = ("grpc", "torch", "numpy", "google", "rich", "boto3")
    modules = "dcnr.cli.pnode, dcnr.cli.orchestrator, dcnr.cli.dcnr, dcnr.sdk"
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_daemons_with_another_worker_do_without_torch_as_real_ones_do() -> None:
    """It costs two hundred megabytes and seconds of the processor at each start, and what is measured would be those."""
    code = "import sys, chaos.watched, examples.byzantine.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_daemons_run_on_uvloop() -> None:
    async def kind_of_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert foreground.run(kind_of_loop()) == "uvloop"


def test_flags_mean_what_the_file_of_settings_would_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a path is meant from where the command was typed, a flag may be repeated, and one that was not given leaves the file's word."""
    (tmp_path / "config.toml").write_text('bootstrap = ["127.0.0.1:1"]\n')
    monkeypatch.chdir(tmp_path)
    flags = {"bootstrap": [], "bootstrap_file": Path("nodes.txt"), "components": ["a.py", "b"], "owner": None, "name": ""}
    loaded = settings_of(PNodeSettings, tmp_path, flags)
    assert (loaded.value.bootstrap, loaded.value.owner, loaded.value.name) == (("127.0.0.1:1",), "", "")
    assert (loaded.value.bootstrap_file, loaded.value.components) == (str(tmp_path / "nodes.txt"), ("a.py", "b"))
    assert loaded.origins["bootstrap"].startswith("file")
    assert loaded.origins["components"] == "flag --components"
