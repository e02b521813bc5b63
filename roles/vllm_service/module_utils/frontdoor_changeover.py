"""Carries a replacement out: park at the router, replace, wait, prove, and go back where that fails.

What decides is in `frontdoor_replace` and `frontdoor_converge`; this part talks to Docker and to the router.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import frontdoor_admin as admin
    import frontdoor_box as machine
    import frontdoor_converge as pure
    import frontdoor_replace as replacing
    import frontdoor_transport as transport
else:
    from ansible.module_utils import frontdoor_admin as admin
    from ansible.module_utils import frontdoor_box as machine
    from ansible.module_utils import frontdoor_converge as pure
    from ansible.module_utils import frontdoor_replace as replacing
    from ansible.module_utils import frontdoor_transport as transport

STOP_SECONDS = 900  # a container's own grace period is shorter
POLL_SECONDS = 0.5
LONGEST_LIMIT_SECONDS = 86400  # what the router takes for the length of a maintenance


@dataclass(frozen=True)
class Front:
    """The router in front of the services, and the registry that tells it about them.

    `target` is the planned registry as data, `text` the same as the plan wrote it. Durations in seconds.
    """

    router: admin.Router
    path: Path
    target: Mapping[str, Any]
    text: str
    drain_seconds: float
    prove_seconds: float
    limit_seconds: float


@dataclass(frozen=True)
class Assignment:
    """What is to be brought up, and how."""

    docker: machine.Docker
    desired: pure.Desired
    compose: Mapping[str, Any]
    compose_path: Path
    healthy_seconds: float
    log_lines: int
    waves: tuple[tuple[str, ...], ...] = ()
    front: Front | None = None
    previous: replacing.Previous | None = None
    transports: Mapping[str, transport.Wanted] = field(default_factory=dict)


@dataclass
class Outcome:
    """What came of it: `problems` by service, `done` changes, `proofs` and further `changes` as sentences.

    `seen` holds what the log of a model split over GPUs showed of the way between them.
    """

    done: set[pure.Change] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    proven: dict[str, str] = field(default_factory=dict)
    seen: dict[str, transport.Finding] = field(default_factory=dict)
    went_back: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)


Starting = pure.CreateContainer | pure.StartContainer | pure.ProveService


class Changeover:
    """One project's services on their way to what is planned."""

    def __init__(
        self, assignment: Assignment, outcome: Outcome, write_file: Callable[[Path, bytes], None]
    ) -> None:
        self._given = assignment
        self._docker = assignment.docker
        self._front = assignment.front
        self._outcome = outcome
        self._write_file = write_file
        self._compose = dict(assignment.compose)
        self._entries: dict[str, Mapping[str, Any]] = {}
        self._networks_left: set[str] = set()
        self._one_at_a_time = threading.Lock()
        self._registry_lock = threading.Lock()

    # -------------------------------------------------------------------------------- the router's part

    def announce(self, starting: Collection[str], reload: bool) -> None:
        """Drain what goes, then tell the router what it may know already. Raises AdminError and OSError."""
        front = self._front
        if front is None:
            return
        known = _read_json(front.path)
        for service in replacing.leaving(known, front.target):
            self._drain_for_good(front, service)
        self._entries = replacing.entries_at_start(known, front.target, set(starting))
        # What the router has in mind may be older than what lies on the disk.
        self._write_registry(front, always=reload or bool(self._entries.keys() & set(starting)))

    @staticmethod
    def _drain_for_good(front: Front, service: str) -> None:
        try:
            front.router.drain(service, front.drain_seconds, front.limit_seconds)
        except admin.AdminError as error:
            if not error.unknown:  # what the router has never heard of has nothing to end
                raise

    def _write_registry(self, front: Front, *, always: bool) -> None:
        text = replacing.registry_text(front.target, self._entries)
        if json.loads(text) == front.target:
            text = front.text
        changed = not front.path.is_file() or front.path.read_text() != text
        if changed:
            self._write_file(front.path, text.encode())
        if changed or always:
            front.router.reload()

    def _tell(self, front: Front, service: str, entry: Mapping[str, Any]) -> None:
        """Let the router know a service as it is from now on, without letting requests through to it."""
        with self._registry_lock:
            self._entries[service] = entry
            self._write_registry(front, always=False)
        # A service whose address changes is a new one to the router, which forgets that it was parked.
        front.router.park(service, front.limit_seconds)

    # -------------------------------------------------------------------------------- turns

    def bring_up(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        """Create or start what has to be, in turns; each service by itself, each problem its own sentence."""
        starting = {c.service: c for c in changes if isinstance(c, Starting)}
        remade = {c.network for c in changes if isinstance(c, pure.CreateNetwork) and c.replaces}
        self._networks_left = remade
        new_image = self._with_new_image(starting.values(), observed) if self._front is not None else set()
        for turn in replacing.turns(starting, self._given.waves, new_image):
            allowed = [name for name in turn if self._may_begin(starting[name])]
            if allowed:
                with ThreadPoolExecutor(len(allowed)) as pool:
                    list(pool.map(lambda name: self._bring_up(starting[name], observed), allowed))

    def _with_new_image(self, starting: Iterable[Starting], observed: pure.Observed) -> set[str]:
        """Services that run now and are replaced by another image."""
        image_ids = {one.id: one.image_id for one in observed.containers}
        wanted = {one.name: observed.images.get(one.image) for one in self._given.desired.services}
        return {
            change.service
            for change in starting
            if isinstance(change, pure.CreateContainer)
            and change.replaces is not None
            and image_ids.get(change.replaces) != wanted[change.service]
        }

    def _may_begin(self, change: Starting) -> bool:
        runs = isinstance(change, pure.CreateContainer) and change.replaces is not None
        failed = [name for name in self._outcome.problems if name in self._outcome.begun]
        words = replacing.may_begin(change.service, runs=runs, failed=failed)
        if words is not None and self._front is not None:
            self._problem(change.service, words)
            return False
        self._outcome.begun.add(change.service)
        return True

    def _bring_up(self, change: Starting, observed: pure.Observed) -> None:
        service, began = change.service, time.time()
        touched = False
        try:
            self._park(change)
            touched = True
            if isinstance(change, pure.CreateContainer):
                self._clear(change, observed)
                self._introduce(service)
                self._create(change)
            elif isinstance(change, pure.StartContainer):
                self._start(change)
            self._await_and_prove(service, began, change, observed)
        except (machine.ConvergeError, admin.AdminError, OSError) as error:
            self._problem(service, machine.sentence_of(error))
        if service in self._outcome.problems and touched:
            self._go_back(change)

    def _park(self, change: Starting) -> None:
        front = self._front
        if front is None or isinstance(change, pure.ProveService):
            return
        if isinstance(change, pure.CreateContainer) and change.replaces is not None:
            front.router.drain(change.service, front.drain_seconds, front.limit_seconds)
        else:
            front.router.park(change.service, front.limit_seconds)

    def _introduce(self, service: str) -> None:
        front = self._front
        if front is None:
            return
        entry = replacing.entry_of(front.target, service)
        if entry is not None:
            self._tell(front, service, entry)

    def _clear(self, change: pure.CreateContainer, observed: pure.Observed) -> None:
        """Take away the container that is replaced, and the networks that are made anew with it."""
        if change.replaces is not None:
            remove_containers(self._docker, [change.replaces], observed)
        service = next(one for one in self._given.desired.services if one.name == change.service)
        with self._one_at_a_time:
            for endpoint in service.endpoints or ():
                if endpoint.network in self._networks_left:
                    self._networks_left.discard(endpoint.network)
                    self._remove_network(endpoint.network)

    def _create(self, change: pure.CreateContainer) -> None:
        done = self._compose_up(change.service)
        if done.returncode != 0:
            raise machine.ConvergeError(f"cannot be created: {machine.last_line(done.stderr)}")
        self._outcome.done.add(change)

    def _compose_up(self, service: str) -> Any:
        path = self._given.compose_path
        with self._one_at_a_time:
            return self._docker.run(
                "compose",
                *("--project-name", self._given.desired.project),
                *("--file", str(path), "--project-directory", str(path.parent)),
                # No .env file that happens to lie there.
                *("--env-file", os.devnull, "--progress", "quiet"),
                *("up", "--detach", "--no-deps", "--no-build", "--pull", "never", service),
                seconds=STOP_SECONDS,
            )

    def _start(self, change: pure.StartContainer) -> None:
        done = self._docker.run("start", change.container)
        if done.returncode != 0:
            raise machine.ConvergeError(f"docker start failed: {machine.last_line(done.stderr)}")
        self._outcome.done.add(change)

    def _remove_network(self, name: str) -> None:
        seen = self._docker.inspect("network", [name])
        for container in (seen[0].get("Containers") or {}) if seen else {}:
            self._docker.run("network", "disconnect", "--force", name, container)
        removed = self._docker.run("network", "rm", name)
        if removed.returncode != 0 and seen:
            raise machine.ConvergeError(
                f"its network {name} cannot be removed: {machine.last_line(removed.stderr)}"
            )

    # -------------------------------------------------------------------------------- waiting and proof

    def _await_and_prove(self, service: str, began: float, change: Starting, observed: pure.Observed) -> None:
        found = self._container_of(service)
        if found is None:
            raise machine.ConvergeError("was removed by someone while it was waited for")
        before = None
        if isinstance(change, pure.ProveService):
            before = next((one for one in observed.containers if one.id == found.id), None)
        self.wait({service: found.id}, {service: before}, began)
        if service not in self._outcome.problems:
            self.prove(service, found.id, self._given.transports.get(service))
            if isinstance(change, pure.ProveService):
                self._outcome.done.add(change)

    def _container_of(self, service: str) -> pure.Container | None:
        wanted = next(one for one in self._given.desired.services if one.name == service)
        observed = pure.Observed(containers=self._docker.containers())
        return pure.primary(wanted, self._given.desired, observed)

    def prove(self, service: str, container: str, wanted: transport.Wanted | None) -> None:
        """Let a service that is up serve, if it takes the way between its GPUs that was planned (`wanted`)
        and passes its canary. Raises ConvergeError and AdminError."""
        self._check_transport(service, container, wanted)
        self._ask_canary(service)
        # NCCL connects some ways at the first request only: the canary was that.
        self._check_transport(service, container, wanted)

    def _check_transport(self, service: str, container: str, wanted: transport.Wanted | None) -> None:
        if wanted is None:
            return
        finding = transport.judge(self._docker.log_since_start(container), wanted)
        self._outcome.seen[service] = finding
        problem = transport.problem(finding)
        if problem is None:
            return
        self._outcome.proven.pop(service, None)
        stopped = self._docker.run("stop", container, seconds=STOP_SECONDS)
        if self._front is not None:
            self._front.router.park(service, self._front.limit_seconds)
        how = "it was stopped" if stopped.returncode == 0 else "and it could not be stopped"
        raise machine.ConvergeError(f"is not let through, {how}: {problem}")

    def _ask_canary(self, service: str) -> None:
        front = self._front
        if front is None:
            return
        answer = front.router.prove(service, front.prove_seconds)
        problem = replacing.proof_problem(answer)
        if problem is not None:
            raise machine.ConvergeError(f"is up and not proven: {problem}")
        self._outcome.proven[service] = f"canary {answer.get('canary')}; level 2: {answer.get('level_2')}"

    def wait(self, ids: Mapping[str, str], before: Mapping[str, pure.Container | None], began: float) -> None:
        """Wait until these containers are up, or have failed; `before` is how one was that nobody started
        anew. `began` is seconds since the epoch."""
        waiting = set(ids)
        begin = time.monotonic()
        while waiting:
            waiting -= self._judge(waiting, ids, before, time.monotonic() - begin, began)
            if waiting and time.monotonic() - begin >= self._given.healthy_seconds:
                for name in sorted(waiting):
                    words = f"not healthy within {self._given.healthy_seconds:g} seconds"
                    self._problem(name, f"{words}; {self._log_words(ids[name])}")
                return
            if waiting:
                time.sleep(POLL_SECONDS)

    def _judge(
        self,
        waiting: set[str],
        ids: Mapping[str, str],
        before: Mapping[str, pure.Container | None],
        up_seconds: float,
        began: float,
    ) -> set[str]:
        """Look once at all that is waited for; returns the services that are up or have failed."""
        documents = self._docker.inspect("container", [ids[name] for name in waiting])
        seen = {container.id: container for container in map(pure.container_from_inspect, documents)}
        settled = set()
        for name in sorted(waiting):
            container = seen.get(ids[name])
            if container is None:
                self._problem(name, "was removed by someone while it was waited for")
                settled.add(name)
                continue
            earlier = before.get(name)
            up = up_seconds if earlier is None else pure.SETTLED_SECONDS
            words = pure.verdict(pure.sample_of(container, earlier, up))
            if words is not None:
                settled.add(name)
            if words not in (None, "ready"):
                self._failed(name, container, words, began)
        return settled

    def _failed(self, service: str, container: pure.Container, words: str, began: float) -> None:
        if container.restarts and (code := self._docker.last_exit_code(container.id, began)) is not None:
            words = f"{words}, last with exit code {code}"
        self._problem(service, f"{words}; {self._log_words(container.id)}")

    def _log_words(self, container: str) -> str:
        log = self._docker.last_log_lines(container, self._given.log_lines)
        if not log:
            return "it wrote no log"
        return f"its last {len(log.splitlines())} log lines:\n{log}"

    def _problem(self, service: str, words: str) -> None:
        container = next(one.container for one in self._given.desired.services if one.name == service)
        self._outcome.problems.setdefault(service, f"container {container}: {words}")

    # -------------------------------------------------------------------------------- the way back

    def _go_back(self, change: Starting) -> None:
        """Bring the service back as it was, and say in its problem how that went."""
        service, previous = change.service, self._given.previous
        obstacle = replacing.no_way_back(service, self._given.compose, previous)
        if previous is None or obstacle is not None:
            if isinstance(change, pure.CreateContainer) and change.replaces is not None:
                self._outcome.problems[service] += f"\nIt did not go back: {obstacle}."
            return
        problem = self._outcome.problems.pop(service)
        try:
            self._bring_back(service, previous)
        except (machine.ConvergeError, admin.AdminError, OSError) as error:
            self._problem(service, machine.sentence_of(error))
        failure = self._outcome.problems.pop(service, None)
        if failure is not None:
            self._outcome.problems[service] = (
                f"{problem}\nGoing back to {previous.name} failed too: {failure}"
            )
            return
        self._outcome.problems[service] = f"{problem}\nIt went back to {previous.name} and serves as before."
        container = next(one.container for one in self._given.desired.services if one.name == service)
        self._outcome.went_back.append(f"container {container}: failed, went back to {previous.name}")

    def _bring_back(self, service: str, previous: replacing.Previous) -> None:
        before = previous.compose["services"][service]
        found = self._container_of(service)
        if found is not None:
            remove_containers(self._docker, [found.id], pure.Observed(containers=(found,)))
        with self._one_at_a_time:
            self._restore_networks(service, previous)
            self._restore_files(service, before, previous)
        front = self._front
        entry = replacing.entry_of(_parsed(previous.contents.get("registry/registry.json")), service)
        if front is not None and entry is not None:
            self._tell(front, service, entry)
        began = time.time()
        done = self._compose_up(service)
        if done.returncode != 0:
            raise machine.ConvergeError(f"cannot be created: {machine.last_line(done.stderr)}")
        created = self._container_of(service)
        if created is None:
            raise machine.ConvergeError("was removed by someone while it was waited for")
        self.wait({service: created.id}, {}, began)
        if service not in self._outcome.problems:
            self.prove(service, created.id, previous.transports.get(service))

    def _restore_networks(self, service: str, previous: replacing.Previous) -> None:
        now, then = self._compose.get("networks") or {}, previous.compose.get("networks") or {}
        for key in replacing.network_keys(previous.compose["services"][service]):
            if key in now and now[key] != then.get(key):
                self._remove_network(str(now[key].get("name", key)))

    def _restore_files(self, service: str, before: Mapping[str, Any], previous: replacing.Previous) -> None:
        self._compose = replacing.with_service_of(self._compose, previous.compose, service)
        folder = self._given.compose_path.parent
        for name in replacing.environment_files(before):
            content = previous.contents.get(f"{folder.name}/{name}")
            if content is not None:
                self._write_file(folder / name, content)
        words = f"In part as in {previous.name}: what failed went back. The next run writes this file anew."
        self._write_file(self._given.compose_path, replacing.compose_text(self._compose, words).encode())


def remove_containers(docker: machine.Docker, ids: list[str], observed: pure.Observed) -> None:
    """Stop and remove containers; raises ConvergeError."""
    paused = [one.id for one in observed.containers if one.id in ids and one.state == "paused"]
    if paused:
        docker.run("unpause", *paused)  # a paused process cannot hear that it shall end
    if ids:
        docker.run("stop", *ids, seconds=STOP_SECONDS)
        removed = docker.run("rm", "--force", "--volumes", *ids)
        if removed.returncode != 0 and "No such container" not in removed.stderr:
            raise machine.ConvergeError(f"docker rm failed: {machine.last_line(removed.stderr)}")


def _read_json(path: Path) -> Any:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(content: bytes | None) -> Any:
    try:
        return json.loads(content or b"null")
    except ValueError:
        return None


def limit_of(healthy_seconds: float, drain_seconds: float, prove_seconds: float) -> float:
    """How long a maintenance may last at most: the way there and back, each with start and proof."""
    return min(LONGEST_LIMIT_SECONDS, 600 + drain_seconds + 2 * (healthy_seconds + prove_seconds))
