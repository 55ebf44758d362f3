"""A real Envoy before an endpoint picker: its configuration, and starting it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp


def find_envoy() -> str | None:
    """The binary to test with."""
    named = os.environ.get("PACELINE_ENVOY")
    if named:
        return named
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        packaged = Path(folder) / "_bin" / "envoy"
        if packaged.exists():
            return str(packaged)
    return shutil.which("envoy")


ENVOY = find_envoy()

EXT = "type.googleapis.com/envoy.extensions"
ORIGINAL_DST = {
    "name": "replicas",
    "type": "ORIGINAL_DST",
    "connect_timeout": "2s",
    "lb_policy": "CLUSTER_PROVIDED",
    "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
}


def endpoint(port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}


def override_host(*ports: int) -> dict[str, Any]:
    """A cluster that takes the picked endpoints from the metadata, and goes down the list on a retry."""
    policy = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{EXT}.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [
                {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
            ],
            "fallback_policy": {
                "policies": [
                    {
                        "typed_extension_config": {
                            "name": "envoy.load_balancing_policies.round_robin",
                            "typed_config": {"@type": f"{EXT}.load_balancing_policies.round_robin.v3.RoundRobin"},
                        }
                    }
                ]
            },
        },
    }
    return {
        "name": "replicas",
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "load_assignment": {
            "cluster_name": "replicas",
            "endpoints": [{"lb_endpoints": [endpoint(port) for port in ports]}],
        },
    }


def configuration(
    picker: int, mode: dict[str, str], cluster: dict[str, Any], subset: list[str] | None, tls: bool
) -> dict[str, Any]:
    """Envoy in front of the replicas of `cluster`, asking the picker."""
    filters: list[dict[str, Any]] = []
    if subset is not None:
        filters.append(
            {
                "name": "subset",
                "typed_config": {
                    "@type": f"{EXT}.filters.http.set_metadata.v3.Config",
                    "metadata": [
                        {
                            "metadata_namespace": "envoy.lb.subset_hint",
                            "value": {"x-gateway-destination-endpoint-subset": subset},
                        }
                    ],
                },
            }
        )
    filters.append(
        {
            "name": "ext_proc",
            "typed_config": {
                "@type": f"{EXT}.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
                "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SEND", **mode},
                "message_timeout": "5s",
                "response_attributes": ["upstream.address"],
                "metadata_options": {
                    "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                    "receiving_namespaces": {"untyped": ["envoy.lb"]},
                },
            },
        }
    )
    filters.append({"name": "router", "typed_config": {"@type": f"{EXT}.filters.http.router.v3.Router"}})
    route: dict[str, Any] = {"cluster": "replicas", "timeout": "0s"}
    if cluster["type"] == "STATIC":
        route["retry_policy"] = {"retry_on": "connect-failure", "num_retries": 2}
    manager = {
        "@type": f"{EXT}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": route}
        ]}]},
        "http_filters": filters,
    }  # fmt: skip
    picker_cluster: dict[str, Any] = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{EXT}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint(picker)]}]},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "0.2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
            }
        ],
    }
    if tls:
        # As gateways of the extension do: encrypted, and not verified.
        picker_cluster["transport_socket"] = {
            "name": "tls",
            "typed_config": {
                "@type": f"{EXT}.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "http",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "per_connection_buffer_limit_bytes": 32 * 1024 * 1024,
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [cluster, picker_cluster],
        },
    }


def text_of(file: Path) -> str:
    """What is in a file, if it is there."""
    return file.read_text() if file.exists() else ""


async def listening(session: aiohttp.ClientSession, process: asyncio.subprocess.Process, admin: Path, log: Path) -> str:
    """Wait until Envoy is ready, and return where it listens."""
    ready = False
    async with asyncio.timeout(30):
        while not ready:
            await asyncio.sleep(0.02)
            assert process.returncode is None, text_of(log)
            base = f"http://{text_of(admin)}"
            with contextlib.suppress(aiohttp.ClientError, ValueError):
                async with session.get(f"{base}/ready") as response:
                    ready = response.status == 200
    async with session.get(f"{base}/listeners?format=json") as response:
        address = (await response.json())["listener_statuses"][0]["local_address"]["socket_address"]
    return f"http://127.0.0.1:{address['port_value']}"
