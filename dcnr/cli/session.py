"""A command's way to the network: settings, caller's key, client; and the maintainer's keys that a command signs with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from dcnr.cli.homes import home_of, settings_of
from dcnr.cli.output import say
from dcnr.errors import InvalidInput
from dcnr.settings import ClientSettings

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from trust.identity import NodeKey
    from trust.network import NetworkPolicy

T = TypeVar("T")

NETWORK_FILE: Final = "network.json"
KEY_FILE: Final = "key.pem"

NetworkOption = Annotated[
    Path | None, typer.Option("--network", help="Network file; default: network.json in the home directory.", show_default=False)
]
BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", help="A node of the network, [ID@]HOST:PORT. May be repeated.")
]
NetworkIdOption = Annotated[str | None, typer.Option("--network-id", help="Id that the network must have.", show_default=False)]
KeyOption = Annotated[
    list[Path] | None,
    typer.Option("--key", help="A maintainer's key file. May be repeated; default: key.pem in the home directory."),
]


class Session:
    """What the options of a command say about home and network."""

    def __init__(
        self, home: Path | None, network: Path | None, bootstrap: list[str] | None, network_id: str | None = None,
        components: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.home = home_of(ClientSettings, home)
        flags = {"network": network, "bootstrap": bootstrap, "components": components}
        settings = settings_of(ClientSettings, self.home, flags).value
        self.components = settings.components
        self.bootstrap = (*settings.orchestrators, *settings.bootstrap)
        self.store_file = Path(settings.store_file).expanduser() if settings.store_file else None
        default = self.home / NETWORK_FILE
        self.network = Path(settings.network) if settings.network else default if default.exists() else None
        if bootstrap and not network and not settings.network:
            self.network = None  # the network behind the given nodes is meant, not the one of the home directory
        self.network_id = network_id

    def run(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """The result of ``work`` with an open client. Raises what it raises."""
        import asyncio

        return asyncio.run(self._with_client(work))

    def policy(self) -> NetworkPolicy:
        """The network's policy from the file alone. Raises NotFound, InvalidInput."""
        from dcnr.system import SystemClock
        from trust.network_file import load_policy

        return load_policy(self.network or self.home / NETWORK_FILE, SystemClock().wall(), network_id=self.network_id)

    def known_network_id(self) -> str:
        """The id of the network in the file, also where its document has expired. Raises NotFound, Corrupt, Refused."""
        from trust.network_file import load_policy

        return load_policy(self.network or self.home / NETWORK_FILE, network_id=self.network_id).network_id

    def keys(self, given: list[Path] | None) -> list[NodeKey]:
        """The maintainer's keys to sign with. Raises NotFound, Refused (``key_permissions``)."""
        from trust.identity import NodeKey

        return [NodeKey.load(path.expanduser()) for path in given or [self.home / KEY_FILE]]

    async def _with_client(self, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
        from dcnr.sdk.client import connect_async
        from trust.identity import NodeKey

        if self.network is None and not self.bootstrap:
            raise InvalidInput(
                "no network is known",
                code="no_network",
                remedy=f"give --network FILE or --bootstrap HOST:PORT, or put the file at {self.home / NETWORK_FILE}",
            )
        own = self.home / KEY_FILE
        key = NodeKey.load(own) if own.exists() else None
        async with await connect_async(
            self.bootstrap, network=self.network, network_id=self.network_id, key=key, components=self.components
        ) as client:
            if not client.pinned:
                say(f"note: believing the first document seen, network {client.policy.network_id}; pin it with --network-id")
            return await work(client)
