"""Most of what a bookie does, it does in two versions of the protocol."""

import pytest

from tests.support.raw_bookie_client import V2, V3, Version


@pytest.fixture(params=[V2, V3], ids=["v2", "v3"])
def version(request: pytest.FixtureRequest) -> Version:
    chosen: Version = request.param
    return chosen
