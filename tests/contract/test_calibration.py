"""Calibration: real services' processes are driven through all depths by the router, and measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from frontdoor_calibration import engines as containers
from frontdoor_calibration import figures, run
from frontdoor_calibration.drive import Patience
from frontdoor_calibration.meter import Meter
from frontdoor_calibration.router import Admin
from frontdoor_plan.calibration import Calibration, parse_calibration

from tests.standin.processes import ROOT, TOKEN, Engine, Router, wait_until

pytestmark = pytest.mark.stand_in_only("calibration", instead="tests/e2e/test_calibration.py")

Engines = Callable[..., Engine]
Routers = Callable[..., Router]
PATIENT = Patience(quiet=30.0, step=60.0)
GPU = "GPU-00000001-1111-2222-3333-444444444444"
# Device memory of the one process that serves it, as the stand-in remembers it.
NVIDIA_SMI = """#!{python}
import json, sys, urllib.request
if "--query-gpu=uuid,name" in sys.argv:
    print("{gpu}, NVIDIA A800 80GB PCIe")
else:
    with urllib.request.urlopen("{engine}/standin/state", timeout=20) as answer:
        memory = json.load(answer)["memory"]
    print(f"{pid}, {gpu}, {{memory['{gpu}'] // 2**20}}")
"""


# What a deployment's container tells of itself.
DOCKER = """#!{python}
import json, sys
if "ls" in sys.argv:
    print("0123456789ab")
else:
    print(json.dumps([{{
        "Id": "0123456789ab", "Name": "/vllm-frontdoor-test-text", "Image": "sha256:1",
        "State": {{"Pid": {pid}, "Running": True}},
        "Mounts": [{{"Type": "bind", "Source": "/srv/m", "Destination": "/models/m"}}],
        "Config": {{"Labels": {{"vllm-frontdoor.service": "text", "vllm-frontdoor.devices": "cpu:left"}},
                    "Env": ["VLLM_CPU_KVCACHE_SPACE=1"], "Cmd": ["python3"]}},
    }}]))
"""
PLAY = """
- name: Calibrate
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Have the modules of the role at hand, as the playbook has
      ansible.builtin.import_role: {name: vllm_service, tasks_from: verify.yml}
      when: false
    - name: Measure
      ansible.builtin.import_role: {name: calibration}
"""


@dataclass
class Box:
    """An instance's folders with a router, and one engine under the real launcher."""

    root: Path
    router: Router
    engine: Engine
    meter: Meter = field(default_factory=Meter)

    @property
    def files(self) -> run.Files:
        """The folder of figures."""
        return run.Files(self.root / "calibration", "test")

    @property
    def admin(self) -> Admin:
        """The admin listener as a calibration uses it."""
        return Admin(self.root)

    def calibrate(self, rounds: int = 1, patience: Patience = PATIENT, **changes: Any) -> run.Report:
        """Calibrate the one service."""
        assert self.engine.process is not None
        pid, devices = self.engine.process.pid, (self.engine.device,)
        found = containers.Engine("text", pid, "/models/m", "sha256:1", devices)
        bench = run.Bench(
            admin=self.admin,
            meter=self.meter,
            files=self.files,
            engines=changes.pop("engines", {"text": found}),
            plan_document=_document,
            rounds=rounds,
            patience=patience,
        )
        return run.calibrate(bench, ["text"], self.admin.services())

    def written(self) -> list[str]:
        """The files that there are, hidden ones too."""
        folder = self.root / "calibration"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _document(engine: containers.Engine, measured: figures.Measurement) -> dict[str, Any]:
    return Calibration(
        service=engine.service,
        model_folder=engine.model_folder,
        image_id=engine.image_id,
        device_name=containers.device_name(engine, {GPU: "NVIDIA A800 80GB PCIe"}),
        tensor_parallel=1,
        pipeline_parallel=1,
        measured_at=measured.measured_at,
        **figures.plan_figures(measured),
    ).document()


