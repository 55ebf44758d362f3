"""HTTP/1.1 as uvicorn speaks it, with a bound to heads and its errors in OpenAI's form."""

from __future__ import annotations

import uuid
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paceline_crds import headers

from .errors import ApiError

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of request line and headers, trailers included."""
MAX_HEADERS: Final = 256
_PIECE: Final = 16 * 1024
"""So much is parsed before the bounds are looked at again."""


class _TooLarge(Exception):
    """Stops the parser."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered with 431, what is no HTTP with 400; both end the connection.

    The parser gathers unfinished header lines and chunk sizes without any bound, so what was fed to it since it last
    gave anything back counts as well.
    """

    _head_bytes = 0
    _header_lines = 0
    _silent_bytes = 0
    _spoke = False
    _too_large = False

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._spoke = False
            super().data_received(piece)
            self._silent_bytes = 0 if self._spoke else self._silent_bytes + len(piece)
            if self.transport.is_closing():
                return
            if self._head_bytes + self._silent_bytes > MAX_HEAD_BYTES:
                self._too_large = True
                self.send_400_response("")
                return

    def on_message_begin(self) -> None:
        self._spoke = True
        self._head_bytes = self._header_lines = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_lines += 1
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._spoke = True
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._spoke = True
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._header_lines > MAX_HEADERS:
            self._too_large = True
            raise _TooLarge

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser could not take. (Uvicorn's name for it.)"""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # an answer in the middle of another would be part of it
            return
        if self._too_large:
            error = ApiError(
                431,
                f"The request line and headers are too large: at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} lines "
                "are taken. Send long texts in the body.",
                code="headers_too_large",
            )
        else:
            error = ApiError(400, "This is no valid HTTP request.", code="invalid_http")
        body = error.body()
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            headers.REQUEST_ID: uuid.uuid4().hex,
        }
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in fields.items()]
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: clients may offer an upgrade, and the request is answered as it is (RFC 9110, 7.8)."""
