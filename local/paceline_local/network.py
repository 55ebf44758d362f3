"""Loopback addresses and ports: what is in use on this machine, and what can be had."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

FIRST_OCTET, LAST_OCTET = 64, 126
"""Second octets of 127.0.0.0/8 that instances take, one each; low ones are left to whatever else uses the loopback."""

LISTENING = "0A"


def control_plane_address(octet: int) -> str:
    """Where an instance's API server, controller-manager and scheduler listen."""
    return f"127.{octet}.0.1"


def node_address(octet: int, index: int) -> str:
    """Address of node number `index` (from 0) of an instance; its pods have the other addresses of that /24."""
    return f"127.{octet}.{index + 1}.1"


def pod_range(octet: int, index: int) -> str:
    """Addresses that node number `index` gives to its pods."""
    return f"127.{octet}.{index + 1}.0/24"


def service_range(octet: int) -> str:
    """Addresses that the Service proxy gives to Services."""
    return f"127.{octet}.250.0/24"


MAX_NODES = 240


def octets_listening(table: Iterable[str]) -> set[int]:
    """Second octets of all 127.x.y.z on which something listens.

    Args:
        table: Lines of /proc/net/tcp, its heading included.
    """
    found = set()
    for line in list(table)[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == LISTENING:
            # The kernel prints the four bytes as one number in the machine's own byte order.
            address = struct.pack("=I", int(fields[1].split(":")[0], 16))
            if address[0] == 127:
                found.add(address[1])
    return found


def octets_in_use() -> set[int]:
    """Second octets of all loopback addresses that have a listener, whoever owns it."""
    return octets_listening(Path("/proc/net/tcp").read_text().splitlines())


def can_bind(address: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def choose_port(address: str, wanted: int, taken: Iterable[int] = ()) -> int:
    """`wanted` where it is free on that address, else a free port that is not in `taken`."""
    avoided = set(taken)
    if wanted not in avoided and can_bind(address, wanted):
        return wanted
    while True:
        with socket.socket() as probe:
            probe.bind((address, 0))
            port: int = probe.getsockname()[1]
        if port not in avoided:
            return port
