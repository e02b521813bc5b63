"""Parsers of what a Linux host, the NVIDIA driver and Docker say. Pure: text or bytes in, data out.

What a parser does not know comes out as ``None``, never as a guess. The module uses the standard library
only, because an Ansible module carries it to the target (through a link in ``module_utils``).
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

Json = dict[str, object]

_MEBIBYTE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "MB": 1024**2}
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_VERSION = re.compile(r"\d+(\.\d+)+")
_CONTAINER_ID = re.compile(r"(?:docker[-/]|/)([0-9a-f]{64})(?:\.scope)?(?:$|/)")
_ROUTE_IS_UP = 0x1
_TCP_LISTENS = "0A"
_PCI_CAPABILITIES_START = 0x100
_PCI_CAPABILITY_ACS = 0x000D
_ACS_REDIRECT_BITS = {0x0004: "ReqRedir", 0x0008: "CmpltRedir", 0x0010: "UpstreamFwd"}


@dataclass(frozen=True)
class Listener:
    """A TCP port in state LISTEN and the inode of its socket."""

    port: int
    inode: int


def parse_nvidia_smi(xml: str) -> Json | None:
    """Driver and GPUs out of ``nvidia-smi -q -x`` (schemas v11 to v13 seen); None where it isn't such XML."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None
    version = _matching(_VERSION, _text(root, "driver_version"))
    driver = (
        {"version": version, "cuda": _matching(_VERSION, _text(root, "cuda_version"))} if version else None
    )
    return {"driver": driver, "gpus": [_gpu(index, gpu) for index, gpu in enumerate(root.findall("gpu"))]}


def _gpu(index: int, gpu: ElementTree.Element) -> Json:
    return {
        "index": index,
        "uuid": _matching(_UUID, _text(gpu, "uuid")),
        "serial": parse_serial(_text(gpu, "serial")),
        "pci_address": normal_pci_address(_text(gpu, "pci/pci_bus_id") or gpu.get("id")),
        "name": known(_text(gpu, "product_name")),
        "memory_bytes": parse_memory(_text(gpu, "fb_memory_usage/total")),
        "vbios": _matching(_VERSION_OF_VBIOS, _text(gpu, "vbios_version")),
        "health": _health(gpu),
    }


# Counters since the driver was loaded, by the names that driver schemas v11 to v13 have for them.
_COUNTERS = {
    "ecc_corrected": ("dram_correctable", "sram_correctable"),
    "ecc_uncorrected": (
        "dram_uncorrectable",
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
    ),
}


