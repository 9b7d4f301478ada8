"""Parts of `OsDisk` that need no disk. What it does with files is in tests/contract/disk and tests/integration."""

from hypothesis import given
from hypothesis import strategies as st

from quire.runtime.os_disk import _after


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 250))
def test_the_rest_after_a_short_write_is_the_rest_of_the_bytes(buffers: list[bytes], written: int) -> None:
    assert b"".join(_after(buffers, written)) == b"".join(buffers)[written:]
