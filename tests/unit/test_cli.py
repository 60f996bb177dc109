"""Goal: every command parses what it says, exits with the code of its error, prints JSON and nothing else where asked, and tells people what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from schemas_rig import check_output

from dcnr import __version__
from dcnr.cli import dcnr, errors, foreground, orchestrator, output, pnode
from dcnr.cli.homes import settings_of
from dcnr.errors import ERROR_CLASSES, NotRunning, Refused, TimedOut, Unavailable
from dcnr.settings import PNodeSettings
from trust.identity import NodeKey
from trust.network_file import load_policy

APPS = {"pnode": pnode.app, "orchestrator": orchestrator.app, "dcnr": dcnr.app}
MNIST = Path(__file__).parents[2] / "examples" / "mnist" / "model.toml"


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for prefix in ("PNODE", "ORCHESTRATOR", "DCNR"):
        monkeypatch.setenv(f"{prefix}_HOME", str(tmp_path / prefix.lower()))
    return tmp_path


def run(line: str, *more: str) -> int:
    """Its exit code. What it prints is printed, and where that is JSON it fits its schema."""
    name, *arguments = line.split()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = errors.exit_code(APPS[name], name, [*arguments, *more])
    sys.stdout.write(out.getvalue())
    if code == 0:
        check_output(" ".join([line, *more]), out.getvalue())
    return code


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


def test_network_create_and_show(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("orchestrator key")
    orchestrator_id = capsys.readouterr().out.strip()
    create = f"dcnr network create --name garden --orchestrator {orchestrator_id}@127.0.0.1:7700 --store http://127.0.0.1:7790 --locality single-host"
    assert run(create + " --data-host https://data.example.org/") == 2
    assert run(create + " --data-host data.example.org --maintainers 3 --threshold 2 --json") == 0
    made = json.loads(capsys.readouterr().out)
    policy = load_policy(homes / "dcnr" / "network.json")
    assert made["network_id"] == policy.network_id
    assert (policy.document.threshold, len(policy.document.maintainer_keys), policy.document.store_scheme) == (2, 3, "http")
    assert [Path(path).stat().st_mode & 0o777 for path in made["keys"]] == [0o600] * 3
    assert run("dcnr network show --json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["network_id"] == policy.network_id
    assert shown["bootstrap"] == [f"{orchestrator_id}@127.0.0.1:7700"]
    assert shown["locality"] == "single_host"
    assert shown["data_hosts"] == ["data.example.org"]
    assert run("dcnr network show") == 0
    told = capsys.readouterr().out
    assert "rules on subnets and owners are lifted" in told
    assert "data host      data.example.org" in told
    assert run(create) == 5, "an existing network is not overwritten"
    assert run("dcnr network create --name x --orchestrator nonsense --out", str(homes / "other")) == 2


def test_a_network_without_an_address_says_the_command_that_adds_one(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orchestrator, out = "ab" * 20, homes / "elsewhere"
    assert run(f"dcnr network create --name garden --orchestrator {orchestrator} --out", str(out)) == 0
    told = capsys.readouterr().out
    assert "needs --bootstrap HOST:PORT" in told
    [command] = [line.partition("to add one: ")[2] for line in told.splitlines() if "to add one: " in line]
    assert run(command.replace("ID@HOST:PORT", f"{orchestrator}@127.0.0.1:7700")) == 0
    assert list(load_policy(out / "network.json").document.bootstrap) == [f"{orchestrator}@127.0.0.1:7700"]
    capsys.readouterr()
    assert run(f"dcnr network create --name x --orchestrator {orchestrator}@127.0.0.1:7700 --out", str(homes / "other")) == 0
    assert "note" not in capsys.readouterr().out


def test_the_next_version_of_a_network_document(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what one maintainer drafts is in force when another has signed it, and changes nothing before."""
    first, second, file = "ab" * 20, "cd" * 20, homes / "dcnr" / "network.json"
    run(f"dcnr network create --name garden --orchestrator {first}@127.0.0.1:7700 --maintainers 3 --threshold 2")
    capsys.readouterr()
    assert run(f"dcnr network amend --add-orchestrator {second}@127.0.0.1:7701 --audits drawn --json") == 0
    drafted = json.loads(capsys.readouterr().out)
    assert (drafted["missing"], drafted["version"], sorted(drafted["changed"])) == (
        1,
        2,
        ["audits", "bootstrap", "orchestrator_ids"],
    )
    assert load_policy(file).document.version == 1
    assert run("dcnr network sign", drafted["file"]) == 0, "the same maintainer again"
    assert load_policy(file).document.version == 1
    stranger = homes / "orchestrator" / "key.pem"
    run("orchestrator key")
    assert run("dcnr network sign", drafted["file"], "--key", str(stranger)) == 5
    capsys.readouterr()
    assert run("dcnr network sign", drafted["file"], "--key", str(homes / "dcnr" / "key-2.pem")) == 0
    assert "dcnr network publish" in capsys.readouterr().out
    policy = load_policy(file)
    assert (policy.document.version, list(policy.document.orchestrator_ids), policy.audits_drawn) == (2, [first, second], True)
    assert run("dcnr network amend") == 2, "nothing would change"
    assert run("dcnr network sign", str(homes / "nowhere.json")) == 2
    assert run(f"dcnr network amend --add-orchestrator {'ef' * 20} --draft", str(homes / "no" / "directory.json")) == 5
    both = [argument for number in ("", "-3") for argument in ("--key", str(homes / "dcnr" / f"key{number}.pem"))]
    assert run(f"dcnr network amend --remove-orchestrator {first}", *both) == 0
    assert load_policy(file).document.version == 3


