"""Docstrings begin with what something does or is, not with a question that it answers."""

import ast

from tests.kit.error_codes import PACKAGE
from tests.kit.sources import parsed

QUESTIONS = {"What", "Whether", "How", "Where", "Which", "Who", "Whose", "When", "Why"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_begins_with_a_question():
    asked, seen = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                seen += 1
                if text.split(maxsplit=1)[0].strip(",.:") in QUESTIONS:
                    asked.append(f"{path.name}: {text.splitlines()[0]}")
    assert seen > 1000
    assert asked == []
