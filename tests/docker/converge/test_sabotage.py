"""Whatever is altered on a deployed box, the next run repairs exactly that, and says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import OTHER_IMAGE, Box, docker

pytestmark = pytest.mark.docker


def test_nothing_to_do(box: Box) -> None:
    box.repair()


def test_file_edited(box: Box) -> None:
    (box.root / "engines/text.env").write_text("MODEL=forged\n")
    box.repair("file engines/text.env: content differs, rewritten")


def test_file_removed(box: Box) -> None:
    (box.root / "engines/compose.yml").unlink()
    box.repair("file engines/compose.yml: missing, written")


def test_file_replaced_by_a_link(box: Box) -> None:
    path = box.root / "registry/registry.json"
    content = path.read_text()
    elsewhere = box.folder / "elsewhere.json"
    elsewhere.write_text(content)
    path.unlink()
    path.symlink_to(elsewhere)
    box.repair("file registry/registry.json: is a symbolic link, replaced by a file")
    assert not path.is_symlink() and elsewhere.read_text() == content


def test_file_mode_and_owner(box: Box) -> None:
    path = box.root / "engines/embed.env"
    path.chmod(0o666)
    box.repair("file engines/embed.env: mode is 0666, set to 0640")
    os.chown(path, 12, 34)
    box.repair("file engines/embed.env: owner is 12:34, set to 0:0")


def test_directory_removed_and_opened(box: Box) -> None:
    folder = box.state / "router"
    folder.rmdir()
    box.repair(f"directory {folder}: missing, created")
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o7777) == (10810, 0o750)
    folder.chmod(0o777)
    box.repair(f"directory {folder}: mode is 0777, set to 0750")


def test_secret(box: Box) -> None:
    path = box.root / "secrets/admin-token"
    secret = path.read_text()
    assert len(bytes.fromhex(secret.strip())) == 32
    path.chmod(0o644)
    box.repair("secret secrets/admin-token: mode is 0644, set to 0640")
    assert path.read_text() == secret
    path.unlink()
    box.repair("secret secrets/admin-token: missing, created")
    assert path.read_text() != secret
    path.write_text("")
    box.repair("secret secrets/admin-token: empty, created")


def test_container_stopped(box: Box) -> None:
    docker("stop", box.name("text"))
    box.repair(f"container {box.name('text')}: stopped (exit code 143), started")


def test_container_killed(box: Box) -> None:
    docker("kill", box.name("front"))
    box.repair(f"container {box.name('front')}: stopped (exit code 137), started")


def test_container_removed(box: Box) -> None:
    docker("rm", "-f", box.name("text"))
    box.repair(f"container {box.name('text')}: no longer there, created", renewed=("text",))


def test_container_paused(box: Box) -> None:
    docker("pause", box.name("text"))
    box.repair(f"container {box.name('text')}: paused, resumed")


def test_container_updated(box: Box) -> None:
    docker("update", "--memory", "96m", "--memory-swap", "192m", box.name("embed"))
    box.repair(
        f"container {box.name('embed')}: altered by hand "
        "(HostConfig.Memory, HostConfig.MemorySwap), recreated",
        renewed=("embed",),
    )


def test_restart_policy_updated(box: Box) -> None:
    docker("update", "--restart", "no", box.name("front"))
    box.repair(
        f"container {box.name('front')}: altered by hand (HostConfig.RestartPolicy), recreated",
        renewed=("front",),
    )


def test_paused_and_altered(box: Box) -> None:
    docker("update", "--restart", "no", box.name("text"))
    docker("pause", box.name("text"))
    box.repair(
        f"container {box.name('text')}: altered by hand (HostConfig.RestartPolicy), recreated",
        renewed=("text",),
    )


def test_container_renamed(box: Box) -> None:
    docker("rename", box.name("text"), "converge-elsewhere")
    ids = set(box.ids().values())
    box.repair(f"container {box.name('text')}: renamed to converge-elsewhere by someone, renamed back")
    assert set(box.ids().values()) == ids


def test_names_swapped(box: Box) -> None:
    text, embed = box.name("text"), box.name("embed")
    before = box.ids()
    for old, new in ((text, "converge-between"), (embed, text), ("converge-between", embed)):
        docker("rename", old, new)
    predicted = box.run(check=True)["changes"]
    assert predicted == [
        f"container {text}: renamed to {embed} by someone, renamed back",
        f"container {embed}: renamed to {text} by someone, renamed back",
    ]
    assert box.run()["changes"] == predicted
    assert box.ids() == before


def test_container_replaced_by_hand(box: Box) -> None:
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", box.name("embed")))
    options = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    docker("rm", "-f", box.name("embed"))
    docker(
        "run", "-d", "--init", "--name", box.name("embed"), "--network", box.name("embed"), *options,
        "converge-test-busybox:1", "sleep", "1000",
    )  # fmt: skip
    (predicted,) = box.run(check=True)["changes"]
    assert predicted.startswith(f"container {box.name('embed')}: altered by hand (Config.")
    for setting in ("Config.Cmd", "Config.Env", "HostConfig.Binds", "HostConfig.Memory", "Mounts"):
        assert setting in predicted
    box.repair(predicted, renewed=("embed",))


def test_second_container_of_a_service(box: Box) -> None:
    label = {
        "com.docker.compose.project": box.project,
        "com.docker.compose.service": "text",
        "vllm-frontdoor.instance": box.instance,
    }
    options = [word for name, value in label.items() for word in ("--label", f"{name}={value}")]
    docker(
        "run", "-d", "--init", "--name", "converge-second", *options, "converge-test-busybox:1", "sleep", "9"
    )
    box.repair("container converge-second: a second one of service text, removed")


def test_image_tag_moved(box: Box) -> None:
    original = docker("image", "inspect", "--format", "{{.Id}}", "converge-test-busybox:1")
    docker("tag", OTHER_IMAGE, "converge-test-busybox:1")
    sentences = [f"container {box.name(s)}: image changed, recreated" for s in ("text", "embed", "front")]
    box.repair(*sentences, renewed=("text", "embed", "front"))
    docker("tag", original, "converge-test-busybox:1")
    box.repair(*sentences, renewed=("text", "embed", "front"))


def test_container_disconnected(box: Box) -> None:
    network = box.name("embed")
    docker("network", "disconnect", network, box.name("embed"))
    box.repair(f"container {network}: disconnected from network {network}, connected again")


def test_stopped_and_disconnected(box: Box) -> None:
    network = box.name("text")
    docker("stop", box.name("text"))
    docker("network", "disconnect", network, box.name("text"))
    box.repair(
        f"container {network}: disconnected from network {network}, connected again",
        f"container {network}: stopped (exit code 143), started",
    )


def test_connected_to_another_network(box: Box) -> None:
    docker("network", "connect", "bridge", box.name("text"))
    box.repair(f"container {box.name('text')}: connected to network bridge by someone, disconnected")


def test_connected_again_with_another_address(box: Box) -> None:
    network = box.name("embed")
    docker("network", "disconnect", network, box.name("embed"))
    docker("network", "connect", "--ip", "10.214.1.40", network, box.name("embed"))
    box.repair(
        f"container {network}: altered by hand (Networks.{network}), recreated",
        renewed=("embed",),
    )


def test_network_removed(box: Box) -> None:
    network = box.name("text")
    docker("network", "disconnect", network, box.name("text"))
    docker("network", "rm", network)
    box.repair(
        f"network {network}: missing, created",
        f"container {network}: its network {network} is made anew, recreated",
        renewed=("text",),
    )


@pytest.mark.parametrize("connected", [True, False])
def test_network_replaced_by_an_imposter(box: Box, connected: bool) -> None:
    network = box.name("embed")
    docker("network", "disconnect", network, box.name("embed"))
    docker("network", "rm", network)
    docker("network", "create", "--subnet", "10.214.1.32/28", network)
    if connected:
        docker("network", "connect", network, box.name("embed"))
    box.repair(
        f"network {network}: not made by this project, replaced",
        f"container {network}: its network {network} is made anew, recreated",
        renewed=("embed",),
    )


def test_network_with_another_subnet_and_open(box: Box) -> None:
    network = box.name("text")
    labels = json.loads(docker("network", "inspect", "--format", "{{json .Labels}}", network))
    options = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    docker("network", "disconnect", network, box.name("text"))
    docker("network", "rm", network)
    docker("network", "create", "--subnet", "10.214.9.0/28", *options, network)
    box.repair(
        f"network {network}: it is not internal, subnet is 10.214.9.0/28, not 10.214.1.16/28, replaced",
        f"container {network}: its network {network} is made anew, recreated",
        renewed=("text",),
    )


def test_a_stranger_in_a_network_that_must_go(box: Box) -> None:
    network = box.name("embed")
    docker("network", "disconnect", network, box.name("embed"))
    docker("network", "rm", network)
    docker("network", "create", "--subnet", "10.214.1.32/28", network)
    docker("run", "-d", "--init", "--rm", "--name", "converge-stranger", "--network", network,
           "converge-test-busybox:1", "sleep", "1000")  # fmt: skip
    ids = box.ids()
    refused = box.run()
    docker("rm", "-f", "converge-stranger")
    assert refused["msg"] == (
        f"network {network}: has to be removed, but containers that are not ours are connected to it "
        "(converge-stranger); disconnect them"
    )
    assert box.ids() == ids
    box.repair(
        f"network {network}: not made by this project, replaced",
        f"container {network}: its network {network} is made anew, recreated",
        renewed=("embed",),
    )


def test_record_lost(box: Box) -> None:
    (box.state / "deployed" / f"{box.project}.json").unlink()
    box.repair(f"record of project {box.project}: text, embed, front missing, taken from the containers")


def test_several_at_once(box: Box) -> None:
    (box.root / "registry/registry.json").write_text("forged")
    (box.root / "engines/text.env").chmod(0o600)
    docker("stop", box.name("front"))
    docker("network", "disconnect", box.name("text"), box.name("text"))
    docker("network", "rm", box.name("text"))
    docker("rm", "-f", box.name("embed"))
    box.repair(
        "file engines/text.env: mode is 0600, set to 0640",
        "file registry/registry.json: content differs, rewritten",
        f"network {box.name('text')}: missing, created",
        f"container {box.name('text')}: its network {box.name('text')} is made anew, recreated",
        f"container {box.name('embed')}: no longer there, created",
        f"container {box.name('front')}: stopped (exit code 143), started",
        renewed=("text", "embed"),
    )


def test_restarting_docker_containers_is_no_difference(box: Box) -> None:
    docker("restart", *(box.name(service) for service in box.services))
    box.repair()


def test_no_trace_of_temporary_files(box: Box) -> None:
    assert not list(Path(box.root).rglob("*.tmp"))
