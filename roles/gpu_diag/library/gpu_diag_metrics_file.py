#!/usr/bin/python
"""Write the metrics of the evidence for Prometheus."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_diag_metrics_file import (
    is_current,
    metrics_text,
    write,
)

DOCUMENTATION = r"""
module: gpu_diag_metrics_file
short_description: Keep a file of metrics for the textfile collector up to date
description:
  - Writes the newest verdicts, by probe, by pair of GPUs and by model, when they differ from what is there.
options:
  path:
    description: The file; its folder must exist.
    type: path
    required: true
  evidence:
    description: Absolute folder of the evidence.
    type: path
    required: true
  pending:
    description: In check mode, whether a probe would have run before, which always changes the file.
    type: bool
    default: false
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Write the metrics
  gpu_diag_metrics_file:
    path: /var/lib/prometheus/node-exporter/gpu_diag.prom
    evidence: /var/lib/vllm-frontdoor/default/evidence
"""

RETURN = r"""
changes:
  description: A sentence where the file was (in check mode, would be) written.
  returned: always
  type: list
  elements: str
"""


def main() -> None:
    """Compare, and write what differs."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "evidence": {"type": "path", "required": True},
            "pending": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    try:
        text = metrics_text(module.params["evidence"])
        missing = not path.exists()
        changed = (module.check_mode and module.params["pending"]) or not is_current(path, text)
        if changed and not module.check_mode:
            write(path, text)
    except OSError as error:
        module.fail_json(
            msg=f"{path} can't be written ({error.strerror}): it is set by gpu_diag_metrics_file, and its "
            "folder must exist"
        )
    what = "missing, written" if missing else "content differs, rewritten"
    changes = [f"file {path}: {what}"] if changed else []
    module.exit_json(changed=changed, changes=changes)


if __name__ == "__main__":
    main()
