#!/usr/bin/python
"""Give each model folder a verdict on its weights, where it has none that still holds."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_weights_run import ProbeError, Setting, needs, verdicts

DOCUMENTATION = r"""
module: gpu_diag_weights
short_description: Check the weights of models inside the engine's image
description:
  - Runs the probe C(gpu_diag weights) for each model folder that has no evidence, or whose files are not
    those any more that the evidence speaks of (size, time of change, inode), or where C(allow) is another.
    A second run changes nothing.
  - A verdict C(failed) does not fail the task - the plan decides what a verdict is good for - but a probe
    that could not be run does.
options:
  models:
    description: Absolute model folders.
    type: list
    elements: path
    required: true
  image:
    description: Reference of the image to run the probe in; it must have python3 and numpy.
    type: str
    required: true
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
  rehash:
    description: Read all files again, also those that did not change.
    type: bool
    default: false
  allow:
    description: Names of tensors (shell patterns) in which infinities or scales of zero are meant so.
    type: list
    elements: str
    default: []
  staged:
    description: >-
      Where the files of the model (only one then) lie for now; the evidence speaks of the folder in
      C(models), to which they are moved afterwards. Empty when they are there already.
    type: path
    default: ""
  timeout_seconds:
    description: How long one model's probe may take, in seconds.
    type: int
    default: 7200
  io_timeout_seconds:
    description: After how many seconds without a byte from the file system a probe gives up.
    type: int
    default: 120
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Check the weights
  gpu_diag_weights:
    models: [/var/lib/vllm-frontdoor/models/SmolLM2-135M-Instruct]
    image: vllm-frontdoor/engine-cpu:0.27.1
    evidence: /var/lib/vllm-frontdoor/default/evidence
    package: /opt/vllm-frontdoor/default/diag
"""

RETURN = r"""
changes:
  description: A sentence for each folder that was (in check mode, would be) probed.
  returned: always
  type: list
  elements: str
models:
  description: By model folder C(verdict), C(class) and the sentences C(evidence); null in check mode.
  returned: always
  type: dict
lines:
  description: A sentence for each thing that is wrong with a model's weights, for people.
  returned: always
  type: list
  elements: str
"""

_MOST_LINES_OF_A_MODEL = 5


def main() -> None:
    """Find out what is needed, and do it."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "path", "required": True},
            "image": {"type": "str", "required": True},
            "evidence": {"type": "path", "required": True},
            "package": {"type": "path", "required": True},
            "docker_host": {"type": "str", "default": ""},
            "rehash": {"type": "bool", "default": False},
            "allow": {"type": "list", "elements": "str", "default": []},
            "staged": {"type": "path", "default": ""},
            "timeout_seconds": {"type": "int", "default": 7200},
            "io_timeout_seconds": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    parameters = dict(module.params)
    setting = Setting(**{key: value for key, value in parameters.items() if key != "models"})
    try:
        found = needs(parameters["models"], setting)
        results = verdicts(found, setting, check_mode=module.check_mode)
    except ProbeError as error:
        module.fail_json(msg=str(error))
    changes = [f"weights of {need.folder}: {need.reasons[0]}, probed" for need in found if need.reasons]
    lines = [line for folder, result in results.items() for line in _lines(folder, result)]
    module.exit_json(changed=bool(changes), changes=changes, models=results, lines=lines)


def _lines(folder: str, result: dict[str, Any] | None) -> list[str]:
    found = list(result["evidence"] or ()) if result else []
    more = len(found) - _MOST_LINES_OF_A_MODEL
    shown = (
        [f"{folder}: {result['verdict']}: {one}" for one in found[:_MOST_LINES_OF_A_MODEL]] if result else []
    )
    return [*shown, *([f"{folder}: and {more} more, see the evidence"] if more > 0 else [])]


if __name__ == "__main__":
    main()
