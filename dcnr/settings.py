"""Typed settings whose every value knows where it came from: default < ``config.toml`` in the home directory < environment < flag.

A process declares a frozen dataclass; one field is one line: ``data_port: int = setting(7701, "…", low=0, high=65535)``. Nested
dataclasses (``field(default_factory=…)``) are sections. A key ``limits.cores`` is ``cores`` under ``[limits]`` in the file,
``PNODE_LIMITS_CORES`` in the environment (lists separated by commas) and ``--cores`` as a flag. Unknown keys are errors that
name the nearest known one; wrong values name origin, key, value and what is expected. Standard library only: this is read by every
start of every command. Nothing here reads the environment by itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dcnr.crashpoints import VARIABLE as CRASH_POINT
from dcnr.errors import InvalidInput
from dcnr.nearest import nearest

T = TypeVar("T")

CONFIG_FILE: Final = "config.toml"
DAY_S: Final = 86_400.0
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_COMPONENTS: Final = "files (FILE.py) and modules with components and objectives from outside the tree, which run here"
_BOOTSTRAP_FILE: Final = "path of a list of first nodes to ask besides, one id@host:port a line"
_UNITS: Final = {"mb": "in MiB, say 1024", "mbit": "in Mbit/s, say 20", "percent": "in percent, say 50"}  # by the end of a name
_WORDS: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", tuple[str, ...]: "a list of texts"}


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The settings and, for each dotted key, its origin: ``default``, ``file PATH``, ``environment NAME`` or ``flag --name``."""

    value: T
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Rule:
    help: str = ""
    low: float = -math.inf
    high: float = math.inf
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """One setting: its path through the sections, its type and its rule."""

    path: tuple[str, ...]
    kind: Any
    default: Any
    rule: _Rule

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def joined(self) -> str:
        return "_".join(self.path)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.rule.options:
            return f"one of {', '.join(self.rule.options)}"
        low, high = self.rule.low, self.rule.high
        bounds = "" if low == -math.inf else f" from {low:.15g}" if high == math.inf else f" from {low:.15g} to {high:.15g}"
        return _KINDS[self.kind] + bounds


def setting(default: Any, text: str, *, low: float = -math.inf, high: float = math.inf, options: tuple[str, ...] = ()) -> Any:
    """A field of a settings class: its default, what it means, and the values it may take (bounds included)."""
    return field(default=default, metadata={"rule": _Rule(text, low, high, options)})


def load_settings(
    cls: type[T], *, home: Path, env: Mapping[str, str], env_prefix: str, flags: Mapping[str, object],
    reserved: Collection[str] = ("HOME",),
) -> Loaded[T]:  # fmt: skip
    """``cls`` filled from all four origins. Raises InvalidInput whose details name ``key`` and ``origin``.

    ``flags`` holds dotted or underscored keys; None means not given. ``reserved`` are names after the prefix that mean something else.
    """
    keys = tuple(_keys(cls))
    values: dict[str, Any] = {key.dotted: key.default for key in keys}
    origins = {key.dotted: "default" for key in keys}
    for key, value, origin in (
        *_from_file(keys, home / CONFIG_FILE),
        *_from_env(keys, env, env_prefix.rstrip("_") + "_", reserved),
        *_from_flags(keys, flags),
    ):
        values[key.dotted] = _checked(key, value, origin)
        origins[key.dotted] = origin
    return Loaded(_built(cls, values, ()), origins)


def setting_rows(loaded: Loaded[Any]) -> list[tuple[str, str, str]]:
    """(dotted key, value as TOML, origin) of every setting, by key."""
    rows = []
    for dotted, origin in sorted(loaded.origins.items()):
        value = loaded.value
        for part in dotted.split("."):
            value = getattr(value, part)
        rows.append((dotted, _toml(value), origin))
    return rows


