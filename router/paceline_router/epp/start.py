"""Starting the endpoint picker, with words for what may be missing. Imports gRPC only when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_router.epp.server import PickerServer
    from paceline_router.flow.dataplane import DataPlane


class PickerError(Exception):
    """The endpoint picker cannot start; the words are for whoever started it."""


@dataclass(frozen=True, slots=True)
class PickerOptions:
    """How gateways reach the picker.

    Attributes:
        port: 0 takes a free one.
        certificate, key: paths of PEM files; both or none. With them TLS, without them plain HTTP/2.
        fallbacks: endpoints named after the chosen one, for gateways that understand a list.
    """

    port: int
    certificate: str | None = None
    key: str | None = None
    fallbacks: int = 0


async def start_picker(plane: DataPlane, host: str, options: PickerOptions, *, shared: bool = False) -> PickerServer:
    """Answer gateways' questions with the decisions of this data plane. The caller stops what is returned.

    Args:
        shared: other processes listen on the port as well, and the kernel spreads connections over them.

    Raises:
        PickerError: something is missing.
        OSError: the port is taken.
    """
    if (options.certificate is None) != (options.key is None):
        raise PickerError("the endpoint picker needs certificate and key, or neither")
    try:
        from paceline_router.epp.server import Certificate, serve_picker
    except ModuleNotFoundError as exc:
        raise PickerError(
            f"the endpoint picker needs the package {exc.name}: install paceline with the extra epp"
        ) from None
    certificate = None
    if options.certificate is not None and options.key is not None:
        certificate = Certificate(Path(options.certificate), Path(options.key))
        try:
            certificate.check()
        except OSError as exc:
            raise PickerError(f"the endpoint picker's certificate cannot be read: {exc}") from None
    return await serve_picker(
        plane, host, options.port, certificate=certificate, fallbacks=options.fallbacks, shared=shared
    )
