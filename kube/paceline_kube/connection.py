"""Where the API server is and how to prove who we are: a service account in a pod, a kubeconfig elsewhere."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import load_kube_config

from paceline_kube.adapter import DEFAULT_TIMEOUT, AioKubeClient

log = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SERVICE_ACCOUNT_DIR_ENV = "PACELINE_SERVICEACCOUNT_DIR"
TOKEN_REFRESH_SECONDS = 60.0


@asynccontextmanager
async def connect(
    kubeconfig: str | os.PathLike[str] | None = None,
    *,
    context: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> AsyncIterator[AioKubeClient]:
    """A client for the cluster at hand, closed at the end of the block.

    Args:
        kubeconfig: this file and nothing else. Absent: the pod's service account where there is one, else
            `$KUBECONFIG`, else `~/.kube/config`.
        context: the kubeconfig's context; absent: its current one.
        timeout: seconds that bound each call.

    Raises:
        FileNotFoundError: neither a service account nor a kubeconfig.
    """
    configuration = Configuration()
    if kubeconfig is None and in_cluster():
        reauthenticate = _load_service_account(configuration)
    else:
        reauthenticate = await _load_kubeconfig(configuration, kubeconfig, context)
    if not configuration.verify_ssl:
        log.warning("the kubeconfig turns certificate checks off for %s", configuration.host)
    if _is_loopback(configuration.host):
        # A proxy from the environment can never reach our own loopback addresses.
        configuration.client_session_kwargs = {"trust_env": False}
    client = AioKubeClient(ApiClient(configuration), timeout=timeout, reauthenticate=reauthenticate)
    try:
        yield client
    finally:
        await client.close()


def service_account_dir() -> str:
    """Where the pod's token, CA and namespace lie."""
    return os.environ.get(SERVICE_ACCOUNT_DIR_ENV) or SERVICE_ACCOUNT_DIR


def in_cluster() -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and os.path.isfile(
        os.path.join(service_account_dir(), "token")
    )


def own_namespace() -> str | None:
    """The pod's namespace as its service account says; None outside a cluster."""
    try:
        with open(os.path.join(service_account_dir(), "namespace"), encoding="utf-8") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        return None


def _load_service_account(configuration: Configuration) -> Callable[[], Awaitable[None]]:
    directory = service_account_dir()
    token_file = os.path.join(directory, "token")
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    configuration.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    configuration.ssl_ca_cert = os.path.join(directory, "ca.crt")
    read_at = 0.0

    def refresh(current: Configuration, force: bool = False) -> None:
        # The kubelet replaces the token in place well before it expires, so reading it again is all it takes.
        nonlocal read_at
        now = asyncio.get_running_loop().time()
        if force or not current.api_key.get("BearerToken") or now - read_at >= TOKEN_REFRESH_SECONDS:
            with open(token_file, encoding="utf-8") as file:
                current.api_key["BearerToken"] = "Bearer " + file.read().strip()
            read_at = now

    async def reauthenticate() -> None:
        refresh(configuration, force=True)

    refresh(configuration)
    configuration.refresh_api_key_hook = refresh
    return reauthenticate


async def _load_kubeconfig(
    configuration: Configuration, kubeconfig: str | os.PathLike[str] | None, context: str | None
) -> Callable[[], Awaitable[None]]:
    path = _kubeconfig_path(kubeconfig)

    async def load() -> None:
        await load_kube_config(
            config_file=path, context=context, client_configuration=configuration, persist_config=False
        )

    await load()
    return load


def _kubeconfig_path(kubeconfig: str | os.PathLike[str] | None) -> str:
    path = os.fspath(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    path = path or os.path.expanduser("~/.kube/config")
    if not any(os.path.isfile(part) for part in path.split(os.pathsep)):
        raise FileNotFoundError(f"no kubeconfig at {path}: set KUBECONFIG, or pass the path of one")
    return path


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
