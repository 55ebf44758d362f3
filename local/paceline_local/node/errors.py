"""Why a container cannot run now, in the words that go into the pod's status."""

from __future__ import annotations


class ContainerWaiting(Exception):
    """The container waits with `reason` (a kubelet reason such as ErrImagePull) and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ConfigError(ContainerWaiting):
    """The container's configuration cannot be resolved or is not supported here."""

    def __init__(self, message: str) -> None:
        super().__init__("CreateContainerConfigError", message)


class ImageError(ContainerWaiting):
    """There is no such image in local mode."""

    def __init__(self, message: str) -> None:
        super().__init__("ErrImagePull", message)


class VolumeError(Exception):
    """A volume cannot be set up yet; the pod stays in ContainerCreating and it is tried again."""