def render_settings(loaded: Loaded[Any], *, origins: bool = True) -> list[str]:
    """Lines of TOML that read back to the same values, each followed by its origin as a comment unless that is not wanted."""
    lines: list[str] = []
    keys = sorted(_keys(type(loaded.value)), key=lambda key: key.path[:-1])
    current: tuple[str, ...] = ()
    for key in keys:
        if key.path[:-1] != current:
            current = key.path[:-1]
            lines += ["", f"[{'.'.join(current)}]"]
        value = loaded.value
        for part in key.path:
            value = getattr(value, part)
        lines.append(f"{key.path[-1]} = {_toml(value)}" + (f"  # {loaded.origins[key.dotted]}" if origins else ""))
    return lines


def _is_section(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _keys(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[_Key]:
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind = hints[item.name]
        if _is_section(kind):
            yield from _keys(kind, (*path, item.name))
        else:
            yield _Key((*path, item.name), kind, item.default, item.metadata.get("rule", _Rule()))


def _built(cls: type[T], values: Mapping[str, Any], path: tuple[str, ...]) -> T:
    hints = typing.get_type_hints(cls)
    made: dict[str, Any] = {}
    for item in dataclasses.fields(typing.cast(Any, cls)):
        kind, inner = hints[item.name], (*path, item.name)
        made[item.name] = _built(kind, values, inner) if _is_section(kind) else values[".".join(inner)]
    return cls(**made)


def _from_file(keys: tuple[_Key, ...], path: Path) -> Iterator[tuple[_Key, Any, str]]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        repr(table)  # a number of thousands of digits could be refused by no message
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", code="bad_config_file", remedy="choose another --home, or mend that one", origin=f"file {path}"
        ) from error  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} cannot be read: {error}", code="bad_config_file", remedy="correct the file", origin=f"file {path}"
        ) from error
    yield from _from_table(keys, table, (), f"file {path}")


def _from_table(
    keys: tuple[_Key, ...], table: dict[str, Any], path: tuple[str, ...], origin: str
) -> Iterator[tuple[_Key, Any, str]]:
    by_path = {key.path: key for key in keys}
    sections = {key.path[:depth] for key in keys for depth in range(1, len(key.path))}
    for name, value in table.items():
        inner = (*path, name)
        if inner in sections and isinstance(value, dict):
            yield from _from_table(keys, value, inner, origin)
        elif inner in sections:
            raise _wrong(".".join(inner), value, "a section", origin)
        elif inner in by_path:
            yield by_path[inner], value, origin
        else:
            raise _unknown(".".join(inner), {key.dotted: key.dotted for key in keys}, origin)


def _from_env(
    keys: tuple[_Key, ...], env: Mapping[str, str], prefix: str, reserved: Collection[str]
) -> Iterator[tuple[_Key, Any, str]]:
    by_name = {prefix + key.joined.upper(): key for key in keys}
    for name in sorted(env):
        if name in by_name:
            yield by_name[name], _parsed(by_name[name], env[name]), f"environment {name}"
        elif name.startswith(prefix) and name.removeprefix(prefix) not in reserved and name != CRASH_POINT:
            raise _unknown(name, {known: known for known in by_name}, "environment")


def _from_flags(keys: tuple[_Key, ...], flags: Mapping[str, object]) -> Iterator[tuple[_Key, Any, str]]:
    by_name = {key.joined: key for key in keys}
    for name, value in flags.items():
        key = by_name.get(name.replace(".", "_").replace("-", "_"))
        if key is None:
            raise _unknown(name, {key.joined: key.dotted for key in keys}, "flag")
        if value is not None:
            yield key, _parsed(key, value), "flag --" + key.path[-1].replace("_", "-")


