#!/usr/bin/python
"""Ansible module: makes files, containers and networks on the box equal to a rendering."""

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
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    import frontdoor_converge as pure
else:
    from ansible.module_utils import frontdoor_converge as pure

DOCUMENTATION = r"""
module: vllm_service_converge
short_description: Make a Compose project on the box equal to a rendering
version_added: "0.1.0"
description:
  - Compares files, directories, secrets, containers and networks with a rendering, changes only what
    differs, and says in sentences what it changed.
  - Containers that are right already are neither restarted nor replaced. A container that was stopped is
    started, a paused one resumed, a renamed one renamed back, a disconnected one connected again; one that
    was altered by hand, or whose definition, image, environment file or network changed, is created anew.
  - Containers and networks of this project and instance that are no longer planned are removed. Containers
    of others are never touched.
  - Waits until all containers of the project are healthy, and fails with the last lines of the log of those
    that are not.
options:
  root:
    description: Folder of the instance on the box; relative paths of other options are below it.
    type: path
    required: true
  state:
    description: Folder of the instance's state; its folder C(deployed) holds the record of what was deployed.
    type: path
    required: true
  instance:
    description: Name of the instance, as in the label C(vllm-frontdoor.instance). By default the last part of
      O(root).
    type: str
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: unix:///var/run/docker.sock
  project:
    description: Name of the Compose project.
    type: str
    required: true
  compose_file:
    description: Path of the Compose file, relative to O(root); one of O(files).
    type: str
    required: true
  compose:
    description: The content of O(compose_file) as data.
    type: dict
    required: true
  files:
    description: Files below O(root). Those that an earlier run wrote for this project and that are not listed
      any more are removed.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path relative to O(root).
        type: str
        required: true
      content:
        description: Content, as text. Shown in diff mode.
        type: str
      secret_content:
        description: Content that is never shown; instead of O(files[].content).
        type: str
      mode:
        description: Permissions, in octal digits.
        type: str
        default: "0644"
      owner:
        description: Owner, a name or a number.
        type: str
        default: root
      group:
        description: Group, a name or a number.
        type: str
        default: root
  directories:
    description: Folders that have to exist.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      mode:
        description: Permissions, in octal digits.
        type: str
        default: "0755"
      owner:
        description: Owner, a name or a number.
        type: str
        default: root
      group:
        description: Group, a name or a number.
        type: str
        default: root
  secrets:
    description: Files of random hexadecimal digits, created once; later only their permissions are repaired.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path relative to O(root).
        type: str
        required: true
      bytes:
        description: Number of random bytes; the file holds two digits for each, and a line end.
        type: int
        default: 32
      mode:
        description: Permissions, in octal digits.
        type: str
        default: "0640"
      owner:
        description: Owner, a name or a number.
        type: str
        default: root
      group:
        description: Group, a name or a number.
        type: str
        default: root
  reload:
    description: How to tell the router that its registry changed. Not done when its container starts anyway.
    type: dict
    suboptions:
      url:
        description: Where to POST to.
        type: str
        required: true
      token_file:
        description: File with the bearer token, absolute or relative to O(root).
        type: str
        required: true
      when_changed:
        description: Beginning of the paths, relative to O(root), whose change is told.
        type: str
        required: true
      service:
        description: Compose service of the router, in whichever project it is.
        type: str
        default: router
  healthy_timeout_seconds:
    description: How long containers may take until they are healthy, all together, in seconds.
    type: int
    default: 600
  log_lines:
    description: How many of its last log lines a failing container is reported with.
    type: int
    default: 30
attributes:
  check_mode:
    description: Says in the same words what a run would change. Where Docker or an image is not there yet, it
      warns and predicts as if an earlier task would provide them.
    support: full
  diff_mode:
    description: Shows files before and after, never secrets.
    support: full
author:
  - vllm-frontdoor
"""

