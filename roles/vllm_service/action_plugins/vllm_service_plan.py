"""The gate: discovers the box, plans, renders, and hands only that rendering on to be deployed.

Each stage starts from the declaration and from a fresh look at the box. Nothing of a plan is kept in a
variable, on the controller or on the box, so there is nothing that an extra variable, a tag or a hand-edited
file could replace. What decides is the package `frontdoor_plan`; this file only fetches and passes on.

An earlier release is a declaration like any other: it is planned anew, on what the box is like today.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import module_loader, module_utils_loader

_ROLE = Path(__file__).parent.parent
_ROLES = _ROLE.parent
_PACKAGES = str(_ROLE / "module_utils")
if _PACKAGES not in sys.path:  # an action plugin can't import a role's module_utils by itself
    sys.path.insert(0, _PACKAGES)

import frontdoor_arguments as arguments  # noqa: E402
import frontdoor_box_login as box_login  # noqa: E402
import frontdoor_plan as planner  # noqa: E402
import frontdoor_releases as releases  # noqa: E402
from frontdoor_arguments import not_evaluated, plain  # noqa: E402
from frontdoor_plan import deployment  # noqa: E402
from frontdoor_plan.rules.host import needed_ports  # noqa: E402

_STAGES = ("box", "declaration", "safety", "plan", "router", "engines", "rollback_target", "rollback")
_INSTANCE_VARIABLE = "frontdoor_instance"
_RELEASE_VARIABLE = "vllm_service_release"
_UNTOUCHED = "This step changed nothing, and what runs goes on running."


class _StopError(Exception):
    """Ends the stage with a message for people, or with a module's own failure."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = {"failed": True, "msg": message, **(details or {})}


@dataclass(frozen=True)
class _Wish:
    """A declaration and the raw variables that it was read from."""

    raw: Mapping[str, Any]
    declaration: planner.Declaration
    misformed: tuple[planner.Refusal, ...] = ()
    """Those refusals of the declaration that any role's argument specification gives."""

    @property
    def desired(self) -> planner.Desired:
        return self.declaration.desired


@dataclass(frozen=True)
class _Store:
    """The releases of the instance, and what its engines run with."""

    intact: tuple[releases.Release, ...] = ()
    problems: Mapping[int, str] | None = None
    deployed: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _Work:
    """A plan with its rendering, and the earlier release that what fails goes back to."""

    wish: _Wish
    plan: planner.Plan
    rendering: planner.Rendering
    earlier: deployment.Earlier | None = None
    granted: tuple[str, ...] = ()
    """What a run in check mode could not look at, since an earlier task of the real run would make it."""


