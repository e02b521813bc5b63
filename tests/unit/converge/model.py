"""A box in memory: what the changes do to it, told as simply as possible."""

from __future__ import annotations

from dataclasses import replace

import frontdoor_converge as pure

ENGINE = "20.10.24"


def fingerprint_of(service: pure.DesiredService) -> dict[str, str]:
    networks = {f"Networks.{endpoint.network}": "in" for endpoint in service.endpoints or ()}
    return {"Config.Cmd": "cmd", "HostConfig.Memory": "memory", **networks}


def labels(desired: pure.Desired, service: str, definition: str | None) -> dict[str, str]:
    return {
        pure.LABEL_PROJECT: desired.project,
        pure.LABEL_COMPOSE_SERVICE: service,
        pure.LABEL_INSTANCE: desired.instance,
        **({pure.LABEL_DEFINITION: definition} if definition is not None else {}),
    }


def path_as_wanted(wanted: pure.DesiredPath) -> pure.PathStatus:
    return pure.PathStatus(
        "directory" if wanted.kind == "directory" else "file",
        wanted.mode,
        wanted.uid,
        wanted.gid,
        digest=wanted.digest,
        size=1,
    )


def network_as_wanted(desired: pure.Desired, wanted: pure.DesiredNetwork, id_: str) -> pure.Network:
    own = {pure.LABEL_PROJECT: desired.project, pure.LABEL_COMPOSE_NETWORK: wanted.key}
    return pure.Network(
        id=id_,
        name=wanted.name,
        driver=wanted.driver,
        internal=wanted.internal,
        subnets=wanted.subnets,
        labels={**wanted.labels, **own, pure.LABEL_INSTANCE: desired.instance},
        options=wanted.options,
    )


def container_as_wanted(
    desired: pure.Desired,
    service: pure.DesiredService,
    networks: dict[str, pure.Network],
    images: dict[str, str | None],
    id_: str,
) -> pure.Container:
    return pure.Container(
        id=id_,
        name=service.container,
        state="running",
        image_id=images[service.image] or "",
        labels=labels(desired, service.name, service.definition),
        networks={one.network: networks[one.network].id for one in service.endpoints or ()},
        fingerprint=fingerprint_of(service),
    )


class Model:
    """An observed box to which changes can be applied."""

    def __init__(self, desired: pure.Desired, observed: pure.Observed) -> None:
        self.desired = desired
        self.observed = observed
        self.paths = dict(observed.paths)
        self.entries = dict(observed.entries)
        self.containers = {one.id: one for one in observed.containers}
        self.networks = {one.name: one for one in observed.networks}
        self.made = 0

    def new_id(self) -> str:
        taken = {*self.containers, *(network.id for network in self.networks.values())}
        while f"new{self.made}" in taken:
            self.made += 1
        return f"new{self.made}"

    def service(self, name: str) -> pure.DesiredService:
        return next(one for one in self.desired.services if one.name == name)

    def apply(self, changes: list[pure.Change]) -> pure.Observed:
        # As the module does: what is replaced goes before networks do.
        for change in changes:
            if isinstance(change, pure.CreateContainer) and change.replaces is not None:
                del self.containers[change.replaces]
        for change in changes:
            self.one(change)
        names = [one.name for one in self.containers.values()]
        assert len(names) == len(set(names)), "two containers of one name"
        after = replace(
            self.observed,
            paths=self.paths,
            entries=self.entries,
            containers=tuple(self.containers.values()),
            networks=tuple(self.networks.values()),
        )
        return replace(after, record=pure.next_record(self.desired, after, changes, reload_pending=False))

    def one(self, change: pure.Change) -> None:
        if isinstance(change, (pure.MakeDirectory, pure.WriteFile, pure.CreateSecret, pure.SetPermissions)):
            wanted = next(one for one in self.desired.paths if one.path == change.path)
            self.paths[change.path] = path_as_wanted(wanted)
        elif isinstance(change, pure.RemoveFile):
            self.paths[change.path] = pure.MISSING
        elif isinstance(change, pure.RemoveEntry):
            folder, _, name = change.path.rpartition("/")
            self.entries[folder] = tuple(one for one in self.entries[folder] if one != name)
        elif isinstance(change, pure.RemoveContainer):
            del self.containers[change.container]
        elif isinstance(change, pure.RemoveNetwork):
            self.remove_network(change.network)
        elif isinstance(change, pure.CreateNetwork):
            if change.replaces:
                self.remove_network(change.network)
            assert change.network not in self.networks
            wanted_network = next(one for one in self.desired.networks if one.name == change.network)
            self.networks[change.network] = network_as_wanted(self.desired, wanted_network, self.new_id())
        elif isinstance(change, pure.CreateContainer):
            service = self.service(change.service)
            id_ = self.new_id()
            images = dict(self.observed.images)
            self.containers[id_] = container_as_wanted(self.desired, service, self.networks, images, id_)
        else:
            self.repair(change)

    def remove_network(self, name: str) -> None:
        users = [one.name for one in self.containers.values() if name in one.networks]
        assert not users, f"network {name} is removed while {users} are in it"
        del self.networks[name]

    def repair(self, change: pure.Change) -> None:
        if isinstance(change, pure.RenameContainer):
            self.update(change.container, name=change.name)
        elif isinstance(change, (pure.UnpauseContainer, pure.StartContainer)):
            self.update(change.container, state="running")
        elif isinstance(change, pure.ConnectNetwork):
            one = self.containers[change.container]
            self.update(
                change.container,
                networks={**one.networks, change.network: self.networks[change.network].id},
                fingerprint={**one.fingerprint, f"Networks.{change.network}": "in"},
            )
        elif isinstance(change, pure.DisconnectNetwork):
            one = self.containers[change.container]
            networks = {name: id_ for name, id_ in one.networks.items() if name != change.network}
            prints = {k: v for k, v in one.fingerprint.items() if k != f"Networks.{change.network}"}
            self.update(change.container, networks=networks, fingerprint=prints)
        else:
            assert isinstance(change, (pure.ReloadRouter, pure.AdoptContainers)), change

    def update(self, id_: str, **values: object) -> None:
        self.containers[id_] = replace(self.containers[id_], **values)  # type: ignore[arg-type]
