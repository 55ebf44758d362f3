"""What can be set about a router, with defaults meant for a cluster."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and time-outs. Times are seconds, sizes are bytes.

    Attributes:
        connect_timeout: for one TCP connection to a replica; a retry follows.
        first_byte_timeout: from sending a request until the replica's first byte. An answer that is not streamed
            sends its first byte when it is whole, so this also bounds the longest such generation.
        idle_timeout: silence inside an answer that has begun. The whole of a request is
            bounded by `routing.maxRequestDuration` of its service.
        client_write_timeout: how long a client may leave its answer unread before it counts as gone.
        client_read_timeout: how long a client may take to send one request.
        keep_alive_timeout: how long a client's idle connection is kept.
        max_head_bytes: request line and headers of one request; above it the answer is 431.
        max_body_bytes: body of one request; above it the answer is 413. The replicas' own limit is the same.
        max_client_connections: open connections of clients; above it the answer is 503.
        processes: that share the port; limits of the whole router are divided by it.
        max_arriving_bytes: bodies that are not complete yet, of all clients together; above it the next piece is
            answered 503.
        write_buffer_bytes: unsent answer bytes per client before the replica is no longer read from.
        whole_answer_bytes: an answer that is not streamed is passed on only when it is complete, up to this size.
        max_attempts: replicas that one request may be sent to, as long as no status line has been passed on.
        comment_after: silence towards a client that waits for a stream before a comment is sent, so that nothing on the
            way takes the connection for dead.
        retry_pause: wait before a second round when every ready replica has failed a request.
        max_in_flight: requests at one replica from this router.
        choice_policy: how a replica is chosen, by a name of `choice.policies`; all but `cost` are for comparisons.
        shutdown_delay: after SIGTERM, how long new connections are still accepted while readiness is red.
        drain_timeout: after that, how long running requests may take to finish.
        recorder_token_file: with the bearer token for the recorder of copied requests, re-read on change; None: that of
            the environment.
    """

    connect_timeout: float = 2.0
    first_byte_timeout: float = 600.0
    idle_timeout: float = 120.0
    client_write_timeout: float = 60.0
    client_read_timeout: float = 60.0
    keep_alive_timeout: float = 75.0
    max_head_bytes: int = 32 * 1024
    max_body_bytes: int = 8 * MIB
    max_arriving_bytes: int = 256 * MIB
    max_client_connections: int = 16384
    processes: int = 1
    write_buffer_bytes: int = 256 * 1024
    whole_answer_bytes: int = 4 * MIB
    max_attempts: int = 3
    comment_after: float = 15.0
    retry_pause: float = 0.2
    max_in_flight: int = 1024
    choice_policy: str = "cost"
    shutdown_delay: float = 5.0
    drain_timeout: float = 600.0
    recorder_token_file: str | None = None