def _parsed(key: _Key, value: object) -> object:
    """Text from the environment or a flag as the type of its key; left as text where it is not one, for `_checked` to refuse."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        match key.kind:
            case kind if kind is str:
                return value
            case kind if kind is bool:
                return _WORDS.get(text.lower(), value)
            case kind if kind in (int, float):
                return kind(text)
            case _:
                return tuple(part.strip() for part in text.split(",") if part.strip())
    except ValueError:
        return value


def _checked(key: _Key, value: Any, origin: str) -> Any:
    if key.kind == tuple[str, ...]:
        right = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
        value = tuple(value) if right else value
    elif key.kind is float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
        value = float(value) if right else value
    else:
        right = type(value) is key.kind
    if right and key.kind in (int, float):
        right = key.rule.low <= value <= key.rule.high
    if right and key.rule.options:
        right = value in key.rule.options
    if not right:
        raise _wrong(key.dotted, value, key.expected, origin, _UNITS.get(key.joined.rpartition("_")[2], ""))
    return value


def _wrong(key: str, value: object, expected: str, origin: str, remedy: str = "") -> InvalidInput:
    shown, remedy = repr(value)[:80], remedy or "correct it, or leave it out: it has a default"
    message = f"{origin}: {key} is {shown}, expected {expected}"
    return InvalidInput(message, code="bad_setting", remedy=remedy, key=key, value=shown, expected=expected, origin=origin)


def _unknown(name: str, known: Mapping[str, str], origin: str) -> InvalidInput:
    """``known`` maps each name that would have been understood to how it is shown; a last part alone counts too."""
    candidates = {text.rsplit(".", 1)[-1]: shown for text, shown in known.items()} | dict(known)
    suggestion = candidates.get(nearest(name, candidates, alike=0.0), "")
    return InvalidInput(
        f"{origin}: unknown setting {name[:80]!r}",
        code="unknown_setting", remedy=f"did you mean {suggestion!r}?", key=name[:80], nearest=suggestion, origin=origin,
    )  # fmt: skip


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(_toml(part) for part in value)}]"
        case _:
            return repr(value)


def _port(default: int, text: str) -> Any:
    return setting(default, f"{text}; 0 picks a free one", low=0, high=65535)


def _log_level() -> Any:
    return setting("info", "least severe messages that are logged", options=LOG_LEVELS)


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What a volunteer lends; 0 means found out by the probe (cores, memory) or unlimited (rates)."""

    cores: float = setting(0.0, "processor cores; 0: found out at start", low=0, high=4096)
    cpu_percent: float = setting(100.0, "share of those cores", low=1, high=100)
    memory_mb: int = setting(
        0, "memory lent, in MiB, of which the daemon keeps 256 for itself; 0: found out at start", low=0, high=2**24
    )
    disk_mb: int = setting(20_000, "disk space of the home directory in MiB, a quarter of it for the cache", low=0, high=2**30)
    disk_min_free_mb: int = setting(1_000, "free disk space that is left alone, in MiB", low=0, high=2**30)
    upload_mbit: float = setting(
        0.0, "rate of uploads in Mbit/s, and a quarter of it for what replicas of a VNode exchange; 0: no limit but the quarter of the measured uplink that "
        "checkpoints and merges take in any case; frames between VNodes are not held back yet", low=0, high=1e6,
    )  # fmt: skip
    download_mbit: float = setting(0.0, "rate of downloads of shards and states in Mbit/s; 0: no limit", low=0, high=1e6)
    relay_mbit: float = setting(
        0.0, "passed on for others that nobody can dial, Mbit/s in each direction; 0: nothing is", low=0, high=1e3
    )
    device: str = setting("auto", "where VNodes compute", options=("auto", "cpu", "cuda", "mps"))


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Traces for whoever runs this; see docs/observability.md."""

    endpoint: str = setting(
        "", "collector that takes traces over OTLP, like http://127.0.0.1:4318; empty: none are made, and nothing is sent"
    )
    share: float = setting(
        1.0, "share of the traces that begin here; one that began elsewhere is joined if it was chosen there", low=0, high=1
    )


@dataclass(frozen=True, slots=True)
class PNodeSettings:
    """Settings of a volunteer's daemon (prefix ``PNODE``)."""

    listen_host: str = setting("0.0.0.0", "address that the ports listen on")
    control_port: int = _port(7700, "TCP port of the daemon")
    data_port: int = _port(7701, "TCP port of the worker")
    dht_port: int = _port(7700, "UDP port of the directory")
    advertise_host: str = setting("", "address that others are told; empty: found out")
    outbound_only: bool = setting(False, "nobody is to dial this machine: it tells no address, and others reach it through relays")
    bootstrap: tuple[str, ...] = setting((), "first nodes to ask, as id@host:port")
    bootstrap_file: str = setting("", _BOOTSTRAP_FILE)
    network: str = setting("", "path of the network document")
    network_id: str = setting("", "id that the network document must have; empty: pin the first one seen")
    name: str = setting("", "name that everybody sees beside this machine's id; empty: none")
    owner: str = setting(
        "", "path of the statement whose machine this is (see: pnode own); empty: owner.pb in the home, if there is one"
    )
    components: tuple[str, ...] = setting((), _COMPONENTS)
    log_level: str = _log_level()
    log_json: bool = setting(False, "log lines as JSON")
    checkpoint_s: float = setting(DAY_S, "longest time between two checkpoints; shorter where the job says so", low=1, high=DAY_S)
    limits: LimitSettings = field(default_factory=LimitSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The REST gateway of an orchestrator, or of its own process (`dcnr gateway start`)."""

    listen: str = setting(
        "", "address of the gateway as host:port, port 0 for a free one; empty: none, or 127.0.0.1:7780 for a gateway alone"
    )
    public_reads: str = setting("auto", "whether reading needs no key; auto: on loopback only", options=("auto", "yes", "no"))
    hosts: tuple[str, ...] = setting(
        (), "names that the header Host may have; empty: those of loopback, or any where others are listened to"
    )
    requests_per_s: float = setting(200.0, "rate of one key; twice that at once", low=0.1, high=1e6)
    public_requests_per_s: float = setting(50.0, "rate of one subnet without a key; twice that at once", low=0.1, high=1e6)
    max_watchers: int = setting(2000, "streams of events that may be open", low=0, high=100_000)


@dataclass(frozen=True, slots=True)
class OrchestratorSettings:
    """Settings of an orchestrator (prefix ``ORCHESTRATOR``)."""

    listen_host: str = setting("0.0.0.0", "address that the ports listen on")
    control_port: int = _port(7700, "TCP port")
    dht_port: int = _port(7700, "UDP port of the directory")
    advertise_host: str = setting("", "address that others are told; empty: found out")
    bootstrap: tuple[str, ...] = setting((), "first nodes to ask, as id@host:port")
    bootstrap_file: str = setting("", _BOOTSTRAP_FILE)
    network: str = setting("", "path of the network document")
    store_url: str = setting("", "endpoint of an S3-compatible store; empty: run the embedded one")
    store_file: str = setting("", "path of the store's credentials (store.json, 0600); empty: in the home directory")
    store_bucket: str = setting("dcnr", "bucket in that store")
    store_listen: str = setting("127.0.0.1", "address that the embedded store listens on")
    store_port: int = _port(7790, "TCP port of the embedded store")
    store_public_url: str = setting("", "the store as volunteers reach it; empty: the network document's, or bytes are proxied")
    trusted: str = setting("", "path of a list of PNodes that this orchestrator checks less")
    gateways: tuple[str, ...] = setting((), "ids of gateways that limit their callers themselves (dcnr gateway id)")
    relay_mbit: float = setting(100.0, "passed on for each PNode that nobody can dial; 0: nothing is", low=0, high=1e6)
    components: tuple[str, ...] = setting((), _COMPONENTS)
    verifier: bool = setting(False, "check claimed training here too, in a process of its own, where no independent PNode can")
    log_level: str = _log_level()
    log_json: bool = setting(False, "log lines as JSON")
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of the ``dcnr`` command and the SDK (prefix ``DCNR``)."""

    orchestrators: tuple[str, ...] = setting((), "orchestrators to call, as id@host:port; empty: those of the network")
    bootstrap: tuple[str, ...] = setting((), "nodes to ask for orchestrators, as id@host:port")
    network: str = setting("", "path of the network document")
    home: str = setting("", "home directory of the maintainer; empty: the platform's")
    store_file: str = setting("", "path of the store's credentials (store.json, 0600): s3:// sources, dcnr demo --store-url")
    components: tuple[str, ...] = setting((), _COMPONENTS)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