class ActionModule(ActionBase):  # type: ignore[misc]
    """Plans, and in the stages router and engines deploys what it has just planned."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._seen_login: box_login.Login | None = None

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Carry one stage out. A refusal is a failed result with one message that lists all of them."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            return {**result, **self._stage(task_vars or {})}
        except _StopError as stop:
            return {**result, **stop.result}
        except AnsibleConnectionFailure:
            raise  # Ansible marks the host as unreachable
        except AnsibleError as error:
            return {**result, "failed": True, "msg": f"{error} {_UNTOUCHED}"}
        except Exception as error:  # noqa: BLE001 - a user never gets a traceback
            return {**result, "failed": True, "msg": _unexpected(error)}

    def _stage(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        _, given = self.validate_argument_spec(
            argument_spec={
                "stage": {"type": "str", "required": True, "choices": list(_STAGES)},
                "reads": {"type": "list", "elements": "str"},
            }
        )
        stages: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "box": self._check_box,
            "declaration": self._check_declaration,
            "safety": self._stop_unsafe,
            "plan": self._show_plan,
            "router": self._deploy_router,
            "engines": self._deploy_engines,
            "rollback_target": self._show_rollback_target,
            "rollback": self._roll_back,
        }
        return stages[given["stage"]](task_vars)

    # ---------------------------------------------------------------------------------------------- stages

    def _check_box(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """For playbooks that go without services: the folders to work in, the roles' values, and Python."""
        wish = self._wish(task_vars)
        named = [each for each in wish.declaration.refusals if each.where == _INSTANCE_VARIABLE]
        # Who wants to stop a box must not have to mend what is declared for it first.
        reads = tuple(self._task.args.get("reads") or [""])
        unread = {each.where for each in named}
        misformed = [each for each in wish.misformed if each.where.startswith(reads)]
        _refuse(
            [
                *named,
                *_misspelt(wish, reads),
                *(each for each in misformed if each.where not in unread),
            ]
        )
        self._run_module("ansible.builtin.ping", {}, task_vars)
        self._login()
        return {"changed": False, "msg": f"The box of the instance {wish.desired.instance.name} can be used."}

    def _check_declaration(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        wish = self._wish(task_vars)
        box = self._box([wish], task_vars)
        discovered = planner.discovered_from_box(box, is_root=self._login().is_root)
        evidence = planner.evidence_from_box(box)
        refusals = planner.check_declaration(wish.desired, discovered, evidence)
        _refuse(planner.merged(wish.declaration, refusals))
        names = ", ".join(service.name for service in wish.desired.services)
        return {
            "changed": False,
            "msg": f"The declaration of the services {names} can be planned.",
            "model_folders": _model_folders(wish),
            "probes": sorted({*wish.desired.probes, *planner.probes_needed(wish.desired, discovered)}),
            "cpu_devices": max(wish.desired.cpu_shares, planner.cpu_devices_needed(wish.desired, discovered)),
        }

    def _stop_unsafe(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Engines on what failed its test go down, also when there is no plan to put in their place."""
        wish = self._wish(task_vars)
        desired, box = wish.desired, self._box([wish], task_vars)
        discovered = planner.discovered_from_box(box, is_root=self._login().is_root)
        unsafe = planner.engines_to_stop(
            desired, discovered, planner.evidence_from_box(box), box["containers"]
        )
        if not unsafe:
            return {"changed": False, "changes": []}
        question = {"docker_host": desired.docker_host, "containers": unsafe}
        return self._run_module("vllm_service_stop", question, task_vars)

    def _show_plan(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        work = self._work(self._wish(task_vars), None, task_vars)
        return {"changed": False, "plan": planner.plan_table(work.plan, work.granted)}

    def _deploy_router(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        wish = self._wish(task_vars)
        return self._converge_router(self._work(wish, self._newest(wish, task_vars), task_vars), task_vars)

    def _deploy_engines(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        wish = self._wish(task_vars)
        work = self._work(wish, self._newest(wish, task_vars), task_vars)
        cleared = self._clear(work.plan, wish.desired, task_vars)
        result = self._converge_engines(work, task_vars)
        kept = self._keep_release(work, None, task_vars)
        return {**result, **_together(cleared, result, kept), **_for_people(work.plan)}

    def _show_rollback_target(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        now = self._wish(task_vars)
        target = self._rollback_target(now, self._releases(now, task_vars), task_vars)
        self._login()
        return {
            "changed": False,
            "msg": f"Going back to {releases.description(target)}.",
            "model_folders": _model_folders(self._wish_of(target, now)),
            "image": target.content.images["engine"]["id"],
            "image_reference": target.content.images["engine"]["reference"],
        }

    def _roll_back(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        now = self._wish(task_vars)
        store = self._releases(now, task_vars)
        target = self._rollback_target(now, store, task_vars)
        newest = store.intact[-1] if store.intact else None
        work = self._work(self._wish_of(target, now), newest, task_vars)
        router = self._converge_router(work, task_vars)
        cleared = self._clear(work.plan, work.wish.desired, task_vars)
        engines = self._converge_engines(work, task_vars)
        kept = self._keep_release(work, target.number, task_vars)
        said = {"went_back": f"What runs now is {releases.description(target)}."}
        return {**engines, **_together(router, cleared, engines, kept), **_for_people(work.plan), **said}

    def _clear(
        self, plan: planner.Plan, desired: planner.Desired, task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Engines wait for the word that this boot was tested: given now, and by a unit at each boot."""
        question = deployment.clearance(plan, desired, _role_file("clearance.py").decode("utf-8"))
        answer = self._run_module("vllm_service_clearance", question, task_vars)
        problems = answer.get("problems")
        if problems:
            raise _StopError(
                f"Engines would not be cleared for this boot: {'; '.join(problems)} {_UNTOUCHED}"
            )
        return {"changed": bool(answer.get("changed")), "changes": list(answer.get("changes") or ())}

    # -------------------------------------------------------------------------------------------- releases

    def _newest(self, wish: _Wish, task_vars: dict[str, Any]) -> releases.Release | None:
        """The release that what fails goes back to. Where the box can't be asked, the plan will say so."""
        store = self._releases(wish, task_vars)
        return store.intact[-1] if store.intact else None

    def _releases(self, wish: _Wish, task_vars: dict[str, Any]) -> _Store:
        answer = plain(self._run_module("vllm_service_releases", _place(wish.desired), task_vars))
        return _Store(
            intact=tuple(releases.from_document(document) for document in answer["releases"]),
            problems={int(number): words for number, words in answer["problems"].items()},
            deployed=answer["deployed"],
        )

    def _rollback_target(self, now: _Wish, store: _Store, task_vars: dict[str, Any]) -> releases.Release:
        raw = {**self._role_defaults(), **task_vars}.get(_RELEASE_VARIABLE)
        try:
            number = int(str(self._templar.copy_with_new_env(available_variables=task_vars).template(raw)))
            wanted = number if number > 0 else None
            return releases.rollback_target(store.intact, store.problems or {}, store.deployed or {}, wanted)
        except ValueError:
            raise _StopError(
                f"{_RELEASE_VARIABLE} is {raw!r}, but must be the number of a release, or 0. {_UNTOUCHED}"
            ) from None
        except releases.ReleaseError as error:
            raise _StopError(f"{error} {_UNTOUCHED}") from None

    def _wish_of(self, release: releases.Release, now: _Wish) -> _Wish:
        raw = planner.declaration_of_release(release.content.variables, release.content.images, now.raw)
        return _Wish(raw, planner.parse(raw, _documented().keys()))

    def _keep_release(self, work: _Work, back_to: int | None, task_vars: dict[str, Any]) -> dict[str, Any]:
        parameters = {
            **_place(work.wish.desired),
            "content": planner.release_content(work.wish.raw, work.plan, work.rendering),
            "files": planner.release_files(work.rendering),
            "back_to": back_to,
        }
        return self._run_module("vllm_service_releases", parameters, task_vars)

    # ------------------------------------------------------------------------------------------- gathering

    def _work(self, wish: _Wish, release: releases.Release | None, task_vars: dict[str, Any]) -> _Work:
        """Plan and render, or stop with all refusals. The earlier release is planned on the same facts."""
        before = None if release is None else self._wish_of(release, wish)
        box = self._box([wish] if before is None else [wish, before], task_vars)
        plan = self._outcome(wish, box)
        if isinstance(plan, list):
            raise _refused(plan)
        rendering = planner.render(plan, _role_file("launcher.py"))
        _refuse(
            [
                *self._engine_refusals(plan, wish.desired, task_vars),
                *self._router_refusals(plan, rendering, wish.desired, task_vars),
            ]
        )
        earlier = None
        if release is not None and before is not None:
            earlier = self._earlier(release.name, before, box, task_vars)
        return _Work(wish, plan, rendering, earlier, self._granted(wish, box))

    def _earlier(
        self, name: str, before: _Wish, box: Mapping[str, Any], task_vars: dict[str, Any]
    ) -> deployment.Earlier | None:
        """The release as it would be deployed today; None where today it would be refused."""
        plan = self._outcome(before, box)
        if isinstance(plan, list) or self._engine_refusals(plan, before.desired, task_vars):
            return None
        return deployment.Earlier(name, planner.render(plan, _role_file("launcher.py")), plan)

    def _found(self, box: Mapping[str, Any]) -> tuple[planner.Discovered, planner.Evidence]:
        discovered = planner.discovered_from_box(box, is_root=self._login().is_root)
        return discovered, planner.evidence_from_box(box)

    def _granted(self, wish: _Wish, box: Mapping[str, Any]) -> tuple[str, ...]:
        return planner.taken_for_granted(wish.desired, *self._found(box)) if self._task.check_mode else ()

    def _outcome(self, wish: _Wish, box: Mapping[str, Any]) -> planner.Plan | list[planner.Refusal]:
        discovered, evidence = self._found(box)
        if self._task.check_mode:
            discovered, evidence = planner.predict(wish.desired, discovered, evidence)
        return planner.plan_declaration(wish.declaration, discovered, evidence)

    def _engine_refusals(
        self, plan: planner.Plan, desired: planner.Desired, task_vars: dict[str, Any]
    ) -> list[planner.Refusal]:
        """The image's own parser reads each command. An image that isn't there yet can't be asked."""
        if plan.engine_image.id == planner.UNKNOWN_IMAGE_ID:
            return []
        script = _role_file("ask_arguments.py").decode("utf-8")
        question = deployment.engine_question(plan, desired, script)
        return planner.check_answer(plan, self._ask_image(question, task_vars))

    def _router_refusals(
        self,
        plan: planner.Plan,
        rendering: planner.Rendering,
        desired: planner.Desired,
        task_vars: dict[str, Any],
    ) -> list[planner.Refusal]:
        """The new router says whether it would start, while the one before still serves. Not in check mode,
        where its image's name may still be that of one which this run would make anew.
        """
        if plan.router_image.id == planner.UNKNOWN_IMAGE_ID or self._task.check_mode:
            return []
        question = deployment.router_question(plan, rendering, desired)
        return planner.check_router_answer(plan, self._ask_image(question, task_vars))

    def _ask_image(self, question: Mapping[str, Any], task_vars: dict[str, Any]) -> Mapping[str, Any]:
        key = json.dumps(question, sort_keys=True)
        if key not in self._answers:
            answer = plain(self._run_module("vllm_service_ask_image", question, task_vars).get("answer"))
            if not isinstance(answer, dict):
                raise _StopError("The module vllm_service_ask_image answered without the image's answer.")
            self._answers[key] = answer
        return self._answers[key]

    def _wish(self, task_vars: dict[str, Any]) -> _Wish:
        unreadable: list[planner.Refusal] = []
        raw: dict[str, Any] = {}
        variables = {**self._role_defaults(), **task_vars}
        templar = self._templar.copy_with_new_env(available_variables=variables)
        for name in sorted(name for name in variables if name.startswith(planner.PREFIXES)):
            raw[name] = None
            if name in planner.READ_VARIABLES:
                try:
                    raw[name] = plain(templar.template(variables[name]))
                except AnsibleError as error:
                    unreadable.append(not_evaluated(name, error))
        others = [name for name in variables if not name.startswith((*planner.PREFIXES, "_", "ansible_"))]
        found = planner.parse(raw, _documented().keys(), others)
        unread = {refusal.where for refusal in unreadable}  # for the planner these aren't set at all
        refusals = (*unreadable, *(each for each in found.refusals if each.where not in unread))
        told = {refusal.where for refusal in refusals}
        misformed = tuple(arguments.misformed(variables, _documented(), templar.template))
        untold = (refusal for refusal in misformed if refusal.where not in told)
        return _Wish(raw, planner.Declaration(found.desired, (*refusals, *untold)), misformed)

    def _role_defaults(self) -> dict[str, Any]:
        """The defaults of all roles here: what is planned doesn't depend on what a play imports."""
        defaults: dict[str, Any] = {}
        for path in sorted(_ROLES.glob("*/defaults/main.yml")):
            defaults |= self._loader.load_from_file(str(path), trusted_as_template=True) or {}
        return defaults

    def _box(self, wishes: Sequence[_Wish], task_vars: dict[str, Any]) -> Mapping[str, Any]:
        _make_box_facts_known()
        desired = [wish.desired for wish in wishes]
        images = {reference for one in desired for reference in (one.image, one.router.image) if reference}
        paths = {service.path for one in desired for service in one.services if service.path.startswith("/")}
        question = {
            "docker_host": desired[0].docker_host,
            "images": sorted(images),
            "paths": sorted(paths),
            "ports": sorted({port for one in desired for port in needed_ports(one)}),
            "evidence": desired[0].instance.evidence,
            "instance": desired[0].instance.name,
        }
        answer = self._run_module("gpu_diag_box_facts", question, task_vars)
        box = plain(answer.get("box"))
        if not isinstance(box, dict):
            raise _StopError("The module gpu_diag_box_facts answered without facts of the box.")
        folders = {"folders": question["paths"], "calibration": desired[0].instance.calibration}
        found = self._run_module("vllm_service_facts", folders, task_vars)
        return {**box, "models": plain(found.get("models")), "calibration": plain(found.get("calibration"))}

    def _login(self) -> box_login.Login:
        """Who we are on the box, once a module has run there; stops where its Python won't do."""
        login = self._looked_at_login()
        if login.problem is not None:
            raise _StopError(f"{login.problem} {_UNTOUCHED}")
        return login

    def _looked_at_login(self) -> box_login.Login:
        if self._seen_login is None:
            interpreter = str(self._used_interpreter)
            answer = self._low_level_execute_command(box_login.question(interpreter))
            self._seen_login = box_login.read(interpreter, answer["stdout"], answer["stderr"])
        return self._seen_login

    # ------------------------------------------------------------------------------------------- deploying

    def _converge_router(self, work: _Work, task_vars: dict[str, Any]) -> dict[str, Any]:
        parameters = deployment.router(work.plan, work.rendering, work.wish.desired, work.earlier)
        return self._converge(parameters, task_vars)

    def _converge_engines(self, work: _Work, task_vars: dict[str, Any]) -> dict[str, Any]:
        parameters = deployment.engines(work.plan, work.rendering, work.wish.desired, work.earlier)
        return self._converge(parameters, task_vars)

    def _converge(self, parameters: Mapping[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        return self._run_module("vllm_service_converge", parameters, task_vars)

    def _run_module(
        self, name: str, parameters: Mapping[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=name, module_args=dict(parameters), task_vars=task_vars
        )
        result.pop("invocation", None)  # it would repeat the environments of engines, which may hold secrets
        if result.get("failed"):
            message = self._looked_at_login().problem or box_login.module_failure(name, result)
            kept = ("changed", "changes", "proofs", "warnings")
            raise _StopError(message, {key: result[key] for key in kept if key in result})
        return result


def _place(desired: planner.Desired) -> dict[str, Any]:
    """Where the releases of an instance are, as the module vllm_service_releases wants to know it."""
    instance = desired.instance
    return {
        "root": instance.root,
        "state": instance.state,
        "project": instance.engines_project,
        "docker_host": desired.docker_host,
    }


def _together(*results: Mapping[str, Any]) -> dict[str, Any]:
    """What several modules changed, as one result."""
    return {
        "changed": any(result["changed"] for result in results),
        "changes": [change for result in results for change in result["changes"]],
    }


def _for_people(plan: planner.Plan) -> dict[str, Any]:
    return {
        "endpoint": planner.endpoint(plan),
        "services": planner.questions(plan),
        "usage": planner.usage_lines(plan),
    }


def _misspelt(wish: _Wish, reads: tuple[str, ...]) -> list[planner.Refusal]:
    """Refusals of unknown variables that may be meant for one of those that begin so: without a slip in
    frontdoor_instance being told, a teardown would remove another instance."""
    known = _documented().keys()
    unknown = (each for each in wish.declaration.refusals if each.where in wish.raw.keys() - known)
    return [
        each
        for each in unknown
        if each.where.startswith(reads) or (planner.nearest(each.where, known) or "").startswith(reads)
    ]


def _model_folders(wish: _Wish) -> list[str]:
    return sorted({service.path for service in wish.desired.services})


def _refuse(refusals: list[planner.Refusal]) -> None:
    if refusals:
        raise _refused(refusals)


def _refused(refusals: list[planner.Refusal]) -> _StopError:
    return _StopError(planner.refusal_message(refusals, _UNTOUCHED))


def _unexpected(error: Exception) -> str:
    if isinstance(error, planner.UnreadableFactsError):
        return f"{error} {_UNTOUCHED}"
    return (
        f"The plan met something that it does not know ({type(error).__name__}: {error}). "
        "This is a fault of vllm-frontdoor: please report it with this sentence and the declaration of the "
        f"services, without secrets. {_UNTOUCHED}"
    )


@functools.cache
def _documented() -> dict[str, tuple[arguments.Specification, ...]]:
    """All variables in the argument specifications of the roles beside this one."""
    return arguments.documented(_ROLES)


def _make_box_facts_known() -> None:
    """A play that doesn't import the role gpu_diag itself can plan as well."""
    for loader, folder in ((module_loader, "library"), (module_utils_loader, "module_utils")):
        path = _ROLES / "gpu_diag" / folder
        if path.is_dir():
            loader.add_directory(str(path))


def _role_file(name: str) -> bytes:
    path = _ROLE / "files" / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise _StopError(
            f"A file of the role vllm_service can't be read ({path}: {error.strerror}). "
            f"Restore the checkout of vllm-frontdoor. {_UNTOUCHED}"
        ) from error
