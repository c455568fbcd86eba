"""Java regular expressions of users: what they match is Java's answer, and takes linear time."""

import ast
import json
import pickle
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.settings import java_syntax
from lakemark.settings.java_syntax import PatternError
from lakemark.settings.names import quoted
from lakemark.settings.patterns import compile_java, problem_with_regex
from tests.kit.sources import parsed

ENGINE = {f"{engine}.{name}" for engine in ("re", "re2") for name in ("compile", "match", "fullmatch",
          "search", "sub", "split", "findall", "finditer")}  # fmt: skip
GOLDEN = Path(__file__).parents[2] / "golden" / "java_patterns.json"
PROCESSOR = Path(__file__).parents[3] / "processor" / "lakemark"


@pytest.mark.parametrize("ignore_case", [False, True])
def test_expressions_mean_what_they_mean_to_java(ignore_case):
    """Drawn by dice: texts that `java.util.regex` of Java 17 matches in full, and does not."""
    cases = [case for case in json.loads(GOLDEN.read_text()) if case["ignore_case"] == ignore_case]
    assert len(cases) > 100
    for case in cases:
        pattern = compile_java(case["java"], ignore_case=ignore_case)
        for text in [*case["yes"], *case["no"]]:
            assert pattern.matches(text) == (text in case["yes"]), (case["java"], text)


@pytest.mark.parametrize(
    ("java", "yes", "no"),
    [
        (r"\p{Lower}+", "abc", "aBc"),
        (r"[\p{Alpha}_]+", "aB_", "a1"),
        ("[a-z&&[^q]]+", "abc", "aqc"),
        (r"\d", "5", "\u0665"),
        ("(?i)public", "PUBLIC", "publi"),
        ("(?i)é", "é", "É"),
        (r"a\z", "a", "b"),
        (r"public\.(?!tmp_).*", "public.orders", "public.tmp_1"),
        (r"^public.(?!tmp_|.*_old$).*$", "public.older", "public.x_old"),
        (r"(?!a\.x)(?=.*\.y|a)(?:a\..*|b\.(?!z).*)", "b.y", "a.x"),
        (r"public\.a|(?!public)\w+\.b", "sales.b", "public.b"),
        (r"\Qpublic.(a\E", "public.(a", "public.a"),
        ("a.c", "aéc", "a\nc"),
    ],
)
def test_java_expressions(java, yes, no):
    assert compile_java(java).matches(yes)
    assert not compile_java(java).matches(no)


@pytest.mark.parametrize(
    ("java", "code", "named"),
    [
        (r"(?<x>a)\k<x>", "unsupported-regex", r"the back-reference \k<x>"),
        (r"(a)\1", "unsupported-regex", r"the back-reference \1"),
        ("(?<=a)b", "unsupported-regex", "the look-behind (?<="),
        ("(?<!a)b", "unsupported-regex", "the look-behind (?<!"),
        ("(?>a)b", "unsupported-regex", "the atomic group (?>"),
        ("a*+b", "unsupported-regex", "the possessive quantifier *+"),
        ("a{2}+b", "unsupported-regex", "the possessive quantifier {2}+"),
        (".*(?!a)", "unsupported-regex", "the look-ahead (?!"),
        ("((?=a).)*", "unsupported-regex", "the look-ahead (?="),
        ("(?!(?!a)b).*", "unsupported-regex", "the look-ahead (?!"),
        ("(?x)a", "unsupported-regex", "the flag (?x)"),
        (r"\p{IsGreek}", "unsupported-regex", r"\p{IsGreek}"),
        (r"\X", "unsupported-regex", r"\X"),
        (r"\G", "unsupported-regex", r"\G"),
        ("(", "bad-regex", "a ( without its )"),
        (")", "bad-regex", "a ) without its ("),
        ("*", "bad-regex", "* without anything before it"),
        ("a**", "bad-regex", "* without anything before it"),
        ("a{", "bad-regex", "{ without a number"),
        ("[a", "bad-regex", "ends in the midst"),
        ("[b-a]", "bad-regex", "a range whose end"),
        ("\\", "bad-regex", "ends in the midst"),
        ("(?<a>x)(?<a>y)", "bad-regex", "two groups of one name"),
        ("a" * 10_001, "too-large", "longer than 10,000"),
        ("a{1001}", "too-large", "more than 1000 times"),
        ("((a{100}){100}){100}", "too-large", "too complex"),
        ("(" * 60 + ")" * 60, "too-large", "more than 50 deep"),
        ("[" * 60 + "a" + "]" * 60, "too-large", "more than 50 deep"),
        ("(?!a)" * 21, "too-large", "more than 20 look-aheads"),
        (".{1000}" * 60, "too-large", "too complex"),
    ],
)
def test_what_is_refused_is_named(java, code, named):
    with pytest.raises(PatternError) as refused:
        compile_java(java)
    assert refused.value.code == code
    assert named in str(refused.value)
    assert refused.value.hint
    assert named in problem_with_regex(java)


