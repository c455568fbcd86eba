"""Docstrings begin with what something does or is, not with a question that it answers."""

import ast

import pytest

from tests.kit.error_codes import PACKAGE
from tests.kit.sources import parsed

QUESTIONS = {"What", "Whether", "How", "Where", "Which", "Who", "Whose", "When", "Why"}
ROOMS = (
    "settings",
    "model",
    "kafka",
    "cli",
    "ops",
    "snapshot",
    "connectors",
    "runners",
    "spark",
    "reconcile",
    "state",
    ".",  # the modules above all rooms
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("room", ROOMS)
def test_no_docstring_begins_with_a_question(room):
    asked, seen = [], 0
    paths = PACKAGE.glob("*.py") if room == "." else (PACKAGE / room).rglob("*.py")
    for path in sorted(paths):
        for node in ast.walk(parsed(path)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                seen += 1
                if text.split(maxsplit=1)[0].strip(",.:") in QUESTIONS:
                    asked.append(f"{path.name}: {text.splitlines()[0]}")
    assert seen > 20
    assert asked == []
