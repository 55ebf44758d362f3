"""The small process between the node and one container. It outlives the node.

Started as a script (`python -I -S shim.py run SPEC`), so it imports nothing but the standard library: it has to be
there within milliseconds, once per container. It
  - makes the container's mount namespace and executes the command in it,
  - copies stdout and stderr into the log file, line by line, in the CRI log format,
  - adopts every orphan of the container and kills what is left once the main process has ended,
  - writes how it ended to `exit.json`.

Signals: SIGTERM is passed on to the main process; SIGUSR1 kills the container; SIGUSR2 kills it as out of memory.

`python -I -S shim.py enter DIRECTORY COMMAND…` executes a command inside a running container instead (exec, probes,
hooks), with the container's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_ERROR = 128
PARTIAL_LINE = 16 * 1024  # longer lines are written in parts, tagged P, as container runtimes do
DRAIN_SECONDS = 2.0

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str | None, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    result = _libc.mount(text(source), text(target), text(fstype), ctypes.c_ulong(flags), text(data))
    _check(result, f"mount {source or fstype} on {target}")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), "prctl")


def unshare_mounts(mode: str) -> None:
    """Enter a mount namespace of our own; `mode` is `root` or `user` (then in a user namespace, as ourselves)."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if mode == "user" else 0)), "unshare")
    if mode == "user":
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _fill(old: int, target: str) -> None:
    """Make the entries of directory `old` (a descriptor) appear in the empty directory `target`."""
    with os.scandir(old) as entries:
        names = [(e.name, e.is_symlink(), e.is_dir(follow_symlinks=False)) for e in entries]
    for name, is_link, is_dir in names:
        source, there = f"/proc/self/fd/{old}/{name}", os.path.join(target, name)
        try:
            if is_link:
                os.symlink(os.readlink(name, dir_fd=old), there)
                continue
            if is_dir:
                os.mkdir(there)
            else:
                os.close(os.open(there, os.O_CREAT | os.O_WRONLY, 0o644))
            _mount(source, there, None, MS_BIND | MS_REC)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES):  # gone meanwhile, or not ours to see
                raise


def mirror(directory: str) -> None:
    """Cover `directory` with a private one that shows the same entries and takes new ones.

    So a mount point can be made under a host directory without a trace on the host.
    """
    old = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mode = os.fstat(old).st_mode & 0o7777
        _mount("tmpfs", directory, "tmpfs", 0, f"mode={mode:o}")
        _fill(old, directory)
    finally:
        os.close(old)


def _is_under(path: str, parents: list[str]) -> bool:
    return any(path == p or path.startswith(p.rstrip("/") + "/") for p in parents)


def apply_mounts(root: str, mounts: list[dict[str, Any]]) -> None:
    """Enter a private root directory (made at `root`, an empty directory) and bind `mounts` in it.

    Each mount is `{"source", "target", "readOnly"}` with absolute paths; missing targets are made.
    """
    sources = [os.open(m["source"], os.O_PATH) for m in mounts]
    _mount("tmpfs", root, "tmpfs", 0, "mode=755")
    old_root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    _fill(old_root, root)
    os.close(old_root)
    os.chdir(root)
    os.chroot(".")
    mirrored = ["/"]
    volumes: list[str] = []
    read_only: list[str] = []
    order = sorted(range(len(mounts)), key=lambda i: mounts[i]["target"].count("/"))
    for index in order:
        source = f"/proc/self/fd/{sources[index]}"
        target = os.path.realpath(mounts[index]["target"])
        if not os.path.exists(target):
            parent = os.path.dirname(target)
            while not os.path.exists(parent):
                parent = os.path.dirname(parent)
            if parent not in mirrored and not _is_under(parent, volumes):
                mirror(parent)
                mirrored.append(parent)
            if os.path.isdir(source):
                os.makedirs(target)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(source, target, None, MS_BIND | MS_REC)
        volumes.append(target)
        if mounts[index].get("readOnly"):
            read_only.append(target)
    for target in read_only:
        # Flags that a less privileged namespace may not clear have to be repeated.
        kept = os.statvfs(target).f_flag & (0x2 | 0x4 | 0x8 | 0x400 | 0x800)
        atime = (1 << 21) if os.statvfs(target).f_flag & 0x1000 else 0
        _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept | atime)
    for fd in sources:
        os.close(fd)


