"""Somebody who attacks a server, from a process of their own: `python -m tests.support.programs.attacker KIND ADDRESS`.

A line on standard input begins the attack, which is answered with a line once it is under way. The next line ends it,
and is answered with what came of it in JSON: how often what was seen. What is sent again and again is made before.
"""

import asyncio
import json
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from contextlib import suppress
from itertools import cycle
from struct import pack
from typing import Final

from quire.codec import http2
from quire.codec.batch_checksum import batch_checksum
from quire.codec.http2 import Frames
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.compression import Compression, compressed
from quire.errors import QuireError
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.methods import WRITE, WRITE_ONCE
from quire.runtime import real_runtime
from quire.runtime.descriptors import raise_limit
from tests.support.waiting import paced

READ_BYTES: Final = 65536
PATIENCE_S: Final = 30.0
GOOD_BYE_S: Final = 0.5
AT_ONCE: Final = 50  # Connections that are opened together, so far apart.
AT_ONCE_S: Final = 0.01


class Attack(ABC):
    """Against one address, in rounds."""

    ROUND_S = 0.2

    def __init__(self, address: str) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.seen = Counter[str]()

    async def begin(self) -> None:  # noqa: B027 - few have something to begin with
        """Do what the rounds go on with."""

    @abstractmethod
    async def round(self) -> None: ...

    async def end(self) -> None:  # noqa: B027
        """Let go of everything."""


class Floods(Attack):
    """Frames of HTTP/2 that carry no message, beside open calls, without a token. Each kind has its connection."""

    CALLS: Final = 20
    FRAMES: Final = 20_000

    def __init__(self, address: str) -> None:
        super().__init__(address)
        headers = request_headers(WRITE.path, address="x", client_id="x", attempt=1, tried=(), timeout_s=None)
        calls = [http2.headers_frames(number, headers, end_stream=False) for number in range(1, 2 * self.CALLS, 2)]
        self._hello = b"".join([http2.PREFACE, http2.settings_frame([]), *calls])
        windows = [(http2.INITIAL_WINDOW_SIZE, 65_535 + n % 2) for n in range(http2.FRAME_BYTES_TAKEN // 6)]
        begun = http2.frame(http2.HEADERS, 0, 2 * self.CALLS + 1, b"\x82")
        part = http2.frame(http2.CONTINUATION, 0, 2 * self.CALLS + 1, b"\x83")
        floods = {
            "a large SETTINGS": http2.settings_frame(windows),
            "SETTINGS": b"".join(http2.settings_frame([each]) for each in windows[: self.FRAMES]),
            "WINDOW_UPDATE": http2.number_frame(http2.WINDOW_UPDATE, 0, 1) * self.FRAMES,
            "CONTINUATION": begun + part * self.FRAMES,
        }
        self._floods = cycle(floods.items())

    async def round(self) -> None:
        name, flood = next(self._floods)
        reader, writer = await asyncio.open_connection(self.host, self.port)
        frames, outcome = Frames(), "no good-bye"
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(GOOD_BYE_S):
                writer.write(self._hello + flood)
                while data := await reader.read(READ_BYTES):
                    for kind, _, _, payload in frames.feed(data):
                        if kind == http2.GOAWAY and http2.goaway_of(payload)[1] == http2.ENHANCE_YOUR_CALM:
                            outcome = "ENHANCE_YOUR_CALM"
        writer.transport.abort()
        self.seen[f"{name}: {outcome}"] += 1


class Bombs(Attack):
    """Batches that stand for millions of records, or for hundreds of megabytes."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._channel = GrpcTransport(real_runtime(), "bomber").channel(address)
        zeros = bytes(32 << 20)
        millions, much = record_set(zeros), record_set(zeros, members=1000)
        self._bombs = cycle(
            {
                "millions": pb.RecordSet(data=millions, count=len(zeros) // 4),
                "in disguise": pb.RecordSet(data=millions, count=1000),
                "much": pb.RecordSet(data=much, count=1000),
            }.items()
        )

    async def round(self) -> None:
        name, bomb = next(self._bombs)
        batch = pb.Batch(stream="bombed", record_set=bomb, crc32c=batch_checksum("bombed", [bomb.data]))
        try:
            await self._channel.call(WRITE_ONCE, pb.WriteOnceRequest(batch=batch), timeout_s=PATIENCE_S)
            self.seen[f"{name}: taken"] += 1
        except QuireError as error:
            self.seen[f"{name}: {type(error).__name__}"] += 1


def record_set(content: bytes, *, members: int | None = None) -> bytes:
    """Of so many members; unless told otherwise, of as many as there can be."""
    stored = compressed(content, Compression.LZ4)
    return pack(">IIII", 0x1001, members or len(content) // 4, len(content), len(stored)) + stored


class Crowd(Attack):
    """Connections that stay. In each round one is replaced by a new one, and others say a byte more."""

    ROUND_S = 0.02
    COUNT: Final = 1_200
    beginning = b""
    """What each of them says at once."""
    more = 0
    """How many say more in a round."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        raise_limit()
        self._held = deque[socket.socket]()

    async def begin(self) -> None:
        left = self.COUNT
        async for _ in paced(AT_ONCE_S):
            for _ in range(AT_ONCE):
                self._open()
            left -= AT_ONCE
            if left <= 0:
                return

    async def round(self) -> None:
        self._drop()
        self._open()
        self._held.rotate(-self.more)
        for connection in list(self._held)[: self.more]:
            with suppress(OSError):
                connection.send(b"x")

    async def end(self) -> None:
        while self._held:
            self._drop()

    def _open(self) -> None:
        with suppress(OSError):
            connection = socket.create_connection((self.host, self.port), timeout=PATIENCE_S)
            connection.sendall(self.beginning)
            connection.setblocking(False)
            self._held.append(connection)

    def _drop(self) -> None:
        if self._held:
            connection, fate = self._held.popleft(), "closed"
            with connection, suppress(ConnectionError):
                try:
                    connection.recv(READ_BYTES)
                except BlockingIOError:
                    fate = "held"
            self.seen[fate] += 1


class SlowBodies(Crowd):
    """Appends by HTTP, of which a byte comes every other second."""

    more = 12

    def __init__(self, address: str) -> None:
        super().__init__(address)
        head = f"POST /v1/default/streams/slow/records HTTP/1.1\r\nhost: {address}\r\ncontent-length: 100000\r\n\r\n"
        self.beginning = head.encode() + bytes(100)


ATTACKS: Final[dict[str, type[Attack]]] = {
    "floods": Floods,
    "bombs": Bombs,
    "slow": SlowBodies,
    "idle": Crowd,
}


async def attack_until_told(attack: Attack) -> None:
    async def rounds() -> None:
        async for _ in paced(attack.ROUND_S):
            async with asyncio.timeout(PATIENCE_S):
                await attack.round()

    await attack.begin()
    print("begun", flush=True)
    attacking = asyncio.create_task(rounds())
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait([attacking, told], return_when=asyncio.FIRST_COMPLETED)
    if not attacking.cancel():
        attacking.result()
    await asyncio.wait([attacking])
    await attack.end()


async def main(kind: str, address: str) -> None:
    attack = ATTACKS[kind](address)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await attack_until_told(attack)
        print(json.dumps(attack.seen), flush=True)
        attack.seen.clear()


if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # Whoever starts us may run before all others.
    asyncio.run(main(*sys.argv[1:]))
