#!/usr/bin/python
"""Start a download from a hub in a throw-away container, tell how far it is, and take its outcome."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import DockerError
from ansible.module_utils.model_files_run import Run

DOCUMENTATION = r"""
module: model_files_hub_run
short_description: Download a model in a throw-away container
description:
  - C(started) starts the download and comes back at once; a download of the same that runs already is taken
    over. C(watched) tells how far it is, and takes the outcome of one that has ended.
  - The token is handed over in a file that only who pulls can read, in memory, which the container removes as
    soon as it has read it. It is in no argument, environment or image.
options:
  state:
    description: What to do.
    type: str
    choices: [started, watched]
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: ""
  image:
    description: Image that carries Python and huggingface_hub.
    type: str
    default: ""
  network:
    description: Docker network of the container.
    type: str
    default: bridge
  programs:
    description: Contents of the programs that the container runs, by file name.
    type: dict
    default: {}
  root:
    description: Folder that holds the models.
    type: path
    required: true
  name:
    description: Name of the model's folder.
    type: str
    required: true
  job:
    description: What to download, as C(hub_pull.py) reads it, without the token.
    type: dict
    default: {}
  environment:
    description: Environment of the download, such as a proxy.
    type: dict
    default: {}
  token:
    description: Token for the hub; empty for none.
    type: str
    default: ""
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: See how far it is
  model_files_hub_run:
    state: watched
    root: /var/lib/vllm-frontdoor/models
    name: Qwen3-8B
"""

RETURN = r"""
running:
  description: Whether the download is still under way.
  returned: always
  type: bool
status:
  description: How far it is, with C(phase), C(done_bytes) and C(total_bytes).
  returned: while it runs
  type: dict
outcome:
  description: What came out, with C(commit), C(files), C(bytes) and C(set_aside).
  returned: when it has ended well
  type: dict
"""


def main() -> None:
    """Start or watch."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "watched"], "required": True},
            "docker_host": {"type": "str", "default": ""},
            "image": {"type": "str", "default": ""},
            "network": {"type": "str", "default": "bridge"},
            "programs": {"type": "dict", "default": {}},
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "job": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}, "no_log": True},
            "token": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=False,
    )
    try:
        run = Run(module.params)
        if module.params["state"] == "started":
            run.start()
            module.exit_json(changed=True, running=True, status=None)
        module.exit_json(changed=False, **run.watch())
    except (DockerError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
