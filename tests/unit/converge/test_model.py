"""Whatever the box looks like: the changes make it equal to the rendering, and touch nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import frontdoor_converge as pure
from hypothesis import given, settings
from hypothesis import strategies as st

from .model import ENGINE, Model, container_as_wanted, labels, network_as_wanted, path_as_wanted

IMAGES: dict[str, str | None] = {"engine:1": "sha256:one", "engine:2": "sha256:two"}
NAMES = ("text", "embed", "ocr")
STRANGERS = ("s1", "s2", "s3", "s4", "s5")


@st.composite
def desireds(draw: st.DrawFn) -> pure.Desired:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    host = draw(st.sets(st.sampled_from(NAMES)))
    services = tuple(
        pure.DesiredService(
            name=name,
            container=f"box-{name}",
            # A definition covers the networks it names.
            definition=draw(st.sampled_from(["d1", "d2"])) + ("-host" if name in host else ""),
            image=draw(st.sampled_from(sorted(IMAGES))),
            environment=draw(st.sampled_from(["", "e1"])),
            endpoints=None if name in host else (pure.Endpoint(f"net-{name}"),),
        )
        for name in names
    )
    networks = tuple(
        pure.DesiredNetwork(name, f"net-{name}", internal=draw(st.booleans()))
        for name in sorted(names)
        if name not in host
    )
    paths = (
        pure.DesiredPath("directory", "/state", "/state", 0o755, 0, 0),
        pure.DesiredPath("file", "registry/r.json", "/opt/box/registry/r.json", 0o644, 0, 0, "content"),
        pure.DesiredPath("secret", "token", "/opt/box/token", 0o640, 0, 5),
    )
    reload = draw(st.sampled_from([None, pure.DesiredReload("registry/", "text")]))
    tidied = {"/tokens": frozenset(names)}
    return pure.Desired("box-engines", "box", "/opt/box", paths, services, networks, reload, tidied=tidied)


PATHS = st.builds(
    pure.PathStatus,
    kind=st.just("file"),
    mode=st.sampled_from([0o640, 0o644, 0o666]),
    uid=st.sampled_from([0, 7]),
    gid=st.sampled_from([0, 5]),
    digest=st.sampled_from(["content", "other"]),
    size=st.sampled_from([0, 1]),
)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[pure.Desired, pure.Observed]:
    """A desired state, and a box that was deployed with perhaps another one and then damaged."""
    desired = draw(desireds())
    before = draw(st.one_of(st.just(desired), desireds()))
    bare = pure.Observed(images=IMAGES, engine=ENGINE)
    if draw(st.booleans()):
        bare = Model(before, bare).apply(pure.plan_changes(before, bare))
    record = bare.record
    networks = [damaged for one in bare.networks for damaged in damaged_network(draw, one)]
    containers = damaged_containers(draw, list(bare.containers), {one.name: one.id for one in networks})
    containers += strangers(draw, desired)
    attached = {one.name: tuple(c.id for c in containers if one.name in c.networks) for one in networks}
    observed = replace(
        bare,
        paths={
            path: draw(st.one_of(st.just(status), st.just(pure.MISSING), PATHS))
            if status.kind == "file"
            else draw(st.sampled_from([status, pure.MISSING, replace(status, mode=0o777)]))
            for path, status in bare.paths.items()
        },
        containers=tuple(containers),
        networks=tuple(replace(one, attached=attached[one.name]) for one in networks),
        record=draw(
            st.sampled_from(
                [
                    record,
                    pure.Record(),
                    replace(record, reload_pending=True),
                    replace(record, files=("old.env",)),
                ]
            )
        ),
    )
    if draw(st.booleans()):
        observed = replace(observed, paths={**observed.paths, "/opt/box/old.env": pure.PathStatus("file")})
    tokens = tuple(sorted(draw(st.sets(st.sampled_from(["text", "embed", "stranger"])))))
    observed = replace(observed, entries={"/tokens": tokens})
    return desired, observed


def damaged_network(draw: st.DrawFn, network: pure.Network) -> list[pure.Network]:
    return draw(
        st.sampled_from(
            [
                [network],
                [],
                [replace(network, id=f"{network.id}-again")],
                [replace(network, labels={})],
                [replace(network, internal=not network.internal)],
            ]
        )
    )


def damaged_containers(
    draw: st.DrawFn, containers: list[pure.Container], networks: dict[str, str]
) -> list[pure.Container]:
    left = []
    for one in containers:
        one = replace(one, networks={n: id_ for n, id_ in one.networks.items() if n in networks})
        prints = {
            k: v
            for k, v in one.fingerprint.items()
            if not k.startswith("Networks.") or k.removeprefix("Networks.") in one.networks
        }
        one = replace(one, fingerprint=prints)
        damage: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "state": st.sampled_from(["exited", "paused", "created", "dead", "restarting"]),
                    "image_id": st.just("sha256:two"),
                    "name": st.just(f"renamed-{one.name}"),
                    "fingerprint": st.just({**prints, "HostConfig.Memory": "altered"}),
                    "networks": st.sampled_from([{}, {**one.networks, "bridge": "b"}]),
                },
            )
        )
        if draw(st.booleans()):
            left.append(replace(one, **damage))
        elif draw(st.booleans()):
            left += [one, replace(one, id=f"{one.id}-second", name=f"second-{one.name}")]
        elif draw(st.booleans()):
            left.append(one)
    if len(left) > 1 and draw(st.booleans()):
        first, second = left[0], left[1]
        left[:2] = [replace(first, name=second.name), replace(second, name=first.name)]
    return left


def strangers(draw: st.DrawFn, desired: pure.Desired) -> list[pure.Container]:
    own = labels(desired, "text", "d1")
    choices = [
        pure.Container("s1", "stranger", "running", "sha256:x"),
        pure.Container("s2", "other-project", "running", "x", labels={**own, pure.LABEL_PROJECT: "other"}),
        pure.Container("s3", "other-instance", "exited", "x", labels={**own, pure.LABEL_INSTANCE: "other"}),
        pure.Container("s4", "one-off", "running", "x", labels={**own, pure.LABEL_ONEOFF: "True"}),
        pure.Container("s5", "no-label", "running", "x", labels={pure.LABEL_PROJECT: desired.project}),
    ]
    return draw(st.lists(st.sampled_from(choices), unique_by=lambda one: one.id))


@settings(max_examples=200, deadline=None)
@given(boxes())
def test_changes_make_the_box_equal_to_the_rendering(case: tuple[pure.Desired, pure.Observed]) -> None:
    desired, observed = case
    assert pure.refusals(desired, observed) == []
    changes = pure.plan_changes(desired, observed)
    after = Model(desired, observed).apply(changes)
    assert pure.plan_changes(desired, after) == []
    assert [one for one in after.containers if one.id in STRANGERS] == [
        one for one in observed.containers if one.id in STRANGERS
    ]
    sentences = [change.sentence for change in changes]
    assert len(sentences) == len(set(sentences))


@settings(max_examples=100, deadline=None)
@given(desireds())
def test_a_right_box_needs_nothing(desired: pure.Desired) -> None:
    networks = {one.name: network_as_wanted(desired, one, f"id-{one.name}") for one in desired.networks}
    containers = tuple(
        container_as_wanted(desired, one, networks, IMAGES, f"id-{one.name}") for one in desired.services
    )
    paths = {one.path: path_as_wanted(one) for one in desired.paths}
    observed = pure.Observed(paths, containers, tuple(networks.values()), IMAGES, engine=ENGINE)
    record = pure.next_record(desired, observed, [], reload_pending=False)
    assert pure.plan_changes(desired, replace(observed, record=record)) == []
    assert pure.record_from_document(pure.record_to_document(record, desired.project)) == record