def start_ticks(pid: int) -> int | None:
    """The kernel's start time of process `pid` in clock ticks since boot; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def boot_id() -> str:
    """What names this boot of the machine; process ids of an earlier one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def write_json(path: str, value: dict[str, Any]) -> None:
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)


class LogWriter:
    """Writes lines as `TIME STREAM F|P TEXT`; keeps one older file of `limit` bytes beside the current one."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.rest = {"stdout": b"", "stderr": b""}
        self.file = self._open()
        self.size = os.fstat(self.file.fileno()).st_size

    def _open(self) -> io.FileIO:
        return io.FileIO(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def feed(self, stream: str, data: bytes) -> None:
        *lines, rest = (self.rest[stream] + data).split(b"\n")
        out = [self._record(stream, line) for line in lines]
        while len(rest) >= PARTIAL_LINE:
            out.append(self._head(stream, b"P") + rest[:PARTIAL_LINE] + b"\n")
            rest = rest[PARTIAL_LINE:]
        self.rest[stream] = rest
        self._write(b"".join(out))

    def finish(self, stream: str) -> None:
        if self.rest[stream]:
            self._write(self._record(stream, self.rest[stream]))
            self.rest[stream] = b""

    def _head(self, stream: str, tag: bytes) -> bytes:
        seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return f"{stamp}.{nanos:09d}Z {stream} ".encode() + tag + b" "

    def _record(self, stream: str, line: bytes) -> bytes:
        out = b""
        while len(line) > PARTIAL_LINE:
            out += self._head(stream, b"P") + line[:PARTIAL_LINE] + b"\n"
            line = line[PARTIAL_LINE:]
        return out + self._head(stream, b"F") + line + b"\n"

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self.size and self.size + len(data) > self.limit:
            os.replace(self.path, f"{self.path}.1")
            self.file.close()
            self.file = self._open()
            self.size = 0
        self.file.write(data)
        self.size += len(data)


def _execute(spec: dict[str, Any], shim_pid: int, errors: int) -> None:
    """In the forked child: become the container. Does not return."""
    stage = "start"
    try:
        os.setsid()
        if spec.get("namespace", "none") != "none":
            stage = "mounts"
            unshare_mounts(spec["namespace"])
            apply_mounts(spec["root"], spec["mounts"])
        stage = "working directory"
        os.chdir(spec["cwd"])
        stage = "start"
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim_pid:
            os._exit(START_ERROR)
        stage = "exec"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(errors, json.dumps({"stage": stage, "error": str(error)}).encode())
        os._exit(START_ERROR)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel built without it
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Shim:
    """Runs one container from its start to its end."""

    def __init__(self, spec: dict[str, Any], directory: str) -> None:
        self.spec, self.directory = spec, directory
        self.log = LogWriter(os.path.join(directory, "log"), spec.get("logMaxBytes", 10 * 1024 * 1024))
        self.child = 0
        self.oom = False
        self.status: int | None = None
        self.reaped_all = False

    def run(self, ready: int | None) -> int:
        out, err, errors = os.pipe(), os.pipe(), os.pipe()
        wake_in, wake_out = socket.socketpair()
        wake_in.setblocking(False)
        wake_out.setblocking(False)
        signal.set_wakeup_fd(wake_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        started = time.time()
        shim_pid = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            null = os.open("/dev/null", os.O_RDONLY)
            for source, target in ((null, 0), (out[1], 1), (err[1], 2)):
                os.dup2(source, target)
            _execute(self.spec, shim_pid, errors[1])
        for fd in (out[1], err[1], errors[1]):
            os.close(fd)
        with os.fdopen(errors[0], "rb") as file:
            failure = file.read()
        if failure:
            os.waitpid(self.child, 0)
            result = {"exitCode": START_ERROR, "startError": json.loads(failure), "startedAt": started}
            write_json(os.path.join(self.directory, "exit.json"), {**result, "finishedAt": time.time()})
            _tell(ready, b"failed\n")
            return 0
        write_json(
            os.path.join(self.directory, "running.json"),
            {
                "shim": shim_pid,
                "ticks": start_ticks(shim_pid),
                "boot": boot_id(),
                "child": self.child,
                "startedAt": started,
            },
        )
        _tell(ready, b"started\n")
        self._serve({out[0]: "stdout", err[0]: "stderr"}, wake_out)
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        write_json(
            os.path.join(self.directory, "exit.json"),
            {
                "exitCode": 128 - code if code < 0 else code,
                "signal": -code if code < 0 else 0,
                "oomKilled": self.oom,
                "startedAt": started,
                "finishedAt": time.time(),
            },
        )
        return 0

    def _serve(self, streams: dict[int, str], wake: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        for fd in streams:
            selector.register(fd, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        deadline: float | None = None
        while not self.reaped_all or len(selector.get_map()) > 1:
            if deadline is not None and time.monotonic() > deadline:
                break
            for key, _ in selector.select(0.05 if self.status is not None else None):
                if key.fileobj is wake:
                    with contextlib.suppress(BlockingIOError):
                        self._signals(wake.recv(1024))
                    continue
                fd = key.fd
                data = os.read(fd, 64 * 1024)
                if data:
                    self.log.feed(streams[fd], data)
                else:
                    self.log.finish(streams[fd])
                    selector.unregister(fd)
            self._reap()
            if self.reaped_all and deadline is None:
                deadline = time.monotonic() + DRAIN_SECONDS
        for stream in streams.values():
            self.log.finish(stream)

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if self.status is not None:
                return
            if number == signal.SIGTERM:
                os.kill(self.child, signal.SIGTERM)
            elif number in (signal.SIGUSR1, signal.SIGUSR2):
                self.oom = self.oom or number == signal.SIGUSR2
                os.kill(self.child, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.reaped_all = True
                return
            if pid == 0:
                break
            if pid == self.child:
                self.status = status
        if self.status is not None:  # as the end of a container's first process ends the container
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _tell(ready: int | None, word: bytes) -> None:
    if ready is not None:
        with contextlib.suppress(BrokenPipeError):  # the node died meanwhile; the next one finds running.json
            os.write(ready, word)
        os.close(ready)


def run(spec_path: str, ready: int | None) -> int:
    """Run the container of `spec_path` to its end; a second shim for the same attempt ends at once."""
    directory = os.path.dirname(spec_path)
    if ready is not None:
        os.set_inheritable(ready, False)  # the node must not wait for what the container leaves open
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    lock = os.open(os.path.join(directory, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    with open(spec_path) as file:
        spec = json.load(file)
    return Shim(spec, directory).run(ready)


def enter(directory: str, argv: list[str]) -> None:
    """Execute `argv` as another process of the container whose attempt lies in `directory`. Does not return."""
    with open(os.path.join(directory, "spec.json")) as file:
        spec = json.load(file)
    with open(os.path.join(directory, "running.json")) as file:
        pid = json.load(file)["child"]
    mode = spec.get("namespace", "none")
    if mode != "none":
        kinds = (["user"] if mode == "user" else []) + ["mnt"]
        handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
        root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
        for handle in handles:
            _check(_libc.setns(handle, 0), "setns")
        os.fchdir(root)
        os.chroot(".")
    os.chdir(spec["cwd"])
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, spec["env"])
    except OSError as error:
        sys.stderr.write(f"exec: {argv[0]}: {os.strerror(error.errno or 0)}\n")
        sys.exit(127 if error.errno == errno.ENOENT else 126)


def probe(mode: str, root: str) -> None:
    """Try what `run` needs of `mode`; raises OSError where this machine does not allow it."""
    unshare_mounts(mode)
    apply_mounts(root, [{"source": root, "target": "/etc/paceline-probe/dir", "readOnly": True}])


def main(argv: list[str]) -> int:
    if argv[0] == "run":
        return run(argv[1], int(argv[2]) if len(argv) > 2 else None)
    if argv[0] == "enter":
        enter(argv[1], argv[2:])
    if argv[0] == "probe":
        probe(argv[1], argv[2])
        return 0
    raise SystemExit(f"unknown command {argv[0]!r}; use run, enter or probe")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
