#!/usr/bin/python
"""Name the images of a recipe by what goes into them; runs on the controller, where locks and sources lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_files import tree_digest
from ansible.module_utils.box_tools_lock import LockError, digest, parse_lock, select
from ansible.module_utils.engine_image_chain import chain

DOCUMENTATION = r"""
module: engine_image_steps
short_description: Name the images of a recipe by what goes into them
description:
  - Reads locks and source trees on the controller (C(delegate_to: localhost)) and changes nothing.
options:
  base:
    description: The recipe's base, as the role's argument C(engine_image_recipe.base) describes it.
    type: dict
    required: true
  layers:
    description: The recipe's layers, as the role's argument C(engine_image_recipe.layers) describes them.
    type: list
    elements: dict
    required: true
  script:
    description: Content of the program that fills a layer; a changed program means new images.
    type: str
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Name the images
  engine_image_steps:
    base: {suite: bookworm, packages: [python3, python3-pip]}
    layers:
      - repository: vllm-frontdoor/router
        lock: locks/router.txt
    script: "{{ lookup('ansible.builtin.file', 'prepare_layer.py') }}"
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: The images from the base upwards, with C(reference), C(parent), C(position) and C(kind).
  returned: always
  type: list
  elements: dict
"""


def layer_inputs(layer: dict[str, Any]) -> dict[str, Any]:
    """Digests of what a layer takes in. Raises LockError, also for a source that isn't there."""
    inputs: dict[str, Any] = {"lock": "", "files": []}
    if layer.get("lock"):
        path = Path(layer["lock"])
        if not path.is_file():
            raise LockError(
                f"The lock {path} for the image {layer['repository']} is not on the controller: is there a "
                "lock for this "
                "version (engine_image_vllm_version), and is the checkout complete?"
            )
        pins = parse_lock(path.read_text(encoding="utf-8"), str(path))
        inputs["lock"] = digest(select(pins, layer.get("only") or [], layer.get("without") or []))
    for each in layer.get("files") or []:
        source = Path(each["src"])
        if not source.exists():
            raise LockError(
                f"{source}, to be copied into the image {layer['repository']}, is not on the controller."
            )
        inputs["files"].append(tree_digest(source))
    return inputs


def main() -> None:
    """Answer with the steps."""
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "dict", "required": True},
            "layers": {"type": "list", "elements": "dict", "required": True},
            "script": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        inputs = [layer_inputs(layer) for layer in asked["layers"]]
    except LockError as error:
        module.fail_json(msg=str(error))
    steps = chain(asked["base"], asked["layers"], inputs, asked["script"])
    module.exit_json(changed=False, steps=[step.document() for step in steps])


if __name__ == "__main__":
    main()
