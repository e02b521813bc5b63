"""The envelope: its schema, its durability, and what a probe that died leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from gpu_diag import evidence as evidence_module
from gpu_diag.evidence import (
    KEPT_DOCUMENTS_OF_EACH_KIND,
    Evidence,
    EvidenceError,
    EvidenceStore,
    Tool,
    evidence_of,
    json_schema,
    parse_evidence,
    timestamp,
    write_atomically,
)

NOW = datetime(2026, 8, 8, 9, 30, tzinfo=UTC)


def evidence(moment: datetime = NOW, verdict: str = "clean") -> Evidence:
    return Evidence(
        tool=Tool("p2p_check", "1.0.0"),
        started_at=timestamp(moment),
        finished_at=timestamp(moment + timedelta(seconds=1)),
        identity={"boot_id": "one"},
        verdict=verdict,
        class_=None,
        details={"pairs": []},
        evidence=("all words came back",),
        remediation=(),
    )


def test_a_document_is_of_the_schema_and_comes_back_the_same(tmp_path: Path) -> None:
    path = EvidenceStore(tmp_path).write("p2p", evidence())
    document = json.loads(path.read_text())
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    assert parse_evidence(document) == evidence()
    assert document["started_at"] == "2026-08-08T09:30:00.000000Z"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 2),
        ("verdict", "fine"),
        ("details", []),
        ("evidence", "text"),
        ("remediation", [1]),
        ("tool", None),
        ("unknown", 1),
    ],
)
def test_a_document_of_another_form_is_refused_by_parser_and_schema(key: str, value: object) -> None:
    document = {**evidence().document(), key: value}
    with pytest.raises(EvidenceError):
        parse_evidence(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_the_newest_of_each_kind_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_DOCUMENTS_OF_EACH_KIND == 200
    monkeypatch.setattr(evidence_module, "KEPT_DOCUMENTS_OF_EACH_KIND", 5)
    store = EvidenceStore(tmp_path)
    for minute in range(8):
        store.write("host", evidence(NOW + timedelta(minutes=minute)))
    store.write("p2p", evidence())
    names = sorted(path.name for path in (tmp_path / "host").glob("*.json"))
    assert len(names) == 5
    assert names[0].startswith("20260808T093301")
    assert len(list((tmp_path / "p2p").glob("*.json"))) == 1


def test_an_unknown_kind_and_a_folder_that_cannot_be_written_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="there is no kind of evidence 'other'"):
        EvidenceStore(tmp_path).write("other", evidence())
    (tmp_path / "file").touch()
    with pytest.raises(EvidenceError, match="name one that can be written"):
        EvidenceStore(tmp_path / "file").write("p2p", evidence())


def test_a_write_that_fails_leaves_the_old_document(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["document.json"]


def test_a_finished_probe_leaves_no_started_record(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path)
    run = store.begin("p2p", "pair 0 to 1", "box", {"boot_id": "boot-1"}, NOW)
    assert len(list((tmp_path / "started").iterdir())) == 1
    run.finish(evidence())
    assert list((tmp_path / "started").iterdir()) == []
    assert store.interrupted("boot-1") == []


def test_a_probe_under_way_is_not_taken_for_dead(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path)
    run = store.begin("p2p", "pair 0 to 1", "box", {"boot_id": "boot-1"}, NOW)
    assert store.interrupted("boot-1") == []
    run.abandon()


DIES = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from gpu_diag.evidence import EvidenceStore
store, now = EvidenceStore(Path(sys.argv[1])), datetime.now(UTC)
store.begin("p2p", "pair 0 to 1", "box", {"boot_id": "boot-1"}, now).enter("pair 1 to 0")
os._exit(9)
"""


@pytest.mark.parametrize(("boot_id", "same_boot"), [("boot-1", True), ("boot-2", False), (None, False)])
def test_a_probe_that_died_is_told_once(tmp_path: Path, role: Path, boot_id: str, same_boot: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(role / "files")}
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], env=environment, check=False, timeout=60)
    store = EvidenceStore(tmp_path)
    (found,) = store.interrupted(boot_id)
    assert (found.kind, found.stage, found.subject) == ("p2p", "pair 1 to 0", "box")
    assert found.identity == {"boot_id": "boot-1"}
    assert found.same_boot is same_boot
    assert store.interrupted(boot_id) == []
    told = evidence_of(found, NOW)
    classes = {True: ("inconclusive", "probe_died"), False: ("hang", "host_reset_during_probe")}
    assert (told.verdict, told.class_) == classes[same_boot]
    assert "pair 1 to 0" in told.evidence[0]


def test_a_record_that_was_never_written_to_the_end_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "1.json").write_text('{"kind": "p')
    assert EvidenceStore(tmp_path).interrupted("boot-1") == []
    assert list((tmp_path / "started").iterdir()) == []
