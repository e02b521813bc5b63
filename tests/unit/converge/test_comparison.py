"""Each difference by itself, and the words it is told in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import frontdoor_converge as pure
import pytest

from .model import ENGINE, container_as_wanted, network_as_wanted, path_as_wanted

RECORDED = Path(__file__).parent / "recorded"

TEXT = pure.DesiredService("text", "box-text", "d1", "engine:1", "e1", (pure.Endpoint("box-text"),))
NET = pure.DesiredNetwork(
    "text", "box-text", internal=True, subnets=(("10.0.0.16/28", None),), labels={"a": "b"}
)
FILE = pure.DesiredPath("file", "registry/registry.json", "/r/registry/registry.json", 0o644, 0, 0, "content")
DESIRED = pure.Desired(
    "box-engines", "box", "/r", (FILE,), (TEXT,), (NET,), pure.DesiredReload("registry/", "router")
)


def right_box() -> pure.Observed:
    images: dict[str, str | None] = {"engine:1": "sha256:one"}
    network = network_as_wanted(DESIRED, NET, "n1")
    container = container_as_wanted(DESIRED, TEXT, {"box-text": network}, images, "c1")
    network = replace(network, attached=("c1",))
    box = pure.Observed({FILE.path: path_as_wanted(FILE)}, (container,), (network,), images, engine=ENGINE)
    return replace(box, record=pure.next_record(DESIRED, box, [], reload_pending=False))


def sentences(box: pure.Observed, desired: pure.Desired = DESIRED) -> list[str]:
    return [change.sentence for change in pure.plan_changes(desired, box)]


def with_container(**values: Any) -> pure.Observed:
    box = right_box()
    return replace(box, containers=(replace(box.containers[0], **values),))


def with_network(**values: Any) -> pure.Observed:
    box = right_box()
    return replace(box, networks=(replace(box.networks[0], **values),))


def test_a_right_box() -> None:
    assert sentences(right_box()) == []
    assert pure.refusals(DESIRED, right_box()) == pure.missing_images(DESIRED, right_box()) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"state": "exited", "exit_code": 137}, "stopped (exit code 137), started"),
        ({"state": "created"}, "never started, started"),
        ({"state": "paused"}, "paused, resumed"),
        ({"state": "dead"}, "it is dead, recreated"),
        ({"name": "other"}, "renamed to other by someone, renamed back"),
        ({"image_id": "sha256:old"}, "image changed, recreated"),
        (
            {"fingerprint": {"Config.Cmd": "x", "HostConfig.Memory": "memory", "Networks.box-text": "in"}},
            "altered by hand (Config.Cmd), recreated",
        ),
        (
            {"fingerprint": {"Config.Cmd": "cmd", "HostConfig.Memory": "memory"}, "networks": {}},
            "disconnected from network box-text, connected again",
        ),
        (
            {"networks": {"box-text": "n1", "bridge": "n2"}},
            "connected to network bridge by someone, disconnected",
        ),
        ({"networks": {"box-text": "n0"}}, "its network box-text was replaced, recreated"),
    ],
)
def test_containers(values: dict[str, Any], sentence: str) -> None:
    assert sentences(with_container(**values)) == [f"container box-text: {sentence}"]


def test_restarting_is_waited_for_and_not_repaired() -> None:
    assert sentences(with_container(state="restarting")) == []


def test_a_container_that_was_never_there_and_one_that_was() -> None:
    box = replace(right_box(), containers=())
    assert sentences(box) == ["container box-text: no longer there, created"]
    assert sentences(replace(box, record=pure.Record())) == ["container box-text: missing, created"]


def test_several_reasons_in_one_sentence() -> None:
    desired = replace(DESIRED, services=(replace(TEXT, definition="d2"),))
    assert sentences(with_container(image_id="sha256:old"), desired) == [
        "container box-text: definition changed and image changed, recreated"
    ]


def test_a_changed_environment_file() -> None:
    desired = replace(DESIRED, services=(replace(TEXT, environment="e2"),))
    assert sentences(right_box(), desired) == ["container box-text: environment file changed, recreated"]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"labels": {"a": "b"}}, "not made by this project"),
        ({"internal": False}, "it is not internal"),
        ({"driver": "macvlan"}, "driver is macvlan, not bridge"),
        (
            {"subnets": (("10.9.0.0/28", "10.9.0.1"),)},
            "subnet is 10.9.0.0/28 (gateway 10.9.0.1), not 10.0.0.16/28",
        ),
        ({"subnets": ()}, "subnet is none, not 10.0.0.16/28"),
    ],
)
def test_networks(values: dict[str, Any], fault: str) -> None:
    assert sentences(with_network(**values)) == [
        f"network box-text: {fault}, replaced",
        "container box-text: its network box-text is made anew, recreated",
    ]


def test_a_network_label_and_a_wrong_gateway() -> None:
    labels = {**right_box().networks[0].labels, "a": "x"}
    assert sentences(with_network(labels=labels))[0] == "network box-text: label a differs, replaced"
    defined = replace(DESIRED, networks=(replace(NET, labels={"a": "b", pure.LABEL_DEFINITION: "n2"}),))
    assert sentences(right_box(), defined)[0] == "network box-text: definition changed, replaced"
    wanted = replace(NET, subnets=(("10.0.0.16/28", "10.0.0.17"),))
    box = with_network(subnets=(("10.0.0.16/28", "10.0.0.30"),))
    (fault, _) = sentences(box, replace(DESIRED, networks=(wanted,)))
    assert "(gateway 10.0.0.30), not 10.0.0.16/28 (gateway 10.0.0.17)" in fault


def test_a_newer_engine_describes_more_and_that_is_no_alteration() -> None:
    box = right_box()
    more = {**box.containers[0].fingerprint, "HostConfig.New": "x"}
    newer = replace(with_container(fingerprint=more), engine="28.0.0")
    assert sentences(newer) == []
    assert sentences(replace(newer, engine=ENGINE)) == [
        "container box-text: altered by hand (HostConfig.New), recreated"
    ]
    altered = {**more, "HostConfig.Memory": "x"}
    assert sentences(replace(with_container(fingerprint=altered), engine="28.0.0")) == [
        "container box-text: altered by hand (HostConfig.Memory), recreated"
    ]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (pure.MISSING, "missing, written"),
        (pure.PathStatus("file", 0o644, 0, 0, "x", 1), "content differs, rewritten"),
        (
            pure.PathStatus("file", 0o600, 5, 6, "x", 1),
            "content differs and mode is 0600 and owner is 5:6, rewritten",
        ),
        (
            pure.PathStatus("file", 0o600, 5, 6, "content", 1),
            "mode is 0600, set to 0644 and owner is 5:6, set to 0:0",
        ),
        (pure.PathStatus("link"), "is a symbolic link, replaced by a file"),
    ],
)
def test_files(status: pure.PathStatus, sentence: str) -> None:
    box = replace(right_box(), paths={FILE.path: status})
    told = sentences(box)
    assert told[0] == f"file registry/registry.json: {sentence}"
    reloads = [] if "set to" in sentence else ["router: registry/registry.json changed, reloaded"]
    assert told[1:] == reloads


def test_what_a_directory_may_not_hold_goes_last() -> None:
    """The launcher of a service that is removed may need its token until its container is gone."""
    desired = replace(DESIRED, tidied={"/r/tokens": frozenset({"text"})})
    box = replace(right_box(), entries={"/r/tokens": ("gone", "text")})
    assert sentences(box, desired) == ["leftover /r/tokens/gone: no longer planned, removed"]
    gone = replace(box.containers[0], id="c2", name="box-gone")
    gone = replace(gone, labels={**gone.labels, pure.LABEL_COMPOSE_SERVICE: "gone"})
    changes = pure.plan_changes(desired, replace(box, containers=(*box.containers, gone)))
    assert [type(change) for change in changes] == [pure.RemoveContainer, pure.RemoveEntry]
    assert sentences(replace(box, entries={"/r/tokens": ("text",)}), desired) == []


def test_no_reload_when_the_router_starts_anyway() -> None:
    desired = replace(DESIRED, reload=pure.DesiredReload("registry/", "text"))
    box = replace(with_container(state="exited"), paths={})
    assert [type(change) for change in pure.plan_changes(desired, box)] == [
        pure.WriteFile,
        pure.StartContainer,
    ]
    paused = replace(with_container(state="paused"), paths={})
    assert pure.ReloadRouter in [type(change) for change in pure.plan_changes(desired, paused)]


def test_a_reload_that_failed_is_tried_again() -> None:
    box = right_box()
    pending = replace(box, record=replace(box.record, reload_pending=True))
    assert sentences(pending) == ["router: an earlier reload did not succeed, reloaded"]


def test_refusals() -> None:
    box = with_container(id="x" * 20, labels={pure.LABEL_PROJECT: "theirs"}, image="nginx")
    box = replace(box, images={}, networks=(replace(box.networks[0], internal=False, attached=("x" * 20,)),))
    box = replace(box, paths={FILE.path: pure.PathStatus("directory")})
    assert pure.refusals(DESIRED, box) == [
        "file registry/registry.json: a directory lies at /r/registry/registry.json; move it away",
        "container box-text: a container that is not ours holds this name "
        "(id xxxxxxxxxxxx, image nginx, Compose project theirs); rename or remove it",
        "network box-text: has to be removed, but containers that are not ours are connected to it "
        "(box-text); disconnect them",
    ]
    assert pure.missing_images(DESIRED, box) == [
        "image engine:1: not on this machine, needed by text; load, pull or build it first"
    ]
    external = replace(DESIRED, networks=(replace(NET, name="theirs", external=True),))
    assert pure.refusals(external, right_box()) == [
        "network theirs: declared as external and not on this machine; create it or correct its name"
    ]


def sample(**values: Any) -> pure.Sample:
    defaults: Mapping[str, Any] = {
        "state": "running",
        "health": None,
        "exit_code": 0,
        "restarts": 0,
        "failed_probes": 0,
        "up_seconds": 99.0,
    }
    return pure.Sample(**{**defaults, **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "ready"),
        ({"up_seconds": 0.5}, None),
        ({"health": "healthy", "up_seconds": 0.0}, "ready"),
        ({"health": "starting"}, None),
        ({"health": "unhealthy", "failed_probes": 3}, "is unhealthy"),
        ({"health": "unhealthy", "failed_probes": 1}, None),
        ({"state": "exited", "exit_code": 3}, "ended with exit code 3"),
        ({"state": "paused"}, "is paused"),
        ({"state": "restarting", "restarts": 1}, None),
        ({"state": "restarting", "restarts": 2}, "ended and was restarted 2 times"),
        ({"health": "starting", "restarts": 2}, "ended and was restarted 2 times"),
        ({"state": "created"}, None),
    ],
)
def test_verdicts(values: dict[str, Any], words: str | None) -> None:
    assert pure.verdict(sample(**values)) == words


def test_samples_count_from_an_earlier_look() -> None:
    before = pure.Container("c", "n", "running", "i", health="unhealthy", failed_probes=7, restarts=4)
    now = replace(before, failed_probes=8, restarts=5)
    assert pure.sample_of(now, before, 1.0) == sample(
        health="unhealthy", failed_probes=1, restarts=1, up_seconds=1.0
    )
    healthy_in_between = replace(before, failed_probes=3)
    assert pure.sample_of(healthy_in_between, before, 1.0).failed_probes == 3
    assert pure.sample_of(now, None, 1.0).restarts == 5


def recorded(kind: str, compose: str) -> dict[str, Any]:
    path = RECORDED / f"{kind}-engine-20.10.24-compose-{compose}.json"
    (document,) = json.loads(path.read_text())
    return dict(document)


def test_the_fingerprint_hardly_depends_on_the_compose_that_made_the_container() -> None:
    new, old = (pure.fingerprint(recorded("container", version)) for version in ("5.6.1", "2.26.1"))
    # The two ask Docker for bind mounts in different ways.
    assert pure.altered_settings(new, old, same_engine=True) == [
        "HostConfig.Binds",
        "HostConfig.Mounts",
        "Mounts",
    ]
    assert {"Config.Env", "HostConfig.Memory", "Mounts", "Networks.probe-a"} <= set(new)
    assert "Config.Hostname" not in new and "HostConfig.Privileged" not in new


@pytest.mark.parametrize(
    ("where", "key", "value", "setting"),
    [
        ("HostConfig", "Memory", 1, "HostConfig.Memory"),
        ("HostConfig", "Privileged", True, "HostConfig.Privileged"),
        ("Config", "Env", ["A=2"], "Config.Env"),
        ("Config", "User", "nobody", "Config.User"),
    ],
)
def test_the_fingerprint_tells_each_setting(where: str, key: str, value: object, setting: str) -> None:
    document = recorded("container", "5.6.1")
    before = pure.fingerprint(document)
    document[where][key] = value
    assert pure.altered_settings(before, pure.fingerprint(document), same_engine=True) == [setting]


def test_the_fingerprint_holds_no_values() -> None:
    document = recorded("container", "5.6.1")
    document["Config"]["Env"] = ["KEY=hush-hush"]
    assert "hush" not in json.dumps(pure.fingerprint(document))


def test_reading_inspect() -> None:
    container = pure.container_from_inspect(recorded("container", "5.6.1"))
    assert (container.name, container.state, container.health) == ("probe-a", "running", "starting")
    network = pure.network_from_inspect(recorded("network", "5.6.1"))
    assert container.networks == {"probe-a": network.id}
    assert (network.internal, network.subnets) == (True, (("10.214.0.16/28", "10.214.0.17"),))
    assert network.attached == (container.id,)


def test_reading_the_compose_document() -> None:
    compose = {
        "services": {
            "a": {
                "image": "i",
                "container_name": "c-a",
                "labels": ["vllm-frontdoor.definition=d", "x"],
                "networks": {"n": {"ipv4_address": "10.0.0.2", "aliases": ["z"]}},
            },
            "b": {
                "image": "i",
                "network_mode": "host",
                "labels": {"vllm-frontdoor.definition": "e", "t": True},
            },
            "c": {"image": "i", "networks": ["ext"]},
            "d": {"image": "i"},
        },
        "networks": {
            "n": {
                "name": "net",
                "internal": True,
                "driver_opts": {"o": 1},
                "ipam": {"config": [{"subnet": "10.0.0.0/28", "gateway": "10.0.0.1"}]},
            },
            "ext": {"external": True},
            "unused": {},
        },
    }
    a, b, c, d = pure.desired_services(compose, "p", {"a": "digest"})
    assert a == pure.DesiredService(
        "a", "c-a", "d", "i", "digest", (pure.Endpoint("net", "10.0.0.2", ("z",)),)
    )
    assert (b.definition, b.endpoints, b.container) == ("e", None, "p-b-1")
    assert (c.endpoints, d.endpoints) == ((pure.Endpoint("ext"),), (pure.Endpoint("p_default"),))
    networks = {network.key: network for network in pure.desired_networks(compose, "p")}
    assert set(networks) == {"n", "ext", "default"}
    assert networks["n"] == pure.DesiredNetwork(
        "n", "net", internal=True, subnets=(("10.0.0.0/28", "10.0.0.1"),), options={"o": "1"}
    )
    assert networks["ext"].external and networks["default"].name == "p_default"


@pytest.mark.parametrize("document", [None, [], {}, {"schema_version": 1}, {"schema_version": 2}])
def test_a_record_that_is_none_of_ours(document: object) -> None:
    with pytest.raises(ValueError, match="record"):
        pure.record_from_document(document)


def test_the_record_keeps_what_was_recorded_and_describes_what_is_new() -> None:
    box = with_container(fingerprint={"Config.Cmd": "altered since"})
    kept = pure.next_record(DESIRED, box, [], reload_pending=True)
    assert kept.services["text"] == box.record.services["text"] and kept.reload_pending
    anew = pure.next_record(DESIRED, box, [pure.CreateContainer("", "text", None)], reload_pending=False)
    assert anew.services["text"].fingerprint == {"Config.Cmd": "altered since"}
