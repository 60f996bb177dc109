"""Goal: Ctrl-C at any moment of the demo, or the end of a local network, leaves no process and no file outside its directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nursery import lent
from trouble_rig import Command, graph_text, nothing_left, processes_of, run, told, until, write_data

DEMO = str(Path(__file__).with_name("trouble_demo.py"))
PREPARE = "import shutil, sys\nfrom pathlib import Path\nshutil.copy(Path(__file__).with_name('tiny.npz'), sys.argv[1])\n"
FOR_EVER = "import time\ntime.sleep(600)\n"
INTERRUPTED = 130
SOON_S = 40.0
"""More than anything that is under way may take on a loaded machine; a demo that went on would take longer."""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    (directory / "tmp").mkdir()
    yield directory
    shutil.rmtree(directory)


def example(folder: Path, *, prepare: str = PREPARE, passes: int = 20) -> Path:
    """A folder as in ``examples``; loading its export takes for ever."""
    folder.mkdir()
    (folder / "model.toml").write_text(graph_text(passes=passes))
    (folder / "prepare.py").write_text(prepare)
    (folder / "use_export.py").write_text(FOR_EVER)
    write_data(folder / "tiny.npz")
    return folder


@pytest.mark.parametrize(
    ("moment", "flags", "prepare", "is_forked"),
    [
        ("preparing the data", (), FOR_EVER, False),
        ("starting the embedded object store", (), PREPARE, False),
        ("making keys", (), PREPARE, False),
        ("starting PNode p2", (), PREPARE, False),
        ("staging tiny", (), PREPARE, True),
        ("KILL -9", (), PREPARE, True),
        ("exporting", ("--no-kills",), PREPARE, True),
    ],
)
def test_ctrl_c_ends_the_demo(short: Path, moment: str, flags: tuple[str, ...], prepare: str, is_forked: bool) -> None:
    """Where all of it runs by then, it may have been forked."""
    folder, directory = example(short / "example", prepare=prepare, passes=2 if flags else 40), short / "demo"
    flags = (*flags, lent()) if is_forked else flags
    outside = {path.name for path in short.iterdir()} | {"demo"}
    with (
        nothing_left(directory, short / "tmp"),
        Command(DEMO, str(folder), str(directory), *flags, cwd=short, environment={"TMPDIR": str(short / "tmp")}) as demo,
    ):
        demo.line(moment)
        demo.interrupt()
        assert demo.end(SOON_S) == INTERRUPTED, demo.text
        assert "interrupted: ending every process of the demo" in demo.text
        assert "Traceback" not in demo.text, demo.text
    assert {path.name for path in short.iterdir()} == outside


def test_a_demo_that_keeps_its_network_says_how_it_is_asked_and_ended_and_leaves_nothing_then(short: Path) -> None:
    """Goal: its verdict stays its exit code: the script that loads the export says other bits than the network."""
    folder, directory = example(short / "example", passes=2), short / "demo"
    (folder / "use_export.py").write_text("print('{\"bits_per_byte\": 9.5}')\n")
    with (
        nothing_left(directory, short / "tmp"),
        Command(
            DEMO, str(folder), str(directory), "--no-kills", "--keep", lent(), cwd=short, environment={"TMPDIR": str(short / "tmp")}
        ) as demo,
    ):
        demo.line("the network goes on; Ctrl-C ends it")
        listing = demo.line("  dcnr job list --network").split()
        status = demo.line("  pnode status --home").split()
        logs = {os.readlink(f"/proc/{process.pid}/fd/1") for process in processes_of(directory)}
        assert logs >= {str(directory / "log" / f"{name}.log") for name in ("o1", "o2", "p1", "p2")}, "all of it runs"
        jobs = run("-m", "dcnr.cli.dcnr", *listing[1:], code=0, environment={"DCNR_HOME": str(short / "home")})
        assert "completed" in jobs
        assert "active" in run("-m", "dcnr.cli.pnode", *status[1:], code=0)
        demo.interrupt()
        assert demo.end(SOON_S) == 1, demo.text
        assert "Traceback" not in demo.text, demo.text
    kept = json.loads((directory / "result.json").read_text())
    assert (kept["format"], kept["example"], kept["held"]) == ("dcnr-demo-1", "tiny", False)
    failed = [one["what"] for one in kept["points"] if not one["held"]]
    assert "the export in plain torch gives the same bits per byte" in failed
    assert all(f"[FAILED] {what}" in demo.text for what in failed)
    assert kept["batches"]["durable"] == {"a": 80, "b": 80}
    assert kept["machine"]["cores"] >= 1
    assert f"all figures: {directory / 'result.json'}" in demo.text


def test_the_demo_does_not_empty_a_directory_that_it_did_not_make(short: Path) -> None:
    (short / "thesis.txt").write_text("years of work")
    text = run("-m", "dcnr.cli.dcnr", "demo", "--directory", str(short), code=5)
    told(text, code="directory_in_use", what="holds other things than an earlier demo", remedy="choose an empty --directory")
    assert (short / "thesis.txt").read_text() == "years of work"


def test_a_local_network_comes_up_tells_of_itself_and_goes(short: Path) -> None:
    where = ("--directory", str(short / "n"))
    told(
        run("-m", "dcnr.cli.dcnr", "local", "status", *where, code=3),
        code="not_running",
        what="no local network",
        remedy="dcnr local up",
    )
    told(
        run("-m", "dcnr.cli.dcnr", "local", "down", *where, code=3),
        code="not_running",
        what="no local network",
        remedy="dcnr local up",
    )
    up = ("-m", "dcnr.cli.dcnr", "local", "up", *where, "--orchestrators", "1", "--pnodes", "1", "--memory-mb", "512")
    with nothing_left(short / "n", short / "tmp"), Command(*up, cwd=short, environment={"TMPDIR": str(short / "tmp")}) as network:
        network.line("running; in another terminal")
        assert "active" in run("-m", "dcnr.cli.dcnr", "local", "status", *where, code=0)
        told(run(*up, code=5), code="already_running", what="already runs", remedy="dcnr local down")
        kill(short / "n" / "p1")
        network.line("p1 was killed (SIGKILL)")
        network.line("goes on without p1")
        assert "p1" in network.line("dcnr.cli.pnode start --home")
        run("-m", "dcnr.cli.dcnr", "local", "status", *where, code=0)
        assert "stopped" in run("-m", "dcnr.cli.dcnr", "local", "down", *where, code=0)
        assert network.end() == 0, network.text
    assert not (short / "n" / "local.json").exists()


def kill(home: Path) -> None:
    """KILL -9 to the node with that home."""
    (node,) = [
        one
        for one in processes_of(home)
        if "start" in one.cmdline() and one.cmdline()[one.cmdline().index("--home") + 1] == str(home)
    ]
    node.kill()


def test_a_local_network_ends_with_its_last_orchestrator(short: Path) -> None:
    up = ("-m", "dcnr.cli.dcnr", "local", "up", "--directory", str(short / "n"), "--orchestrators", "2", "--pnodes", "0")
    with nothing_left(short / "n", short / "tmp"), Command(*up, cwd=short, environment={"TMPDIR": str(short / "tmp")}) as network:
        network.line("running; in another terminal")
        (server,) = psutil.Process(int((short / "n" / "store" / "store.pid").read_text())).children()
        server.kill()
        network.line("the object store has ended")
        kill(short / "n" / "o1")
        network.line("goes on without o1")
        kill(short / "n" / "o2")
        assert network.end() == 4, network.text
        told(network.text, code="no_orchestrator", what="the last orchestrator has ended", remedy="dcnr local up")


def test_ctrl_c_ends_a_local_network_also_while_it_starts(short: Path) -> None:
    up = ("-m", "dcnr.cli.dcnr", "local", "up", "--directory", str(short / "n"), "--orchestrators", "2", "--pnodes", "1")
    with nothing_left(short / "n", short / "tmp"), Command(*up, cwd=short, environment={"TMPDIR": str(short / "tmp")}) as network:
        network.line("starting orchestrator o1")
        until(lambda: len(processes_of(short / "n")) > 1)
        network.interrupt()
        assert network.end(SOON_S) == 0, network.text
        assert "interrupted: every process of the network has ended" in network.text
        assert "Traceback" not in network.text, network.text


def test_a_local_network_that_starts_is_known_to_who_asks_elsewhere(short: Path) -> None:
    """Goal: a second one is refused with the way on, and `down` ends the first, from the moment at which anything of it is there."""
    where = ("--directory", str(short / "n"))
    up = ("-m", "dcnr.cli.dcnr", "local", "up", *where, "--orchestrators", "2", "--pnodes", "1")
    with nothing_left(short / "n", short / "tmp"), Command(*up, cwd=short, environment={"TMPDIR": str(short / "tmp")}) as network:
        network.line("starting the embedded object store")
        told(run(*up, code=5), code="already_running", what="already runs", remedy="dcnr local down")
        assert "stopped" in run("-m", "dcnr.cli.dcnr", "local", "down", *where, code=0)
        assert network.end(SOON_S) == 0, network.text
    assert not (short / "n" / "local.json").exists()