def test_maintainers_change_by_command(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: another maintainer's key is added and one taken out, signed by old and new, and who is missing is told."""
    file = homes / "dcnr" / "network.json"
    run(f"dcnr network create --name garden --orchestrator {'ab' * 20} --maintainers 2 --threshold 2")
    capsys.readouterr()
    newcomer = homes / "newcomer"
    assert run("dcnr network key --json --home", str(newcomer)) == 0
    made = json.loads(capsys.readouterr().out)
    assert run("dcnr network key --home", str(newcomer)) == 0
    assert capsys.readouterr().out.strip() == made["public_key"], "made once"
    first, second = (NodeKey.load(homes / "dcnr" / f"key{number}.pem").node_id for number in ("", "-2"))
    amend = ("dcnr network amend --remove-maintainer", second, "--add-maintainer", made["public_key"])
    assert run(*amend, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == {"maintainer_ids": [first, made["maintainer_id"]]}
    waiting = [{"version": 1, "missing": 1, "of": [second]}, {"version": 2, "missing": 1, "of": [made["maintainer_id"]]}]
    assert (told["missing"], told["waiting_for"]) == (2, waiting)
    assert run("dcnr network sign", told["file"], "--key", str(homes / "dcnr" / "key-2.pem")) == 0
    assert f"1 of the maintainers of version 2: {made['maintainer_id']}" in capsys.readouterr().out
    assert load_policy(file).document.version == 1
    assert run("dcnr network sign", told["file"], "--key", str(newcomer / "key.pem")) == 0
    assert f"dcnr network publish {file}" in capsys.readouterr().out
    assert (
        run("dcnr network amend --threshold 1", "--key", str(newcomer / "key.pem"), "--key", str(homes / "dcnr" / "key.pem")) == 0
    )
    assert (load_policy(file).document.version, load_policy(file).document.threshold) == (3, 1)
    assert run("dcnr network amend --threshold 3") == 2
    assert run("dcnr network amend --add-maintainer nonsense") == 2
    assert run("dcnr network publish --bootstrap 127.0.0.1:1") == 4, "nobody runs there"
    assert run("dcnr network show --save", str(homes / "copy.json")) == 0
    assert load_policy(homes / "copy.json") == load_policy(file)


def test_a_draft_is_shown_before_it_is_signed_and_replaces_no_other_network_and_no_newer_version(
    homes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: who signs sees what the signed bytes change, whatever the file says of them, and loses nothing that is newer or of another network."""
    file, more = homes / "dcnr" / "network.json", "cd" * 20
    run(f"dcnr network create --name garden --orchestrator {'ab' * 20} --maintainers 3 --threshold 2")
    run(f"dcnr network amend --add-orchestrator {more}")
    draft = homes / "dcnr" / "network-draft.json"
    table = json.loads(draft.read_text())
    draft.write_text(json.dumps({**table, "summary": {"version": 9, "network_id": "harmless"}}))
    second = str(homes / "dcnr" / "key-2.pem")
    run(f"dcnr network create --name other --orchestrator {'ab' * 20} --out", str(homes / "elsewhere"))
    capsys.readouterr()
    other, before = homes / "elsewhere" / "network.json", draft.read_text()
    held = other.read_text()
    assert run("dcnr network sign", str(draft), "--key", second, "--file", str(other)) == 5
    refused = capsys.readouterr().err
    assert "wrong_network" in refused
    assert "this signs" not in refused
    assert (other.read_text(), draft.read_text()) == (held, before)
    both = [argument for number in ("", "-3") for argument in ("--key", str(homes / "dcnr" / f"key{number}.pem"))]
    assert run("dcnr network amend --audits drawn", *both) == 0
    held = file.read_text()
    capsys.readouterr()
    assert run("dcnr network sign", str(draft), "--key", second) == 1, "Stale"
    assert "document_not_newer" in capsys.readouterr().err
    assert (file.read_text(), draft.read_text()) == (held, before)
    assert (
        run("dcnr network sign", str(draft), "--key", str(homes / "elsewhere" / "key.pem"), "--file", str(homes / "new.json")) == 5
    )
    shown = capsys.readouterr().err
    assert f"version 2 of network {load_policy(file).network_id}, after version 1" in shown
    assert f"orchestrator_ids: ['{'ab' * 20}'] -> ['{'ab' * 20}', '{more}']" in shown, "before the key was looked at"
    assert run("dcnr network sign", str(draft), "--key", second, "--file", str(homes / "new.json")) == 0
    assert load_policy(homes / "new.json").document.version == 2


def test_a_network_names_whom_it_trusts_and_how_large_a_vnode_may_be(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the document that the command signs holds them, and `show` says until when."""
    trusted = "ab" * 20
    create = (
        f"dcnr network create --name garden --orchestrator {'cd' * 20} --trusted {trusted} --trusted-days 2 --max-vnode-mb 5 --out"
    )
    assert run(create, str(homes / "trusting")) == 0
    policy = load_policy(homes / "trusting" / "network.json")
    now = time.time()
    assert policy.is_trusted(trusted, now + 86400)
    assert not policy.is_trusted(trusted, now + 3 * 86400)
    assert policy.document.max_vnode_state_bytes == 5_000_000
    capsys.readouterr()
    assert run("dcnr network show --network", str(homes / "trusting" / "network.json")) == 0
    assert f"trusted        {trusted} until 20" in capsys.readouterr().out
    assert run("dcnr network create --name x --orchestrator", "cd" * 20, "--trusted nonsense --out", str(homes / "y")) == 2


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
