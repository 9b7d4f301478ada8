"""What is wrong with files for TLS is said before anything is served or called."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.certificates import Certificates

from quire.errors import InvalidArgument
from quire.rpc.serving.tls import TlsFiles, client_context, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Certificates().files(tmp_path_factory.mktemp("tls"))


def test_nothing_older_than_tls_1_2_is_spoken_and_certificates_are_asked_for_if_wanted(files: TlsFiles) -> None:
    assert server_context(files).verify_mode is ssl.CERT_NONE
    assert server_context(files, asks_clients=True).verify_mode is ssl.CERT_REQUIRED
    client = client_context(files)
    assert client.verify_mode is ssl.CERT_REQUIRED
    assert client.check_hostname
    for context in (server_context(files), client, client_context(TlsFiles())):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_client_with_an_authority_of_its_own_trusts_no_other(files: TlsFiles) -> None:
    assert client_context(files).cert_store_stats()["x509_ca"] == 1


def test_what_is_wrong_is_named(files: TlsFiles, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    missing = str(tmp_path / "missing.pem")
    for wrong, problem in (
        (replace(files, certificate=None), "needs a certificate"),
        (replace(files, certificate=missing), "missing.pem.*No such file"),
        (replace(files, key=str(nonsense)), "nonsense.pem.*cannot be used"),
        (replace(files, ca=str(nonsense)), "nonsense.pem.*cannot be used"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            server_context(wrong)
    with pytest.raises(InvalidArgument, match="without an authority"):
        server_context(replace(files, ca=None), asks_clients=True)
    with pytest.raises(InvalidArgument, match="without its certificate"):
        client_context(replace(files, certificate=None))
