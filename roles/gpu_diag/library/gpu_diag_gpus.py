#!/usr/bin/python
"""Run the probes of GPUs whose evidence is missing, stale or suspect."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_gpus_run import (
    PROBES,
    Present,
    Setting,
    look,
    run_probe,
    why_needed,
)
from ansible.module_utils.gpu_diag_weights_run import (
    ProbeError,
    image_id,
)

DOCUMENTATION = r"""
module: gpu_diag_gpus
short_description: Keep the evidence about GPUs valid
description:
  - Runs the probes C(host), C(integrity), C(control) and C(p2p) where their newest evidence is missing, was
    made in another boot or on another machine (identity), or is suspect. A second run changes nothing.
  - A bad verdict does not fail the task - the plan decides what it means - but a probe that could not
    run does.
    A probe that hung or found a fault is not repeated by itself.
options:
  probes:
    description: Which probes to keep valid.
    type: list
    elements: str
    choices: [host, integrity, control, p2p]
    required: true
  image:
    description: Reference of the image to run C(integrity) and C(p2p) in; it must have python3 and torch.
    type: str
    default: ""
  evidence:
    description: Absolute folder of the evidence.
    type: path
    required: true
  package:
    description: Absolute folder that holds the package gpu_diag.
    type: path
    required: true
  docker_host:
    description: Address of the Docker daemon; empty for the C(docker) command's own default.
    type: str
    default: ""
  cpu_devices:
    description: Check so many shares of the processor instead of GPUs; 0 for GPUs.
    type: int
    default: 0
  force:
    description: Run the probes also where their evidence holds.
    type: bool
    default: false
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Keep the evidence about the GPUs valid
  gpu_diag_gpus:
    probes: [integrity, p2p]
    image: vllm/vllm-openai:v0.27.1
    evidence: /var/lib/vllm-frontdoor/default/evidence
    package: /opt/vllm-frontdoor/default/diag
"""

RETURN = r"""
changes:
  description: A sentence for each probe that was (in check mode, would be) run.
  returned: always
  type: list
  elements: str
probes:
  description: By probe C(verdict), C(class) and the sentences C(evidence); null where check mode can't know.
  returned: always
  type: dict
"""


def main() -> None:
    """Find out what is needed, and do it."""
    module = AnsibleModule(
        argument_spec={
            "probes": {"type": "list", "elements": "str", "choices": list(PROBES), "required": True},
            "image": {"type": "str", "default": ""},
            "evidence": {"type": "path", "required": True},
            "package": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": ""},
            "cpu_devices": {"type": "int", "default": 0},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    parameters = dict(module.params)
    probes = parameters.pop("probes")
    setting = Setting(**parameters)
    present = look(setting)
    needed = {probe: why_needed(probe, present, setting.force) for probe in PROBES if probe in probes}
    try:
        results = _results(needed, setting, present, module.check_mode)
    except ProbeError as error:
        module.fail_json(msg=str(error))
    changes = [f"probe {probe}: {reasons[0]}, run" for probe, reasons in needed.items() if reasons]
    module.exit_json(changed=bool(changes), changes=changes, probes=results)


def _results(
    needed: dict[str, list[str]], setting: Setting, present: Present, check_mode: bool
) -> dict[str, Any]:
    in_image = any(reasons for probe, reasons in needed.items() if probe != "host")
    image = image_id(setting) if in_image and not check_mode else ""
    results: dict[str, Any] = {}
    for probe, reasons in needed.items():
        if not reasons:
            results[probe] = _summary(present.evidence[probe][0])
        elif check_mode:
            results[probe] = None
        else:
            results[probe] = _summary(run_probe(probe, setting, present.identity, image))
    return results


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document.get(key) for key in ("verdict", "class", "evidence")}


if __name__ == "__main__":
    main()
