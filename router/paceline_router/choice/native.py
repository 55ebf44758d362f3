"""Compiles `prefix.c` on first use and keeps the result in the user's cache folder.

`PACELINE_NATIVE=0` leaves it out. Without a C compiler the Python implementation serves, and the log says so once.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_uint32, c_uint64, c_void_p
from pathlib import Path

from .prefix import SLOTS, NativePrefixIndex, PrefixIndex, PythonPrefixIndex

SOURCE = Path(__file__).with_name("prefix.c")
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=default")
BUILD_TIMEOUT = 60.0
NAME = "libpaceline-prefix.so"

log = logging.getLogger(__name__)


class NativeUnavailable(Exception):
    """The library cannot be had here; the message says why and what would help."""


def make_index(blocks: int, slots: int) -> PrefixIndex:
    """The fastest index that this machine has, for so many blocks and replicas (at most `SLOTS`)."""
    library = load()
    if library is None:
        return PythonPrefixIndex(blocks, SLOTS)
    return NativePrefixIndex(library, blocks, slots)


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, compiled at the first call on a machine; None, with a line in the log, where it cannot be had."""
    try:
        return open_library(library_path())
    except NativeUnavailable as error:
        log.warning("prefixes are looked up in Python, which takes ten times as long: %s", error)
        return None


def library_path() -> Path:
    """The compiled library; made if it is not there yet.

    Raises:
        NativeUnavailable: without a compiler, or if it fails.
    """
    if os.environ.get("PACELINE_NATIVE", "1") == "0":
        raise NativeUnavailable("switched off by PACELINE_NATIVE=0")
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise NativeUnavailable("there is no C compiler; install gcc, or name one in CC")
    key = hashlib.sha256(b"\0".join((SOURCE.read_bytes(), compiler.encode(), *map(str.encode, FLAGS)))).hexdigest()
    try:
        folder = _cache_root() / "native" / key[:20]
        if not (folder / NAME).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, folder)
        return folder / NAME
    except (OSError, RuntimeError) as error:
        # A container's root is often read-only: then for this process only, in a folder nobody else can write to.
        log.info("the prefix index is built for this process only: %s", error)
        try:
            folder = Path(tempfile.mkdtemp(prefix="paceline-prefix-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _compile(compiler, folder)
        except OSError as again:
            raise NativeUnavailable(f"there is nowhere to build it: {error}; {again}") from again
        return folder / NAME


def _cache_root() -> Path:
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def _compile(compiler: str, folder: Path) -> None:
    """Compile into the folder; several at once do no harm, since the result is put in place in one move."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / NAME
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"{compiler} took longer than {BUILD_TIMEOUT:g} s") from error
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
            raise NativeUnavailable(f"{compiler} could not build it: {reason}")
        made.rename(folder / NAME)


def open_library(path: Path) -> ctypes.CDLL:
    """Load a compiled library.

    Raises:
        NativeUnavailable: if it is none.
    """
    try:
        # With the interpreter's lock held: a call takes a microsecond, and letting go of the lock half of one.
        library = ctypes.PyDLL(str(path))
        for name, result, arguments in (
            ("pfx_new", c_void_p, (c_uint32, c_uint32, POINTER(c_uint64))),
            ("pfx_free", None, (c_void_p,)),
            ("pfx_found", c_void_p, (c_void_p,)),
            ("pfx_used", c_uint32, (c_void_p,)),
            ("pfx_swept", c_uint64, (c_void_p,)),
            # Called for each request: without argument types a call takes half the time, and all are plain C ints.
            ("pfx_match", None, None),
            ("pfx_insert", None, None),
            ("pfx_forget", None, (c_void_p, c_uint32)),
            ("pfx_room", None, (c_void_p, c_uint32, c_uint64)),
        ):
            function = getattr(library, name)
            function.restype = result
            if arguments is not None:
                function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
    return library
