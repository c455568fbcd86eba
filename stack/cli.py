"""The commands of `./dev`, inside the environment that it has made."""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from stack.browser import ensure_browser
from stack.bundled import ensure_servers
from stack.connect import connector_config
from stack.database import CONFIGS
from stack.import_rule import violations
from stack.local import DATABASES, LocalStack, service_of
from stack.processes import StackError
from stack.structure import show

ROOT = Path(__file__).parents[1]
QUICK_TESTS = ("tests/unit", "tests/model")
BYTECODE = ROOT / ".lakemark" / "bytecode"
"""Where tests compile to, if not beside the sources: hundreds of processes read all of them."""
SOURCES = ("processor", "stack", "tests", "bench", "deploy", "examples", "dev")


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    os.chdir(ROOT)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else Spark's workers take any python on PATH
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    keep_bytecode()
    parser = argparse.ArgumentParser(prog="./dev", description="see the head of ./dev")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="the whole thing on this machine")
    demo.add_argument("--keep", action="store_true", help="leave everything running at the end")
    demo.add_argument("--scale", type=float, default=1.0, help="size of the shop; 1: 65,000 rows")
    demo.add_argument(
        "--format", default="json", choices=("json", "avro"), help="of the records (default: json)"
    )
    add_database(demo)
    test = commands.add_parser("test", help="lint, types and tests", add_help=False)
    test.add_argument("--quick", action="store_true", help="no Java, no servers")
    bench = commands.add_parser("bench", help="a benchmark", add_help=False)
    bench.add_argument("name", nargs="?", default="")
    checks = commands.add_parser("check", help="lint, format, types, import rule")
    checks.add_argument("--structure", action="store_true", help="how the package is laid out")
    for name, help_ in (
        ("down", "end exactly those"),
        ("lock", "make the requirement locks anew"),
    ):
        commands.add_parser(name, help=help_)
    add_database(
        commands.add_parser("up", help="start Kafka, Connect and a database and leave them running")
    )
    options, rest = parser.parse_known_args(arguments)
    if rest and options.command not in {"test", "bench"}:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    actions: dict[str, Callable[[], int]] = {
        "demo": lambda: run_demo(
            keep=options.keep, scale=options.scale, database=options.database, form=options.format
        ),
        "test": lambda: run_tests(rest, quick=options.quick),
        "bench": lambda: run_bench(options.name, rest),
        "up": lambda: up(options.database),
        "down": down,
        "check": lambda: structure() if options.structure else check(),
        "lock": lock,
    }
    return actions[options.command]()


