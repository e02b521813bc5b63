"""The identity of the machine that a probe runs on."""

from __future__ import annotations

import json
import os

from gpu_diag.exits import CouldNotRunError
from gpu_diag.hostfacts.gpu_diag_box import Json, Question, discover
from gpu_diag.identity import identity_of

# A container sees less of the machine than the host does; whoever starts it there hands the identity in.
IDENTITY_VARIABLE = "GPU_DIAG_IDENTITY"


def present_identity() -> Json:
    """The identity that was handed in, or what can be seen from here. Raises CouldNotRunError for
    nonsense."""
    given = os.environ.get(IDENTITY_VARIABLE)
    if not given:
        return identity_of(discover(Question()))
    try:
        identity = json.loads(given)
    except ValueError:
        identity = None
    if not isinstance(identity, dict):
        raise CouldNotRunError(f"the environment variable {IDENTITY_VARIABLE} is not a JSON object")
    return identity
