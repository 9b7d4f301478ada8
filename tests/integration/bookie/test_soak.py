"""A minute of creating, writing, reading, fencing and deleting leaves memory, descriptors and disk use flat."""

import os
import random
from pathlib import Path

import pytest

from tests.soak.bookie import is_flat, soak

pytestmark = pytest.mark.extended

SECONDS = float(os.environ.get("QUIRE_SOAK_SECONDS", "60"))


@pytest.mark.timeout(SECONDS + 120)
async def test_a_bookie_under_mixed_load_does_not_grow(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    result = await soak(tmp_path, seconds=SECONDS, seed=seed)
    assert result.ledgers_deleted > 20, "too little was deleted to prove anything"
    assert is_flat(result), f"seed {seed}: {result.growth()}"
