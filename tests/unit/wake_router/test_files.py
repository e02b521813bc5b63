"""Registry, settings and intent store: what people and disks get wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from wake_router.canary import Answer
from wake_router.durable import DurableWriteError
from wake_router.intent_store import IntentStore
from wake_router.lifecycle import Depth, Record, Step
from wake_router.memory import Memory, MemoryStore
from wake_router.registry import RegistryError, parse_registry, read_registry, schema
from wake_router.settings import Address, SettingsError, read_settings

SERVICE: dict[str, Any] = {
    "name": "text",
    "model": "SmolLM2-135M-Instruct",
    "aliases": ["smol"],
    "task": "generate",
    "base_url": "http://10.213.8.18:8000",
    "launcher_url": "http://10.213.8.18:9000",
    "devices": ["cpu:left"],
    "definition": "0" * 64,
    "idle_sleep_seconds": 900,
    "idle_offload_seconds": 10800,
    "pin": False,
    "allow_level_2": "auto",
    "may_record_canary": True,
}


def registry(*services: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps(
        {"schema_version": 1, "instance": "rehearsal", "services": services, **changes}
    ).encode()


def test_a_registry_is_read_and_fits_its_schema() -> None:
    document = registry(SERVICE)
    jsonschema.validate(json.loads(document), schema())
    services = parse_registry(document).by_name()
    assert services["smol"].name == services["text"].name == services["smollm2-135m-instruct"].name == "text"


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (b"{", "not JSON"),
        (b"[]", "document"),
        (registry(schema_version=2), "schema_version"),
        (registry(instance="Big"), "instance"),
        (registry({**SERVICE, "nmae": 1}), "services.0.nmae"),
        (registry({**SERVICE, "base_url": "https://x/y"}), "services.0.base_url"),
        (registry({**SERVICE, "task": "paint"}), "services.0.task"),
        (registry({**SERVICE, "devices": []}), "services.0.devices"),
        (registry({**SERVICE, "idle_sleep_seconds": -1}), "idle_sleep_seconds"),
        (registry({**SERVICE, "pin": "no"}), "services.0.pin"),
        (registry(SERVICE, SERVICE), "two services called 'text'"),
        (registry(SERVICE, {**SERVICE, "name": "other", "aliases": []}), "belongs to both"),
        (
            registry(SERVICE, {**SERVICE, "name": "b", "model": "B", "aliases": ["SMOL"]}),
            "'smol' belongs to both",
        ),
    ],
)
def test_a_wrong_registry_is_refused_in_words(document: bytes, what: str) -> None:
    with pytest.raises(RegistryError, match=what):
        parse_registry(document)


def test_a_missing_registry_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="Deploy first"):
        read_registry(tmp_path / "none.json")


def test_settings_have_defaults() -> None:
    settings = read_settings({"IDLE_SLEEP_MIN": "0.5", "ROUTER_PUBLIC_ADDRESS": "[::1]:80"})
    assert settings.idle_sleep_seconds == 30
    assert settings.idle_offload_seconds == 180 * 60
    assert settings.public_address == Address("::1", 80)
    assert settings.admin_address == Address("127.0.0.1", 8010)


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as error:
        read_settings({"IDLE_SLEEP_MIN": "soon", "ROUTER_HELD_MAX": "-1", "ROUTER_ADMIN_ADDRESS": "8010"})
    for part in (
        "IDLE_SLEEP_MIN is 'soon'",
        "minutes",
        "ROUTER_HELD_MAX",
        "ROUTER_ADMIN_ADDRESS",
        "127.0.0.1:8000",
    ):
        assert part in str(error.value)


def test_every_variable_that_is_read_is_in_the_table() -> None:
    from wake_router import settings

    asked: list[str] = []

    class Watching(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.append(name)
            return default

    read_settings(Watching())
    documented = [line.split("|")[1].strip() for line in (settings.__doc__ or "").splitlines() if "_" in line]
    assert sorted(asked) == sorted(name for name in documented if name.isupper())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = IntentStore(tmp_path / "intents")
    for record in (
        Record(incarnation="a", depth=Depth.AWAKE),
        Record(incarnation="b", depth=Depth.OFFLOADED, open_step=Step.RELOAD_WEIGHTS),
    ):
        store.write("text", record)
        assert store.read("text") == record
    assert [path.name for path in (tmp_path / "intents").iterdir()] == ["text.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'{"schema_version": 2}', b"\x00\xff",
     b'{"schema_version": 1, "incarnation": "a", "depth": "deep", "open_step": null}',
     b'{"schema_version": 1, "incarnation": 7, "depth": "awake", "open_step": null}',
     b'{"schema_version": 1, "incarnation": "a", "depth": "awake", "open_step": "dance"}',
     b'{"schema_version": 1, "incarnation": "a", "depth": "awake"}'],
)  # fmt: skip
def test_a_damaged_file_means_nothing_is_known(tmp_path: Path, content: bytes) -> None:
    store = IntentStore(tmp_path)
    store.path("text").write_bytes(content)
    assert store.read("text") is None


def test_every_truncation_of_a_file_means_nothing_is_known(tmp_path: Path) -> None:
    store = IntentStore(tmp_path)
    store.write("text", Record(incarnation="a", depth=Depth.AWAKE))
    whole = store.path("text").read_bytes()
    for length in range(len(whole)):
        store.path("text").write_bytes(whole[:length])
        assert store.read("text") is None


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DurableWriteError, match="can't be written"):
        IntentStore(tmp_path / "file" / "intents").write("text", Record(incarnation="a", depth=Depth.AWAKE))


def test_a_memory_is_kept_and_belongs_to_its_definition(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    memory = Memory(
        definition="one",
        canary=Answer("generate", ((-0.5, -1.0), (-0.1,)), (" Paris",)),
        level_2_round_trips=2,
        pinned=True,
    )
    memory = memory.with_sample("offloaded", 1.23456)
    store.write("text", memory)
    assert store.read("text") == memory
    other = memory.for_definition("two")
    assert (other.canary, other.level_2_round_trips, other.pinned) == (None, 0, True)
    assert other.wake_seconds == {"offloaded": (1.235,)}
    assert memory.for_definition("one") is memory


def test_a_damaged_memory_is_an_empty_one(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    store.write("text", Memory(definition="one", canary=Answer("embed", ((1.0,),))))
    whole = (tmp_path / "text.json").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "text.json").write_bytes(whole[:length])
        assert store.read("text") == Memory()


def test_samples_are_bounded() -> None:
    memory = Memory()
    for number in range(100):
        memory = memory.with_sample("sleeping", number)
    assert memory.wake_seconds["sleeping"] == tuple(range(70, 100))
