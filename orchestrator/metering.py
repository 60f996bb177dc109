"""Answered questions, added up by client and told to the books once a minute: a kill costs at most that minute, and nothing is told twice.

A line per question would be too much for a history, so an account is what one client was answered of one model in a while. Keys cost nothing, so accounts are
bounded: whoever comes when there is no room is counted in the one account without a name, and strangers leave room to members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from dcnr.errors import DcnrError, InvalidInput, TimedOut, Unavailable
from dcnr.v1 import identity_pb2, ledger_pb2, orchestrator_pb2
from orchestrator.access import Caller
from orchestrator.runtime import Shared
from orchestrator.usage import Books, answered
from trust.envelope import seal

TELL_S: Final = 60.0
MAX_ACCOUNTS: Final = 1024
STRANGERS_ACCOUNTS: Final = 512
MAX_ON_BEHALF: Final = 64
SUBJECT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Client:
    """Whose account it is; ``node_id`` empty: of all for whom there is no room."""

    model: str
    node_id: str
    on_behalf: str = ""


@dataclass(slots=True)
class Account:
    """What a client was answered since then."""

    since_unix_ms: int
    num_answers: int = 0
    num_samples: int = 0
    vnode_samples: int = 0


class Meter:
    """Accounts that are open. Pure."""

    def __init__(self) -> None:
        self._accounts: dict[Client, Account] = {}

    def count(self, client: Client, *, is_known: bool, num_samples: int, vnode_samples: int, now_unix_ms: int) -> None:
        """An answer was given. Without room it goes to the client's own account, or to that of all for whom there is none."""
        has_room = len(self._accounts) < (MAX_ACCOUNTS if is_known else STRANGERS_ACCOUNTS)
        choices = (client, replace(client, on_behalf=""))
        fit = next((one for one in choices if has_room or one in self._accounts), Client(client.model, ""))
        account = self._accounts.setdefault(fit, Account(now_unix_ms))
        account.num_answers += 1
        account.num_samples += num_samples
        account.vnode_samples += vnode_samples

    def take(self, busy: Collection[Client], at_most: int) -> dict[Client, Account]:
        """What was counted since it was taken last, of at most so many clients and none of ``busy``: it is counted here no more."""
        names = [client for client in self._accounts if client not in busy][: max(0, at_most)]
        return {client: self._accounts.pop(client) for client in names}


class Metering:
    """Counts what `Forward` and `Generate` gave to clients of this orchestrator; `run` tells the books."""

    def __init__(self, shared: Shared, books: Books) -> None:
        self._shared, self._books = shared, books
        self._meter = Meter()
        self._sealed: dict[Client, identity_pb2.Envelope] = {}
        """Said, and not taken by the books yet: said again in the same words, so that it counts once."""
        self._told = ""

    def answered(self, caller: Caller, on_behalf: str, answer: orchestrator_pb2.ForwardResponse) -> None:
        """A question was answered. One that another orchestrator passed on is in that one's books."""
        num_samples = int(answer.output.shape[0])
        self._count(caller, on_behalf, answer.model, num_samples, num_samples * len(answer.stages) * max(1, answer.num_agreeing))

    def wrote(self, caller: Caller, on_behalf: str, part: orchestrator_pb2.GenerateResponse) -> None:
        """A pass of a text was made: one sample."""
        self._count(caller, on_behalf, part.model, 1, len(part.stages))

    def _count(self, caller: Caller, on_behalf: str, model: str, num_samples: int, vnode_samples: int) -> None:
        if caller.orchestrator:
            return
        self._meter.count(
            Client(model, caller.node_id, on_behalf), is_known=caller.is_listed or caller.node_id in self._shared.gateways,
            num_samples=num_samples, vnode_samples=vnode_samples, now_unix_ms=self._now(),
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled; call `tell` at the end."""
        while True:
            await asyncio.sleep(TELL_S)
            await self.tell()

    async def tell(self) -> None:
        """Tells the books everything that they do not know yet. Where they are away it stays here."""
        for client, account in self._meter.take(self._sealed, MAX_ACCOUNTS - len(self._sealed)).items():
            self._sealed[client] = seal(identity_pb2.DOMAIN_USAGE, self._statement(client, account), self._shared.key)
        for client, envelope in list(self._sealed.items()):
            try:
                await answered(self._books.record_usage(envelope))
            except DcnrError as error:
                if error.code != self._told:
                    self._shared.history.say("usage_not_recorded", client.model, error.message, code=error.code)
                self._told = error.code
                if isinstance(error, (Unavailable, TimedOut)):
                    return
            else:
                del self._sealed[client]
                self._told = ""

    def _statement(self, client: Client, account: Account) -> ledger_pb2.UsageStatement:
        shared = self._shared
        return ledger_pb2.UsageStatement(
            network_id=shared.policy.network_id, model=client.model, kind=ledger_pb2.USAGE_KIND_QUESTIONS,
            subject=f"{client.node_id}-{shared.random_bytes(SUBJECT_BYTES).hex()}", users=[client.node_id] if client.node_id else [],
            orchestrator=shared.key.node_id, issued_unix_ms=self._now(), on_behalf=client.on_behalf, num_answers=account.num_answers,
            num_samples=account.num_samples, vnode_samples=account.vnode_samples, since_unix_ms=account.since_unix_ms,
        )  # fmt: skip

    def _now(self) -> int:
        return int(self._shared.clock.wall() * 1000)


def check_on_behalf(text: str) -> str:
    """For whom a client says that it asks. Raises InvalidInput (``bad_on_behalf``)."""
    if len(text) > MAX_ON_BEHALF or not text.isprintable():
        raise InvalidInput(f"on_behalf has at most {MAX_ON_BEHALF} printable letters", code="bad_on_behalf")
    return text
