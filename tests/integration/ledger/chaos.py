"""Trouble for processes: they are killed, paused and started again at random moments, as a seed has it.

Most of the time as many bookies stay up as a ledger of three needs; now and then more of them are gone at once, and
nothing can be written or recovered until some are back. One that starts counts as gone until it is listed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping

from tests.support.servers.killable import BookieProcess, ClientProcess, Process
from tests.support.waiting import at_a_random_moment

GONE_MAX, GONE_MAX_SOMETIMES = 2, 4  # Of five bookies.
PAUSE_S_MAX = 1.0


class Chaos:
    """Bookies and clients, and what happened to them."""

    def __init__(
        self,
        rng: random.Random,
        bookies: list[BookieProcess],
        clients: list[ClientProcess],
        is_listed: Callable[[str], bool],
    ) -> None:
        self._rng, self._bookies, self._clients, self._is_listed = rng, bookies, clients, is_listed
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []

    async def run(self, seconds: float, at_least: Mapping[str, float]) -> None:
        """For so long, or up to twice as long until so much of each has happened: chance may be sparing at first."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (for_s := loop.time() - began_s) < 2 * seconds:
            if for_s >= seconds and all(self.happened[what] >= count for what, count in at_least.items()):
                return
            await at_a_random_moment(PAUSE_S_MAX, self._rng.random())
            self.check_alive()
            self._harm_a_bookie()
            self._harm_a_client()
            self._mend(self._bookies, chance=0.3)
            self._mend(self._clients, chance=0.5)

    def repair(self) -> None:
        """Every bookie runs; every client is dead, and its diary says all that it knew."""
        self.check_alive()
        self._mend(self._bookies, chance=1.0)
        for client in self._clients:
            client.kill()

    def kill_all(self) -> None:
        for process in (*self._bookies, *self._clients):
            process.kill()

    def check_alive(self) -> None:
        """Nobody dies unless it is killed here."""
        for process in (*self._bookies, *self._clients):
            assert not process.died_by_itself, f"{process.name} ended by itself:\n{process.log_end()}"

    def _harm_a_bookie(self) -> None:
        rng = self._rng
        up = [each for each in self._bookies if each.is_running and not each.is_paused]
        gone = len(self._bookies) - sum(self._is_listed(each.name) for each in up)
        gone_max = GONE_MAX_SOMETIMES if rng.random() < 0.05 else GONE_MAX
        if not up or gone >= gone_max or rng.random() < 0.3:
            return
        if rng.random() < 0.5:
            self._kill(rng.choice(up), "bookie killed")
        else:
            self._pause(rng.choice(up), "bookie paused")
        if gone >= GONE_MAX:
            self.happened["too few bookies left"] += 1

    def _harm_a_client(self) -> None:
        client, kind = self._rng.choice(self._clients), self._rng.random()
        if not client.is_running or client.is_paused:
            return
        if kind < 0.15:
            self._kill(client, f"{client.role} killed")
        elif kind < 0.3:
            self._pause(client, f"{client.role} paused")

    def _kill(self, process: Process, what: str) -> None:
        process.kill()
        self._note(what, process)

    def _pause(self, process: Process, what: str) -> None:
        process.pause()
        self._note(what, process)

    def _mend(self, processes: list[BookieProcess] | list[ClientProcess], *, chance: float) -> None:
        for process in processes:
            if process.is_running and not process.is_paused:
                continue
            if self._rng.random() < chance:
                if process.is_paused:
                    process.resume()
                else:
                    process.start()
                self._note("mended", process)

    def _note(self, what: str, process: Process) -> None:
        self.happened[what] += 1
        self.story.append(f"{process.name} {what}")
