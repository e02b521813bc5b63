"""The box as the modules handle it: files, the deploy lock, the `docker` command. No decisions."""

from __future__ import annotations

import fcntl
import grp
import hashlib
import json
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import frontdoor_converge as pure
else:
    from ansible.module_utils import frontdoor_converge as pure

COMPOSE_AT_LEAST = (2, 18)
COMMAND_SECONDS = 120  # a daemon that hangs is said, not waited for


class ConvergeError(Exception):
    """A sentence for people; nothing more can be done in this run."""


# ------------------------------------------------------------------------------------------------ files


def user_id(name: str, what: str) -> int:
    """The number of a user given by name or number."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise ConvergeError(f"{what}: its owner {name} is no user of this machine") from error


def group_id(name: str, what: str) -> int:
    """The number of a group given by name or number."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ConvergeError(f"{what}: its group {name} is no group of this machine") from error


def octal_mode(text: str, what: str) -> int:
    """Permissions written in octal digits."""
    if not re.fullmatch(r"[0-7]{3,4}", text):
        raise ConvergeError(f"{what}: its mode {text!r} is not three or four octal digits, such as 0644")
    return int(text, 8)


def path_status(path: Path, *, follow: bool) -> pure.PathStatus:
    """What lies at a path; the content of regular files is read."""
    try:
        found = path.stat() if follow else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return pure.MISSING
    status = pure.PathStatus("other", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
    if stat.S_ISREG(found.st_mode):
        content = path.read_bytes()
        return replace(status, kind="file", digest=sha256(content), size=len(content))
    if stat.S_ISDIR(found.st_mode):
        return replace(status, kind="directory")
    return replace(status, kind="link") if stat.S_ISLNK(found.st_mode) else status


def sha256(content: bytes) -> str:
    """The digest that contents are compared by."""
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes, mode: int, uid: int, gid: int) -> None:
    """Replace a file at once: a reader sees the old content or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            os.fchown(stream.fileno(), uid, gid)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def deploy_lock(root: Path, *, check_mode: bool) -> Iterator[frozenset[str]]:
    """Hold the instance's lock; yields the folders that had to be made for its file.

    Raises ConvergeError that names the holder when another run has it. Check mode creates nothing: without a
    root or a lock file there is no other run either.
    """
    path = root / ".deploy.lock"
    if check_mode and not path.exists():
        yield frozenset()
        return
    made = frozenset(str(folder) for folder in (root, *root.parents) if not folder.exists())
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConvergeError(f"{root}: {lock_holder(path)}; wait for it to end, then run again") from error
        holder = {
            "pid": os.getpid(),
            "user": person(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
        yield made
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> str:
    """Who deploys, in words, from the lock file."""
    try:
        holder = json.loads(path.read_text())
        seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(holder["since"])).total_seconds())
        return (
            f"another run deploys this instance: process {holder['pid']} of user {holder['user']} "
            f"since {holder['since']}, for {age_words(seconds)}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another run deploys this instance and has not said yet who it is"


def age_words(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def person() -> str:
    """Who runs this: the one behind sudo, else the process's user."""
    if name := os.environ.get("SUDO_USER"):
        return name
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# ------------------------------------------------------------------------------------------------ Docker


