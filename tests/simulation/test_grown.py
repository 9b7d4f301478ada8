"""What three simulated bookies hold is moved until five have their share: see `tests/simulation/replication/grown.py`.

`QUIRE_SIMULATED_REBALANCE_BYTES` is how much there is in all, every copy counted; with -s the test prints what it did.
"""

import os
import random
import time

import pytest

from quire.testing import simulate
from quire.testing.sim_stored import StoredBytes
from tests.simulation.replication.grown import Size, live
from tests.simulation.replication.shared_content import SharedContent, make_bodies

BYTES = int(os.environ.get("QUIRE_SIMULATED_REBALANCE_BYTES") or 0)
SIZE = Size(BYTES, 128 << 20, 4 << 20) if BYTES else Size(256 << 20, 4 << 20, 128 << 10)


@pytest.mark.extended
@pytest.mark.timeout(7200)
def test_everything_that_three_bookies_hold_is_spread_over_five_and_no_read_fails() -> None:
    began_s = time.process_time()
    report = simulate(1, lambda sim: live(sim, SIZE), time_limit_s=1e9, step_limit=10**12)
    print(
        f"\n{SIZE.copies} copies of {SIZE.entry_bytes} bytes, {SIZE.copies * SIZE.entry_bytes / 1e9:.2f} GB, in "
        f"{SIZE.ledgers} ledgers on 3 bookies; on 5 after {report.moves} moves, killed after "
        f"{report.made_before_kill}: {report.named_entries} entries, {report.copied_bytes / 1e9:.2f} GB\n"
        f"{report.reads_while_moving} reads meanwhile, {report.reads} until old copies were gone, none failed\n"
        f"copies: {dict(sorted(report.copies.items()))}; {report.own_bytes / 1e6:.0f} MB in memory; "
        f"{time.process_time() - began_s:.0f} s of CPU"
    )
    assert 0 < report.made_before_kill < report.moves
    assert report.named_entries == report.moves * SIZE.entries
    # The move in which it was killed may have been at its end: then nobody lived to tell.
    assert report.moves - 1 <= report.copied_bytes / (SIZE.entries * SIZE.entry_bytes) <= report.moves
    assert report.reads_while_moving > 0
    assert sum(report.copies.values()) == SIZE.copies
    fair = SIZE.copies / 5
    assert len(report.copies) == 5
    assert all(count == pytest.approx(fair, rel=0.1) for count in report.copies.values())


def test_a_disk_that_keeps_bodies_once_gives_back_what_was_written() -> None:
    """Method: the same changes to a file that is kept so and to one that is not: bodies, halves of them, and bodies of
    which one byte is wrong."""
    bodies = make_bodies(3, 100)
    for seed in range(200):
        rng = random.Random(seed)
        shared, plain = StoredBytes(lambda: SharedContent(bodies)), StoredBytes()
        for _ in range(30):
            body = rng.choice(bodies)
            wrong = bytearray(body)
            wrong[rng.randrange(100)] ^= 1
            parts = [body, body, bytes(wrong), body[: rng.randrange(100)], rng.randbytes(rng.randrange(20)), bytes(30)]
            data = b"".join(rng.choices(parts, k=rng.randrange(4)))
            offset, size = rng.randrange(1000), rng.randrange(1200)
            mark = shared.mark()
            for file in (shared, plain):
                file.write(offset, data)
                if size % 10 == 0:
                    file.resize(size)
                if size % 10 == 1:
                    file.sync(mark)
                if size % 10 == 2:
                    file.flip_bit(offset, 3)
            begin = rng.randrange(1000)
            assert shared.visible[begin : begin + size] == plain.visible[begin : begin + size]
            assert len(shared.visible) == len(plain.visible)
        assert shared._durable[:] == plain._durable[:]
        assert shared.visible.copy()[:] == plain.visible[:]
    kept = SharedContent(bodies)
    kept[0:0] = b"head" + bodies[1] + b"tail" + bodies[2]
    assert kept.own_bytes == 8
