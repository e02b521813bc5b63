#!/usr/bin/python
"""Ansible module: makes files, containers and networks on the box equal to a rendering."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    import frontdoor_changeover as changing
    import frontdoor_converge as pure
    import frontdoor_replace as replacing
    import frontdoor_transport as transport
    from frontdoor_admin import AdminError, Router
    from frontdoor_box import (
        ConvergeError,
        Docker,
        deploy_lock,
        group_id,
        last_line,
        octal_mode,
        path_status,
        sentence_of,
        sha256,
        user_id,
        write_atomically,
    )
else:
    from ansible.module_utils import frontdoor_changeover as changing
    from ansible.module_utils import frontdoor_converge as pure
    from ansible.module_utils import frontdoor_replace as replacing
    from ansible.module_utils import frontdoor_transport as transport
    from ansible.module_utils.frontdoor_admin import AdminError, Router
    from ansible.module_utils.frontdoor_box import (
        ConvergeError,
        Docker,
        deploy_lock,
        group_id,
        last_line,
        octal_mode,
        path_status,
        sentence_of,
        sha256,
        user_id,
        write_atomically,
    )

DIFF_LINES = 200
"""A new file that is longer isn't shown whole: it is a program, and in the repository."""

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
  - With O(replacement), a service is drained and held at the router while its container is replaced, and let
    through again only when the router has proven the new one. With O(previous), a service that doesn't come
    up or isn't proven goes back to what it was.
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
      once:
        description: Written only where it is missing, since another project keeps it right.
        type: bool
        default: false
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
  tidied:
    description: Folders of which everything is removed that they may not hold, once the containers are as
      they have to be. One that isn't there is tidy.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      holds:
        description: Names of what may lie in it.
        type: list
        elements: str
        required: true
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
        description: The router's admin listener.
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
  replacement:
    description: How the router in front of the services is told that they are replaced. Without it they are
      replaced as they are.
    type: dict
    suboptions:
      url:
        description: The router's admin listener.
        type: str
        required: true
      token_file:
        description: File with the bearer token, absolute or relative to O(root).
        type: str
        required: true
      registry:
        description: The registry, one of O(files). Each service's entry changes when its container does.
        type: str
        required: true
      waves:
        description: Names of services that share no device, wave by wave. Those of one wave are brought up
          side by side.
        type: list
        elements: list
        default: []
      drain_seconds:
        description: How long requests in flight may go on before a container is replaced, in seconds.
        type: int
        default: 120
      prove_seconds:
        description: How long the proof of one service may take, in seconds.
        type: int
        default: 900
  previous:
    description: An earlier rendering of the project, planned anew, that a failing service goes back to.
    type: dict
    suboptions:
      name:
        description: What people know it by.
        type: str
        required: true
      compose:
        description: Its Compose document as data.
        type: dict
        required: true
      files:
        description: Its files below O(root).
        type: list
        elements: dict
        default: []
        suboptions:
          path:
            description: Path relative to O(root).
            type: str
            required: true
          content:
            description: Content, as text.
            type: str
          secret_content:
            description: Content that is never shown; instead of O(previous.files[].content).
            type: str
      transports:
        description: As O(transports), for what goes back.
        type: list
        elements: dict
        default: []
        suboptions:
          service:
            description: Name of the service.
            type: str
            required: true
          ranks:
            description: Number of processes in its largest group.
            type: int
            required: true
          peer_allowed:
            description: Whether its GPUs may reach into each other's memory.
            type: bool
            required: true
  transports:
    description: Models that are split over GPUs, and the way between those that the plan allows. NCCL's own
      word on it is read from their log before they are let through; one on a forbidden way is stopped.
    type: list
    elements: dict
    default: []
    suboptions:
      service:
        description: Name of the service.
        type: str
        required: true
      ranks:
        description: Number of processes in its largest group.
        type: int
        required: true
      peer_allowed:
        description: Whether its GPUs may reach into each other's memory.
        type: bool
        required: true
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
    - "container vllm-frontdoor-default-text: no longer there, created"
problems:
  description: What went wrong, a sentence each; of a container with its last log lines.
  returned: failure
  type: list
  elements: str
proofs:
  description: What the router said of the services that it proved, a sentence each.
  returned: always, not in check mode
  type: list
  elements: str
containers:
  description: Ids of the project's containers by service, as they are after the run.
  returned: success, not in check mode
  type: dict
