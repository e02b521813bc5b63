"""Everything that derives from the instance name: paths, project names, ports and addresses.

An instance is one front door with its engines. Several can live on one machine, because nothing of one
shares a path, a port, a network or a container name with another; only models and device locks are
shared, since a model folder and a GPU are one thing for all of them.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from dataclasses import dataclass

DEFAULT_INSTANCE = "default"
SERVICE_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
SHARED_FOLDERS = ("bundle", "docker", "locks", "models")
"""Folders beside those of the instances, in /var/lib/vllm-frontdoor: no instance can have their names."""
INSTANCE_PATTERN = re.compile(rf"(?!(?:{'|'.join(SHARED_FOLDERS)})\Z){SERVICE_PATTERN.pattern}")

LABEL_INSTANCE = "vllm-frontdoor.instance"
LABEL_SERVICE = "vllm-frontdoor.service"
LABEL_DEFINITION = "vllm-frontdoor.definition"
LABEL_DEVICE_KIND = "vllm-frontdoor.device"
LABEL_VLLM = "vllm-frontdoor.vllm"

MODELS_ROOT = "/var/lib/vllm-frontdoor/models"
LOCKS = "/var/lib/vllm-frontdoor/locks"

ENGINE_PORT = 8000
LAUNCHER_PORT = 9000
FIRST_SLOT = 1
LAST_SLOT = 99
LAST_SLOT_WITH_DEBUG_PORT = 79

_ADMIN_OFFSET = 10
_DEBUG_OFFSET = 20
_PORTS_OF_AN_INSTANCE = 100
_WHOLE_POOL = ipaddress.IPv4Network("10.213.0.0/16")
_INSTANCE_PREFIX = 21
_SERVICE_PREFIX = 28
_ADDRESSES_OF_A_SERVICE = 2 ** (32 - _SERVICE_PREFIX)


def default_network(name: str) -> ipaddress.IPv4Network:
    """The /21 of 10.213.0.0/16 that an instance gets when nobody chose one."""
    pools = list(_WHOLE_POOL.subnets(new_prefix=_INSTANCE_PREFIX))
    if name == DEFAULT_INSTANCE:
        return pools[0]
    return pools[1 + _checksum(name) % (len(pools) - 1)]


def default_port_base(name: str) -> int:
    """The first TCP port of an instance when nobody chose one: 8000, or 20000 to 39900 by name."""
    if name == DEFAULT_INSTANCE:
        return 8000
    return 20000 + _PORTS_OF_AN_INSTANCE * (_checksum(name) % 200)


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode("utf-8"))


@dataclass(frozen=True)
class Instance:
    """One front door on a machine, and every name that derives from it."""

    name: str
    network: ipaddress.IPv4Network
    port_base: int

    @classmethod
    def derive(
        cls,
        name: str = DEFAULT_INSTANCE,
        network: ipaddress.IPv4Network | None = None,
        port_base: int | None = None,
    ) -> Instance:
        """An instance with its default network and ports, where none were chosen."""
        return cls(
            name=name,
            network=default_network(name) if network is None else network,
            port_base=default_port_base(name) if port_base is None else port_base,
        )

    @property
    def root(self) -> str:
        """Folder of what is rendered: Compose projects, registry, launcher."""
        return f"/opt/vllm-frontdoor/{self.name}"

    @property
    def state(self) -> str:
        """Folder of what is remembered: evidence, the router's intents."""
        return f"/var/lib/vllm-frontdoor/{self.name}"

    @property
    def evidence(self) -> str:
        return f"{self.state}/evidence"

    @property
    def calibration(self) -> str:
        """Folder of what was measured of each service's memory."""
        return f"{self.state}/calibration"

    @property
    def clearance(self) -> str:
        """Folder of the word that this boot's hardware was checked, which launchers wait for."""
        return f"{self.state}/clearance"

    @property
    def engines_project(self) -> str:
        """Compose project of the engines."""
        return f"vllm-frontdoor-{self.name}-engines"

    @property
    def router_project(self) -> str:
        """Compose project of the router."""
        return f"vllm-frontdoor-{self.name}-router"

    @property
    def router_container(self) -> str:
        return f"vllm-frontdoor-{self.name}-router"

    @property
    def public_port(self) -> int:
        """TCP port where clients ask."""
        return self.port_base

    @property
    def admin_port(self) -> int:
        """TCP port of the admin listener, on 127.0.0.1 only."""
        return self.port_base + _ADMIN_OFFSET

    def container(self, service: str) -> str:
        """Name of a service's container."""
        return f"vllm-frontdoor-{self.name}-{service}"

    def network_name(self, service: str) -> str:
        """Name of the network that a service shares with nobody."""
        return f"vllm-frontdoor-{self.name}-{service}"

    def debug_port(self, slot: int) -> int:
        """TCP port on 127.0.0.1 that leads straight to the engine in this slot, when asked for."""
        return self.port_base + _DEBUG_OFFSET + slot

    def subnet(self, slot: int) -> ipaddress.IPv4Network:
        """The slot-th /28 of the instance's pool.

        Raises ValueError when the pool is too small to hold that slot.
        """
        first = int(self.network.network_address) + _ADDRESSES_OF_A_SERVICE * slot
        subnet = ipaddress.IPv4Network((first, _SERVICE_PREFIX))
        if not subnet.subnet_of(self.network):
            raise ValueError(f"slot {slot} does not fit into the network {self.network}")
        return subnet

    def gateway(self, slot: int) -> ipaddress.IPv4Address:
        """The host's own address in a service's network."""
        return self.subnet(slot).network_address + 1

    def engine_address(self, slot: int) -> ipaddress.IPv4Address:
        """The static address of a service's engine and launcher."""
        return self.subnet(slot).network_address + 2

    def base_url(self, slot: int) -> str:
        return f"http://{self.engine_address(slot)}:{ENGINE_PORT}"

    def launcher_url(self, slot: int) -> str:
        return f"http://{self.engine_address(slot)}:{LAUNCHER_PORT}"
