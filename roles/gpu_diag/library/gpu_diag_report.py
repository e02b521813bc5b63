#!/usr/bin/python
"""Make the report of the box from its evidence."""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_commands import run_bounded

DOCUMENTATION = r"""
module: gpu_diag_report
short_description: Say what the evidence on the box means
description:
  - Writes C(report.md) and C(report.html), and returns the conclusion. Makes no probe.
options:
  evidence:
    description: Absolute folder of the evidence.
    type: path
    required: true
  package:
    description: Absolute folder that holds the package gpu_diag.
    type: path
    required: true
  output:
    description: Absolute folder to write the report to.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Say what the evidence means
  gpu_diag_report:
    evidence: /var/lib/vllm-frontdoor/default/evidence
    package: /opt/vllm-frontdoor/default/diag
    output: /var/lib/vllm-frontdoor/default/evidence/report
"""

RETURN = r"""
lines:
  description: The conclusion and the steps, one sentence each, for people.
  returned: always
  type: list
  elements: str
cause:
  description: What the fault comes from - none, platform, board, fabric, undecided, control or hang.
  returned: always
  type: str
"""

_SECONDS = 120.0


def main() -> None:
    """Run the report, in check mode without writing it."""
    module = AnsibleModule(
        argument_spec={
            name: {"type": "path", "required": True} for name in ("evidence", "package", "output")
        },
        supports_check_mode=True,
    )
    parameters = module.params
    base = ["env", f"PYTHONPATH={parameters['package']}", "PYTHONDONTWRITEBYTECODE=1", sys.executable]
    report = [*base, "-m", "gpu_diag", "report", "--evidence", parameters["evidence"]]
    said = _ask(module, [*report, "--json"])
    if not said:
        module.exit_json(changed=False, lines=["Check mode: there is no package on the box yet."], cause=None)
    facts = json.loads(said)
    if not module.check_mode:
        _ask(module, [*report, "--output", parameters["output"]])
    steps = [f"{number}. {step['text']}" for number, step in enumerate(facts["ladder"], 1)]
    lines = [
        facts.get("headline", ""),
        *facts.get("why", []),
        *steps,
        f"Report: {parameters['output']}/report.html",
    ]
    # The report is made anew from the same evidence: nothing on the box has another state by it.
    module.exit_json(changed=False, lines=lines, cause=facts["cause"])


def _ask(module: Any, command: list[str]) -> str:
    outcome = run_bounded(command, _SECONDS)
    if outcome.problem is not None:
        if module.check_mode:
            return ""
        module.fail_json(msg=f"the report could not be made: {outcome.problem}")
    text: str = outcome.stdout
    return text


if __name__ == "__main__":
    main()
