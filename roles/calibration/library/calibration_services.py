#!/usr/bin/python
"""Measure what each service takes of memory and time at every depth."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from frontdoor_box import ConvergeError, Docker, deploy_lock
    from frontdoor_calibration import engines, run
    from frontdoor_calibration.drive import Patience
    from frontdoor_calibration.figures import Measurement, plan_figures
    from frontdoor_calibration.meter import Meter, MeterError
    from frontdoor_calibration.router import Admin, RouterError
    from frontdoor_plan.calibration import Calibration
else:
    from ansible.module_utils.frontdoor_box import ConvergeError, Docker, deploy_lock
    from ansible.module_utils.frontdoor_calibration import engines, run
    from ansible.module_utils.frontdoor_calibration.drive import Patience
    from ansible.module_utils.frontdoor_calibration.figures import Measurement, plan_figures
    from ansible.module_utils.frontdoor_calibration.meter import Meter, MeterError
    from ansible.module_utils.frontdoor_calibration.router import Admin, RouterError
    from ansible.module_utils.frontdoor_plan.calibration import Calibration

DOCUMENTATION = r"""
module: calibration_services
short_description: Measure what services take of memory and time at every depth
description:
  - C(measured) drives the services of a deployed instance through all depths by the router's admin listener,
    one after another, and writes for each the file of figures that the plan reads, with a page for people. A
    service that fails, is in use or doesn't run gets no file and makes the module fail after the others are
    measured; a pinned one is left alone.
  - C(given_back) brings services back to the depth that an interrupted run found them at.
  - Holds the instance's deploy lock meanwhile. In check mode it says what it would measure and changes
    nothing.
options:
  state:
    description: What to do.
    type: str
    choices: [measured, given_back]
    required: true
  instance:
    description: Name of the instance.
    type: str
    required: true
  root:
    description: Absolute folder of the deployed instance, with the router's settings and the admin token.
    type: path
    required: true
  folder:
    description: Absolute folder of the figures.
    type: path
    required: true
  docker_host:
    description: Address of the Docker daemon as the C(docker) command takes it.
    type: str
    required: true
  services:
    description: Names of the services to calibrate; none means all.
    type: list
    elements: str
    default: []
  rounds:
    description: How often each is driven through all depths.
    type: int
    default: 3
  quiet_seconds:
    description: How long a service with requests is waited for.
    type: float
    default: 60
  step_seconds:
    description: How long one step may take.
    type: float
    default: 900
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Calibrate all services of the default instance
  calibration_services:
    state: measured
    instance: default
    root: /opt/vllm-frontdoor/default
    folder: /var/lib/vllm-frontdoor/default/calibration
    docker_host: unix:///var/run/docker.sock
"""

RETURN = r"""
lines:
  description: What was measured, left alone and brought back, for people.
  returned: always
  type: list
  elements: str
"""

LARGEST_ROUNDS = 50
LARGEST_SECONDS = 86000.0
"""The admin listener takes durations up to a day."""


class InterruptedRunError(BaseException):
    """A signal ends this run; what it was about to do isn't done."""


def _interrupt(number: int, _frame: object) -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(
            each, signal.SIG_IGN
        )  # services are brought back now; a second signal must not stop that
    raise InterruptedRunError(signal.Signals(number).name)


def running_engines(docker: Docker, instance: str) -> dict[str, engines.Engine | str]:
    """The engines of an instance by service, or the sentence why one can't be measured."""
    wanted = f"label={engines.LABEL_INSTANCE}={instance}"
    names = docker.ask("container", "ls", "--quiet", "--no-trunc", "--filter", wanted).split()
    found: dict[str, engines.Engine | str] = {}
    for document in docker.inspect("container", names):
        service = str((document["Config"].get("Labels") or {}).get(engines.LABEL_SERVICE, ""))
        try:
            found[service] = engines.engine_of(document)
        except engines.UnknownEngineError as error:
            found[service] = str(error)
    return found


def plan_document(engine: engines.Engine, measured: Measurement, gpus: Mapping[str, str]) -> dict[str, Any]:
    """What the plan reads of a measurement; raises UnknownEngineError for devices of several kinds."""
    return Calibration(
        service=engine.service,
        model_folder=engine.model_folder,
        image_id=engine.image_id,
        device_name=engines.device_name(engine, gpus),
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        measured_at=measured.measured_at,
        **plan_figures(measured),
    ).document()


