"""What an instance remembers: one folder each, and a machine-wide record of who has which loopback addresses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline_local import network
from paceline_local.errors import LocalError, UsageError
from paceline_local.locking import locked
from paceline_local.paths import default_instance, runtime_root
from paceline_local.pki import write_private
from paceline_local.processes import ProcessIdentity, is_running
from paceline_local.progress import Progress, silent

SCHEMA = 1


@dataclass(frozen=True)
class Ports:
    """Ports on the control plane's address."""

    api_server: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True)
class Shape:
    """What an instance is asked to consist of."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: str = ""
    """Kubernetes quantity; empty for the machine's."""
    memory_per_node: str = ""
    """Kubernetes quantity; empty for the machine's."""
    bare: bool = False
    """No Paceline and no Prometheus in it."""
    prometheus: bool = True


@dataclass(frozen=True)
class InstanceRecord:
    """Content of `instance.json`."""

    octet: int
    ports: Ports
    shape: Shape
    owner: ProcessIdentity | None = None
    """A temporary instance's maker: once that process is gone, the instance may be cleared away."""


@dataclass(frozen=True)
class PartRecord:
    """A started process of the instance, and how it was started."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    process: ProcessIdentity


def _identity(raw: dict[str, Any] | None) -> ProcessIdentity | None:
    return ProcessIdentity(**raw) if raw else None


def _to_json(value: object) -> bytes:
    assert dataclasses.is_dataclass(value)
    assert not isinstance(value, type)
    return json.dumps({"schema": SCHEMA} | dataclasses.asdict(value), indent=1).encode() + b"\n"


class Instance:
    """The folder of one instance; the names of everything in it."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = (directory or default_instance()).expanduser().resolve()

    @property
    def record_file(self) -> Path:
        return self.directory / "instance.json"

    @property
    def kubeconfig(self) -> Path:
        """The user's (admin's) kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def tools(self) -> Path:
        """Folder with links to kubectl and helm, for `$PATH`."""
        return self.directory / "bin"

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def authority(self) -> Path:
        """Certificate of the CA that every server of the instance is checked against."""
        return self.pki / "ca.crt"

    @property
    def etcd_data(self) -> Path:
        return self.directory / "etcd"

    @property
    def parts(self) -> Path:
        return self.directory / "parts"

    def log(self, part: str) -> Path:
        return self.directory / "logs" / f"{part}.log"

    def identity(self, user: str) -> Path:
        """Kubeconfig of one of the instance's own parts."""
        return self.directory / "kubeconfigs" / user

    def node(self, name: str) -> Path:
        return self.directory / "nodes" / name

    @property
    def service_proxy(self) -> Path:
        return self.directory / "serviceproxy"

    # A socket's path has to be short, which the instance's own folder may not be.
    def etcd_socket(self, octet: int) -> Path:
        return runtime_root() / f"etcd-{octet}.sock"

    def etcd_peer_socket(self, octet: int) -> Path:
        return runtime_root() / f"etcd-{octet}-peer.sock"

    @contextmanager
    def lock(self, what: str, progress: Progress = silent, purpose: str = "state") -> Iterator[None]:
        """Held while the instance is changed. The file is outside the folder, which `down` removes.

        Args:
            what: What the holder does, for those who wait.
            progress: Told about a wait.
            purpose: Locks of different purposes are independent.
        """
        # Paths are long and file names may not be.
        name = hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
        with locked(runtime_root() / f"{name}-{purpose}.lock", what, progress, remove=True):
            yield

    def read(self) -> InstanceRecord | None:
        """The record, or None where there is no instance.

        Raises:
            LocalError: The record was written by a version of Paceline that this one does not know.
        """
        try:
            raw = json.loads(self.record_file.read_bytes())
        except FileNotFoundError:
            return None
        if raw.get("schema") != SCHEMA:
            raise LocalError(
                f"{self.record_file} was written by another version of Paceline; run `down` with that version, "
                f"or stop its processes and remove {self.directory}"
            )
        return InstanceRecord(
            octet=raw["octet"],
            ports=Ports(**raw["ports"]),
            shape=Shape(**raw["shape"]),
            owner=_identity(raw["owner"]),
        )

    def write(self, record: InstanceRecord) -> None:
        write_private(self.record_file, _to_json(record))

    def read_parts(self) -> dict[str, PartRecord]:
        """The records of all parts that were started and not stopped, by name."""
        found = {}
        for path in sorted(self.parts.glob("*.json")):
            raw = json.loads(path.read_bytes())
            process = _identity(raw["process"])
            assert process is not None
            found[raw["name"]] = PartRecord(raw["name"], tuple(raw["argv"]), raw["environment"], process)
        return found

    def write_part(self, part: PartRecord) -> None:
        self.parts.mkdir(mode=0o700, exist_ok=True)
        write_private(self.parts / f"{part.name}.json", _to_json(part))

    def forget_part(self, name: str) -> None:
        (self.parts / f"{name}.json").unlink(missing_ok=True)

    def create(self, shape: Shape, owner: ProcessIdentity | None = None) -> InstanceRecord:
        """Make the folder and reserve an octet and ports for it.

        Raises:
            UsageError: The folder exists and has something else in it.
            LocalError: All octets are taken.
        """
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} is neither empty nor a local cluster's; name another folder with --dir")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _reservations() as reserved:
            octet = _free_octet(reserved, network.octets_in_use())
            record = InstanceRecord(octet, choose_ports(octet), shape, owner)
            self.write(record)
            (runtime_root() / "octets" / str(octet)).write_text(str(self.directory))
        return record

    def remove(self, record: InstanceRecord) -> None:
        """Delete what an instance made in its folder, the folder if that leaves it empty, and the reservation."""
        for name in ("etcd", "pki", "kubeconfigs", "logs", "nodes", "serviceproxy", "parts", "bin"):
            if (self.directory / name).exists():
                shutil.rmtree(self.directory / name)
        self.kubeconfig.unlink(missing_ok=True)
        with _reservations():
            self.record_file.unlink(missing_ok=True)
            reservation = runtime_root() / "octets" / str(record.octet)
            if reservation.exists() and reservation.read_text() == str(self.directory):
                reservation.unlink()
        for socket in (self.etcd_socket(record.octet), self.etcd_peer_socket(record.octet)):
            socket.unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()


