"""The core's end of the socket: messages in and out without ever making a step wait."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

from paceline_runtime.messages import CoreMessage, FrontMessage, encode_frame, front_decoder

RECEIVE_BYTES = 1024 * 1024
MAX_UNSENT_BYTES = 64 * 1024 * 1024


class ChannelClosed(Exception):
    """The front end is gone, or takes nothing any more."""


class Channel:
    """Non-blocking messages over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._decoder = front_decoder()
        self._unsent = bytearray()

    @property
    def unsent(self) -> int:
        """Bytes that the front end has not taken yet."""
        return len(self._unsent)

    def receive(self, timeout: float) -> Sequence[FrontMessage]:
        """Messages that have come; waits up to `timeout` seconds for the first (0: not at all).

        Raises:
            ChannelClosed: if the front end closed the socket.
            ProtocolError: if it sent what is no message.
        """
        if timeout > 0 or self._unsent:
            writers = [self._socket] if self._unsent else []
            _, writable, _ = select.select([self._socket], writers, [], timeout)
            if writable:
                self.flush()
        messages: list[FrontMessage] = []
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return messages
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the front end closed the socket")
            messages.extend(self._decoder.feed(data))

    def send(self, message: CoreMessage) -> None:
        """Send a message, or keep what the socket does not take now.

        Raises:
            ChannelClosed: if the front end is gone or has taken nothing for too long.
        """
        self._unsent += encode_frame(message)
        self.flush()
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ChannelClosed(f"the front end left {len(self._unsent)} bytes unread")

    def flush(self) -> None:
        """Send what was kept, as far as the socket takes it.

        Raises:
            ChannelClosed: if the front end is gone.
        """
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            del self._unsent[:sent]

    def close(self, patience: float = 2.0) -> None:
        """Send what was kept, waiting up to `patience` seconds, and close."""
        deadline = time.monotonic() + patience
        try:
            while self._unsent and (left := deadline - time.monotonic()) > 0:
                select.select([], [self._socket], [], left)
                self.flush()
        except ChannelClosed:
            pass  # nobody is left to read it
        finally:
            self._socket.close()