def known_kinds(
    found: Mapping[str, engines.Engine | str], gpus: Mapping[str, str]
) -> dict[str, engines.Engine | str]:
    """The same, with a sentence for engines whose figures the plan couldn't read: told before they are
    touched."""
    checked = dict(found)
    for name, engine in found.items():
        if isinstance(engine, engines.Engine):
            try:
                engines.device_name(engine, gpus)
            except engines.UnknownEngineError as error:
                checked[name] = str(error)
    return checked


def measure(given: Mapping[str, Any], check_mode: bool, meter: Meter) -> tuple[bool, run.Report]:
    """Calibrate what is asked for; whether anything changed, and what to say."""
    admin = Admin(Path(given["root"]))
    services = admin.services()
    names, unknown = run.choose(services, given["services"])
    if check_mode or unknown:
        rounds = "1 round" if given["rounds"] == 1 else f"{given['rounds']} rounds"
        lines = [f"Would measure {name} in {rounds}." for name in names if not unknown]
        return bool(lines), run.Report(measured=lines, problems=unknown)
    found = running_engines(Docker(given["docker_host"]), given["instance"])
    on_gpus = any(isinstance(each, engines.Engine) and not each.on_cpu for each in found.values())
    gpus = meter.gpu_names() if on_gpus else {}
    bench = run.Bench(
        admin=admin,
        meter=meter,
        files=run.Files(Path(given["folder"]), given["instance"]),
        engines=known_kinds(found, gpus),
        plan_document=lambda engine, measured: plan_document(engine, measured, gpus),
        rounds=given["rounds"],
        patience=_patience(given),
    )
    report = run.calibrate(bench, names, services)
    return True, report


def give_back(given: Mapping[str, Any], check_mode: bool) -> tuple[bool, run.Report]:
    """Bring back what an interrupted run left."""
    files = run.Files(Path(given["folder"]), given["instance"])
    if check_mode or not files.under_way():
        return bool(files.under_way()), run.Report()
    return True, run.give_back(Admin(Path(given["root"])), files, _patience(given))


def _patience(given: Mapping[str, Any]) -> Patience:
    return Patience(quiet=given["quiet_seconds"], step=given["step_seconds"])


def wrong_number(given: Mapping[str, Any]) -> str | None:
    """The sentence about a number that makes no sense; None when all do."""
    if not 1 <= given["rounds"] <= LARGEST_ROUNDS:
        return f"calibration_rounds is {given['rounds']}, but must be from 1 to {LARGEST_ROUNDS} rounds."
    for name, least in (("quiet_seconds", 0.0), ("step_seconds", 1.0)):
        if not least <= given[name] <= LARGEST_SECONDS:
            return (
                f"calibration_{name} is {given[name]:g}, but must be from {least:g} to {LARGEST_SECONDS:g} s."
            )
    return None


def main() -> None:
    """Measure or give back."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["measured", "given_back"], "required": True},
            "instance": {"type": "str", "required": True},
            "root": {"type": "path", "required": True},
            "folder": {"type": "path", "required": True},
            "docker_host": {"type": "str", "required": True},
            "services": {"type": "list", "elements": "str", "default": []},
            "rounds": {"type": "int", "default": 3},
            "quiet_seconds": {"type": "float", "default": 60.0},
            "step_seconds": {"type": "float", "default": 900.0},
        },
        supports_check_mode=True,
    )
    if problem := wrong_number(module.params):
        module.fail_json(msg=problem, lines=[])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        changed, report = _carry_out(module)
    except InterruptedRunError as signalled:
        module.fail_json(msg=f"Interrupted by {signalled}; the services are as they were.", lines=[])
    except (ConvergeError, MeterError, RouterError, OSError) as error:
        module.fail_json(msg=f"{str(error)[:1].upper()}{str(error)[1:]}.", lines=[])
    lines = [*report.measured, *report.left_alone]
    if report.problems:
        module.fail_json(msg="\n".join([*report.problems, *lines]), lines=lines, changed=changed)
    module.exit_json(changed=changed, lines=lines)


def _carry_out(module: AnsibleModule) -> tuple[bool, run.Report]:
    given, check_mode = module.params, module.check_mode
    with deploy_lock(Path(given["root"]), check_mode=check_mode):
        if given["state"] == "given_back":
            return give_back(given, check_mode)
        changed, report = measure(given, check_mode, Meter())
        if report.measured and not check_mode:
            report.measured += [
                f"The figures with tables and a picture: {given['folder']}/{run.PAGE}",
                "The next ./box site takes them over.",
            ]
        return changed, report


if __name__ == "__main__":
    main()
