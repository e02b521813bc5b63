"""What vllmctl decides without asking anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from frontdoor_plan.document import to_yaml
from vllmctl import doctor, findings, names, tables
from vllmctl.box import find_box
from vllmctl.chatting import deltas
from vllmctl.containers import Container, Memory, memory_by_service
from vllmctl.errors import CommandError
from vllmctl.exposition import Sample, samples, usage
from vllmctl.findings import Finding, Level
from vllmctl.logs import read_words
from vllmctl.measures import duration, rate, size
from vllmctl.models import Model, Serving, deployed_mounts, models, serving
from vllmctl.ordering import proof_sentence
from vllmctl.tables import memory_text

SERVICE: dict[str, Any] = {
    "name": "text",
    "model": "Model-A",
    "aliases": ["a"],
    "depth": "awake",
    "conditions": [],
    "since_seconds": 5.0,
    "reason": "a person ordered it",
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (42, "42 s"),
        (1020, "17 min"),
        (9000, "2.5 h"),
        (4e5, "5 d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (2048, "2 KiB"), (9e7, "86 MiB"), (3.4e10, "31.7 GiB"), (2**42, "4.0 TiB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


def test_rates() -> None:
    assert (rate(3.14159), rate(1234.5)) == ("3.1/s", "1234/s")


def test_a_services_own_name_wins_over_anothers_alias() -> None:
    other = {**SERVICE, "name": "a", "model": "Model-B", "aliases": []}
    assert names.resolve([other, SERVICE], "A")["name"] == "text", "the later one took the name"
    assert names.resolve([other, SERVICE], "model-b")["name"] == "a"


@pytest.mark.parametrize("wanted", ["txt", "modl-a"])
def test_a_near_miss_is_suggested(wanted: str) -> None:
    with pytest.raises(CommandError, match=r"did you mean '(text|Model-A)'"):
        names.resolve([SERVICE], wanted)


def test_an_exposition_is_read_with_its_escapes() -> None:
    text = '# HELP x y\nx_total{key="a\\"b\\\\",status="200"} 3.0\nx_total 1\nnot a sample\n'
    assert list(samples(text)) == [
        Sample("x_total", {"key": 'a"b\\', "status": "200"}, 3.0),
        Sample("x_total", {}, 1.0),
    ]


def test_usage_is_by_service_and_key() -> None:
    text = """
