"""Parts of `OsDisk` that need no disk. What it does with files is in tests/contract/disk and tests/integration."""

from hypothesis import given
from hypothesis import strategies as st

from quire.runtime.os_disk import _cut


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 250), st.integers(0, 250))
def test_a_part_of_some_buffers_is_that_part_of_their_bytes(buffers: list[bytes], begin: int, end: int) -> None:
    assert b"".join(_cut(buffers, begin, end)) == b"".join(buffers)[begin:end]
