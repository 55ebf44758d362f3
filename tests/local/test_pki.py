"""Certificates: who they name, what they are good for, who may read them."""

from __future__ import annotations

import datetime
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline_local.errors import UnreachableError
from paceline_local.pki import (
    Authority,
    KeyPair,
    Subject,
    control_plane_subjects,
    ensure_signing_key,
    node_subjects,
)
from paceline_local.probing import Client

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def load(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes())


def attribute(certificate: x509.Certificate, which: x509.ObjectIdentifier) -> list[str]:
    return [str(found.value) for found in certificate.subject.get_attributes_for_oid(which)]


def test_admin_is_in_the_masters_group_and_a_node_in_the_nodes_group(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca", NOW)
    subjects = {s.file: s for s in control_plane_subjects("127.64.0.1", "10.96.0.1")}
    admin = load(authority.issue(subjects["admin"]))
    assert attribute(admin, NameOID.ORGANIZATION_NAME) == ["system:masters"]
    node = load(authority.issue(node_subjects("node-0", "127.64.1.1")[0]))
    assert attribute(node, NameOID.COMMON_NAME) == ["system:node:node-0"]
    assert attribute(node, NameOID.ORGANIZATION_NAME) == ["system:nodes"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("kube-controller-manager", "system:kube-controller-manager"),
        ("kube-scheduler", "system:kube-scheduler"),
        ("kube-apiserver-kubelet-client", "kube-apiserver-kubelet-client"),
        ("service-proxy", "system:kube-proxy"),
    ],
)
def test_a_part_is_named_as_kubernetes_own_roles_expect(file: str, name: str, tmp_path: Path) -> None:
    subjects = {s.file: s for s in control_plane_subjects("127.64.0.1", "10.96.0.1")}
    certificate = load(Authority(tmp_path, "ca", NOW).issue(subjects[file]))
    assert attribute(certificate, NameOID.COMMON_NAME) == [name]
    assert attribute(certificate, NameOID.ORGANIZATION_NAME) == []


def test_the_api_servers_certificate_covers_its_addresses_and_its_names_in_the_cluster(tmp_path: Path) -> None:
    subjects = {s.file: s for s in control_plane_subjects("127.70.0.1", "10.96.0.1")}
    certificate = load(Authority(tmp_path, "ca", NOW).issue(subjects["kube-apiserver"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {
        "127.70.0.1",
        "127.0.0.1",
        "10.96.0.1",
    }
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_a_clients_certificate_does_not_serve(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca", NOW)
    for subject, serves in ((Subject("c", "c"), False), (Subject("s", "s", None, ("127.0.0.1",)), True)):
        usage = load(authority.issue(subject)).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) is serves
        assert ExtendedKeyUsageOID.CLIENT_AUTH in usage


def test_keys_are_p256_and_private(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki", "ca", NOW)
    pair = authority.issue(Subject("someone", "someone"))
    ensure_signing_key(tmp_path / "pki" / "sa.key", tmp_path / "pki" / "sa.pub")
    key = load(pair).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    for file in (tmp_path / "pki").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_what_exists_is_kept(tmp_path: Path) -> None:
    subject = Subject("someone", "someone")
    Authority(tmp_path, "ca", NOW).issue(subject)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    Authority(tmp_path, "ca", NOW + datetime.timedelta(days=3)).issue(subject)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_authority_whose_certificate_was_lost_is_made_anew_whole(tmp_path: Path) -> None:
    first = Authority(tmp_path, "ca", NOW)
    first.pair.certificate.unlink()
    again = Authority(tmp_path, "ca", NOW)
    certificate = load(again.issue(Subject("someone", "someone")))
    certificate.verify_directly_issued_by(load(again.pair))


@contextmanager
def serving(pair: KeyPair) -> Iterator[str]:
    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"hello": 1}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hello)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_client_accepts_a_server_of_its_authority_and_refuses_any_other(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    ours, other = Authority(tmp_path / "ours", "ca", now), Authority(tmp_path / "other", "ca", now)
    client = Client(ours.pair.certificate)
    here = Subject("server", "server", None, ("127.0.0.1",))
    with serving(ours.issue(here)) as url:
        assert client.get_json(url) == {"hello": 1}
    with serving(other.issue(here)) as url, pytest.raises(UnreachableError, match="certificate verify failed"):
        client.get(url)
    elsewhere = ours.issue(Subject("elsewhere", "elsewhere", None, ("127.0.0.2",)))
    with serving(elsewhere) as url, pytest.raises(UnreachableError, match="certificate verify failed"):
        client.get(url)
