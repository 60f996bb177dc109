"""Goal: a network document is made, shown, amended and signed by commands, and each says what comes next."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cli_rig import homes_below, run

from trust.identity import NodeKey
from trust.network_file import load_policy


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes_below(tmp_path, monkeypatch)


def test_network_create_and_show(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("orchestrator key")
    orchestrator_id = capsys.readouterr().out.strip()
    create = f"dcnr network create --name garden --orchestrator {orchestrator_id}@127.0.0.1:7700 --store http://127.0.0.1:7790 --locality single-host"
    assert run(create + " --data-host https://data.example.org/") == 2
    assert (
        run(create + " --data-host data.example.org --component linear --component mean_pool --maintainers 3 --threshold 2 --json")
        == 0
    )
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
    assert shown["components"] == ["linear", "mean_pool"]
    assert "component      mean_pool" in told
    one = ["--key", str(homes / "dcnr" / "key.pem"), "--key", str(homes / "dcnr" / "key-2.pem")]
    assert run("dcnr network amend --add-component conv_block --remove-component linear", *one) == 0
    assert list(load_policy(homes / "dcnr" / "network.json").document.components) == ["mean_pool", "conv_block"]
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
