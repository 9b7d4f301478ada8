"""The checkpoint file reads back, and nothing else passes for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.checkpoint import Checkpoint, JournalPlace, decode_checkpoint, encode_checkpoint
from quire.errors import DamagedJournal

NUMBERS = st.integers(0, 2**64 - 1)
PLACES = st.lists(st.builds(JournalPlace, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple)
CHECKPOINTS = st.builds(Checkpoint, NUMBERS, PLACES)


@given(CHECKPOINTS)
def test_a_checkpoint_reads_back(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@given(CHECKPOINTS, st.data())
def test_a_flipped_bit_is_found(checkpoint: Checkpoint, data: st.DataObject) -> None:
    bad = bytearray(encode_checkpoint(checkpoint))
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedJournal):
        decode_checkpoint(bytes(bad))


@given(st.binary(max_size=60))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedJournal):
        decode_checkpoint(data)
