"""The plan: what was declared and what was found on the box become files, or refusals.

Pure and standard library only. `declaration.parse` reads what people wrote, `discovery` what the box says,
`planning.plan` decides, `render.render` writes down, `table` tells people.
"""

from .declaration import PREFIXES, READ_VARIABLES, Declaration, parse
from .discovery import (
    UnreadableFactsError,
    discovered_from_box,
    evidence_from_box,
)
from .evidence import Evidence
from .instance import Instance
from .model import Desired, Discovered, Plan, Refusal
from .planning import check_declaration, merged, plan, plan_declaration
from .prediction import UNKNOWN_IMAGE_ID, predict, taken_for_granted
from .releasing import declaration_of_release, release_content, release_files
from .render import ComposeProject, Rendering, render
from .rules.arguments import check_answer, check_router_answer, commands
from .rules.gate import cpu_devices_needed, probes_needed
from .safety import engines_to_stop
from .spelling import nearest
from .table import plan_table, refusal_message
from .usage import endpoint, questions, usage_lines

__all__ = [
    "PREFIXES",
    "READ_VARIABLES",
    "UNKNOWN_IMAGE_ID",
    "ComposeProject",
    "Declaration",
    "Desired",
    "Discovered",
    "Evidence",
    "Instance",
    "Plan",
    "Refusal",
    "Rendering",
    "UnreadableFactsError",
    "check_answer",
    "check_declaration",
    "check_router_answer",
    "commands",
    "cpu_devices_needed",
    "declaration_of_release",
    "discovered_from_box",
    "endpoint",
    "engines_to_stop",
    "evidence_from_box",
    "merged",
    "nearest",
    "parse",
    "plan",
    "plan_declaration",
    "plan_table",
    "predict",
    "probes_needed",
    "questions",
    "refusal_message",
    "release_content",
    "release_files",
    "render",
    "taken_for_granted",
    "usage_lines",
]
