"""Bytes from strangers: mutated, cut, spliced and invented frames do a bookie no harm.

What is drawn here is small, so that failures are shrunk to something readable. `make fuzz` looks for longer, guided by
which code its inputs reach.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.attack import attack, mutated, valid_frames
from tests.fuzz.bookie_frames import pieces_of, seeds
from tests.support.raw_bookie_client import LEDGER, V2, V3, long_poll

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
EXAMPLES = 3000 if LONG else 200
SEEDS = range(1000 if LONG else 60)

frames = st.sampled_from(valid_frames())


@st.composite
def flipped(draw: st.DrawFn) -> bytes:
    frame = bytearray(draw(frames))
    for at in draw(st.lists(st.integers(0, 8 * len(frame) - 1), min_size=1, max_size=4)):
        frame[at // 8] ^= 1 << at % 8
    return bytes(frame)


@st.composite
def cut(draw: st.DrawFn) -> bytes:
    frame = draw(frames)
    start, end = sorted(draw(st.tuples(st.integers(0, len(frame)), st.integers(0, len(frame)))))
    return frame[start:end]


@st.composite
def spliced(draw: st.DrawFn) -> bytes:
    """The beginning of one frame with the end of another, under a length that fits or does not."""
    first, second = draw(frames), draw(frames)
    body = first[4 : draw(st.integers(4, len(first)))] + second[draw(st.integers(4, len(second))) :]
    length = draw(st.one_of(st.just(len(body)), st.integers(0, 2**32 - 1), st.integers(0, 40)))
    return length.to_bytes(4, "big") + body


framed_garbage = st.binary(min_size=1, max_size=80).map(lambda body: len(body).to_bytes(4, "big") + body)
anything = st.one_of(frames, frames, flipped(), cut(), spliced(), framed_garbage, st.binary(max_size=60))


@pytest.mark.extended
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not LONG)
@given(pieces=st.lists(anything, min_size=1, max_size=12), seed=st.integers(0, 2**16))
def test_strange_frames_do_no_harm(pieces: list[bytes], seed: int) -> None:
    attack(pieces, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_floods_of_strange_frames_do_no_harm(seed: int) -> None:
    """Many at once, most of them whole and damaged inside, with valid ones between."""
    rng, valid = random.Random(seed), valid_frames()
    attack([mutated(rng.choice(valid), rng) if rng.random() < 0.7 else rng.choice(valid) for _ in range(80)], seed=seed)


def test_every_kind_of_request_at_once_does_no_harm() -> None:
    """What the fuzzer starts from is valid."""
    attack(valid_frames())
    for seed in seeds():
        attack(pieces_of(seed))


@pytest.mark.parametrize("size", [0, 1, 4, 5, 100, 5000])
def test_noise_does_no_harm(size: int) -> None:
    rng = random.Random(size)
    attack([rng.randbytes(size) for _ in range(10)], seed=size)


# Found by the fuzzer, or by reading: each did harm once.
FOUND = {
    "a frame of one byte that promises an add": [bytes.fromhex("00000001 02")],
    "a long poll that knows less than nothing": [V2.add(LEDGER, 0), V3.frame(long_poll(-2, 50))],
    "a client that leaves while its long poll is looked up": [V2.add(LEDGER, 0), V3.frame(long_poll(5, 2**62))],
}


@pytest.mark.parametrize("what", FOUND)
def test_what_did_harm_once_does_no_more(what: str) -> None:
    attack(FOUND[what])
