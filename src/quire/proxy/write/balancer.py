"""The balancer: the one of all write proxies that looks at what each has to do, and has streams moved to even it out.

Whoever holds the lock at `<namespace>/.balancer` is it; the number of its place in the queue is its term. It asks
every proxy what it owns, decides by `quire.protocol.balancing`, and has the owner of a stream give it up to another
proxy: the same way as by an operator's hand. Owner and target finish that among themselves, also if the balancer dies.

The lock is a courtesy here, too. Two that believe to be the balancer harm nobody: a stream is written by whoever holds
its own lock, and fences it. They could only undo each other's work, and do not: a proxy that has obeyed a later one
refuses an earlier one, and a move is refused if the stream is not in the life any more in which it was seen.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import LockLost, NotOwner, QuireError, StoreClosed, Unavailable
from quire.metadata.locks import HeldLock, hold_lock, lock_owners
from quire.metadata.paths import join
from quire.protocol.balancing import BalanceSettings, Plan, ProxyLoad, SmoothedLoads, StreamLoad, plan_moves
from quire.protocol.rate_limits import load
from quire.protocol.stream_states import StreamState
from quire.proxy.membership import LiveSet, Member
from quire.proxy.write.load_board import LoadBoard
from quire.proxy.write.metrics import WriteProxyMetrics
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving.methods import HEARTBEAT, LIST_OWNED, RELEASE
from quire.rpc.serving.transport import Transport
from quire.stream.context import StreamContext
from quire.telemetry.events import logger

BALANCER: Final = ".balancer"
_ASK_S: Final = 5.0  # A proxy that does not say what it has within this time is left alone.
_RETRY_S: Final = 0.5
_DIGITS: Final = 10  # Of the number at the end of a lock's node.
_log = logger("proxy.balancer")


class _Looked(NamedTuple):
    """What all proxies said."""

    members: dict[str, Member]
    loads: list[ProxyLoad]
    lives: dict[tuple[str, str], str]
    """By proxy and stream."""


class Balancer:
    """One proxy's share in balancing: it wants to be the balancer, and is when it is elected."""

    def __init__(
        self,
        context: StreamContext,
        settings: WriteProxySettings,
        address: pb.Owner,
        namespace: str,
        writers: LiveSet,
        board: LoadBoard,
        transport: Transport,
        metrics: WriteProxyMetrics,
    ) -> None:
        self._store, self._clock, self._rng = context.store, context.runtime.clock, context.runtime.rng
        self._path = join(context.path, BALANCER)
        self._settings, self._rules, self._address, self._namespace = settings, settings.balance, address, namespace
        self._writers, self._board, self._transport, self._metrics = writers, board, transport, metrics
        self._term: _Term | None = None

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[None]:
        """Stand for election, and balance whenever it is elected, for the block."""
        standing = asyncio.create_task(self._stand(), name="stand for balancer")
        try:
            yield
        finally:
            standing.cancel()
            await asyncio.wait([standing])
            if not standing.cancelled():
                standing.result()  # A bug comes to light.

    @property
    def term(self) -> int:
        """Its number while it is the balancer, as far as it knows; else 0."""
        return 0 if self._term is None else self._term.number

    async def asked(self, request: pb.BalanceRequest) -> pb.BalanceResponse:
        """What an operator wants: a plan, or that it is carried out. Raises `NotOwner` if another one is the balancer,
        and `Unavailable` if nobody is."""
        term = self._term
        if term is not None:
            return await term.asked(request)
        holders = await lock_owners(self._store, self._path)
        host, _, port = holders[0].decode(errors="replace").rpartition(":") if holders else ("", "", "")
        if not port.isdecimal() or (host, int(port)) == (self._address.host, self._address.port):
            raise Unavailable(
                "no write proxy is the balancer just now",
                hint="Try again in a moment. Proxies with write.balance.is_on=false never are.",
            )
        raise NotOwner(f"the balancer is {host}:{port}", proxy=pb.Owner(host=host, port=int(port)), owner_live=True)

    async def _stand(self) -> None:
        own = f"{self._address.host}:{self._address.port}"
        while True:
            try:
                async with hold_lock(self._store, self._path, self._rng, owner=own.encode()) as held:
                    await self._lead(held)
            except StoreClosed:
                return
            except QuireError as error:
                _log.info("balancer.not_elected", problem=str(error))
            await self._clock.sleep(_RETRY_S)

    async def _lead(self, held: HeldLock) -> None:
        """Balance until the lock is known to be lost."""
        term = self._term = _Term(self, held)
        self._metrics.is_balancer.value = 1
        _log.info("balancer.elected", term=term.number)
        tasks = [
            asyncio.create_task(term.balance(), name="balance"),
            asyncio.create_task(held.wait_lost(), name="mind the balancer's lock"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._term = None
            self._metrics.is_balancer.value = 0
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            _log.info("balancer.term_ended", term=term.number)
        for task in tasks:
            if not task.cancelled():
                task.result()

    # --- Looking

    async def _look(self) -> _Looked:
        """What each proxy that answers has to do."""
        members = {member.address: member for member in self._writers.current}
        answers = await asyncio.gather(*(self._owned_by(proxy) for proxy in sorted(members)))
        loads: list[ProxyLoad] = []
        lives: dict[tuple[str, str], str] = {}
        for proxy, answer in zip(sorted(members), answers, strict=True):
            if answer is None:
                continue
            served = [each for each in answer.streams if each.state == StreamState.INITIALIZED.name]
            loads.append(ProxyLoad(proxy, [_stream_load(each) for each in served], answer.room))
            lives |= {(proxy, each.stream): each.life for each in served}
        self._metrics.balance_looks.add()
        return _Looked(members, loads, lives)

    async def _owned_by(self, proxy: str) -> pb.ListOwnedResponse | None:
        try:
            answer: pb.ListOwnedResponse = await self._transport.channel(proxy).call(
                LIST_OWNED, pb.ListOwnedRequest(), timeout_s=_ASK_S
            )
            return answer
        except QuireError as error:
            _log.info("balancer.proxy_silent", proxy=proxy, problem=str(error))
            return None

    # --- Moving

    async def _move(self, move: pb.StreamMove, term: int) -> str:
        """Why it was not made; empty if it was."""
        source, target = (f"{each.host}:{each.port}" for each in (move.source, move.target))
        timeout_s = self._settings.acquire_timeout_s
        release = pb.ReleaseRequest(
            namespace=self._namespace,
            stream=move.stream,
            suggested_owner=move.target,
            term=term,
            expected_life=move.life,
        )
        take = pb.HeartbeatRequest(namespace=self._namespace, stream=move.stream, handed_over=True)
        try:
            await self._transport.channel(source).call(RELEASE, release, timeout_s=timeout_s)
            await self._transport.channel(target).call(HEARTBEAT, take, timeout_s=timeout_s)
        except QuireError as error:
            self._metrics.balance_failed.add()
            _log.warning("balancer.not_moved", stream=move.stream, source=source, target=target, problem=str(error))
            return str(error) or type(error).__name__
        self._metrics.balance_moved.add()
        _log.info("balancer.moved", stream=move.stream, source=source, target=target, load=round(move.load))
        return ""


class _Term:
    """What one balancer knows between its election and its end."""

    def __init__(self, balancer: Balancer, held: HeldLock) -> None:
        self._balancer, self._held, self._rules = balancer, held, balancer._rules
        self.number = int(held.path[-_DIGITS:]) + 1
        self._smoothed = SmoothedLoads()
        self._busy = asyncio.Lock()  # One look, or one round of moves, at a time.

    async def balance(self) -> None:
        """Look again and again. The first look of a term only learns: whoever was balancer before may have just moved
        something."""
        is_first = True
        while True:
            if not self._rules.interval_s:
                await asyncio.Event().wait()  # Somebody will ask.
            await self._balancer._clock.sleep(self._rules.interval_s)
            try:
                async with self._busy:
                    plan, looked = await self._plan(self._rules)
                    if not is_first:
                        await self._carry_out(_moves(plan, looked))
                is_first = False
            except LockLost:
                raise
            except QuireError as error:
                _log.warning("balancer.round_failed", problem=str(error))

    async def asked(self, request: pb.BalanceRequest) -> pb.BalanceResponse:
        async with self._busy:
            if request.moves:
                made = await self._carry_out(request.moves)
                return self._answer(pb.BalanceResponse(moves=made))
            plan, looked = await self._plan(_asked_rules(self._rules, request))
            rooms = {each.proxy: (len(each.streams), each.room) for each in looked.loads}
            proxies = [
                pb.ProxyBalance(
                    proxy=looked.members[proxy].owner,
                    load=plan.before[proxy],
                    load_then=plan.after[proxy],
                    streams=rooms[proxy][0],
                    room=rooms[proxy][1],
                )
                for proxy in sorted(plan.before)
            ]
            return self._answer(pb.BalanceResponse(proxies=proxies, moves=_moves(plan, looked)))

    def _answer(self, response: pb.BalanceResponse) -> pb.BalanceResponse:
        response.balancer.CopyFrom(self._balancer._address)
        response.term = self.number
        return response

    async def _plan(self, rules: BalanceSettings) -> tuple[Plan, _Looked]:
        balancer = self._balancer
        looked = await balancer._look()
        plan = plan_moves(self._smoothed.on_look(looked.loads), rules)
        heaviest, total = max(plan.before.values(), default=0.0), sum(plan.before.values())
        balancer._metrics.balance_spread.value = heaviest * len(plan.before) / total if total else 1.0
        await balancer._board.write(plan.before, self._held.guard())
        if plan.moves:
            _log.info("balancer.planned", term=self.number, moves=len(plan.moves), proxies=len(plan.before))
        return plan, looked

    async def _carry_out(self, moves: Sequence[pb.StreamMove]) -> list[pb.StreamMove]:
        """Make the moves, some at a time. Those that are left when the lock is known to be lost are not made."""
        at_once = asyncio.Semaphore(self._rules.moves_at_once)

        async def carry_out(move: pb.StreamMove) -> pb.StreamMove:
            made = pb.StreamMove()
            made.CopyFrom(move)
            async with at_once:
                made.problem = (
                    "another proxy is the balancer now"
                    if self._held.lost
                    else await self._balancer._move(move, self.number)
                )
            return made

        return list(await asyncio.gather(*map(carry_out, moves)))


def _asked_rules(rules: BalanceSettings, request: pb.BalanceRequest) -> BalanceSettings:
    """Raises `InvalidArgument` if what is asked for makes no sense."""
    names = ("water_mark", "rest_s", "moves_max")
    return replace(rules, **{name: getattr(request, name) for name in names if request.HasField(name)})


def _moves(plan: Plan, looked: _Looked) -> list[pb.StreamMove]:
    return [
        pb.StreamMove(
            stream=move.stream,
            source=looked.members[move.source].owner,
            target=looked.members[move.target].owner,
            load=move.load,
            life=looked.lives[move.source, move.stream],
        )
        for move in plan.moves
    ]


def _stream_load(stream: pb.OwnedStream) -> StreamLoad:
    weight = load(bytes_per_s=stream.bytes_per_s, requests_per_s=stream.requests_per_s)
    return StreamLoad(stream.stream, weight, stream.owned_s)