frontdoor_requests_total{service="text",key="a",status="200"} 3.0
frontdoor_requests_total{service="text",key="a",status="503"} 1.0
frontdoor_requests_total{service="text",key="b",status="101"} 2.0
frontdoor_requests_total{service="",key="",status="404"} 9.0
frontdoor_tokens_total{service="text",key="a",kind="prompt"} 50.0
frontdoor_tokens_total{service="text",key="a",kind="completion"} 7.0
"""
    first, second = usage(text)
    assert (first.key, first.requests, first.failed) == ("a", 4, 1)
    assert (first.prompt_tokens, first.completion_tokens) == (50, 7)
    assert (second.key, second.requests, second.failed, second.prompt_tokens) == ("b", 2, 0, 0)


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, Level.OK),
        ({"conditions": ["failed"]}, Level.CRITICAL),
        ({"conditions": ["quarantined"]}, Level.CRITICAL),
        ({"depth": "stopped"}, Level.CRITICAL),
        ({"conditions": ["maintenance"]}, Level.WARNING),
        ({"depth": "restarting"}, Level.OK),
        ({"depth": "restarting", "since_seconds": 3600.0}, Level.WARNING),
    ],
)
def test_engines(change: dict[str, Any], level: Level) -> None:
    (finding,) = findings.engines({"services": [SERVICE | change], "cordoned": []})
    assert finding.level is level
    assert bool(finding.advice) == (level is not Level.OK)


def test_a_cordoned_device_and_no_service_are_warnings() -> None:
    found = list(findings.engines({"services": [], "cordoned": ["gpu0"]}))
    assert [each.level for each in found] == [Level.WARNING, Level.WARNING]
    assert found[1].advice == "When it is well: vllmctl uncordon gpu0"
    (_, named) = findings.engines(USED_GPU | {"cordoned": ["GPU-1"]})
    assert named.text == "Device gpu1 is cordoned, so nothing on it is woken."
    assert named.advice == "When it is well: vllmctl uncordon gpu1"


@pytest.mark.parametrize(
    ("canary", "told"),
    [
        ("matched", "text is proven; canary: matched;"),
        ("recorded", "text is proven; canary: recorded;"),
        (
            "none is recorded, since the engine isn't fresh",
            "text serves again, and is not proven; canary: none ",
        ),
        ("not possible: the task is rerank", "text serves again, and is not proven; canary: not possible: "),
    ],
)
def test_only_what_was_compared_is_called_proven(canary: str, told: str) -> None:
    answer = {"service": "text", "canary": canary, "level_2": "never proven"}
    assert proof_sentence(answer).startswith(told)


@pytest.mark.parametrize(
    ("free", "read_only", "level"),
    [
        (50, False, Level.OK),
        (9, False, Level.WARNING),
        (2, False, Level.CRITICAL),
        (50, True, Level.CRITICAL),
    ],
)
def test_disks(free: int, read_only: bool, level: Level) -> None:
    assert findings.disk("/x", 100, free, read_only).level is level


GIB = 2**30
TOLD = {"memory": {"resident_bytes": 2 * GIB, "device_bytes": 30 * GIB, "age_seconds": 1.0, "problems": []}}


@pytest.mark.parametrize(
    ("measured", "told", "text"),
    [
        (Memory(GIB, 31 * GIB), TOLD, "31.0 GiB device, 1.0 GiB host"),
        (Memory(GIB, 0), TOLD, "30.0 GiB device, 1.0 GiB host"),
        (Memory(None, None), TOLD, "30.0 GiB device, 2.0 GiB host"),
        (None, TOLD, "30.0 GiB device, 2.0 GiB host"),
        (None, {"memory": TOLD["memory"] | {"device_bytes": None}}, "2.0 GiB host"),
        (None, {"memory": None}, "-"),
        (None, {}, "-"),
        (Memory(0, None), {}, "0 KiB host"),
    ],
)
def test_memory_is_what_was_measured_here_or_else_by_the_launcher(
    measured: Memory | None, told: dict[str, Any], text: str
) -> None:
    assert memory_text(measured, SERVICE | told) == text


@pytest.mark.parametrize(("over_plan", "levels"), [(False, [Level.OK]), (True, [Level.WARNING]), (None, [])])
def test_a_device_over_plan_is_a_warning(over_plan: bool | None, levels: list[Level]) -> None:
    device = {"name": "gpu0", "used_bytes": 30 * GIB, "planned_bytes": 5 * GIB, "over_plan": over_plan}
    found = list(findings.memory({"device_memory": [device]}))
    assert [each.level for each in found] == levels
    assert all(
        "On device gpu0 30.0 GiB are used, the plan allows 5.0 GiB now." in each.text for each in found
    )
    assert list(findings.memory({})) == [], "a router of an earlier release"


PATH = {
    "kind": "p2p",
    "verdict": "clean",
    "age_seconds": 60.0,
    "of_this_boot": True,
    "suspicions": [],
}
WEIGHTS = {"model": "/m/a", "verdict": "verified", "age_seconds": 60.0}


@pytest.mark.parametrize(
    ("path", "weights", "level"),
    [
        ({}, {}, Level.OK),
        ({"verdict": "corrupt"}, {}, Level.OK),
        ({"kind": "integrity", "verdict": "corrupt"}, {}, Level.CRITICAL),
        ({"kind": "integrity", "verdict": "hang", "of_this_boot": False}, {}, Level.CRITICAL),
        ({"kind": "integrity", "verdict": "failed"}, {}, Level.CRITICAL),
        ({"kind": "integrity", "verdict": "inconclusive"}, {}, Level.WARNING),
        ({"kind": "integrity"}, {}, Level.OK),
        ({"verdict": "inconclusive"}, {}, Level.WARNING),
        ({"of_this_boot": False}, {}, Level.WARNING),
        ({"verdict": "corrupt", "of_this_boot": False}, {}, Level.WARNING),
        ({"suspicions": ["Xid 79"]}, {}, Level.CRITICAL),
        ({}, {"verdict": "failed"}, Level.CRITICAL),
        ({}, {"verdict": "unverified"}, Level.WARNING),
        ({}, {"age_seconds": 4e6}, Level.WARNING),
    ],
)
def test_evidence(path: dict[str, Any], weights: dict[str, Any], level: Level) -> None:
    view = {"present": True, "problems": [], "paths": [PATH | path], "weights": [WEIGHTS | weights]}
    assert findings.worst(findings.evidence(view)) is level


def evidence_of(devices: findings.Devices | None = None, **changes: Any) -> Finding:
    view = {"present": True, "problems": [], "paths": [PATH | changes], "weights": []}
    (finding,) = findings.evidence(view, devices=devices)
    return finding


def test_what_was_found_is_told_whatever_has_happened_since() -> None:
    assert evidence_of().text == "clean, probed 60 s ago."
    earlier = evidence_of(verdict="corrupt", of_this_boot=False, age_seconds=9000.0)
    assert earlier.text == "corrupt when last probed, in an earlier boot, 2.5 h ago."
    suspect = evidence_of(verdict="corrupt", suspicions=["Xid 79"])
    assert suspect.text == "corrupt, probed 60 s ago. It is suspect: Xid 79"


BAD_GPU = {
    "device": "GPU-1", "number": 1, "name": "A GPU", "verdict": "corrupt",
    "faults": ["ecc_uncorrected grew from 0 to 3 during the test."],
}  # fmt: skip
USED_GPU = {"services": [{**SERVICE, "devices": ["GPU-1"]}], "device_memory": [
    {"device": "GPU-1", "name": "gpu1"}, {"device": "GPU-2", "name": "gpu2"},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("condemned", "status", "text", "advice"),
    [
        (
            BAD_GPU, USED_GPU, "gpu1 (A GPU) is corrupt: ecc_uncorrected grew from 0 to 3 during the test.",
            "Nothing should be woken on it: vllmctl cordon gpu1; then run ./box diagnose.",
        ),
        (
            BAD_GPU, {"services": USED_GPU["services"]}, "GPU-1 (A GPU) is corrupt: ecc_uncorrected grew ",
            "Nothing should be woken on it: vllmctl cordon GPU-1; then run ./box diagnose.",
        ),
        (
            BAD_GPU | {"device": "GPU-2"}, USED_GPU, "gpu2 (A GPU) is corrupt: ", "No service is on it; ",
        ),
        (
            BAD_GPU | {"device": None, "faults": []}, USED_GPU,
            "GPU 1 (A GPU) is corrupt: no reason was recorded.", "No service is on it; ",
        ),
        (None, USED_GPU, " It was cut off.", "Nothing should be woken on that GPU: vllmctl cordon DEVICE "),
    ],
)  # fmt: skip
def test_a_bad_gpu_is_named_and_to_be_cordoned(
    condemned: dict[str, Any] | None, status: dict[str, Any], text: str, advice: str
) -> None:
    told = {"sentences": ["It was cut off."]} if condemned is None else {"condemned": [condemned]}
    finding = evidence_of(findings.devices_of(status), kind="integrity", verdict="corrupt", **told)
    assert finding.level is Level.CRITICAL
    assert text in finding.text and finding.text.startswith("corrupt, probed 60 s ago.")
    assert finding.advice.startswith(advice)


def test_a_model_that_was_removed_is_no_finding(tmp_path: Path) -> None:
    there, gone = str(tmp_path), str(tmp_path / "gone")
    view = {
        "present": True,
        "problems": [],
        "paths": [],
        "weights": [WEIGHTS | {"model": folder, "verdict": "failed"} for folder in (there, gone)],
    }
    (finding,) = findings.evidence(view, doctor._gone([there, gone]))
    assert finding.level is Level.CRITICAL and finding.check == f"weights {tmp_path.name}"


def test_versions_and_clock() -> None:
    assert findings.versions({"a": "0.27.1", "b": "0.27.1"}).level is Level.OK
    assert findings.versions({"a": "0.27.1", "b": "0.32.0"}).level is Level.WARNING
    assert findings.versions({"a": None}).level is Level.UNKNOWN
    assert [findings.clock(each).level for each in (True, False, None)] == [
        Level.OK,
        Level.WARNING,
        Level.UNKNOWN,
    ]


def test_critical_counts_before_warning_before_unknown() -> None:
    found = [Finding(level, "a", f"{level.name} it is", "b") for level in Level]
    assert findings.worst(found) is Level.CRITICAL
    assert findings.worst(found[:2] + found[3:]) is Level.WARNING
    assert findings.summary(found).startswith("VLLM-FRONTDOOR CRITICAL - 3 of 4 checks")
    assert findings.summary(found[:2]) == "VLLM-FRONTDOOR WARNING - WARNING it is"


def test_a_stream_gives_its_text_and_must_end() -> None:
    chunk = 'data: {"choices": [{"delta": {"content": "Pa"}}]}'
    assert list(deltas(iter([chunk, "", ": waking", chunk, "data: [DONE]"]))) == ["Pa", "Pa"]
    with pytest.raises(CommandError, match="broke off"):
        list(deltas(iter([chunk])))
    with pytest.raises(CommandError, match="in the middle"):
        list(deltas(iter([chunk, 'data: {"error": {"message": "It failed in the middle."}}'])))


def test_each_verdict_that_is_listed_is_explained_once() -> None:
    found = [
        Model(str(number), "/models", 1, verdict, ())
        for number, verdict in enumerate(
            ["values_only", "verified", None, "values_only", "of a later release"]
        )
    ]
    explained = tables.verdicts_explained(found)
    assert [each.partition(":")[0] for each in explained] == ["values_only", "verified"]


def test_words_of_logs() -> None:
    assert read_words(["text"]) == (100, "text")
    assert read_words(["5", "text"]) == (5, "text")
    assert read_words(["text"], 7) == (7, "text")
    with pytest.raises(CommandError, match="once"):
        read_words(["5", "text"], 7)
    for wrong in (["x", "text"], ["0", "text"], ["1", "2", "text"]):
        with pytest.raises(CommandError, match="for example"):
            read_words(wrong)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRONTDOOR_ROOT", str(tmp_path))
    monkeypatch.setenv("FRONTDOOR_STATE_ROOT", str(tmp_path / "var"))
    return tmp_path


def test_the_only_instance_needs_no_name(machine: Path) -> None:
    with pytest.raises(CommandError, match=r"No front door is deployed .* \./box site deploys one"):
        find_box(None)
    (machine / "rehearsal" / "router").mkdir(parents=True)
    assert find_box(None).instance == "rehearsal"
    (machine / "other" / "router").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"'default'.* Choose one with --instance: other, rehearsal"):
        find_box(None)
    (machine / "default" / "router").mkdir(parents=True)
    assert find_box(None).instance == "default"


@pytest.mark.parametrize(
    ("address", "more", "url"),
    [
        ("0.0.0.0:8000", "", "http://127.0.0.1:8000"),
        ("[::]:8000", "", "http://[::1]:8000"),
        ("10.0.0.5:80", "ROUTER_TLS_CERTIFICATE=/x\n", "https://10.0.0.5:80"),
    ],
)
def test_where_clients_ask(machine: Path, address: str, more: str, url: str) -> None:
    (machine / "a" / "router").mkdir(parents=True)
    (machine / "a" / "router" / "router.env").write_text(f"ROUTER_PUBLIC_ADDRESS='{address}'\n{more}")
    assert find_box("a").public_url == url
    with pytest.raises(CommandError, match="ROUTER_ADMIN_ADDRESS"):
        assert find_box("a").admin_url


def test_the_models_folder_is_what_the_deployment_says_or_the_usual_one(machine: Path) -> None:
    (machine / "a" / "router").mkdir(parents=True)
    box = find_box("a")
    assert box.models == machine / "var/models"
    with pytest.raises(CommandError, match="deploy again"):
        box.pulling()
    (box.root / "pull.json").write_text('{"models_root": "/srv/models"}')
    assert box.models == Path("/srv/models")
    for damaged in ("[", "[]", "{}"):
        (box.root / "pull.json").write_text(damaged)
        assert box.models == machine / "var/models"


def test_models_are_those_on_disk_and_those_mounted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_bytes(b"12345")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "nowhere")
    served = Container("text", "c", 1, True, {"/models/a": str(tmp_path / "a"), "/launcher": "/x"})
    elsewhere = Container("ocr", "d", 1, True, {"/models/b": str(tmp_path / "else" / "b")})
    known = serving([served, elsewhere], None, None)
    first, second = models(tmp_path, {str(tmp_path / "a"): "verified"}, known)
    assert (first.name, first.size_bytes, first.verdict, first.services) == ("a", 5, "verified", ("text",))
    assert (second.name, second.size_bytes, second.verdict, second.services) == ("b", 0, None, ("ocr",))


GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def test_what_was_deployed_says_who_serves_what() -> None:
    """In the very file that the deployment writes."""
    for compose in GOLDEN.glob("*/engines/compose.yml"):
        text = compose.read_text()
        expected = {
            (name, mount["target"], mount["source"])
            for name, service in yaml.safe_load(text)["services"].items()
            for mount in service["volumes"]
        }
        assert expected and set(deployed_mounts(text)) == expected
        by_path = serving([], list(deployed_mounts(text)), None).by_path
        assert all(source in by_path for _, target, source in expected if target.startswith("/models/"))


def test_a_deployed_path_may_have_any_character() -> None:
    odd = '/srv/a "b" #\u00e9 \U0001f600 $x'
    mount = {"type": "bind", "source": odd.replace("$", "$$"), "target": "/models/m"}
    text = to_yaml({"services": {"text": {"volumes": [mount]}}})
    assert list(deployed_mounts(text)) == [("text", "/models/m", odd)]
    with pytest.raises(ValueError, match="Unterminated"):
        list(deployed_mounts(text.replace('$$x"', "")))


STATUS = {"services": [SERVICE]}


@pytest.mark.parametrize(
    ("known", "model_a", "other"),
    [
        (serving([], None, STATUS), ("text",), None),
        (serving([], None, None), None, None),
        (serving([], [], None), (), ()),
        (serving([], [("text", "/models/o", "/m/other")], STATUS), (), ("text",)),
        (serving([Container("text", "c", 1, True, {"/models/o": "/m/other"})], None, None), (), ("text",)),
        (
            serving(
                [Container("a", "c", 0, False, {"/models/o": "/m/other"})],
                [("text", "/models/o", "/m/other"), ("text", "/launcher", "/m/Model-A")],
                None,
            ),
            (),
            ("a", "text"),
        ),
    ],
)
def test_nobody_is_said_to_serve_a_model_only_where_that_is_known(
    known: Serving, model_a: tuple[str, ...] | None, other: tuple[str, ...] | None
) -> None:
    assert (known.services("/m/Model-A"), known.services("/m/other")) == (model_a, other)


def test_memory_is_summed_over_a_containers_processes(tmp_path: Path) -> None:
    for pid, parent, pss in ((10, 1, 100), (11, 10, 50), (12, 11, 7), (20, 1, 1000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 0")
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Rss: 9 kB\nPss:  {pss} kB\nSwapPss: 1 kB\n")
    found = memory_by_service(
        [Container("text", "c", 10, True, {}), Container("x", "d", 0, False, {})], tmp_path
    )
    assert found["text"].host_bytes == (157 + 3) * 1024
    assert set(found) == {"text"}
