"""Parsers of what the host says."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_diag.hostfacts import gpu_diag_parsers as parsers


def test_nvidia_smi_of_three_boards(fixtures: Path) -> None:
    text = (fixtures / "nvidia-smi-595.71.05-v13-three-a800.xml").read_text()
    parsed = parsers.parse_nvidia_smi(text)
    assert parsed is not None
    assert parsed["driver"] == {"version": "595.71.05", "cuda": "13.0"}
    gpus = parsed["gpus"]
    assert isinstance(gpus, list)
    assert [gpu["pci_address"] for gpu in gpus] == ["0000:3d:00.0", "0000:63:00.0", "0000:ab:00.0"]
    assert gpus[1].pop("health") == {
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "remapped_rows_correctable": 0,
        "remapped_rows_uncorrectable": 0,
        "remapped_rows_pending": False,
        "remapped_rows_failure": False,
        "retired_pages_single_bit": None,
        "retired_pages_double_bit": None,
        "retired_pages_pending": None,
        "mig_mode": "Disabled",
    }
    assert gpus[1] == {
        "index": 1,
        "uuid": "GPU-00000001-1111-2222-3333-444444444444",
        "serial": "1320000000002",
        "pci_address": "0000:63:00.0",
        "name": "NVIDIA A800-SXM4-80GB",
        "memory_bytes": 81920 * 1024**2,
        "vbios": "92.00.A4.00.02",
    }


@pytest.mark.parametrize(
    "name",
    ["nvidia-smi-515.105.01-v11-t4-in-a-virtual-machine", "nvidia-smi-525.147.05-v12-geforce-without-serial"],
)
def test_a_serial_that_is_absent_or_all_zeros_is_unknown(fixtures: Path, name: str) -> None:
    parsed = parsers.parse_nvidia_smi((fixtures / f"{name}.xml").read_text())
    assert parsed is not None
    gpus = parsed["gpus"]
    assert isinstance(gpus, list)
    assert gpus[0]["serial"] is None
    assert gpus[0]["uuid"] and gpus[0]["vbios"] and gpus[0]["memory_bytes"]


def test_unknown_values_are_null_and_not_guessed() -> None:
    text = """<nvidia_smi_log><driver_version>570.1</driver_version><cuda_version>N/A</cuda_version>
      <gpu id="odd"><uuid>Unknown Error</uuid><serial>[N/A]</serial><vbios_version>GPU is lost</vbios_version>
      <product_name>[Not Supported]</product_name><fb_memory_usage><total>N/A</total></fb_memory_usage></gpu>
      </nvidia_smi_log>"""
    parsed = parsers.parse_nvidia_smi(text)
    assert parsed is not None
    assert parsed["driver"] == {"version": "570.1", "cuda": None}
    keys = ("uuid", "serial", "pci_address", "name", "memory_bytes", "vbios")
    gpus = parsed["gpus"]
    assert isinstance(gpus, list)
    assert set(gpus[0].pop("health").values()) == {None}
    assert gpus == [{"index": 0, **dict.fromkeys(keys)}]


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", "<other/>", "<nvidia_smi_log>", "\0"])
def test_other_output_of_nvidia_smi_is_not_taken_for_its_xml(text: str) -> None:
    assert parsers.parse_nvidia_smi(text) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.71.05  Tue Jul  1\nGCC version: 13.2",
            "595.71.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n",
            "570.124.06",
        ),
        ("something else", None),
    ],
)
def test_driver_version_of_the_kernel_module(text: str, version: str | None) -> None:
    assert parsers.parse_driver_proc_version(text) == version


# /proc/net/tcp of Linux 6.1: 0.0.0.0:8000 listening, 127.0.0.1:8010 listening, one established.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21842 1
   1: 0100007F:1F4A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21843 1
   2: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 31337 1
   garbage
"""


def test_listeners_are_the_sockets_in_state_listen() -> None:
    assert parsers.parse_listeners(TCP) == [parsers.Listener(8000, 21842), parsers.Listener(8010, 21843)]