@pytest.fixture
def boxes(engines: Engines, routers: Routers, tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """Starts an engine under its launcher behind a router that has seen it boot."""

    def make(device: str = "cpu:left", launched: bool = True, **changes: Any) -> Box:
        router = routers()
        token = router.folder / "launchers/text/token" if launched else None
        engine = Engine(token_file=token, device=device)
        router.register(engine.registry_entry(**{"allow_level_2": "auto", **changes}))
        root = tmp_path / "instance"
        for name, content in (
            ("router/router.env", f"ROUTER_ADMIN_ADDRESS=127.0.0.1:{router.admin_port}\n"),
            ("secrets/admin-token", f"{TOKEN}\n"),
        ):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(content)
        router.start()
        engine = engines(
            ready=False, boot_seconds=0.3, device=device, port=engine.port,
            launcher_port=engine.launcher_port, token_file=token,
        )  # fmt: skip
        router.wait_for("text", "awake")
        return Box(root, router, engine)

    yield make


Boxes = Callable[..., Box]


def test_a_service_is_measured_at_every_depth_and_earns_level_2(boxes: Boxes) -> None:
    box = boxes()
    before = box.router.status("text")["incarnation"]
    report = box.calibrate(rounds=3)
    assert (report.problems, report.left_alone) == ([], [])
    assert "level 2: proven by 3 round trips" in report.measured[-1]
    assert box.written() == ["CALIBRATION.md", "measured", "memory.svg", "text.json"]
    found = parse_calibration(json.loads((box.root / "calibration/text.json").read_bytes()))
    assert (found.service, found.image_id, found.device_name) == ("text", "sha256:1", "cpu")
    assert found.awake_bytes_per_device == found.asleep_bytes_per_device == 0
    assert 10 * 2**20 < found.host_bytes_asleep < 2**32, "a Python program's resident memory"
    document = json.loads((box.root / "calibration/measured/text.json").read_bytes())
    measured = figures.from_document(document)
    assert [set(each.seconds) for each in measured.rounds] == [set(figures.STEPS)] * 3
    assert [set(each.memory) for each in measured.rounds] == [set(figures.DEPTHS)] * 3
    assert measured.canary == "matched"
    status = box.router.status("text")
    assert (status["depth"], status["conditions"]) == ("awake", [])
    assert status["incarnation"] != before, "each round starts a new process"
    page = (box.root / "calibration/CALIBRATION.md").read_text()
    assert "proven by 3 round trips" in page
    assert "sleeping → awake" in page
    assert "](memory.svg)" in page
    assert "text (" in (box.root / "calibration/memory.svg").read_text()


def test_the_router_learns_the_wake_times_for_its_retry_after(boxes: Boxes) -> None:
    box = boxes()
    box.calibrate(rounds=3)
    memory = json.loads((box.router.folder / "state/memory/text.json").read_bytes())
    assert len(memory["wake_seconds"]["sleeping"]) == len(memory["wake_seconds"]["offloaded"]) == 3


@pytest.mark.parametrize("depth", ["sleeping", "offloaded"])
def test_a_service_is_brought_back_to_the_depth_it_was_at(boxes: Boxes, depth: str) -> None:
    box = boxes()
    order = {"sleeping": "sleep", "offloaded": "offload"}[depth]
    assert box.router.order(f"services/text/{order}").status_code == 200
    assert box.calibrate().problems == []
    assert box.router.status("text")["depth"] == depth


def test_device_memory_is_nvidia_smis(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes(device=GPU)
    assert box.engine.process is not None
    program = tmp_path / "nvidia-smi"
    words = {"python": sys.executable, "gpu": GPU, "engine": box.engine.url, "pid": box.engine.process.pid}
    program.write_text(NVIDIA_SMI.format(**words))
    program.chmod(0o755)
    box.meter = Meter(nvidia_smi=(str(program),))
    assert box.calibrate().problems == []
    found = parse_calibration(json.loads((box.root / "calibration/text.json").read_bytes()))
    assert found.awake_bytes_per_device == 8_000_000_000 // 2**20 * 2**20
    assert found.asleep_bytes_per_device == 1_000_000_000 // 2**20 * 2**20
    assert found.device_name == "NVIDIA A800 80GB PCIe"


def test_without_nvidia_smi_a_gpus_service_gets_no_file(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes(device=GPU)
    box.meter = Meter(nvidia_smi=(str(tmp_path / "nvidia-smi"),))
    (problem,) = box.calibrate().problems
    assert "nvidia-smi can't be run" in problem
    assert box.written() == ["CALIBRATION.md"]
    wait_until(lambda: box.router.status("text")["conditions"] == [])
    assert box.router.status("text")["depth"] == "awake"


def test_a_pinned_service_is_left_alone(boxes: Boxes) -> None:
    box = boxes()
    assert box.router.order("services/text/pin").status_code == 200
    before = box.router.status("text")["incarnation"]
    report = box.calibrate()
    assert report.problems == []
    assert report.left_alone == ["text is pinned awake and left alone; unpin it to calibrate it."]
    assert box.written() == ["CALIBRATION.md"]
    assert box.router.status("text")["incarnation"] == before


def test_a_service_in_use_is_refused_and_not_cut_off(boxes: Boxes) -> None:
    box = boxes()
    box.engine.fault(chunk_seconds=0.2)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(box.router.chat, "text", stream=True, max_tokens=40)
        wait_until(lambda: box.engine.state()["running"] == 1)
        (problem,) = box.calibrate(patience=Patience(quiet=0.5, step=60.0)).problems
        assert "text is in use (1 requests in flight, 0 held) after 0.5 s and isn't cut off" in problem
        assert stream.result().text.rstrip().endswith("[DONE]")
    assert box.written() == ["CALIBRATION.md"]


def test_a_service_in_use_is_waited_for(boxes: Boxes) -> None:
    box = boxes()
    box.engine.fault(chunk_seconds=0.05)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(box.router.chat, "text", stream=True, max_tokens=20)
        wait_until(lambda: box.engine.state()["running"] == 1)
        assert box.calibrate().problems == []
        assert stream.result().text.rstrip().endswith("[DONE]")


class AskingMeter(Meter):
    """While a sleeping service is measured, a client asks it; so often."""

    def __init__(self, router: Router, times: int) -> None:
        super().__init__()
        self._router, self._left = router, times
        self.answers: list[int] = []

    def read(self, pid: int, gpus: Any) -> figures.Reading:
        """The usual reading, and a question in between."""
        if self._left and self._router.status("text")["depth"] == "sleeping":
            self._left -= 1
            self.answers.append(self._router.chat("text").status_code)
        return super().read(pid, gpus)


def test_a_request_meanwhile_is_answered_and_its_round_measured_again(boxes: Boxes) -> None:
    box = boxes()
    meter = box.meter = AskingMeter(box.router, times=2)
    assert box.calibrate(rounds=2).problems == []
    assert meter.answers == [200, 200]
    measured = figures.from_document(json.loads((box.root / "calibration/measured/text.json").read_bytes()))
    assert [set(each.seconds) for each in measured.rounds] == [set(figures.STEPS)] * 2


def test_a_service_that_is_asked_again_and_again_gets_no_file(boxes: Boxes) -> None:
    box = boxes()
    meter = box.meter = AskingMeter(box.router, times=99)
    (problem,) = box.calibrate(rounds=2).problems
    assert "text was asked in 3 rounds" in problem
    assert meter.answers == [200, 200, 200]
    assert "text.json" not in box.written()


def test_level_2_that_is_forbidden_is_not_tried(boxes: Boxes) -> None:
    box = boxes(allow_level_2="never")
    assert box.calibrate().problems == []
    measured = figures.from_document(json.loads((box.root / "calibration/measured/text.json").read_bytes()))
    assert "offloaded" not in measured.rounds[0].memory
    assert "must not be offloaded" in measured.notes[0]
    assert not [call for call in box.engine.calls("/sleep") if "level=2" in call]


def test_without_a_launcher_all_but_the_start_is_measured(boxes: Boxes) -> None:
    box = boxes(launched=False)
    assert box.calibrate().problems == []
    measured = figures.from_document(json.loads((box.root / "calibration/measured/text.json").read_bytes()))
    assert set(measured.rounds[0].seconds) == set(figures.STEPS) - {"start"}
    assert "no launcher" in measured.notes[0]


def test_a_canary_that_fails_is_reported_and_no_file_is_written(boxes: Boxes) -> None:
    box = boxes(launched=False)
    assert box.router.order("services/text/prove").status_code == 200
    box.engine.fault(reload_keeps_garbage=True)
    report = box.calibrate()
    assert any("text failed at 'wake'" in problem for problem in report.problems)
    assert "text.json" not in box.written()
    assert box.files.under_way() == {}


def test_a_wake_that_fails_is_reported_and_no_file_is_written(boxes: Boxes) -> None:
    box = boxes(launched=False)
    box.engine.fault(fail={"/wake_up": 500})
    report = box.calibrate()
    assert "text failed at 'wake'" in report.problems[0]
    assert "No figures were written for text" in report.problems[0]
    assert "text.json" not in box.written()


def test_figures_of_before_outlive_a_failure(boxes: Boxes) -> None:
    box = boxes(launched=False)
    assert box.calibrate().problems == []
    before = (box.root / "calibration/text.json").read_bytes()
    box.engine.fault(fail={"/wake_up": 500})
    assert box.calibrate().problems
    assert (box.root / "calibration/text.json").read_bytes() == before


@pytest.mark.parametrize("condition", ["stopped", "maintenance"])
def test_what_is_not_sound_is_refused(boxes: Boxes, condition: str) -> None:
    box = boxes()
    if condition == "stopped":
        box.engine.kill()
        box.router.wait_for("text", "stopped")
    else:
        assert box.router.order("services/text/maintenance?limit=600").status_code == 200
    (problem,) = box.calibrate().problems
    assert condition in problem
    if condition == "maintenance":
        assert box.router.status("text")["conditions"] == ["maintenance"], "somebody else's stays"


class DrainingMeter(Meter):
    """While a sleeping service is measured, a person parks it."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self._router = router

    def read(self, pid: int, gpus: Any) -> figures.Reading:
        """The usual reading, and the order."""
        if self._router.status("text")["depth"] == "sleeping":
            assert self._router.order("services/text/maintenance?limit=600").status_code == 200
        return super().read(pid, gpus)


def test_a_persons_maintenance_meanwhile_is_not_ended(boxes: Boxes) -> None:
    box = boxes()
    box.meter = DrainingMeter(box.router)
    (problem,) = box.calibrate().problems
    assert "text is in the condition maintenance" in problem
    assert box.router.status("text")["conditions"] == ["maintenance"]
    assert "text.json" not in box.written()


def test_an_engine_without_a_container_is_named(boxes: Boxes) -> None:
    (problem,) = boxes().calibrate(engines={}).problems
    assert "text has no container of this instance" in problem


def test_a_calibration_that_was_killed_is_mended_by_the_next(boxes: Boxes) -> None:
    """A run that can't even end its maintenance leaves a record, by which the next gives everything back."""
    box = boxes()
    box.files.remember({"text": "awake"})
    assert box.router.order("services/text/maintenance?limit=600").status_code == 200
    assert box.router.order("services/text/sleep").status_code == 200
    report = run.give_back(box.admin, box.files, PATIENT)
    assert report.problems == []
    assert report.measured == ["text was left by an interrupted calibration and is awake again."]
    status = box.router.status("text")
    assert (status["depth"], status["conditions"]) == ("awake", [])
    assert box.written() == []


@dataclass
class Play:
    """The role, by ansible-playbook."""

    box: Box
    folder: Path

    def __post_init__(self) -> None:
        assert self.box.engine.process is not None
        program = self.folder / "bin/docker"
        program.parent.mkdir(parents=True)
        program.write_text(DOCKER.format(python=sys.executable, pid=self.box.engine.process.pid))
        program.chmod(0o755)
        (self.folder / "play.yml").write_text(PLAY)

    def start(self, *options: str, **variables: Any) -> subprocess.Popen[str]:
        """Begin; the role's variables as people set them."""
        given = {
            "calibration_root": str(self.box.root),
            "calibration_folder": str(self.box.root / "calibration"),
            "calibration_rounds": 1,
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local"]
        return subprocess.Popen(
            [*command, "-e", json.dumps(given), *options, str(self.folder / "play.yml")],
            env={
                **os.environ,
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *options: str, **variables: Any) -> tuple[int, str]:
        """Run it to its end: status and output."""
        process = self.start(*options, **variables)
        output, _ = process.communicate(timeout=300)
        print(output)
        assert "Traceback" not in output
        return process.returncode, output


def test_the_role_writes_what_the_plan_reads(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes()
    play = Play(box, tmp_path / "play")
    status, output = play.run("--check")
    assert (status, box.written()) == (0, [])
    assert "Would measure text in 1 round." in output
    status, output = play.run()
    assert status == 0
    assert "text was measured in one round" in output
    found = parse_calibration(json.loads((box.root / "calibration/text.json").read_bytes()))
    assert (found.model_folder, found.image_id, found.device_name) == ("/srv/m", "sha256:1", "cpu")
    assert found.host_bytes_asleep > 2**30, "the whole KV cache counts"


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"calibration_services": ["txt"]}, "names txt, which isn't deployed; there are: text."),
        ({"calibration_rounds": 0}, "calibration_rounds is 0, but must be from 1 to 50 rounds."),
        ({"calibration_root": "/nowhere"}, "/nowhere/router/router.env can't be read"),
    ],
)
def test_the_role_refuses_in_sentences(
    boxes: Boxes, tmp_path: Path, variables: dict[str, Any], part: str
) -> None:
    box = boxes()
    status, output = Play(box, tmp_path / "play").run(**variables)
    assert status != 0
    assert part in output
    assert box.written() == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGTERM, "Interrupted by SIGTERM; the services are as they were."),
        (signal.SIGKILL, "failed=1 "),
    ],
)
def test_an_interrupted_run_leaves_everything_as_it_was(
    boxes: Boxes, tmp_path: Path, number: signal.Signals, said: str
) -> None:
    """One that is killed can't clean up: the playbook's last task does, from the record."""
    box = boxes()
    play = Play(box, tmp_path / "play").start(calibration_rounds=50)
    wait_until(lambda: box.files.under_way() == {"text": "awake"}, 120, "the run")
    wait_until(lambda: len(box.router.events("transition")) > 3, 120, "the first round")
    os.kill(json.loads((box.root / ".deploy.lock").read_bytes())["pid"], number)
    output, _ = play.communicate(timeout=300)
    assert "Traceback" not in output
    print(output)
    assert said in output
    assert play.returncode != 0
    wait_until(lambda: box.router.status("text")["depth"] == "awake", what="text awake")
    assert box.router.status("text")["conditions"] == []
    assert "text.json" not in box.written()
    assert box.files.under_way() == {}
