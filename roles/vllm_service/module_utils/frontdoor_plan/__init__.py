"""The plan: what was declared and what was found on the box become files, or refusals.

Pure and standard library only. `declaration.parse` reads what people wrote, `discovery` what the box says,
`planning.plan` decides, `render.render` writes down, `table` tells people.
"""

from .declaration import PREFIXES, READ_VARIABLES, Declaration, parse
from .discovery import UnreadableFactsError, discovered_from_box, weight_evidence_from_box
from .instance import Instance
from .model import Desired, Discovered, Plan, Refusal, WeightEvidence
from .planning import check_declaration, merged, plan, plan_declaration
from .prediction import predict
from .releasing import declaration_of_release, release_content, release_files
from .render import ComposeProject, Rendering, render
from .table import plan_table, refusal_message
from .usage import endpoint, questions, usage_lines

__all__ = [
    "PREFIXES",
    "READ_VARIABLES",
    "ComposeProject",
    "Declaration",
    "Desired",
    "Discovered",
    "Instance",
    "Plan",
    "Refusal",
    "Rendering",
    "UnreadableFactsError",
    "WeightEvidence",
    "check_declaration",
    "declaration_of_release",
    "discovered_from_box",
    "endpoint",
    "merged",
    "parse",
    "plan",
    "plan_declaration",
    "plan_table",
    "predict",
    "questions",
    "refusal_message",
    "release_content",
    "release_files",
    "render",
    "usage_lines",
    "weight_evidence_from_box",
]
