"""Downloads a model from a hub into a folder with the hub's own client, and proves every file.

Runs in a throw-away container of the engine's image, which carries the client (huggingface_hub). Usage:
hub_pull.py JOB PULL
JOB holds ``job.json``, which is removed as soon as it was read, for it may hold a token; ``status.json`` and
``outcome.json`` are written there. The model arrives in PULL/model; files that arrived damaged are kept in
PULL/bad.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hub_rules import (
    Found,
    HubFile,
    PullError,
    check_room,
    check_sizes,
    chosen,
    explain,
    is_transient,
    picked,
    wrong,
)

_TRIES = 3
_TRY_AGAIN_SECONDS = 2.0
_AT_ONCE = 4
_BLOCK_BYTES = 1 << 20
_STATUS_SECONDS = 0.5
_ANSWER_SECONDS = 30
# Only small files are kept in git itself; of larger ones the sha256 is known.
_LARGEST_BLOB_BYTES = 100 << 20


@dataclass
class Pull:
    """What is asked for, where it goes, and how far it is."""

    job: dict[str, Any]
    job_folder: Path
    folder: Path
    token: str
    phase: str = "asking"
    total_bytes: int = 0
    checked_bytes: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def model(self) -> Path:
        """Where the model arrives."""
        return self.folder / "model"

    @property
    def parts(self) -> Path:
        """Where large files grow."""
        return self.folder / "parts"

    def note(self, name: str) -> Path:
        """Where the client notes which commit and checksum a file has."""
        return self.model / ".cache/huggingface/download" / f"{name}.metadata"

    @property
    def bad(self) -> Path:
        """Where damaged files are kept."""
        return self.folder / "bad"


def main(job_folder: Path, folder: Path) -> int:
    """Do the job and leave its outcome; returns the exit status."""
    path = job_folder / "job.json"
    job = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    pull = Pull(job, job_folder, folder, token=job.pop("token"))
    _set_up_client(job)
    threading.Thread(target=_watch, args=(pull,), daemon=True).start()
    try:
        outcome = {"ok": True, **_pull(pull)}
    except Exception as error:  # noqa: BLE001 - whatever it is, people get a sentence
        outcome = {"ok": False, "sentence": explain(error, job, pull.token)}
    _end(pull, outcome)
    return 0 if outcome["ok"] else 1


def _set_up_client(job: dict[str, Any]) -> None:
    # The client reads all of these while it is imported.
    os.environ.update(job["environment"])
    os.environ.update(
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_XET="0" if job["xet"] else "1",
        HF_HUB_DOWNLOAD_TIMEOUT=str(_ANSWER_SECONDS),
        HF_HUB_ETAG_TIMEOUT=str(_ANSWER_SECONDS),
    )


def _pull(pull: Pull) -> dict[str, Any]:
    commit, listed = _ask(pull)
    job = pull.job
    files = picked(chosen(listed, job["ignore"], job["repository"]), job["only"], job["repository"])
    check_sizes(files, xet=job["xet"])
    pull.total_bytes = sum(file.size for file in files)
    pull.model.mkdir(parents=True, exist_ok=True)
    _remove_strangers(pull.model, {file.path for file in files})
    check_room(pull.total_bytes, _present(pull), shutil.disk_usage(pull.folder).free, job["place"])
    found, aside = _download_until_right(pull, commit, files)
    return {
        "commit": commit,
        "files": {path: each.sha256 for path, each in found.items()},
        "bytes": pull.total_bytes,
        "set_aside": aside,
    }


def _ask(pull: Pull) -> tuple[str, list[HubFile]]:
    """The commit of the revision, and the files that it holds."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=pull.job["endpoint"] or None, token=pull.token or False)
    information = api.model_info(
        pull.job["repository"], revision=pull.job["revision"], files_metadata=True, timeout=_ANSWER_SECONDS
    )
    if not information.sha or information.siblings is None:
        raise ValueError("it names no commit or no files")
    return information.sha, [_listed(each) for each in information.siblings]


def _listed(sibling: Any) -> HubFile:
    if sibling.size is None:
        raise ValueError(f"it gives no size for {sibling.rfilename}")
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    return HubFile(sibling.rfilename, int(sibling.size), sha256, sibling.blob_id)


def _remove_strangers(model: Path, wanted: set[str]) -> None:
    """Files that an earlier pull of another commit left; the client's own book-keeping stays."""
    for path in [each for each in model.rglob("*") if each.is_file() and not each.is_symlink()]:
        name = path.relative_to(model).as_posix()
        if not name.startswith(".cache/") and name not in wanted:
            path.unlink()


def _download_until_right(
    pull: Pull, commit: str, files: list[HubFile]
) -> tuple[dict[str, Found], list[dict[str, str]]]:
    """Download, check, and fetch once more what arrived damaged. Raises PullError where that didn't help."""
    aside: list[dict[str, str]] = []
    found: dict[str, Found] = {}
    missing = files
    for _ in range(2):
        _download(pull, commit, missing)
        found |= _check(pull, missing)
        reasons = {file.path: wrong(file, found.get(file.path)) for file in missing}
        missing = [file for file in missing if reasons[file.path]]
        if not missing:
            return found, aside
        aside += [_set_aside(pull, file.path, str(reasons[file.path])) for file in missing]
    last = aside[-1]
    raise PullError(
        f"The file {last['file']} of {pull.job['repository']} arrived damaged twice: it "
        f"{last['why']}. The copies "
        f"are kept in {pull.job['place']}/bad; check the memory, the disk and the network of this box."
    )