class Docker:
    """The `docker` command against one daemon."""

    def __init__(self, host: str) -> None:
        self._host = host
        kept = (
            "PATH",
            "HOME",
            "DOCKER_CONFIG",
            "LANG",
            "SSH_AUTH_SOCK",
            "DOCKER_CERT_PATH",
            "DOCKER_TLS_VERIFY",
        )
        # Nothing else, so that no COMPOSE_… variable or value to interpolate comes from who runs this.
        self._environment = {name: os.environ[name] for name in kept if name in os.environ}
        self._environment["DOCKER_HOST"] = host

    def unavailable(self) -> str | None:
        """Why containers cannot be managed here, in a sentence; None when they can."""
        if shutil.which("docker", path=self._environment.get("PATH")) is None:
            return "Docker is not installed on this machine: there is no docker command"
        version = self.run("version", "--format", "{{.Server.Version}}")
        if version.returncode != 0:
            return f"Docker does not answer at {self._host}: {last_line(version.stderr)}"
        compose = self.run("compose", "version", "--short")
        if compose.returncode != 0:
            return "Docker has no Compose plugin on this machine: `docker compose version` fails"
        found = re.match(r"v?(\d+)\.(\d+)", compose.stdout.strip())
        if found is None or (int(found[1]), int(found[2])) < COMPOSE_AT_LEAST:
            needed = ".".join(map(str, COMPOSE_AT_LEAST))
            return f"Docker's Compose plugin is version {compose.stdout.strip()}, at least {needed} is needed"
        return None

    def run(
        self, *arguments: str, seconds: float = COMMAND_SECONDS, errors_too: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a docker command, whatever its outcome; `errors_too` puts both streams into the output."""
        try:
            return subprocess.run(
                ["docker", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            sentence = f"docker {arguments[0]} at {self._host} did not end within {seconds:g} seconds"
            raise ConvergeError(sentence) from error

    def ask(self, *arguments: str) -> str:
        """The output of a docker command. Raises ConvergeError when it fails."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise ConvergeError(f"docker {' '.join(arguments[:2])} failed: {last_line(done.stderr)}")
        return done.stdout

    def inspect(self, kind: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """`docker KIND inspect`; what is not there (any more) is left out."""
        wanted = list(names)
        if not wanted:
            return []
        done = self.run(kind, "inspect", *wanted)
        try:
            documents: list[dict[str, Any]] = json.loads(done.stdout or "[]")
        except ValueError as error:
            raise ConvergeError(f"docker {kind} inspect answered nonsense: {done.stdout[:200]!r}") from error
        if done.returncode != 0 and not documents and not re.search(r"[Nn]o such|not found", done.stderr):
            raise ConvergeError(f"docker {kind} inspect failed: {last_line(done.stderr)}")
        return documents

    def engine_version(self) -> str:
        return self.ask("version", "--format", "{{.Server.Version}}").strip()

    def containers(self) -> tuple[pure.Container, ...]:
        """All containers of the daemon."""
        ids = self.ask("container", "ls", "--all", "--quiet", "--no-trunc").split()
        return tuple(pure.container_from_inspect(one) for one in self.inspect("container", ids))

    def networks(self) -> tuple[pure.Network, ...]:
        """All networks of the daemon."""
        ids = self.ask("network", "ls", "--quiet", "--no-trunc").split()
        return tuple(pure.network_from_inspect(one) for one in self.inspect("network", ids))

    def image_ids(self, references: Iterable[str]) -> dict[str, str | None]:
        """Ids of images by reference; None for those that are not on the machine."""
        found: dict[str, str | None] = {}
        for reference in sorted(set(references)):
            documents = self.inspect("image", [reference]) if reference else []
            found[reference] = documents[0]["Id"] if documents else None
        return found

    def last_log_lines(self, container: str, count: int) -> str:
        """What a container wrote last, both streams."""
        return self.run("logs", "--tail", str(count), container, errors_too=True).stdout.strip("\n")

    def log_since_start(self, container: str) -> str:
        """All that a container wrote since it was started last, both streams. Raises ConvergeError."""
        began = self.ask("container", "inspect", "--format", "{{.State.StartedAt}}", container).strip()
        done = self.run("logs", "--since", began, container, errors_too=True)
        if done.returncode != 0:
            raise ConvergeError(f"docker logs failed: {last_line(done.stdout)}")
        return done.stdout

    def last_exit_code(self, container: str, since: float) -> str | None:
        """The exit code with which a container ended last, from Docker's events: once it was restarted, its
        own description forgets it. `since` is seconds since the epoch."""
        done = self.run(
            "events",
            *("--since", f"{since:.0f}", "--until", f"{time.time():.0f}"),
            *("--filter", "event=die", "--filter", f"container={container}"),
            *("--format", "{{.Actor.Attributes.exitCode}}"),
        )
        codes = done.stdout.split()
        return codes[-1] if codes else None


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def sentence_of(error: Exception) -> str:
    """An error as a sentence for people."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
