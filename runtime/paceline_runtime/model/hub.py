"""Models from a hub that speaks Hugging Face's protocol: fetched into a cache before the engine starts.

`HF_ENDPOINT` names another hub or a mirror, `HF_HOME` the place of the cache, `HF_TOKEN` an access token, and
`HF_HUB_OFFLINE=1` says that there is only the cache. A connection that breaks is taken up where it broke off, and files
that are whole are kept over restarts.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline_crds.conditions import EXIT_MODEL_NOT_FOUND
from paceline_runtime.config import ConfigError, StartupError

log = logging.getLogger(__name__)

SCHEME: Final = "hf://"
_FORM = re.compile(r"hf://([^/\s@]+/[^/\s@]+)(?:/([^\s@]+))?(?:@(\S+))?")

FILES: Final = (
    "*.json",
    "*.safetensors",
    "*.jinja",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
)
"""What is served from of a folder. Weights in other formats, which many repositories hold as well, are left there."""

REPORT_SECONDS: Final = 10.0


class HubError(StartupError):
    """A model cannot be had from its hub; the message says what to do."""

    exit_code = EXIT_MODEL_NOT_FOUND


@dataclass(frozen=True, slots=True)
class HubModel:
    """A source `hf://ORG/NAME/PATH@REVISION`.

    Attributes:
        path: a folder of the repository, or a GGUF file; empty: the repository itself.
    """

    repository: str
    path: str
    revision: str

    @property
    def patterns(self) -> list[str]:
        """Of the files to fetch."""
        if self.path.endswith(".gguf"):
            return [self.path]
        return [f"{self.path}/{name}" if self.path else name for name in FILES]

    @property
    def unwanted(self) -> list[str]:
        """Patterns of files below the folder: a pattern with `*` would take them as well."""
        return [f"{self.path}/*/*" if self.path else "*/*"]


def parse(source: str) -> HubModel:
    """Read a source.

    Raises:
        HubError: it has another form.
    """
    found = _FORM.fullmatch(source)
    if found is None:
        raise HubError(f"{source}: write hf://ORG/NAME@REVISION, or hf://ORG/NAME/FILE.gguf@REVISION for one file")
    repository, path, revision = found.groups()
    return HubModel(repository, (path or "").strip("/"), revision or "main")


def fetch(source: str, report: Callable[[str], None] = log.info) -> None:
    """Fetch a model into the cache, unless its source is no hub, or all of it is there.

    Args:
        report: is told how far it is, at most every ten seconds.

    Raises:
        HubError: there is no such model, nobody may have it, or the hub cannot be reached.
        ConfigError: the cache has no room.
    """
    if not source.startswith(SCHEME):
        return
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    model = parse(source)
    try:
        folder = Path(_snapshot(model, local_files_only=False, progress=_progress(source, report)))
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _words(source, model, error.__cause__) from error
        raise _unreachable(source, error) from error
    except OSError as error:
        raise _words(source, model, error) from error
    except Exception as error:
        # The library's client raises errors of its own for connections that break in the middle of a file.
        raise _unreachable(source, error) from error
    if not (folder / model.path).exists():
        what = model.path or "nothing that can be served: neither a configuration nor safetensors"
        has = "has no" if model.path else "holds"
        raise HubError(f"{source}: {model.repository} {has} {what} at revision {model.revision!r}")


def cached(source: str) -> Path:
    """Where a model was fetched to.

    Raises:
        HubError: it was not, or not in full.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    model = parse(source)
    try:
        folder = Path(_snapshot(model, local_files_only=True))
    except (LocalEntryNotFoundError, OSError) as error:
        raise HubError(f"{source} is not in the cache: it is fetched when a replica starts") from error
    return folder / model.path if model.path else folder


def _snapshot(model: HubModel, *, local_files_only: bool, progress: Any = None) -> str:
    # Imported late: it takes a moment, and few sources need it.
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        model.repository,
        revision=model.revision,
        allow_patterns=model.patterns,
        ignore_patterns=None if model.path.endswith(".gguf") else model.unwanted,
        local_files_only=local_files_only,
        library_name="paceline",
        max_workers=4,
        tqdm_class=progress,
    )
    return str(folder)


def _unreachable(source: str, error: BaseException) -> HubError:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return HubError(f"{source} is not whole in the cache, and HF_HUB_OFFLINE forbids to fetch it")
    cause = error.__cause__ or error
    return HubError(
        f"{source}: {_endpoint()} cannot be reached ({type(cause).__name__}: {cause}); files that are whole are kept "
        "for the next start. Where there is no way out, set HF_ENDPOINT to a mirror, or put the model on a volume "
        "(pvc://CLAIM/PATH)"
    )


def _words(source: str, model: HubModel, error: OSError) -> StartupError:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    token = "the token that was given" if os.environ.get("HF_TOKEN") else "no token was given"
    if isinstance(error, GatedRepoError):
        return HubError(
            f"{source}: its owner lets only known users have it ({token}): accept the terms at "
            f"{_endpoint()}/{model.repository}, and name a Secret with your token in spec.model.tokenSecretName"
        )
    if isinstance(error, RevisionNotFoundError):
        return HubError(f"{source}: {model.repository} has no revision {model.revision!r} at {_endpoint()}")
    if isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"{source}: there is no {model.repository} at {_endpoint()}, or it is private ({token}): correct the name, "
            "or name a Secret with a token in spec.model.tokenSecretName"
        )
    if isinstance(error, HfHubHTTPError):
        code = error.response.status_code
        why = f"{token} is not accepted" if code in (401, 403) else "try later, or set HF_ENDPOINT to a mirror"
        return HubError(f"{source}: {_endpoint()} answers {code}: {why}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = os.environ.get("HF_HOME", "~/.cache/huggingface")
        return ConfigError(
            f"{source} does not fit where fetched models are kept ({where}): name a larger volume in "
            "spec.model.cacheVolumeName"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ConfigError(
            f"{source} cannot be kept in the cache: {error.strerror}: {error.filename}; make it writable"
        )
    return _unreachable(source, error)


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _progress(source: str, report: Callable[[str], None]) -> Any:
    """A class of progress bars, as the library wants it, that writes lines to a log."""
    from huggingface_hub.utils.tqdm import tqdm

    clock = time.monotonic
    last = clock() - REPORT_SECONDS

    class Lines(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere(), "mininterval": 0.5})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal last
            shown: bool | None = super().update(n)
            if self.unit == "B" and self.total and clock() - last >= REPORT_SECONDS:
                last = clock()
                report(f"{source}: {self.n / 1e6:.0f} of {self.total / 1e6:.0f} MB fetched")
            return shown

    return Lines


class _Nowhere:
    """Takes what a terminal would show."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass
