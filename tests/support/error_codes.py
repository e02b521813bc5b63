"""Which errors a program can answer with, read from its source: status and `code` of every AnswerError."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ERROR = "AnswerError"
Code = str | None
Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnreadableError(ValueError):
    """An error is made in a way that can't be read from the source; the message says where."""


@dataclass(frozen=True)
class Maker:
    """A function whose caller says the code: under which name, at which position, and what it is else."""

    status: int
    parameter: str
    position: int
    default: ast.expr | None


def errors(sources: Mapping[str, str]) -> set[tuple[int, Code]]:
    """Status and code of every error that the sources, by name, can make. Raises UnreadableError."""
    trees = {name: ast.parse(source) for name, source in sources.items()}
    found: set[tuple[int, Code]] = set()
    makers: dict[str, Maker] = {}
    for name, tree in trees.items():
        _refuse_subclasses(tree, name)
        for call, function in calls(tree):
            if called(call) == ERROR:
                _take(call, function, name, found, makers)
    for name, tree in trees.items():
        for call, _ in calls(tree):
            if maker := makers.get(called(call)):
                found |= {(maker.status, code) for code in _said(call, maker, name)}
    return found


def errors_of(folder: Path) -> set[tuple[int, Code]]:
    """The same of all files below a folder."""
    return errors({str(path): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))})


def calls(tree: ast.AST, function: Function | None = None) -> Iterator[tuple[ast.Call, Function | None]]:
    """Every call, and the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node, function
        yield from calls(node, node if isinstance(node, Function) else function)


def _refuse_subclasses(tree: ast.AST, name: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and ERROR in {getattr(base, "id", "") for base in node.bases}:
            raise UnreadableError(
                f"{name}, line {node.lineno}: errors of the class {node.name} can't be read"
            )


def called(call: ast.Call) -> str:
    """The name of what is called, without the module's."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _take(
    call: ast.Call,
    function: Function | None,
    name: str,
    found: set[tuple[int, Code]],
    makers: dict[str, Maker],
) -> None:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    status = given.get("status")
    if (
        call.args
        or None in given
        or not isinstance(status, ast.Constant)
        or not isinstance(status.value, int)
    ):
        raise UnreadableError(f"{name}, line {call.lineno}: {ERROR} without a status that can be read")
    code = given.get("code")
    if isinstance(code, ast.Name):
        if function is None:
            raise UnreadableError(f"{name}, line {call.lineno}: the code {code.id} can't be read")
        makers[function.name] = _maker(function, code.id, status.value, name)
    else:
        found |= {(status.value, each) for each in _codes(code, name)}


def _maker(function: Function, parameter: str, status: int, name: str) -> Maker:
    names = [each.arg for each in function.args.args]
    if parameter not in names:
        raise UnreadableError(f"{name}, {function.name}: the code {parameter} can't be read")
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    return Maker(status, parameter, names.index(parameter), defaults.get(parameter))


def _said(call: ast.Call, maker: Maker, name: str) -> Sequence[Code]:
    for keyword in call.keywords:
        if keyword.arg == maker.parameter:
            return _codes(keyword.value, name)
    return _codes(call.args[maker.position] if len(call.args) > maker.position else maker.default, name)


def _codes(code: ast.expr | None, name: str) -> Sequence[Code]:
    match code:
        case None | ast.Constant(value=None):
            return [None]
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=one, orelse=other):
            return [*_codes(one, name), *_codes(other, name)]
    raise UnreadableError(
        f"{name}, line {code.lineno}: the code '{ast.unparse(code)}' can't be read; write it out"
    )
