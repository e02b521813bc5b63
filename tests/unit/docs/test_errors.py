"""The table of errors in docs/api.md is that of the router's source: no more, no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_codes import UnreadableError, errors, errors_of

ROOT = Path(__file__).resolve().parents[3]
TABLE = re.compile(r"^\| (\d{3}) \| (?:`(\w+)`|null) \|", re.MULTILINE)


def listed() -> list[tuple[int, str | None]]:
    """Status and code of each line of the table."""
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    return [(int(status), code or None) for status, code in TABLE.findall(text)]


def test_the_table_has_every_error_that_the_router_answers_and_no_other() -> None:
    assert set(listed()) == errors_of(ROOT / "roles/router/files/wake_router")


def test_the_table_is_in_order_and_says_nothing_twice() -> None:
    assert len(set(listed())) == len(listed())
    assert [status for status, _ in listed()] == sorted(status for status, _ in listed())


# ---- what reads the source


def test_errors_are_found_wherever_they_are_made() -> None:
    sources = {
        "a.py": 'def f():\n    raise AnswerError(status=404, message="", code="gone")\n'
        "class C:\n    def g(self, x):\n        return [m.AnswerError(status=403, message=x)]\n",
        "b.py": "def bad(message, param=None, code=None):\n    return AnswerError(status=400, code=code)\n"
        'def h(x):\n    bad("a")\n    bad("b", x, "second")\n    bad("c", code="third" if x else None)\n'
        '    if x:\n        error = bad("d", code="fourth")\n',
    }
    assert errors(sources) == {
        *((404, "gone"), (403, None), (400, None), (400, "second"), (400, "third"), (400, "fourth"))
    }


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def f(x):\n    raise AnswerError(status=x, message='')", "without a status that can be read"),
        ("def f(x):\n    raise AnswerError(**x)", "without a status that can be read"),
        ("class Mine(AnswerError):\n    pass", "line 1: errors of the class Mine can't be read"),
        ("async def f():\n    raise AnswerError(status=400, code=c)", "f: the code c can't be read"),
        ("raise AnswerError(status=400, message='', code=CODE)", "the code CODE can't be read"),
        ("def f(x):\n    y = x\n    raise AnswerError(status=400, code=y)", "the code y can't be read"),
        ("def f(x):\n    raise AnswerError(status=400, code=x + 'a')", r"line 2: the code 'x \+ 'a'' can't"),
        ("def f(c):\n    return AnswerError(status=400, code=c)\nf(d)", "line 3: the code 'd' can't be read"),
    ],
)
def test_an_error_that_can_not_be_read_is_not_overlooked(source: str, sentence: str) -> None:
    with pytest.raises(UnreadableError, match=sentence):
        errors({"a.py": source})
