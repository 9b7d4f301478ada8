"""Response codes: Apache's numbers in both versions, and nothing that a Java client cannot bear."""

import pytest

from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire.codes import Status, status_of_v2, status_of_v3
from quire.errors import ProtocolViolation

NUMBERS = {
    "EOK": (0, 0),
    "ENOLEDGER": (1, 402),
    "ENOENTRY": (2, 403),
    "EBADREQ": (100, 404),
    "EIO": (101, 501),
    "EUA": (102, 502),
    "EBADVERSION": (103, 503),
    "EFENCED": (104, 504),
    "EREADONLY": (105, 505),
    "ETOOMANYREQUESTS": (106, 506),
    "EUNKNOWNLEDGERSTATE": (107, 507),
}


def test_every_code_has_apaches_numbers() -> None:
    assert {status.name: (status.v2, status.value) for status in Status} == NUMBERS
    assert dict(pb.StatusCode.items()) == {status.name: status.value for status in Status}


@pytest.mark.parametrize("status", Status)
def test_both_numbers_lead_back_to_the_code(status: Status) -> None:
    assert status_of_v2(status.v2) is status
    assert status_of_v3(status.value) is status
    assert status.meaning


def test_a_client_of_version_2_is_never_told_107() -> None:
    assert {status.v2_answer for status in Status} == {v2 for v2, _ in NUMBERS.values()} - {107}
    assert Status.EUNKNOWNLEDGERSTATE.v2_answer == Status.EIO.v2


@pytest.mark.parametrize("number", [-1, 3, 99, 108, 402, 2**31 - 1])
def test_a_number_without_a_meaning_is_refused(number: int) -> None:
    with pytest.raises(ProtocolViolation, match=str(number)):
        status_of_v2(number)


@pytest.mark.parametrize("number", [-1, 1, 100, 400, 508])
def test_a_status_without_a_meaning_is_refused(number: int) -> None:
    with pytest.raises(ProtocolViolation, match=str(number)):
        status_of_v3(number)