EXAMPLES = r"""
- name: Deploy the engines
  vllm_service_converge:
    root: /opt/vllm-frontdoor/default
    state: /var/lib/vllm-frontdoor/default
    project: vllm-frontdoor-default-engines
    compose_file: engines/compose.yml
    compose: "{{ document }}"
    files:
      - path: engines/compose.yml
        content: "{{ document | to_nice_yaml }}"
        mode: "0644"
    healthy_timeout_seconds: 900
"""

RETURN = r"""
changes:
  description: What was changed, or would be, a sentence each.
  returned: always
  type: list
  elements: str
  sample:
    - "file engines/compose.yml: content differs, rewritten"
    - "container vllm-frontdoor-default-text: removed by someone, created"
problems:
  description: What went wrong, a sentence each; of a container with its last log lines.
  returned: failure
  type: list
  elements: str
containers:
  description: Ids of the project's containers by service, as they are after the run.
  returned: success, not in check mode
  type: dict
"""

COMPOSE_AT_LEAST = (2, 18)
COMMAND_SECONDS = 120  # a daemon that hangs is said, not waited for
STOP_SECONDS = 900  # a container's own grace period is shorter
POLL_SECONDS = 0.5
RELOAD_TRIES = 5
RELOAD_SECONDS = 30


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
        return (
            f"another run deploys this instance: process {holder['pid']} of user {holder['user']} "
            f"since {holder['since']}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "another run deploys this instance and has not said yet who it is"


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


# ------------------------------------------------------------------------------------------------ one run


@dataclass(frozen=True)
class Payload:
    """What goes into files, by absolute path."""

    contents: dict[Path, bytes]
    hidden: frozenset[Path]
    secret_bytes: dict[Path, int]


class Run:
    """One run of the module: observe, plan, refuse or carry out, wait."""

    def __init__(self, module: AnsibleModule) -> None:
        parameters: dict[str, Any] = module.params
        self.module = module
        self.parameters = parameters
        self.root = Path(parameters["root"])
        self.project: str = parameters["project"]
        self.compose: dict[str, Any] = parameters["compose"]
        self.record_path = Path(parameters["state"]) / "deployed" / f"{self.project}.json"
        self.docker = Docker(parameters["docker_host"])
        self.payload = self._payload()
        self.desired = self._desired()
        self.done: set[pure.Change] = set()
        self.problems: dict[str, str] = {}

    # -------------------------------------------------------------------------------- what is wanted

    def _payload(self) -> Payload:
        contents: dict[Path, bytes] = {}
        hidden = set()
        for entry in self.parameters["files"]:
            path = self.root / entry["path"]
            text = entry["content"] if entry["content"] is not None else entry["secret_content"]
            contents[path] = text.encode()
            if entry["content"] is None:
                hidden.add(path)
        sizes = {self.root / entry["path"]: entry["bytes"] for entry in self.parameters["secrets"]}
        return Payload(contents, frozenset(hidden), sizes)

    def _desired(self) -> pure.Desired:
        services = pure.desired_services(self.compose, self.project, self._environment_digests())
        reload = self.parameters["reload"]
        return pure.Desired(
            project=self.project,
            instance=self.parameters["instance"] or self.root.name,
            root=str(self.root),
            paths=tuple(self._desired_paths()),
            services=services,
            networks=pure.desired_networks(self.compose, self.project),
            reload=reload and pure.DesiredReload(reload["when_changed"], reload["service"]),
        )

    def _desired_paths(self) -> Iterator[pure.DesiredPath]:
        for entry in self.parameters["directories"]:
            yield self._desired_path("directory", entry, Path(entry["path"]))
        for entry in self.parameters["files"]:
            path = self.root / entry["path"]
            yield replace(self._desired_path("file", entry, path), digest=sha256(self.payload.contents[path]))
        for entry in self.parameters["secrets"]:
            yield self._desired_path("secret", entry, self.root / entry["path"])

    def _desired_path(self, kind: Any, entry: dict[str, Any], path: Path) -> pure.DesiredPath:
        what = f"{kind} {entry['path']}"
        return pure.DesiredPath(
            kind=kind,
            name=entry["path"],
            path=str(path),
            mode=octal_mode(entry["mode"], what),
            uid=user_id(entry["owner"], what),
            gid=group_id(entry["group"], what),
        )

    def _environment_digests(self) -> dict[str, str]:
        """Compose reads environment files when it creates a container: a changed one asks for a new one."""
        folder = (self.root / self.parameters["compose_file"]).parent
        digests = {}
        for name, service in (self.compose.get("services") or {}).items():
            declared = service.get("env_file") or []
            entries = [declared] if isinstance(declared, (str, dict)) else declared
            paths = [folder / (entry["path"] if isinstance(entry, dict) else entry) for entry in entries]
            planned = [self.payload.contents.get(Path(os.path.normpath(path)), b"") for path in paths]
            digests[name] = sha256(b"\0".join(planned)) if planned else ""
        return digests

    # -------------------------------------------------------------------------------- what there is

    def observe(self, *, with_docker: bool) -> pure.Observed:
        """Look at the box. Without Docker it is as if there were no containers and every image."""
        record = self._read_record()
        paths = {Path(wanted.path): wanted.kind == "directory" for wanted in self.desired.paths}
        paths |= {self.root / name: False for name in record.files if self.root / name not in paths}
        seen = {str(path): path_status(path, follow=follow) for path, follow in paths.items()}
        if not with_docker:
            return pure.Observed(paths=seen, record=record)
        return pure.Observed(
            paths=seen,
            containers=self.docker.containers(),
            networks=self.docker.networks(),
            images=self.docker.image_ids(service.image for service in self.desired.services),
            record=record,
            engine=self.docker.engine_version(),
        )

    def _read_record(self) -> pure.Record:
        try:
            return pure.record_from_document(json.loads(self.record_path.read_text()))
        except FileNotFoundError:
            return pure.Record()
        except ValueError as error:
            self.module.warn(f"the record {self.record_path} cannot be read and is written anew: {error}")
            return pure.Record()

    def _write_record(self, record: pure.Record) -> None:
        document = pure.record_to_document(record, self.project)
        content = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
        if path_status(self.record_path, follow=False).digest != sha256(content):
            write_atomically(self.record_path, content, 0o600, os.geteuid(), os.getegid())

    # -------------------------------------------------------------------------------- the run

    def execute(self) -> None:
        """Everything; ends the module. Raises ConvergeError and OSError."""
        check_mode: bool = self.module.check_mode
        with deploy_lock(self.root, check_mode=check_mode) as made:
            unavailable = self.docker.unavailable()
            if unavailable is not None and not check_mode:
                raise ConvergeError(unavailable)
            if unavailable is not None:
                self.module.warn(f"{unavailable}; predicted as if an earlier task would provide it")
            observed = self.observe(with_docker=unavailable is None)
            # What only the lock's file has brought about is still to be made as it is wanted.
            paths = {**observed.paths, **dict.fromkeys(made & observed.paths.keys(), pure.MISSING)}
            observed = replace(observed, paths=paths)
            self._refuse(observed, check_images=unavailable is None)
            changes = pure.plan_changes(self.desired, observed)
            result: dict[str, Any] = {"diff": self._diffs(changes)} if self.module._diff else {}
            if check_mode:
                self._finish(changes, changes, result)
            self._carry_out_and_report(changes, observed, result)

    def _refuse(self, observed: pure.Observed, *, check_images: bool) -> None:
        found = pure.refusals(self.desired, observed)
        missing = pure.missing_images(self.desired, observed) if check_images else []
        if self.module.check_mode:
            for sentence in missing:
                self.module.warn(f"{sentence}; predicted as if an earlier task would provide it")
        else:
            found += missing
        if found:
            self.module.fail_json(msg="; ".join(found), problems=found, changed=False, changes=[])

    def _carry_out_and_report(
        self, changes: list[pure.Change], observed: pure.Observed, result: dict[str, Any]
    ) -> None:
        started = time.time()
        try:
            self._carry_out(changes, observed)
            containers = self._settle(changes, started)
            if changes and not self.problems:
                self._look_again()
        except (ConvergeError, OSError) as error:
            self.problems.setdefault("", sentence_of(error))
            containers = {}
        self._finish(changes, [change for change in changes if change in self.done], result, containers)

    def _finish(
        self,
        changes: list[pure.Change],
        done: list[pure.Change],
        result: dict[str, Any],
        containers: dict[str, str] | None = None,
    ) -> None:
        sentences = [change.sentence for change in done]
        if not self.problems:
            if containers is not None:
                result["containers"] = containers
            self.module.exit_json(changed=bool(changes), changes=sentences, **result)
        problems = list(self.problems.values())
        self.module.fail_json(
            msg="\n".join(problems), problems=problems, changed=bool(done), changes=sentences, **result
        )

    # -------------------------------------------------------------------------------- carrying out

    def _carry_out(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        pending = any(isinstance(change, pure.ReloadRouter) for change in changes)
        if pending:
            # Written first: if this run dies before the router knows, the next one tells it.
            self._write_record(replace(observed.record, reload_pending=True))
        for change in changes:
            self._change_path(change)
        self._clear_away(changes, observed)
        self._create(changes, observed)
        for change in changes:
            self._repair(change, observed)
        for change in changes:
            if isinstance(change, pure.RemoveFile):
                Path(change.path).unlink(missing_ok=True)
                self.done.add(change)
        pending = pending and not self._reload(changes)
        now = self.observe(with_docker=True)
        self._write_record(pure.next_record(self.desired, now, changes, reload_pending=pending))
        self.done |= {change for change in changes if isinstance(change, pure.AdoptContainers)}

    def _change_path(self, change: pure.Change) -> None:
        kinds = (pure.MakeDirectory, pure.WriteFile, pure.CreateSecret, pure.SetPermissions)
        if not isinstance(change, kinds):
            return
        path = Path(change.path)
        wanted = next(one for one in self.desired.paths if one.path == change.path)
        if isinstance(change, pure.MakeDirectory):
            path.mkdir(parents=True, exist_ok=True)
        if isinstance(change, pure.WriteFile):
            write_atomically(path, self.payload.contents[path], wanted.mode, wanted.uid, wanted.gid)
        elif isinstance(change, pure.CreateSecret):
            content = secrets.token_hex(self.payload.secret_bytes[path]).encode() + b"\n"
            write_atomically(path, content, wanted.mode, wanted.uid, wanted.gid)
        else:
            os.chown(path, wanted.uid, wanted.gid)
            path.chmod(wanted.mode)  # after chown, which clears special bits
        self.done.add(change)

    def _clear_away(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        """Remove containers and networks that go or are replaced."""
        leaving = {c.container: c for c in changes if isinstance(c, pure.RemoveContainer)}
        replaced = [c.replaces for c in changes if isinstance(c, pure.CreateContainer) and c.replaces]
        self._remove_containers([*leaving, *replaced], observed)
        self.done |= set(leaving.values())
        for change in changes:
            if isinstance(change, pure.DisconnectNetwork):
                self._do(change, change.service, "network", "disconnect", change.network, change.container)
            elif isinstance(change, pure.RemoveNetwork):
                self._do(change, "", "network", "rm", change.network)
            elif isinstance(change, pure.CreateNetwork) and change.replaces:
                self._remove_network(change.network)

    def _remove_containers(self, ids: list[str], observed: pure.Observed) -> None:
        paused = [c.id for c in observed.containers if c.id in ids and c.state == "paused"]
        if paused:
            self.docker.run("unpause", *paused)  # a paused process cannot hear that it shall end
        if ids:
            self.docker.run("stop", *ids, seconds=STOP_SECONDS)
            removed = self.docker.run("rm", "--force", "--volumes", *ids)
            if removed.returncode != 0 and "No such container" not in removed.stderr:
                raise ConvergeError(f"docker rm failed: {last_line(removed.stderr)}")

    def _remove_network(self, name: str) -> None:
        seen = self.docker.inspect("network", [name])
        for container in (seen[0].get("Containers") or {}) if seen else {}:
            self.docker.run("network", "disconnect", "--force", name, container)
        removed = self.docker.run("network", "rm", name)
        if removed.returncode != 0:
            self.problems[f"network {name}"] = (
                f"network {name}: cannot be removed: {last_line(removed.stderr)}"
            )

    def _create(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        """Rename first, because a name may be needed; then have Compose create what is missing."""
        self._rename([change for change in changes if isinstance(change, pure.RenameContainer)])
        wanted = {c.service: c for c in changes if isinstance(c, pure.CreateContainer)}
        for service in wanted:
            # Each by itself: one bad service makes Compose give up on all, with the others' creation still
            # under way in the daemon, where it stands in the way of a second attempt.
            done = self._compose_up(service)
            if done.returncode != 0:
                self._problem(service, f"cannot be created: {last_line(done.stderr)}")
        self.done |= {change for service, change in wanted.items() if service not in self.problems}
        there = {network.name for network in self.docker.networks()} if wanted else set()
        self.done |= {c for c in changes if isinstance(c, pure.CreateNetwork) and c.network in there}

    def _compose_up(self, service: str) -> subprocess.CompletedProcess[str]:
        path = self.root / self.parameters["compose_file"]
        return self.docker.run(
            "compose",
            *("--project-name", self.project, "--file", str(path), "--project-directory", str(path.parent)),
            # No .env file that happens to lie there.
            *("--env-file", os.devnull, "--progress", "quiet"),
            *("up", "--detach", "--no-deps", "--no-build", "--pull", "never", service),
            seconds=STOP_SECONDS,
        )

    def _rename(self, changes: list[pure.RenameContainer]) -> None:
        for change in changes:
            # By way of a name nobody has, because two containers may have swapped theirs.
            self.docker.run("rename", change.container, f"{change.name}-{change.container[:12]}")
        for change in changes:
            self._do(change, change.service, "rename", change.container, change.name)

    def _repair(self, change: pure.Change, observed: pure.Observed) -> None:
        if isinstance(change, pure.ConnectNetwork):
            self._do(change, change.service, "network", "connect", *self._connect_arguments(change))
        elif isinstance(change, pure.UnpauseContainer):
            self._do(change, change.service, "unpause", change.container)
        elif isinstance(change, pure.StartContainer):
            self._do(change, change.service, "start", change.container)

    def _connect_arguments(self, change: pure.ConnectNetwork) -> list[str]:
        service = next(one for one in self.desired.services if one.name == change.service)
        endpoint = next(one for one in service.endpoints or () if one.network == change.network)
        address = ["--ip", endpoint.address] if endpoint.address else []
        # The names under which Compose (2.26.1, 5.6.1) makes a container known in its networks.
        names = dict.fromkeys((service.container, service.name, *endpoint.aliases))
        aliases = [word for name in names for word in ("--alias", name)]
        return [*address, *aliases, change.network, change.container]

    def _do(self, change: pure.Change, service: str, *arguments: str) -> None:
        done = self.docker.run(*arguments)
        if done.returncode == 0:
            self.done.add(change)
        else:
            subject = change.sentence.partition(": ")[0]
            self.problems.setdefault(
                service or subject, f"{subject}: docker {arguments[0]} failed: {last_line(done.stderr)}"
            )

    def _problem(self, service: str, words: str) -> None:
        container = next(one.container for one in self.desired.services if one.name == service)
        self.problems.setdefault(service, f"container {container}: {words}")

    # -------------------------------------------------------------------------------- the router

    def _reload(self, changes: list[pure.Change]) -> bool:
        """Tell the router to reread its registry; whether it did."""
        change = next(one for one in changes if isinstance(one, pure.ReloadRouter))
        options = self.parameters["reload"]
        problem = None
        for attempt in range(RELOAD_TRIES):
            if attempt:
                time.sleep(1)
            problem, final = post(options["url"], self.root / options["token_file"])
            if problem is None:
                self.done.add(change)
                return True
            if final:
                break
        self.problems["reload"] = f"router: could not be told to reload: {problem}"
        return False

    # -------------------------------------------------------------------------------- waiting

    def _settle(self, changes: list[pure.Change], started: float) -> dict[str, str]:
        """Wait until every container of the project is up; returns their ids by service."""
        observed = pure.Observed(containers=self.docker.containers())
        found = {one.name: pure.primary(one, self.desired, observed) for one in self.desired.services}
        ids = {name: container.id for name, container in found.items() if container is not None}
        anew = (pure.CreateContainer, pure.StartContainer)
        fresh = {change.service for change in changes if isinstance(change, anew)}
        before = {name: None if name in fresh else container for name, container in found.items()}
        waiting = {name for name in ids if name not in self.problems}
        begin = time.monotonic()
        deadline = begin + self.parameters["healthy_timeout_seconds"]
        while waiting:
            up_seconds = {
                name: time.monotonic() - begin if name in fresh else pure.SETTLED_SECONDS for name in waiting
            }
            waiting -= self._judge(up_seconds, ids, before, started)
            if waiting and time.monotonic() >= deadline:
                self._give_up(waiting, ids)
                break
            if waiting:
                time.sleep(POLL_SECONDS)
        return ids

    def _judge(
        self,
        up_seconds: dict[str, float],
        ids: dict[str, str],
        before: dict[str, pure.Container | None],
        started: float,
    ) -> set[str]:
        """Look once at all that is waited for; returns the services that are up or have failed."""
        documents = self.docker.inspect("container", [ids[name] for name in up_seconds])
        seen = {container.id: container for container in map(pure.container_from_inspect, documents)}
        settled = set()
        for name in sorted(up_seconds):
            container = seen.get(ids[name])
            if container is None:
                self._problem(name, "was removed by someone while it was waited for")
                settled.add(name)
                continue
            words = pure.verdict(pure.sample_of(container, before[name], up_seconds[name]))
            if words is not None:
                settled.add(name)
            if words not in (None, "ready"):
                self._failed(name, container, words, started)
        return settled

    def _failed(self, service: str, container: pure.Container, words: str, started: float) -> None:
        if container.restarts and (code := self.docker.last_exit_code(container.id, started)) is not None:
            words = f"{words}, last with exit code {code}"
        self._problem(service, f"{words}; {self._log_words(container.id)}")

    def _give_up(self, waiting: set[str], ids: dict[str, str]) -> None:
        seconds = self.parameters["healthy_timeout_seconds"]
        for name in sorted(waiting):
            self._problem(name, f"not healthy within {seconds} seconds; {self._log_words(ids[name])}")

    def _log_words(self, container: str) -> str:
        log = self.docker.last_log_lines(container, self.parameters["log_lines"])
        if not log:
            return "it wrote no log"
        return f"its last {len(log.splitlines())} log lines:\n{log}"

    def _look_again(self) -> None:
        """A repair that repaired nothing must not pass as one."""
        for change in pure.plan_changes(self.desired, self.observe(with_docker=True)):
            self.problems[change.sentence] = f"still to be done after the run, run again: {change.sentence}"

    # -------------------------------------------------------------------------------- diff mode

    def _diffs(self, changes: list[pure.Change]) -> list[dict[str, str]]:
        return [diff for change in changes if (diff := self._diff(change)) is not None]

    def _diff(self, change: pure.Change) -> dict[str, str] | None:
        if isinstance(change, pure.SetPermissions):
            wanted = next(one for one in self.desired.paths if one.path == change.path)
            seen = path_status(Path(change.path), follow=wanted.kind == "directory")
            return headed(change.path, permissions(seen), permissions(wanted))
        if not isinstance(change, (pure.WriteFile, pure.RemoveFile)):
            return None
        path = Path(change.path)
        after = self.payload.contents.get(path, b"").decode(errors="replace")
        if path in self.payload.hidden:
            return headed(change.path, "(hidden)\n", "(hidden, different)\n")
        if isinstance(change, pure.RemoveFile):
            # Whether it held a secret is not known any more.
            return headed(change.path, "(there)\n", "")
        before = path.read_text(errors="replace") if path.is_file() else ""
        return headed(change.path, before, after)


def headed(path: str, before: str, after: str) -> dict[str, str]:
    """A difference as Ansible shows it."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def permissions(path: pure.PathStatus | pure.DesiredPath) -> str:
    """Mode and owner as text to compare."""
    return f"mode: {path.mode:04o}\nowner: {path.uid}:{path.gid}\n"


def post(url: str, token_file: Path) -> tuple[str | None, bool]:
    """POST with the bearer token: what went wrong, None when nothing, and whether trying again is useless."""
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        return f"the token file cannot be read: {sentence_of(error)}", True
    request = urllib.request.Request(
        url, data=b"", method="POST", headers={"Authorization": f"Bearer {token}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=RELOAD_SECONDS):
            return None, True
    except urllib.error.HTTPError as error:
        body = error.read(2000).decode(errors="replace")
        return f"{url} answered {error.code}: {error_message(body)}", True
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {error}", False


def error_message(body: str) -> str:
    """The message in an error answer of the router, or the answer itself."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()


def sentence_of(error: Exception) -> str:
    """An error as a sentence for people."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def argument_spec() -> dict[str, Any]:
    """The options, as DOCUMENTATION describes them."""

    def ownership(mode: str) -> dict[str, Any]:
        name = {"type": "str", "default": "root"}
        return {"mode": {"type": "str", "default": mode}, "owner": name, "group": name}

    text = {"type": "str", "required": True}
    file_options = {
        "path": text,
        "content": {"type": "str"},
        "secret_content": {"type": "str", "no_log": True},
        **ownership("0644"),
    }
    directory_options = {"path": {"type": "path", "required": True}, **ownership("0755")}
    secret_options = {"path": text, "bytes": {"type": "int", "default": 32}, **ownership("0640")}
    reload_options = {
        "url": text,
        "token_file": {**text, "no_log": False},
        "when_changed": text,
        "service": {"type": "str", "default": "router"},
    }

    def entries(options: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"type": "list", "elements": "dict", "default": [], "options": options, **more}

    one_content = {
        "mutually_exclusive": [("content", "secret_content")],
        "required_one_of": [("content", "secret_content")],
    }
    return {
        "root": {"type": "path", "required": True},
        "state": {"type": "path", "required": True},
        "instance": {"type": "str"},
        "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
        "project": text,
        "compose_file": text,
        "compose": {"type": "dict", "required": True},
        "files": entries(file_options, **one_content),
        "directories": entries(directory_options),
        "secrets": entries(secret_options, no_log=False),
        "reload": {"type": "dict", "options": reload_options},
        "healthy_timeout_seconds": {"type": "int", "default": 600},
        "log_lines": {"type": "int", "default": 30},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        Run(module).execute()
    except (ConvergeError, OSError) as error:
        sentence = sentence_of(error)
        module.fail_json(msg=sentence, problems=[sentence], changed=False, changes=[])


if __name__ == "__main__":
    main()
