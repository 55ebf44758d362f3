"""Starting the endpoint picker, and what is said when it cannot."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from paceline_router.epp.start import PickerError, PickerOptions, start_picker
from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings


async def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "paceline_router.epp.server":
            raise ModuleNotFoundError("No module named 'grpc'", name="grpc")
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PickerError, match="the package grpc: install paceline with the extra epp"):
        await start_picker(DataPlane(Settings()), "127.0.0.1", PickerOptions(0))


@pytest.mark.parametrize("half", [{"certificate": "a"}, {"key": "a"}])
async def test_half_a_certificate_is_none(half: dict[str, str]) -> None:
    with pytest.raises(PickerError, match="certificate and key, or neither"):
        await start_picker(DataPlane(Settings()), "127.0.0.1", PickerOptions(0, **half))


async def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
    options = PickerOptions(0, certificate=str(tmp_path / "none.crt"), key=str(tmp_path / "none.key"))
    with pytest.raises(PickerError, match=r"cannot be read.*none"):
        await start_picker(DataPlane(Settings()), "127.0.0.1", options)


async def test_processes_may_share_its_port() -> None:
    pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
    plane = DataPlane(Settings())
    first = await start_picker(plane, "127.0.0.1", PickerOptions(0), shared=True)
    second = await start_picker(plane, "127.0.0.1", PickerOptions(first.port), shared=True)
    assert second.port == first.port
    await first.stop(0)
    await second.stop(0)
