"""What instances remember, and that no two get the same addresses."""

from __future__ import annotations

import json
import multiprocessing
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_local import network, parts, paths, state
from paceline_local.errors import LocalError, UsageError
from paceline_local.locking import locked
from paceline_local.processes import ProcessIdentity
from paceline_local.state import Instance, InstanceRecord, PartRecord, Ports, Shape

octets = st.integers(network.FIRST_OCTET, network.LAST_OCTET)


@pytest.fixture(autouse=True)
def _private_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests must not reserve the addresses of the machine's real clusters."""
    monkeypatch.setattr(paths.tempfile, "gettempdir", lambda: str(tmp_path))


def _create(directory: str, results: multiprocessing.Queue[int]) -> None:
    results.put(Instance(Path(directory)).create(Shape()).octet)


def test_processes_that_create_at_once_get_different_octets(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[int] = context.Queue()
    workers = [context.Process(target=_create, args=(str(tmp_path / f"i{n}"), results)) for n in range(6)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert len(set(got)) == 6


def test_an_octet_on_which_somebody_listens_is_not_taken(tmp_path: Path) -> None:
    free = Instance(tmp_path / "first").create(Shape()).octet
    with socket.socket() as other:
        other.bind((f"127.{free + 1}.9.9", 0))
        other.listen()
        assert Instance(tmp_path / "second").create(Shape()).octet not in (free, free + 1)


def test_a_removed_instance_gives_its_octet_back(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "i")
    record = instance.create(Shape())
    instance.remove(record)
    assert not instance.directory.exists()
    assert Instance(tmp_path / "other").create(Shape()).octet == record.octet


def test_a_folder_that_was_deleted_by_hand_holds_no_octet(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "i")
    octet = instance.create(Shape()).octet
    instance.record_file.unlink()
    assert Instance(tmp_path / "other").create(Shape()).octet == octet


def test_all_octets_taken_is_said_with_their_holders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LAST_OCTET", network.FIRST_OCTET)
    monkeypatch.setattr(network, "octets_in_use", set)
    Instance(tmp_path / "first").create(Shape())
    with pytest.raises(LocalError, match=str(tmp_path / "first")):
        Instance(tmp_path / "second").create(Shape())


def test_remove_spares_what_is_not_ours(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "i")
    record = instance.create(Shape())
    (instance.directory / "notes.txt").write_text("mine")
    instance.remove(record)
    assert [path.name for path in instance.directory.iterdir()] == ["notes.txt"]


def test_a_folder_with_other_things_becomes_no_instance(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="--dir"):
        Instance(tmp_path / "full").create(Shape())


def test_a_record_of_another_version_is_refused_in_words(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "i")
    instance.create(Shape())
    instance.record_file.write_text(json.dumps({"schema": 99}))
    with pytest.raises(LocalError, match="another version of Paceline"):
        instance.read()


identities = st.builds(ProcessIdentity, st.integers(1, 99999), st.integers(0, 10**9), st.text(max_size=8))
ports = st.builds(Ports, *[st.integers(1, 65535)] * 3)
shapes = st.builds(
    Shape, st.integers(0, 9), st.integers(0, 8), st.text(max_size=5), st.text(max_size=5), st.booleans(), st.booleans()
)
records = st.builds(InstanceRecord, octets, ports, shapes, st.none() | identities)
part_records = st.builds(
    PartRecord,
    st.sampled_from(["etcd", "node-0"]),
    st.lists(st.text()).map(tuple),
    st.dictionaries(st.text(), st.text()),
    identities,
)


@given(records, part_records)
def test_records_are_read_as_written(record: InstanceRecord, part: PartRecord) -> None:
    with temporary_instance() as instance:
        instance.write(record)
        assert instance.read() == record
        instance.write_part(part)
        assert instance.read_parts() == {part.name: part}
        instance.forget_part(part.name)
        assert instance.read_parts() == {}


@contextmanager
def temporary_instance() -> Iterator[Instance]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Instance(Path(folder))


def test_only_instances_of_gone_makers_are_abandoned(tmp_path: Path) -> None:
    me = state.current_process()
    gone = ProcessIdentity(me.pid, me.start_ticks - 1, me.boot)
    Instance(tmp_path / "permanent").create(Shape())
    Instance(tmp_path / "mine").create(Shape(), me)
    Instance(tmp_path / "left").create(Shape(), gone)
    assert state.abandoned() == [tmp_path / "left"]


# -- addresses -------------------------------------------------------------------------------------------------------


@given(octets, st.integers(0, network.MAX_NODES - 1), st.integers(0, network.MAX_NODES - 1))
def test_the_address_ranges_of_an_instance_do_not_overlap(octet: int, first: int, second: int) -> None:
    whole = ip_network(f"127.{octet}.0.0/16")
    ranges = [ip_network(network.pod_range(octet, first)), ip_network(network.service_range(octet))]
    if first != second:
        ranges.append(ip_network(network.pod_range(octet, second)))
    for index, one in enumerate(ranges):
        assert one.subnet_of(whole)
        assert ip_address(network.control_plane_address(octet)) not in one
        assert not any(one.overlaps(other) for other in ranges[index + 1 :])
    assert ip_address(network.node_address(octet, first)) in ranges[0]


def test_listeners_are_read_from_the_kernels_table() -> None:
    table = [
        "  sl  local_address rem_address   st tx_queue rx_queue",
        "   0: 0100407F:192B 00000000:0000 0A 00000000:00000000",
        "   1: 0100417F:192B 0100417F:8888 01 00000000:00000000",
        "   2: 00000000:0016 00000000:0000 0A 00000000:00000000",
    ]
    assert network.octets_listening(table) == {64}


def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert not network.can_bind("127.0.0.1", taken)
        chosen = network.choose_port("127.0.0.1", taken)
        assert chosen != taken
        assert network.can_bind("127.0.0.1", chosen)


# -- locks and folders -----------------------------------------------------------------------------------------------


def test_a_lock_keeps_others_out_until_it_is_let_go_although_its_file_is_removed(tmp_path: Path) -> None:
    inside, most, total = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, total
        for _ in range(5):
            with locked(tmp_path / "lock", "testing", remove=True, timeout=60):
                inside += 1
                most = max(most, inside)
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, total) == (1, 20)


def test_a_lock_that_is_not_free_in_time_is_an_error(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "which tests"), pytest.raises(TimeoutError, match="which tests"):  # noqa: SIM117
        with locked(tmp_path / "lock", "which tests", timeout=0.1):
            pass


def test_the_runtime_folder_is_private(tmp_path: Path) -> None:
    assert stat.S_IMODE(paths.runtime_root().stat().st_mode) == 0o700
    paths.runtime_root().chmod(0o777)
    assert stat.S_IMODE(paths.runtime_root().stat().st_mode) == 0o700


def test_a_runtime_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = paths.runtime_root()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(LocalError, match="not a folder of yours"):
        paths.runtime_root()


# -- command lines ---------------------------------------------------------------------------------------------------


def test_the_servers_authorise_and_check_certificates(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    record = InstanceRecord(64, Ports(6443, 10257, 10259), Shape())
    api_server = parts.api_server(instance, record, Path("/kube-apiserver")).argv
    assert "--authorization-mode=Node,RBAC" in api_server
    assert "--anonymous-auth=false" in api_server
    assert f"--kubelet-certificate-authority={instance.authority}" in api_server
    controller_manager = parts.controller_manager(instance, record, Path("/kube-controller-manager")).argv
    assert {"--kube-api-qps=1000", "--kube-api-burst=2000"} <= set(controller_manager)
    for argv in (api_server, controller_manager, parts.scheduler(instance, record, Path("/s")).argv):
        assert f"--client-ca-file={instance.authority}" in argv
        assert not [flag for flag in argv if "insecure" in flag]


def test_parts_see_of_the_callers_environment_only_what_they_need(tmp_path: Path) -> None:
    environment = parts.base_environment(Instance(tmp_path), {"PATH": "/bin", "KUBECONFIG": "/other", "SECRET": "x"})
    assert environment == {"PATH": "/bin", "PACELINE_LOCAL_INSTANCE": str(tmp_path)}


def test_nodes_have_the_size_that_was_asked_for(tmp_path: Path) -> None:
    record = InstanceRecord(70, Ports(1, 2, 3), Shape(2, 8, "4", "16Gi"))
    argv = parts.node(Instance(tmp_path), record, 1).argv
    assert {"--name=node-1", "--address=127.70.2.1", "--pod-range=127.70.2.0/24"} <= set(argv)
    assert {"--cpus=4", "--memory=16Gi", "--gpus=8"} <= set(argv)