def choose_ports(octet: int) -> Ports:
    """The usual ports on the instance's own address; others only where somebody listens on all addresses."""
    address = network.control_plane_address(octet)
    api_server = network.choose_port(address, 6443)
    controller_manager = network.choose_port(address, 10257, (api_server,))
    scheduler = network.choose_port(address, 10259, (api_server, controller_manager))
    return Ports(api_server, controller_manager, scheduler)


@contextmanager
def _reservations() -> Iterator[dict[int, Path]]:
    """Hold the machine-wide record and give who has which octet; what no instance stands behind is left out."""
    folder = runtime_root() / "octets"
    folder.mkdir(mode=0o700, exist_ok=True)
    with locked(runtime_root() / "octets.lock", "which starts or stops a local cluster"):
        held = {}
        for path in folder.iterdir():
            directory = Path(path.read_text())
            record = Instance(directory).read() if directory.is_dir() else None
            if record is not None and record.octet == int(path.name):
                held[record.octet] = directory
        yield held


def _free_octet(reserved: dict[int, Path], listening: set[int]) -> int:
    for octet in range(network.FIRST_OCTET, network.LAST_OCTET + 1):
        if octet not in reserved and octet not in listening:
            return octet
    raise LocalError(
        "all loopback addresses for local clusters are taken; `paceline local down --dir D` frees one's. Taken by: "
        + ", ".join(str(path) for path in reserved.values())
    )


def abandoned() -> list[Path]:
    """Folders of temporary instances whose maker is gone without having cleared them away."""
    found = []
    with _reservations() as reserved:
        for directory in reserved.values():
            record = Instance(directory).read()
            if record is not None and record.owner is not None and not is_running(record.owner):
                found.append(directory)
    return found


def current_process() -> ProcessIdentity:
    """This process, as the owner of a temporary instance."""
    from paceline_local.processes import identify

    process = identify(os.getpid())
    assert process is not None
    return process
