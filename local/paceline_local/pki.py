"""Certificates of one instance: EC P-256, one CA for everything and one for the aggregation layer's front proxy.

Every connection between the parts is TLS with both ends checked. A certificate is made once and kept; the files are
readable by the user alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = datetime.timedelta(days=3650)
# A certificate that is valid from this very second is refused by a process whose clock reads a little less.
BACKDATED = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Subject:
    """Who a certificate speaks for, and where it may be shown."""

    file: str
    """Name of the files, without `.crt` and `.key`."""
    common_name: str
    organization: str | None = None
    server_names: tuple[str, ...] = ()
    """DNS names and addresses it serves at; empty for a certificate that is only a client's."""


@dataclass(frozen=True)
class KeyPair:
    """Files of a certificate and its private key."""

    certificate: Path
    key: Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    scratch.replace(path)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common_name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """A certificate authority in a folder; made on first use."""

    def __init__(self, folder: Path, name: str, now: datetime.datetime) -> None:
        self._folder = folder
        self._now = now
        self.pair = KeyPair(folder / f"{name}.crt", folder / f"{name}.key")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.pair.certificate.exists() and self.pair.key.exists()):
            self._make(name)
        self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(self.pair.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - BACKDATED)
            .not_valid_after(self._now + VALID_FOR)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _make(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"paceline-local-{name}", None)
        certificate = (
            self._builder(subject, key)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without its key would be taken for a whole authority's.
        write_private(self.pair.key, _pem_key(key))
        write_private(self.pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, subject: Subject) -> KeyPair:
        """The subject's certificate and key, made on first use; a server's certificate is also good as a client's."""
        pair = KeyPair(self._folder / f"{subject.file}.crt", self._folder / f"{subject.file}.key")
        if pair.certificate.exists() and pair.key.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if subject.server_names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            self._builder(_name(subject.common_name, subject.organization), key)
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if subject.server_names:
            names = [_alternative(name) for name in subject.server_names]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        write_private(pair.key, _pem_key(key))
        write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def ensure_signing_key(private: Path, public: Path) -> None:
    """Make the key pair that service account tokens are signed with, unless it is there."""
    if private.exists() and public.exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(private, _pem_key(key))
    write_private(
        public,
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


def control_plane_subjects(address: str, service_address: str) -> Sequence[Subject]:
    """All subjects of the main CA but the nodes'.

    Args:
        address: Loopback address of the control plane's servers.
        service_address: Cluster address of the `kubernetes` Service.
    """
    in_cluster = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    here = (address, "127.0.0.1", "localhost")
    return (
        Subject("kube-apiserver", "kube-apiserver", server_names=(*here, service_address, *in_cluster)),
        Subject("kube-apiserver-kubelet-client", "kube-apiserver-kubelet-client"),
        Subject("admin", "paceline-local-admin", "system:masters"),
        Subject("kube-controller-manager", "system:kube-controller-manager", server_names=here),
        Subject("kube-scheduler", "system:kube-scheduler", server_names=here),
        Subject("service-proxy", "system:kube-proxy"),
    )


FRONT_PROXY_CLIENT = Subject("front-proxy-client", "front-proxy-client")


def node_subjects(name: str, address: str) -> tuple[Subject, Subject]:
    """A node's two subjects: its identity towards the API server, and its own server's."""
    return (
        Subject(name, f"system:node:{name}", "system:nodes"),
        Subject(f"{name}-server", f"{name}-server", server_names=(address,)),
    )