def _health(gpu: ElementTree.Element) -> Json:
    """Error counters and what they led to; None where this card or driver doesn't count."""
    counted = {
        name: _sum(_number(_text(gpu, f"ecc_errors/volatile/{path}")) for path in paths)
        for name, paths in _COUNTERS.items()
    }
    retired = "retired_pages"
    return {
        **counted,
        "remapped_rows_correctable": _number(_text(gpu, "remapped_rows/remapped_row_corr")),
        "remapped_rows_uncorrectable": _number(_text(gpu, "remapped_rows/remapped_row_unc")),
        "remapped_rows_pending": _yes(_text(gpu, "remapped_rows/remapped_row_pending")),
        "remapped_rows_failure": _yes(_text(gpu, "remapped_rows/remapped_row_failure")),
        "retired_pages_single_bit": _number(
            _text(gpu, f"{retired}/multiple_single_bit_retirement/retired_count")
        ),
        "retired_pages_double_bit": _number(_text(gpu, f"{retired}/double_bit_retirement/retired_count")),
        "retired_pages_pending": _yes(_text(gpu, f"{retired}/pending_retirement")),
        "mig_mode": known(_text(gpu, "mig_mode/current_mig")),
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    found = [number for number in numbers if number is not None]
    return sum(found) if found else None


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def _yes(value: str | None) -> bool | None:
    return {"Yes": True, "No": False}.get(value or "")


_VERSION_OF_VBIOS = re.compile(r"[0-9A-Fa-f]{2}(\.[0-9A-Fa-f]{2}){4}")


def _text(element: ElementTree.Element, path: str) -> str | None:
    found = element.findtext(path)
    return found.strip() if found is not None else None


def known(value: str | None) -> str | None:
    """The value, or None for the ways in which ``nvidia-smi`` says that there is none."""
    if value is None:
        return None
    bare = value.strip().strip("[]").strip()
    if (
        not bare
        or bare.upper() in ("N/A", "NONE", "GPU IS LOST")
        or bare.startswith(("Unknown", "Not ", "Requested "))
    ):
        return None
    return value.strip()


def _matching(pattern: re.Pattern[str], value: str | None) -> str | None:
    return value if value is not None and pattern.fullmatch(value) else None


def parse_serial(value: str | None) -> str | None:
    """A board's serial number; None for absent ones, and for the zeros that virtual machines show."""
    found = known(value)
    if found is None or not re.fullmatch(r"[0-9A-Za-z]{6,32}", found) or not re.search(r"[1-9]", found):
        return None
    return found


def parse_memory(value: str | None) -> int | None:
    """Bytes of a text like ``81920 MiB``."""
    match = re.fullmatch(r"(\d{1,15}) ([KMG]i?B|B)", value or "")
    if match is None or match[2] not in _MEBIBYTE_UNITS:
        return None
    return int(match[1]) * _MEBIBYTE_UNITS[match[2]]


def normal_pci_address(value: str | None) -> str | None:
    """``0000:3d:00.0`` for ``00000000:3D:00.0``: the form that ``/sys`` uses."""
    match = _PCI_ADDRESS.fullmatch((value or "").strip())
    if match is None:
        return None
    domain = int(match[1], 16)
    return f"{domain:04x}:{match[2].lower()}:{match[3].lower()}.{match[4]}"


def parse_driver_proc_version(text: str) -> str | None:
    """The driver's version out of ``/proc/driver/nvidia/version`` (proprietary and open kernel modules)."""
    match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return match[1] if match else None


def parse_listeners(text: str) -> list[Listener]:
    """Listening sockets of ``/proc/net/tcp`` or ``/proc/net/tcp6``."""
    listeners = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _TCP_LISTENS:
            continue
        try:
            listeners.append(Listener(port=int(fields[1].rsplit(":", 1)[1], 16), inode=int(fields[9])))
        except (ValueError, IndexError):
            continue
    return listeners


def parse_socket_link(target: str) -> int | None:
    """The inode in the target of a ``/proc/<pid>/fd`` link like ``socket:[12345]``."""
    match = re.fullmatch(r"socket:\[(\d+)\]", target)
    return int(match[1]) if match else None


def parse_container_id(cgroup: str) -> str | None:
    """The Docker container id in ``/proc/<pid>/cgroup`` (version 1 and 2, cgroupfs and systemd drivers)."""
    for line in cgroup.splitlines():
        match = _CONTAINER_ID.search(line)
        if match:
            return match[1]
    return None


def parse_routes(text: str) -> list[Json]:
    """Networks of ``/proc/net/route`` with their interfaces; the default route is left out.

    Addresses are printed there as the machine's own integers; x86-64 and arm64 are little-endian.
    """
    routes: list[Json] = []
    for line in text.splitlines()[1:]:
        network = _route_network(line.split())
        if network is not None:
            routes.append({"network": network, "interface": line.split()[0]})
    return routes


def _route_network(fields: list[str]) -> str | None:
    try:
        destination, flags, mask = int(fields[1], 16), int(fields[3], 16), int(fields[7], 16)
        address = IPv4Address(destination.to_bytes(4, "little"))
        netmask = IPv4Address(mask.to_bytes(4, "little"))
        network = IPv4Network(f"{address}/{netmask}")
    except (ValueError, IndexError, OverflowError):
        return None
    if not flags & _ROUTE_IS_UP or network.prefixlen == 0:
        return None
    return str(network)


def parse_memory_total(meminfo: str) -> int | None:
    """Bytes of main memory out of ``/proc/meminfo``."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def count_types(types: Iterable[str]) -> dict[str, int]:
    """How many IOMMU groups there are of each type (``DMA``, ``DMA-FQ``, ``identity`` …)."""
    counts: dict[str, int] = {}
    for name in types:
        counts[name.strip()] = counts.get(name.strip(), 0) + 1
    return dict(sorted(counts.items()))


def parse_acs_redirect(config: bytes) -> list[str] | None:
    """The redirecting bits that are set in a PCI port's ACS control register (PCI Express 4.0, 7.7.8).

    ``config`` is the port's ``config`` file under ``/sys``; None where it is too short (only root reads
    more than 64 bytes) or the port has no such capability.
    """
    offset, seen = _PCI_CAPABILITIES_START, set[int]()
    while _PCI_CAPABILITIES_START <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _PCI_CAPABILITY_ACS:
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return [name for bit, name in _ACS_REDIRECT_BITS.items() if control & bit]
        offset = header >> 20
    return None


def parse_json_objects(text: str) -> list[Json]:
    """Objects out of a JSON array, one JSON object, or one object a line; other things are left out."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return [item for line in text.splitlines() if line.strip() for item in _one_json_object(line)]
    if isinstance(parsed, list):
        return [item for item in parsed if isinstance(item, dict)]
    return [parsed] if isinstance(parsed, dict) else []


def _one_json_object(line: str) -> list[Json]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [parsed] if isinstance(parsed, dict) else []


def at(value: object, *path: str) -> object:
    """The value at a path of keys in nested objects, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, Mapping) else {}


def parse_image(inspected: Json) -> Json:
    """Id, labels and repository digests of one entry of ``docker image inspect``."""
    digests = inspected.get("RepoDigests")
    return {
        "id": inspected.get("Id"),
        "labels": _texts(at(inspected, "Config", "Labels")),
        "repo_digests": [str(digest) for digest in digests] if isinstance(digests, list) else [],
    }


def parse_container(inspected: Json) -> Json:
    """Name, id, labels and state of one entry of ``docker container inspect``."""
    return {
        "name": str(inspected.get("Name") or "").lstrip("/"),
        "id": inspected.get("Id"),
        "labels": _texts(at(inspected, "Config", "Labels")),
        "state": at(inspected, "State", "Status"),
    }


def published_ports(inspected: Json) -> list[int]:
    """Host ports that one entry of ``docker container inspect`` publishes by TCP."""
    ports = at(inspected, "NetworkSettings", "Ports")
    if not isinstance(ports, dict):
        return []
    bindings = [b for name, bound in ports.items() if str(name).endswith("/tcp") for b in bound or []]
    numbers = [str(at(binding, "HostPort") or "") for binding in bindings]
    return sorted({int(number) for number in numbers if number.isdigit()})


def parse_network(inspected: Json) -> Json:
    """Name, subnets and labels of one entry of ``docker network inspect``."""
    configured = at(inspected, "IPAM", "Config")
    entries = configured if isinstance(configured, list) else []
    subnets = [at(entry, "Subnet") for entry in entries]
    return {
        "name": inspected.get("Name"),
        "subnets": [str(subnet) for subnet in subnets if subnet],
        "labels": _texts(inspected.get("Labels")),
    }


def parse_compose_version(text: str) -> str | None:
    """``2.18.1`` out of ``docker compose version --short`` (some builds print a leading ``v``)."""
    match = re.fullmatch(r"v?(\d+\.\d+\.\d+\S*)", text.strip())
    return match[1] if match else None
