"""What a pull from a model hub may do and what its errors mean (pure; standard library only)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# Room that is left on the file system beyond the files themselves.
SPARE_BYTES = 1 << 30
_LONGEST_PATH = 400
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
# The client itself refuses larger files without xet (huggingface_hub 2.4.0, MAX_HTTP_DOWNLOAD_SIZE).
LARGEST_PLAIN_BYTES = 50_000_000_000


class PullError(Exception):
    """A pull that can't be done; the text is a sentence for people."""


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it: size in bytes; sha256 of a large file, git blob id of a small one."""

    path: str
    size: int
    sha256: str | None = None
    git_blob: str | None = None


@dataclass(frozen=True)
class Found:
    """A file as it arrived."""

    size: int
    sha256: str
    git_blob: str


def check_path(path: str, repository: str) -> None:
    """Raise PullError where a hub lists a path that must not be written."""
    parts = PurePosixPath(path).parts
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or "\\" in path
        or any(ord(character) < 32 for character in path)
        or len(path) > _LONGEST_PATH
        or parts[0] == ".cache"
    ):
        raise PullError(
            f"The hub lists a file {path[:80]!r} in {repository}, which is no path inside a model's folder; "
            "nothing was written. Don't use this repository."
        )


def chosen(files: Sequence[HubFile], ignored: Sequence[str], repository: str) -> list[HubFile]:
    """The files to download: hidden ones never; `ignored` ones not where there are safetensors.

    Raises PullError for an unsafe path, two that would be one file, and for a repository without weights.
    """
    for file in files:
        check_path(file.path, repository)
    visible = [
        file for file in files if not any(part.startswith(".") for part in PurePosixPath(file.path).parts)
    ]
    if any(file.path.endswith(".safetensors") for file in visible):
        visible = [file for file in visible if not any(fnmatch.fnmatch(file.path, each) for each in ignored)]
    if len({file.path for file in visible}) != len(visible):
        raise PullError(f"The hub lists a file of {repository} twice; nothing was written.")
    if not any(file.path.endswith(_WEIGHTS) for file in visible):
        raise PullError(
            f"The repository {repository} holds no weights ({', '.join(_WEIGHTS)}); is it a model's?"
        )
    return sorted(visible, key=lambda file: file.path)


def picked(files: Sequence[HubFile], only: Sequence[str], repository: str) -> list[HubFile]:
    """Those of `files` named in `only`; all where it is empty. Raises PullError for a missing one."""
    if not only:
        return list(files)
    missing = sorted(set(only) - {file.path for file in files})
    if missing:
        raise PullError(
            f"The hub no longer lists {missing[0]} in {repository} at the commit that was pulled."
        )
    return [file for file in files if file.path in set(only)]


def check_room(needed_bytes: int, present_bytes: int, free_bytes: int, place: str) -> None:
    """Raise PullError where what is still to come does not fit on the file system of `place`."""
    to_come = max(0, needed_bytes - present_bytes)
    if to_come + SPARE_BYTES > free_bytes:
        raise PullError(
            f"The model takes {gigabytes(needed_bytes)}, of which {gigabytes(present_bytes)} are here "
            "already, and "
            f"1.1 GB shall stay free, but the file system of {place} has {gigabytes(free_bytes)} "
            "free; make room "
            "there, or set model_files_root to a folder on a larger one. Nothing was downloaded."
        )


def check_sizes(files: Sequence[HubFile], *, xet: bool) -> None:
    """Raise PullError for a file that the client can't fetch without xet."""
    largest = max(files, key=lambda file: file.size)
    if largest.size > LARGEST_PLAIN_BYTES and not xet:
        raise PullError(
            f"The file {largest.path} has {gigabytes(largest.size)}; files beyond 50 GB need the "
            "hub's protocol "
            "xet: set model_files_hub_xet: true."
        )


def wrong(file: HubFile, found: Found | None) -> str | None:
    """Why a file that arrived is not the hub's; None when it is."""
    if found is None:
        return "is missing"
    if found.size != file.size:
        return f"has {found.size} bytes, the hub says {file.size}"
    if file.sha256 and found.sha256 != file.sha256:
        return f"has the sha256 {found.sha256}, the hub says {file.sha256}"
    if not file.sha256 and file.git_blob and found.git_blob != file.git_blob:
        return f"has the git blob id {found.git_blob}, the hub says {file.git_blob}"
    return None


def gigabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _names(error: BaseException) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: the network, or a hub that is overloaded or down for a moment."""
    for each in causes(error):
        status = _status(each)
        if status is not None:
            return status in (408, 429) or status >= 500
        if _is_network(each):
            return True
    return False


def _is_network(error: BaseException) -> bool:
    # httpx, httpx2 and requests, whichever this client stands on, name their errors alike.
    signs = (
        "Timeout",
        "ConnectError",
        "ConnectionError",
        "ReadError",
        "WriteError",
        "ProtocolError",
        "ProxyError",
    )
    return isinstance(error, ConnectionError | TimeoutError) or any(
        sign in name for name in _names(error) for sign in signs
    )


def explain(error: BaseException, job: Mapping[str, str], token: str) -> str:
    """An error of the hub's client as a sentence for people, never with the token in it."""
    repository, revision, hub = job["repository"], job["revision"], job["endpoint"] or "the hub"
    if isinstance(error, PullError):
        return str(error)
    for each in causes(error):
        names, status = _names(each), _status(each)
        if "GatedRepoError" in names or "DisabledRepoError" in names:
            return _gated(repository, hub, token)
        if "RevisionNotFoundError" in names:
            return (
                f"The repository {repository} at {hub} has no revision '{revision}'; correct "
                "model_files_revision."
            )
        if "EntryNotFoundError" in names and status == 404:
            return f"{_start(hub)} lists a file of {repository} that it doesn't give; try again later."
        if status == 401 and token and "RepositoryNotFoundError" not in names:
            return f"{_start(hub)} refuses the token (HF_TOKEN, or model_files_hub_token); is it still valid?"
        if "RepositoryNotFoundError" in names or status == 404:
            return (
                f"There is no repository {repository} at {hub}, or it is private and "
                f"{'the token may not read it' if token else 'no token was given'}; correct the name "
                "(model_files_repository), or give a token (HF_TOKEN, or model_files_hub_token)."
            )
        if status is not None:
            return (
                f"{_start(hub)} answered with status {status} when asked for {repository}; try again later."
            )
    return _explain_local(error, repository, hub, token)


def _explain_local(error: BaseException, repository: str, hub: str, token: str) -> str:
    chain = list(causes(error))
    if any(isinstance(each, ImportError) for each in chain):
        return (
            f"The image to download in carries no hub client ({_last_words(chain[-1], token)}); "
            "model_files_image "
            "must name one with huggingface_hub, such as the engine's."
        )
    # By its own name: urllib3's NewConnectionError is a kind of ConnectTimeoutError, and no time-out.
    if any("Timeout" in type(each).__name__ for each in chain):
        return f"{_start(hub)} gave no answer in time; run again, what has arrived is kept."
    if any(_is_network(each) for each in chain):
        return (
            f"{_start(hub)} can't be reached, or the connection broke: {_last_words(chain[-1], token)} "
            "(model_files_hub_endpoint, model_files_hub_network and model_files_hub_environment say "
            "how it is "
            "reached). Run again: what has arrived is kept."
        )
    if any(isinstance(each, OSError) and each.errno is not None for each in chain):
        return f"A file of {repository} can't be written: {_last_words(chain[-1], token)}"
    if any(isinstance(each, KeyError | TypeError | ValueError) for each in chain):
        return (
            f"{_start(hub)} does not answer as a model hub does ({_last_words(chain[-1], token)}); correct "
            "model_files_hub_endpoint."
        )
    return f"Pulling {repository} failed: {type(error).__name__}: {_last_words(error, token)}"


def _gated(repository: str, hub: str, token: str) -> str:
    if token:
        return (
            f"The repository {repository} at {hub} is gated and the token's owner was not given "
            "access; ask for it there."
        )
    return (
        f"The repository {repository} at {hub} is gated: ask for access there, then give your token as "
        "HF_TOKEN in the environment (or in a vault, as model_files_hub_token)."
    )


def _start(hub: str) -> str:
    return hub[0].upper() + hub[1:] if hub.startswith("the ") else hub


def _last_words(error: BaseException, token: str) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return (text.replace(token, "***") if token else text)[:200]