def test_listeners_of_ipv6() -> None:
    line = f"   0: {0:032d}:0016 {0:032d}:0000 0A 0:0 0:0 0 0 0 99 1"
    assert parsers.parse_listeners("header\n" + line) == [parsers.Listener(22, 99)]


def test_socket_links() -> None:
    assert parsers.parse_socket_link("socket:[123]") == 123
    assert parsers.parse_socket_link("pipe:[123]") is None


@pytest.mark.parametrize(
    "line",
    [
        "0::/system.slice/docker-{}.scope",
        "12:pids:/docker/{}",
        "0::/../../docker/{}/init",
        "1:name=systemd:/kubepods/besteffort/pod1/{}",
    ],
)
def test_container_ids_of_cgroups(line: str) -> None:
    identifier = "0123456789abcdef" * 4
    assert parsers.parse_container_id("0::/\n" + line.format(identifier)) == identifier


def test_a_process_of_the_host_is_in_no_container() -> None:
    assert parsers.parse_container_id("0::/user.slice/user-1000.slice/session-2.scope") is None


# /proc/net/route of Linux 6.1.
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
down0\t0000000A\t00000000\t0000\t0\t0\t0\t000000FF\t0\t0\t0
odd0\t0000000A\t00000000\t0001\t0\t0\t0\tFF00FF00\t0\t0\t0
short
"""


def test_routes_without_the_default_route_and_those_that_are_down() -> None:
    assert parsers.parse_routes(ROUTES) == [{"network": "172.17.0.0/16", "interface": "docker0"}]


def test_docker_objects() -> None:
    inspected: parsers.Json = {
        "Name": "/vllm-frontdoor-a-text",
        "Id": "abc",
        "State": {"Status": "running"},
        "Config": {"Labels": {"vllm-frontdoor.instance": "a"}},
        "NetworkSettings": {
            "Ports": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8001"}], "9000/tcp": None, "53/udp": []}
        },
    }
    container = parsers.parse_container(inspected)
    assert container["name"] == "vllm-frontdoor-a-text"
    assert container["labels"] == {"vllm-frontdoor.instance": "a"}
    assert container["state"] == "running"
    assert parsers.published_ports(inspected) == [8001]
    network: parsers.Json = {"Name": "n", "IPAM": {"Config": [{"Subnet": "10.0.0.0/28"}]}, "Labels": None}
    assert parsers.parse_network(network) == {"name": "n", "subnets": ["10.0.0.0/28"], "labels": {}}
    image: parsers.Json = {"Id": "sha256:1", "RepoDigests": None, "Config": {"Labels": None}}
    assert parsers.parse_image(image) == {"id": "sha256:1", "labels": {}, "repo_digests": []}


@pytest.mark.parametrize("text", ["5.6.1\n", "v5.6.1"])
def test_compose_version_with_and_without_its_letter(text: str) -> None:
    assert parsers.parse_compose_version(text) == "5.6.1"


def test_json_objects_in_an_array_or_line_by_line() -> None:
    assert parsers.parse_json_objects('[{"a": 1}, 2]') == [{"a": 1}]
    assert parsers.parse_json_objects('{"a": 1}\n{"b": 2}\nnot json') == [{"a": 1}, {"b": 2}]


def acs_port(control: int) -> bytes:
    """Configuration space of a port: AER at 0x100, ACS at 0x140."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | (2 << 16) | (0x140 << 20)).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D | (1 << 16)).to_bytes(4, "little")
    config[0x146:0x148] = control.to_bytes(2, "little")
    return bytes(config)


def test_acs_redirect_bits() -> None:
    assert parsers.parse_acs_redirect(acs_port(0x1D)) == ["ReqRedir", "CmpltRedir", "UpstreamFwd"]
    assert parsers.parse_acs_redirect(acs_port(0x01)) == []


def test_acs_is_unknown_without_root_or_capability_and_a_loop_ends() -> None:
    assert parsers.parse_acs_redirect(bytes(64)) is None
    looped = bytearray(4096)
    looped[0x100:0x104] = (0x0001 | (0x100 << 20)).to_bytes(4, "little")
    assert parsers.parse_acs_redirect(bytes(looped)) is None
