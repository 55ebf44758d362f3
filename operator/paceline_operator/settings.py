"""What the operator is told at start: nothing here is read again while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_autoscaler.prometheus import Access
from paceline_crds.names import ROUTER_ADMIN_PORT

from .room import NO_ROOM_SECONDS


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the reconciler.

    Attributes:
        runtime_image: image of the runtime for services that name none; recorded in a revision with origin `operator`.
        namespace: the operator's own namespace: routers and the Secret with their admin token live there.
        router_url: public base URL of the router, put into `status.address.url`; empty: the router's Service in
            `namespace`.
        router_ack_timeout: seconds to wait for a ready router that cannot be asked whether it follows the traffic,
            before a rollout goes on without it.
        poll_seconds: seconds between two looks at the routers while a rollout waits for them.
        router_admin_port: port of the routers' admin API.
        no_room_seconds: for which a new revision finds no place before replicas of the old one go first.
        drift_seconds: between two looks at the configuration that a service's replicas run with.
        scaling_seconds: between two looks at the load of pools that follow it.
        rollout_seconds: between two looks at what the routers measured of a rollout by steps.
        prometheus: where the percentiles of these pools are asked for; None: nowhere.
        scrape_seconds: between two scrapes of that Prometheus.
    """

    runtime_image: str
    namespace: str
    router_url: str = ""
    router_ack_timeout: float = 60.0
    poll_seconds: float = 0.5
    router_admin_port: int = ROUTER_ADMIN_PORT
    no_room_seconds: float = NO_ROOM_SECONDS
    drift_seconds: float = 30.0
    scaling_seconds: float = 10.0
    rollout_seconds: float = 10.0
    prometheus: Access | None = None
    scrape_seconds: float = 15.0

    @property
    def public_router_url(self) -> str:
        """Base URL of the router, without a slash at its end."""
        return (self.router_url or f"http://paceline-router.{self.namespace}.svc:8080").rstrip("/")