def keep_bytecode() -> None:
    """Keep compiled modules below `.lakemark` where the user wants none beside the sources.

    A run of the tests starts some hundred processes. Each would compile all that it imports: the
    tests alone take 15 seconds.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))


def say(text: str) -> None:
    """Print one line of progress on the error stream."""
    print(f"dev: {text}", file=sys.stderr, flush=True)


def add_database(parser: argparse.ArgumentParser) -> None:
    """Let a command be told the product of the source database."""
    parser.add_argument(
        "--database", default="postgres", type=_service, metavar="NAME",
        help=f"postgres (default), mariadb or mysql, with a version too: {', '.join(DATABASES)}",
    )  # fmt: skip


def _service(name: str) -> str:
    try:
        return service_of(name)
    except StackError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_demo(*, keep: bool, scale: float, database: str, form: str) -> int:
    """Run `stack/demo.py`."""
    ensure_servers(say)
    run = importlib.import_module("stack.demo").run
    code: int = run(keep=keep, scale=scale, database=database, form=form)
    return code


def run_tests(arguments: Sequence[str], *, quick: bool) -> int:
    """Run pytest, and the checks beside it.

    What the checks say comes in one piece when they have ended, long before pytest's closing line.
    Four workers share the tests, on two cores: half of their time they wait for servers. Those of
    the quick suite wait for nobody, and are three. See `tests/conftest.py`.
    Most pipelines under test are killed: none would leave Java's archive of classes to the next.

    The exit code is pytest's; 1 if only the checks failed.
    """
    command = [sys.executable, "-m", "pytest", "-n", "3" if quick else "4"]
    warmed = 0
    if quick:
        os.environ.setdefault("HYPOTHESIS_PROFILE", "quick")
        command += [*filter(os.path.isdir, QUICK_TESTS), "-m", "not slow"]
    else:
        ensure_servers(say, newest=True)
        ensure_browser(say)
        say("making Java's archive of classes, if there is none")
        warmed = run_child([sys.executable, "-m", "lakemark", "warm"])
    sys.stderr.flush()
    with _checks() as checked:
        code = run_child([*command, *arguments])
    return code or warmed or checked()


@contextlib.contextmanager
def _checks() -> Iterator[Callable[[], int]]:
    """Run the checks meanwhile.

    Gives a function that waits for their end and returns their exit code.
    """
    command = [sys.executable, "-m", "stack.cli", "check"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:

        def tell() -> None:
            said, _ = child.communicate()
            sys.stderr.buffer.write(said)
            sys.stderr.flush()

        def ended() -> int:
            telling.join()
            return child.returncode

        telling = threading.Thread(target=tell)
        telling.start()
        yield ended
        telling.join()


def run_bench(name: str, arguments: Sequence[str]) -> int:
    """Run `bench/<name>.py`, or list what there is."""
    files = [p for p in (ROOT / "bench").glob("*.py") if "\ndef main(" in p.read_text()]
    names = sorted(path.stem.replace("_", "-") for path in files)
    if name not in names:
        print(f"benchmarks: {', '.join(names) or '(none)'}")
        return 2 if name else 0
    ensure_servers(say)
    code: int = importlib.import_module(f"bench.{name.replace('-', '_')}").main(list(arguments))
    return code


def check() -> int:
    """Run ruff, mypy and the import rule; return 1 if any finds something."""
    sources = [name for name in SOURCES if (ROOT / name).exists()]
    failed = []
    for title, command in (
        ("ruff check", ["ruff", "check", "--quiet", *sources]),
        ("ruff format", ["ruff", "format", "--check", "--quiet", *sources]),
        ("mypy", ["mypy"]),
    ):
        say(title)
        if run_child([sys.executable, "-m", *command]):
            failed.append(title)
    say("import rule")
    broken = violations()
    print("".join(f"{line}\n" for line in broken), end="")
    if broken:
        failed.append("import rule")
    sys.stdout.flush()
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def structure() -> int:
    """Print how the package is laid out."""
    show()
    return 0


def up(service: str) -> int:
    """Start the servers in the background, or say that they run.

    Raises:
        StackError: they run with another database.
    """
    ensure_servers(say)
    running = LocalStack.attach()
    if running is not None and all(server.is_running for server in running.servers):
        if service not in running.services:
            name = running.source_server.name
            raise StackError(f"{name} runs already: end it by ./dev down, then start another one")
        _describe(running)
        return 0
    if running is not None:
        say("some servers of the last ./dev up have ended: starting all anew")
        running.stop()
    services = ("kafka", "connect", service)
    stack = LocalStack(name="up", services=services, detached=True, progress=say)
    stack.start()
    shop = stack.fresh_database(name="shop")
    template = CONFIGS / f"{shop.server.connector}.json"
    config = connector_config(template, shop.placeholders())
    path = stack.directory / "connector.json"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _describe(stack)
    return 0


def _describe(stack: LocalStack) -> None:
    url = f"{stack.connect.url}/connectors/shop/config"
    print(
        f"Kafka       {stack.kafka.bootstrap}\n"
        f"Connect     {stack.connect.url}\n"
        f"database    {stack.source_server.dsn('shop')}\n"
        f"logs        {stack.logs}\n"
        f"connector   {stack.directory / 'connector.json'}, once the tables are there:\n"
        f"            curl -X PUT -H 'Content-Type: application/json' -d @{stack.directory}"
        f"/connector.json {url}\n"
        "stop        ./dev down (removes their data)"
    )


def down() -> int:
    """End what `up` has started."""
    running = LocalStack.attach()
    if running is None:
        print("nothing was started by ./dev up")
        return 0
    running.stop()
    (running.directory / "connector.json").unlink(missing_ok=True)
    print("stopped")
    return 0


EXTRAS: Final = ("--extra", "dev", "--extra", "msk-iam")


def lock() -> int:
    """Resolve the requirements again and write the locks: exact versions, hashes, no addresses."""
    compile_ = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--upgrade"),
        *("--python-version", "3.11", "--generate-hashes", "--no-emit-index-url"),
        *("--no-header", "--no-annotate"),
    ]
    for inputs in (
        ["pyproject.toml", "requirements.in", *EXTRAS, "-o", "requirements.lock"],
        ["requirements-servers.in", "-o", "requirements-servers.lock"],
        ["requirements-bench.in", "-o", "requirements-bench.lock"],
    ):
        if code := run_child([*compile_, *inputs]):
            return code
    return 0


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end and return its exit code.

    Ctrl-C reaches it too; we wait until it has ended its own children.
    """
    with subprocess.Popen(command) as child, _left_to(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _left_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave Ctrl-C to a child and pass a termination on to it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, ended)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except StackError as error:
        sys.exit(f"dev: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