"""

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
        self.outcome = changing.Outcome()
        self.done = self.outcome.done
        self.problems = self.outcome.problems
        self.front = self._front()
        self.desired = self._desired()

    # -------------------------------------------------------------------------------- what is wanted

    def _payload(self) -> Payload:
        contents: dict[Path, bytes] = {}
        hidden = set()
        for entry in self.parameters["files"]:
            path = self.root / entry["path"]
            contents[path] = content_of(entry)
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
            proves=self.front is not None,
            tidied={entry["path"]: frozenset(entry["holds"]) for entry in self.parameters["tidied"]},
        )

    def _desired_paths(self) -> Iterator[pure.DesiredPath]:
        for entry in self.parameters["directories"]:
            yield self._desired_path("directory", entry, Path(entry["path"]))
        for entry in self.parameters["files"]:
            path = self.root / entry["path"]
            wanted = self._desired_path("file", entry, path)
            yield replace(wanted, digest=sha256(self.payload.contents[path]), once=entry["once"])
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
        tidied = [Path(path) for path in self.desired.tidied if Path(path).is_dir()]
        entries = {str(path): tuple(sorted(one.name for one in path.iterdir())) for path in tidied}
        if not with_docker:
            return pure.Observed(paths=seen, record=record, entries=entries)
        return pure.Observed(
            paths=seen,
            entries=entries,
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
            observed = replace(observed, paths=paths | (self._predicted() if check_mode else {}))
            self._refuse(observed, check_images=unavailable is None)
            changes = pure.plan_changes(self.desired, observed)
            result: dict[str, Any] = {"diff": self._diffs(changes)} if self.module._diff else {}
            if check_mode:
                self._finish(changes, changes, result)
            self._carry_out_and_report(changes, observed, result)

    def _predicted(self) -> dict[str, pure.PathStatus]:
        """What the router's project will have written by the time that this one runs: the first registry."""
        if self.front is None or self.front.path.exists():
            return {}
        wanted = next(one for one in self.desired.paths if one.path == str(self.front.path))
        status = pure.PathStatus("file", wanted.mode, wanted.uid, wanted.gid, wanted.digest)
        return {wanted.path: status}

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
        try:
            self._carry_out(changes, observed)
            containers = self._settle()
            if changes and not self.problems:
                self._look_again()
        except (ConvergeError, AdminError, OSError) as error:
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
        sentences = [change.sentence for change in done] + sorted(self.outcome.went_back)
        result["proofs"] = self._proofs()
        for name, finding in sorted(self.outcome.seen.items()):
            if (words := transport.warning(finding)) is not None:
                self.module.warn(f"{name}: {words}")
        if not self.problems:
            if containers is not None:
                result["containers"] = containers
            self.module.exit_json(changed=bool(changes), changes=sentences, **result)
        problems = list(self.problems.values())
        self.module.fail_json(
            msg="\n".join(problems), problems=problems, changed=bool(done), changes=sentences, **result
        )

    def _proofs(self) -> list[str]:
        """What the router and NCCL's log said of each service that was proven."""
        seen = {name: f"; {transport.words(finding)}" for name, finding in self.outcome.seen.items()}
        proven = sorted(self.outcome.proven.items())
        return [f"{name}: proven, {words}{seen.get(name, '')}" for name, words in proven]

    # -------------------------------------------------------------------------------- carrying out

    def _carry_out(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        pending = any(isinstance(change, pure.ReloadRouter) for change in changes)
        starting = {change.service for change in changes if isinstance(change, changing.Starting)}
        unproven = {*observed.record.unproven, *starting} if self.desired.proves else set()
        if pending or unproven:
            # Written first: if this run dies before a reload or a proof, the next one sees to it.
            self._write_record(
                replace(observed.record, reload_pending=pending, unproven=tuple(sorted(unproven)))
            )
        for change in changes:
            self._change_path(change)
        try:
            pending = self._change_containers(changes, observed, starting, pending)
        finally:
            now = self.observe(with_docker=True) if changes else observed
            unproven = {name for name in unproven if name not in self.outcome.proven}
            unproven &= {service.name for service in self.desired.services}
            self._write_record(
                pure.next_record(self.desired, now, changes, reload_pending=pending, unproven=unproven)
            )
        self.done |= {change for change in changes if isinstance(change, pure.AdoptContainers)}

    def _change_containers(
        self, changes: list[pure.Change], observed: pure.Observed, starting: set[str], pending: bool
    ) -> bool:
        """Everything that containers and router see; returns whether a reload of the router is still due."""
        changeover = changing.Changeover(self._assignment(), self.outcome, self._write_as_wanted)
        if self.front is not None and (changes or pending):
            changeover.announce(starting, pending)
            if pending:
                self.done |= {change for change in changes if isinstance(change, pure.ReloadRouter)}
                pending = False
            self.done |= {change for change in changes if self._is_registry(change)}
        self._clear_away(changes, observed)
        self._rename(changes, observed)
        for change in changes:
            self._repair(change)
        changeover.bring_up(changes, observed)
        there = {network.name for network in self.docker.networks()} if starting else set()
        self.done |= {c for c in changes if isinstance(c, pure.CreateNetwork) and c.network in there}
        for change in changes:
            if isinstance(change, (pure.RemoveFile, pure.RemoveEntry)):
                remove(Path(change.path))
                self.done.add(change)
        return pending and not self._reload(changes)

    def _assignment(self) -> changing.Assignment:
        replacement = self.parameters["replacement"] or {}
        return changing.Assignment(
            docker=self.docker,
            desired=self.desired,
            compose=self.compose,
            compose_path=self.root / self.parameters["compose_file"],
            healthy_seconds=self.parameters["healthy_timeout_seconds"],
            log_lines=self.parameters["log_lines"],
            waves=tuple(tuple(wave) for wave in replacement.get("waves") or ()),
            front=self.front,
            previous=self._previous(),
            transports=transport.wanted_of(self.parameters["transports"]),
        )

    def _front(self) -> changing.Front | None:
        options = self.parameters["replacement"]
        if options is None:
            return None
        path = self.root / options["registry"]
        text = self.payload.contents[path].decode()
        drain, prove = options["drain_seconds"], options["prove_seconds"]
        healthy = self.parameters["healthy_timeout_seconds"]
        return changing.Front(
            router=Router(options["url"], self.root / options["token_file"]),
            path=path,
            target=json.loads(text),
            text=text,
            drain_seconds=drain,
            prove_seconds=prove,
            limit_seconds=changing.limit_of(healthy, drain, prove),
        )

    def _previous(self) -> replacing.Previous | None:
        given = self.parameters["previous"]
        if given is None:
            return None
        contents = {file["path"]: content_of(file) for file in given["files"]}
        ways = transport.wanted_of(given["transports"])
        return replacing.Previous(given["name"], given["compose"], contents, ways)

    def _is_registry(self, change: pure.Change) -> bool:
        """Whether it is the content of the registry, which follows the containers."""
        return (
            self.front is not None
            and isinstance(change, pure.WriteFile)
            and change.path == str(self.front.path)
        )

    def _change_path(self, change: pure.Change) -> None:
        kinds = (pure.MakeDirectory, pure.WriteFile, pure.CreateSecret, pure.SetPermissions)
        if not isinstance(change, kinds) or self._is_registry(change):
            return
        path = Path(change.path)
        wanted = next(one for one in self.desired.paths if one.path == change.path)
        if isinstance(change, pure.MakeDirectory):
            path.mkdir(parents=True, exist_ok=True)
        if isinstance(change, pure.WriteFile):
            self._write_as_wanted(path, self.payload.contents[path])
        elif isinstance(change, pure.CreateSecret):
            self._write_as_wanted(path, secrets.token_hex(self.payload.secret_bytes[path]).encode() + b"\n")
        else:
            os.chown(path, wanted.uid, wanted.gid)
            path.chmod(wanted.mode)  # after chown, which clears special bits
        self.done.add(change)

    def _write_as_wanted(self, path: Path, content: bytes) -> None:
        wanted = next((one for one in self.desired.paths if one.path == str(path)), None)
        mode, uid, gid = (wanted.mode, wanted.uid, wanted.gid) if wanted else (0o600, 0, 0)
        write_atomically(path, content, mode, uid, gid)

    def _clear_away(self, changes: list[pure.Change], observed: pure.Observed) -> None:
        """Remove containers and networks that go."""
        leaving = {c.container: c for c in changes if isinstance(c, pure.RemoveContainer)}
        changing.remove_containers(self.docker, [*leaving], observed)
        self.done |= set(leaving.values())
        for change in changes:
            if isinstance(change, pure.DisconnectNetwork):
                self._do(change, change.service, "network", "disconnect", change.network, change.container)
            elif isinstance(change, pure.RemoveNetwork):
                self._do(change, "", "network", "rm", change.network)

    def _rename(self, all_changes: list[pure.Change], observed: pure.Observed) -> None:
        changes = [change for change in all_changes if isinstance(change, pure.RenameContainer)]
        wanted = {change.name for change in changes}
        replaced = {c.replaces for c in all_changes if isinstance(c, pure.CreateContainer)}
        in_the_way = [one.id for one in observed.containers if one.id in replaced and one.name in wanted]
        # By way of a name nobody has, because two containers may have swapped theirs.
        for container in [*in_the_way, *(change.container for change in changes)]:
            self.docker.run("rename", container, f"{self.project}-{container[:12]}")
        for change in changes:
            self._do(change, change.service, "rename", change.container, change.name)

    def _repair(self, change: pure.Change) -> None:
        if isinstance(change, pure.ConnectNetwork):
            self._do(change, change.service, "network", "connect", *self._connect_arguments(change))
        elif isinstance(change, pure.UnpauseContainer):
            self._do(change, change.service, "unpause", change.container)

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

    def _reload(self, changes: list[pure.Change]) -> bool:
        """Tell the router to reread its registry; whether it did."""
        options = self.parameters["reload"]
        try:
            Router(options["url"], self.root / options["token_file"]).reload()
        except AdminError as error:
            self.problems["reload"] = f"router: could not be told to reload: {error}"
            return False
        self.done |= {change for change in changes if isinstance(change, pure.ReloadRouter)}
        return True

    # -------------------------------------------------------------------------------- waiting

    def _settle(self) -> dict[str, str]:
        """Wait until every container of the project is up; returns their ids by service."""
        observed = pure.Observed(containers=self.docker.containers())
        found = {one.name: pure.primary(one, self.desired, observed) for one in self.desired.services}
        there = {name: container for name, container in found.items() if container is not None}
        seen_to = {*self.problems, *self.outcome.begun}
        before = {name: container for name, container in there.items() if name not in seen_to}
        waited_for = {name: container.id for name, container in before.items()}
        changeover = changing.Changeover(self._assignment(), self.outcome, self._write_as_wanted)
        changeover.wait(waited_for, before, time.time())
        return {name: container.id for name, container in there.items()}

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
        if not before and (lines := after.count("\n")) > DIFF_LINES:
            after = f"({lines} lines)\n"
        return headed(change.path, before, after)


def remove(path: Path) -> None:
    """Remove a file or a link, or a directory with all that is in it; raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def content_of(entry: dict[str, Any]) -> bytes:
    """What a file is to hold, shown or not. All that is the same as a hidden content is masked in diffs."""
    text: str = entry["content"] if entry["content"] is not None else entry["secret_content"]
    return text.encode()


def headed(path: str, before: str, after: str) -> dict[str, str]:
    """A difference as Ansible shows it."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def permissions(path: pure.PathStatus | pure.DesiredPath) -> str:
    """Mode and owner as text to compare."""
    return f"mode: {path.mode:04o}\nowner: {path.uid}:{path.gid}\n"


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
        "once": {"type": "bool", "default": False},
        **ownership("0644"),
    }
    directory_options = {"path": {"type": "path", "required": True}, **ownership("0755")}
    tidied_options = {
        "path": {"type": "path", "required": True},
        "holds": {"type": "list", "elements": "str", "required": True},
    }
    secret_options = {"path": text, "bytes": {"type": "int", "default": 32}, **ownership("0640")}
    reload_options = {
        "url": text,
        "token_file": {**text, "no_log": False},
        "when_changed": text,
        "service": {"type": "str", "default": "router"},
    }

    replacement_options = {
        "url": text,
        "token_file": {**text, "no_log": False},
        "registry": text,
        "waves": {"type": "list", "elements": "list", "default": []},
        "drain_seconds": {"type": "int", "default": 120},
        "prove_seconds": {"type": "int", "default": 900},
    }
    transport_options = {
        "service": text,
        "ranks": {"type": "int", "required": True},
        "peer_allowed": {"type": "bool", "required": True},
    }
    earlier_file = {name: file_options[name] for name in ("path", "content", "secret_content")}

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
        "tidied": entries(tidied_options),
        "secrets": entries(secret_options, no_log=False),
        "reload": {"type": "dict", "options": reload_options},
        "replacement": {"type": "dict", "options": replacement_options},
        "previous": {
            "type": "dict",
            "options": {
                "name": text,
                "compose": {"type": "dict", "required": True},
                "files": entries(earlier_file, **one_content),
                "transports": entries(transport_options),
            },
        },
        "transports": entries(transport_options),
        "healthy_timeout_seconds": {"type": "int", "default": 600},
        "log_lines": {"type": "int", "default": 30},
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        Run(module).execute()
    except (ConvergeError, AdminError, OSError) as error:
        sentence = sentence_of(error)
        module.fail_json(msg=sentence, problems=[sentence], changed=False, changes=[])


if __name__ == "__main__":
    main()
