"""What a replica writes down where audits are not in force: nothing, in the shape of `pnode.books.Books`."""

from __future__ import annotations


class NoBooks:
    """The same where audits are not in force: nothing is written down."""

    async def before_learning(self) -> None:
        """Nothing."""

    async def learned(self, *noted: object) -> None:
        """Nothing."""

    async def forwarded(self, *noted: object) -> None:
        """Nothing."""

    async def merged(self, *noted: object) -> None:
        """Nothing."""

    async def log(self, begin: str) -> bytes:
        """No log."""
        return b""

    def anchored(self, *noted: object) -> None:
        """Nothing."""

    def ended(self, *noted: object, displacement: bytes = b"", anchor: bytes = b"", is_measured: bool = False) -> None:
        """Nothing."""

    async def keep(self, *noted: object) -> None:
        """Nothing."""

    async def rebased(self, *noted: object) -> None:
        """Nothing."""

    async def decided(self, *noted: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
