"""The box itself: permission, Docker, images, ports and networks."""

from __future__ import annotations

from collections.abc import Iterator

from ..instance import LABEL_INSTANCE
from ..model import Desired, Discovered, DockerNetwork, PortUser, Refusal


def check_before_anything(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """What can be told before anything is changed, and without Docker."""
    taken = [*_networks(desired, discovered), *_ports(desired, discovered)]
    return [
        *_permission(discovered),
        *_named_images(desired),
        *_own_ports(desired),
        *(_unknown_owners(desired, discovered) if taken else ()),
        *taken,
    ]


def check_installed(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """What has to be there once Docker and the images were made sure of."""
    if not discovered.docker.reachable:
        return [
            Refusal(
                where="container_engine_install",
                what="The Docker daemon of the box doesn't answer.",
                why=discovered.docker.error or "Engines and router are containers.",
                remedy="Start Docker, or let ./box site -i INVENTORY make sure of it "
                "(container_engine_install: true where it may install it).",
            )
        ]
    return [
        *_image(discovered, desired.image, "vllm_service_image", "engine image"),
        *_image(discovered, desired.router.image, "router_image", "router image"),
    ]


def _unknown_owners(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    """Without its daemon nobody can tell what is taken by containers of this very instance."""
    if not discovered.docker.reachable and discovered.docker.error:
        yield Refusal(
            where="container_engine_docker_host",
            what=f"The Docker daemon at {desired.docker_host} does not answer.",
            why=f"{discovered.docker.error} The ports and networks in use may be this instance's own.",
            remedy="If it runs already, look after the daemon first (docker info, its log), then run again.",
        )


def _permission(discovered: Discovered) -> Iterator[Refusal]:
    if not discovered.is_root:
        yield Refusal(
            where="become (play, inventory or command line)",
            what="The playbook doesn't act as root on the box.",
            why="It writes below /opt and /var/lib and drives Docker.",
            remedy="Set become: true for the play, or run with --become (--ask-become-pass where sudo asks).",
        )


def _named_images(desired: Desired) -> Iterator[Refusal]:
    for where, reference in (("vllm_service_image", desired.image), ("router_image", desired.router.image)):
        if not reference:
            yield Refusal(
                where=where,
                what=f"{where} is not set.",
                why="Without it there is nothing to start a container from.",
                remedy=f"Remove what unsets {where}; the role's default is fine.",
            )


def _image(discovered: Discovered, reference: str, where: str, what: str) -> Iterator[Refusal]:
    if reference and discovered.images.get(reference) is None:
        yield Refusal(
            where=where,
            what=f"The {what} {reference} is not on the box.",
            why="Containers are only started from images that are there: nothing is pulled half-way through.",
            remedy="Run ./box site -i INVENTORY as a whole, which makes sure of the images first, or correct "
            "the reference.",
        )


def _networks(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    pool = desired.instance.network
    foreign = [network for network in discovered.networks if not _is_ours(network, desired)]
    own_subnets = {
        subnet for network in discovered.networks if network not in foreign for subnet in network.subnets
    }
    taken = {
        (subnet, f"the Docker network {network.name}") for network in foreign for subnet in network.subnets
    }
    docker_subnets = own_subnets | {subnet for subnet, _ in taken}
    routes = {
        (route.network, f"a route through {route.interface}")
        for route in discovered.routes
        if route.network.prefixlen > 0 and route.network not in docker_subnets
    }
    for network, user in sorted(taken | routes):
        if network.overlaps(pool):
            yield Refusal(
                where="frontdoor_network",
                what=f"The network {pool} of the instance overlaps with {network} ({user}).",
                why="Addresses of engines would hide addresses that the box already reaches elsewhere.",
                remedy="Set frontdoor_network to a free private network of /21 or larger.",
            )
    yield from _network_names(desired, discovered)


def _is_ours(network: DockerNetwork, desired: Desired) -> bool:
    """Whether a network is this instance's: by its label or, where somebody replaced it, by its name.

    A network of that name without any label is no reason to refuse: the deployment puts it right.
    """
    owner = network.labels.get(LABEL_INSTANCE)
    names = {desired.instance.network_name(service.name) for service in desired.services}
    return owner == desired.instance.name or (owner is None and network.name in names)


def _network_names(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    names = {desired.instance.network_name(service.name): service for service in desired.services}
    for network in discovered.networks:
        if network.name in names and not _is_ours(network, desired):
            yield Refusal(
                where=f"{names[network.name].where}",
                what=f"The Docker network {network.name} is there and isn't ours.",
                why=f"It belongs to the instance {network.labels[LABEL_INSTANCE]}.",
                remedy="Rename the service or the instance (frontdoor_instance).",
            )


def needed_ports(desired: Desired) -> dict[int, tuple[str, str]]:
    """Every TCP port of an instance: where it is set, and which container of ours may hold it."""
    instance = desired.instance
    ports = {
        instance.public_port: ("frontdoor_port_base", instance.router_container),
        instance.admin_port: ("frontdoor_port_base", instance.router_container),
    }
    if desired.router.health_port is not None:
        ports[desired.router.health_port] = ("router_health_address", instance.router_container)
    for service in desired.services:
        if service.debug_port:
            container = instance.container(service.name)
            ports[instance.debug_port(service.slot)] = (f"{service.where}.debug_port", container)
    return ports


def _own_ports(desired: Desired) -> Iterator[Refusal]:
    """The listener for checks on a port that the instance itself uses."""
    port, instance = desired.router.health_port, desired.instance
    debug = [instance.debug_port(service.slot) for service in desired.services if service.debug_port]
    if port in (instance.public_port, instance.admin_port, *debug):
        yield Refusal(
            where="router_health_address",
            what=f"TCP port {port} is another one of this instance.",
            why="The listener for a balancer's checks needs a port of its own.",
            remedy=f"Choose another port, such as {instance.public_port + 11}.",
        )


def _ports(desired: Desired, discovered: Discovered) -> Iterator[Refusal]:
    for port, (where, container) in sorted(needed_ports(desired).items()):
        user = discovered.ports.get(port)
        if user is not None and user.container not in {container, *discovered.containers}:
            yield Refusal(
                where=where,
                what=f"TCP port {port} is in use by {_description(user)}.",
                why=f"{container} needs it.",
                remedy="Stop what uses it, or choose other ports with frontdoor_port_base "
                "(or another slot for a debug port).",
            )


def _description(user: PortUser) -> str:
    if user.container is not None:
        return f"the container {user.container}"
    return user.process if user.pid is None else f"{user.process} (process {user.pid})"
