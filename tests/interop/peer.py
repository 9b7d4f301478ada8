"""A process that does with Apache BookKeeper's classes what we ask for: `java/src/main/java/quire/interop/Peer.java`.

A `JavaPeer` outlives the event loops of single tests, so a thread reads the answers. The process ends when its
standard input is closed, and so also when the tests are killed.
"""

import asyncio
import concurrent.futures
import itertools
import json
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.servers.jvm import java_command

ANSWER_WITHIN_S = 60.0


class JavaError(Exception):
    """What a command threw over there. `name` is its class; `causes` are what caused it, outermost first."""

    def __init__(self, name: str, message: str, causes: list[str]) -> None:
        super().__init__("; ".join([f"{name}: {message}", *causes]))
        self.name, self.causes = name, causes


class JavaPeer:
    """One Java process. Commands may be under way at the same time."""

    def __init__(self, log: Path) -> None:
        self.log = log  # What Java wrote to standard error, for whoever has to find out what went wrong.
        self._ids = itertools.count(1)
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._lock = threading.Lock()
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                java_command("quire.interop.Peer"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._reader = threading.Thread(target=self._read_answers, name="java answers", daemon=True)
        self._reader.start()

    async def call(self, command: str, **arguments: Any) -> Any:
        """Have a command carried out. Raises `JavaError` for what it throws, `TimeoutError` if nothing comes back."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        answer.set_running_or_notify_cancel()  # Whoever gives up waiting must not get in the way of the reader.
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "do": command, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def open(self, uri: str, *, session_timeout_s: float = 10.0) -> AsyncIterator["ApacheCluster"]:
        """The cluster at `uri`, as a Java bookie and a Java client open it."""
        number = await self.call("cluster.open", uri=uri, session_timeout_ms=round(session_timeout_s * 1000))
        try:
            yield ApacheCluster(self, number)
        finally:
            if self._process.poll() is None:
                await self.call("cluster.close", cluster=number)

    def stop(self) -> None:
        """End the process as the end of the tests would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
            raise
        finally:
            self._end()

    def kill(self) -> None:
        """End the process as a crash would: without a word to anybody."""
        self._process.kill()
        self._process.wait(10)
        self._end()

    def _end(self) -> None:
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # Bytes that nobody will read any more.

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(answer["id"])
            if "error" in answer:
                waiting.set_exception(JavaError(answer["error"], answer["message"], answer.get("causes", [])))
            else:
                waiting.set_result(answer["ok"])
        with self._lock:
            unanswered, self._waiting = self._waiting, {}
        for waiting in unanswered.values():
            waiting.set_exception(RuntimeError(f"the Java process ended without an answer; see {self.log}"))


class ApacheCluster:
    """One cluster that the Java process has open."""

    def __init__(self, peer: JavaPeer, number: int) -> None:
        self._peer, self._number = peer, number

    async def call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(command, cluster=self._number, **arguments)