def seconds(java, *texts):
    """Processor time of this thread, so that a busy machine does not count."""
    begun = time.thread_time()
    pattern = compile_java(java)
    for text in texts:
        pattern.matches(text)
    return time.thread_time() - begun


# Each keeps a backtracking engine busy beyond the age of the universe, or did so our translation.
@pytest.mark.parametrize(
    "java",
    [
        r"((\w|.)+)+X",
        "(a|a)*b",
        "(a?){50}a{50}b",
        "(x+x+)+y",
        "(.*)*" * 100 + "X",
        "(?!((a+)+)+$)((a|.)+)+X",
        r"\p{Lower}" * 1000,
        r"[\p{Lower}[^\w]]" * 500,
        r"\Q\E" * 2500,
        "|".join(f"public\\.table_{n}" for n in range(400)),
    ],
    ids=lambda java: java[:16],
)
def test_no_expression_keeps_the_process_busy(java):
    assert seconds(java, "public.customers", "a" * 127, "x" * 100_000) < 1.0


PIECES = st.sampled_from(
    [*"ab.*+?|()[]{}^$-&\\,1", "(?:", "(?!", "(?=", "(?<n>", "(?i)", "&&", "\\Q", "\\E", "\\p{", "\\d",
     "\\b", "{2}", "{1,", "[^", "*?", "\\1", "\\x41", "é", "\ud800", "\0"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60), st.booleans())
def test_nothing_but_a_named_error_comes_of_any_text(java, ignore_case):
    begun = time.thread_time()
    try:
        pattern = compile_java(java, ignore_case=ignore_case)
    except PatternError as error:
        refused = error.code
        assert refused in {"bad-regex", "unsupported-regex", "too-large"}
    else:
        pattern.matches("public.orders")
        pattern.matches("\ud800é\0")
        assert pickle.loads(pickle.dumps(pattern)) == pattern
    assert time.thread_time() - begun < 0.1


@given(st.text(max_size=12))
def test_quoted_text_matches_only_itself(text):
    assert compile_java(quoted(text)).matches(text)
    assert not compile_java(quoted(text)).matches(text + "x")


@given(st.from_regex(r"([ab][*+?]?|\((a|b)\|a\)[*?]?|\[ab\]){1,6}", fullmatch=True), st.data())
def test_plain_expressions_agree_with_python(java, data):
    text = data.draw(st.text("abc", max_size=6))
    assert compile_java(java).matches(text) == bool(re.fullmatch(java, text))


def test_the_alternatives_of_a_look_ahead_are_bounded():
    assert java_syntax.MAX_LENGTH == 10_000
    assert seconds("a" * 9000 + "(?!b)" * 20 + ".*", "a" * 9001) < 1.0


def test_no_other_module_compiles_what_a_user_wrote():
    """Its expressions are constants, or made of constants; the log escapes the secrets it hides."""
    made = {
        str(path.relative_to(PROCESSOR))
        for path in PROCESSOR.rglob("*.py")
        if "import re" in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ENGINE
        if not isinstance(node.args[0], ast.Constant | ast.BinOp | ast.JoinedStr)
        if not ast.unparse(node.args[0]).startswith("_")
    }
    assert made == {"settings/masking.py", "settings/patterns.py"}