def _download(pull: Pull, commit: str, files: list[HubFile]) -> None:
    pull.phase = "downloading"
    pool = ThreadPoolExecutor(_AT_ONCE)
    running = [pool.submit(_fetch, pull, commit, file) for file in files]
    try:
        for each in as_completed(running):
            each.result()
    finally:
        # After an error the others are not waited for: the process ends, and what has arrived is kept.
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(pull: Pull, commit: str, file: HubFile) -> None:
    """Fetch one file, unless it is there; a broken connection is taken up again where it broke."""
    for attempt in range(1, _TRIES + 1):
        try:
            if file.sha256 and not pull.job["xet"]:
                _fetch_large(pull, commit, file)
            else:
                _fetch_small(pull, commit, file)
            return
        except Exception as error:
            if attempt == _TRIES or not is_transient(error):
                raise
            time.sleep(_TRY_AGAIN_SECONDS)


def _fetch_small(pull: Pull, commit: str, file: HubFile) -> None:
    from huggingface_hub import hf_hub_download

    hf_hub_download(
        pull.job["repository"],
        file.path,
        revision=commit,
        local_dir=pull.model,
        endpoint=pull.job["endpoint"] or None,
        token=pull.token or False,
        etag_timeout=_ANSWER_SECONDS,
    )


def _fetch_large(pull: Pull, commit: str, file: HubFile) -> None:
    """Fetch into a part that the next run goes on with.

    The client's own download to a folder begins a file anew in each process (huggingface_hub 2.4.0), so its
    inner function is used, and what it would note beside the file is noted here.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import get_hf_file_metadata, http_get
    from huggingface_hub.utils._headers import build_hf_headers

    target, part = pull.model / file.path, pull.parts / f"{file.sha256}.part"
    if target.is_file():
        return
    url = hf_hub_url(
        pull.job["repository"], file.path, revision=commit, endpoint=pull.job["endpoint"] or None
    )
    token = pull.token or False
    known = get_hf_file_metadata(url, token=token, timeout=_ANSWER_SECONDS)
    headers = build_hf_headers(token=token)
    if urlsplit(known.location).netloc != urlsplit(url).netloc:
        # The file lies elsewhere, where the token has no business.
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    with part.open("ab") as arriving:
        http_get(
            known.location, arriving, resume_size=arriving.tell(), headers=headers, expected_size=file.size
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)
    note = pull.note(file.path)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{commit}\n{file.sha256}\n{time.time()}\n", encoding="utf-8")


def _check(pull: Pull, files: list[HubFile]) -> dict[str, Found]:
    pull.phase, pull.checked_bytes = "checking", 0
    there = [file for file in files if (pull.model / file.path).is_file()]
    return {file.path: _read(pull, file.path) for file in there}


def _read(pull: Pull, name: str) -> Found:
    path = pull.model / name
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sha256.update(block)
            if size < _LARGEST_BLOB_BYTES:
                blob.update(block)
            pull.checked_bytes += len(block)
    return Found(size, sha256.hexdigest(), blob.hexdigest())


def _set_aside(pull: Pull, name: str, why: str) -> dict[str, str]:
    """Keep a damaged file, and make the client forget it."""
    path = pull.model / name
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = pull.bad / f"{name}.bad-{stamp}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.replace(kept)
    pull.note(name).unlink(missing_ok=True)
    return {"file": name, "why": why, "kept": kept.relative_to(pull.bad).as_posix()}


def _present(pull: Pull) -> int:
    """Bytes that have arrived, unfinished files included."""
    total = 0
    for path in [*pull.model.rglob("*"), *pull.parts.rglob("*")]:
        # Files are renamed while we look.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _watch(pull: Pull) -> None:
    """Tell how far it is, and end a download of which nothing arrives any more."""
    moved_at, before = time.monotonic(), -1
    while not pull.ended.wait(_STATUS_SECONDS):
        done = pull.checked_bytes if pull.phase == "checking" else _present(pull)
        status = {"phase": pull.phase, "done_bytes": done, "total_bytes": pull.total_bytes}
        _write(pull.job_folder / "status.json", status)
        now = time.monotonic()
        if done != before or pull.phase != "downloading":
            moved_at, before = now, done
        if now - moved_at > pull.job["stall_seconds"]:
            sentence = (
                f"No byte of {pull.job['repository']} has arrived for {pull.job['stall_seconds']} s "
                "(model_files_hub_stall_seconds); run again, what has arrived is kept."
            )
            _end(pull, {"ok": False, "sentence": sentence})


def _end(pull: Pull, outcome: dict[str, Any]) -> None:
    """Leave the outcome and end at once: downloads that hang would keep the process."""
    pull.ending.acquire()  # never given back: the first outcome is the one that counts
    pull.ended.set()
    _write(pull.job_folder / "outcome.json", outcome)
    sys.stdout.flush()
    os._exit(0 if outcome["ok"] else 1)


def _write(path: Path, document: dict[str, Any]) -> None:
    beside = path.with_suffix(f".{threading.get_ident()}")
    beside.write_text(json.dumps(document), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
