"""What is bad about a stretch and is no matter of dead letters: the table stops instead; pure."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakemark.source.stretch import Plan, Stretch, TableReport

TYPE_REASONS: Final = frozenset({"wrong-type", "number-out-of-range"})


def doubt_schemas(out: "Stretch", plan: "Plan") -> None:
    """Values of another type may only mean that the catalog was read before the column changed."""
    doubtful = {
        letter.table
        for letter in out.dead
        if letter.reason in TYPE_REASONS
        and letter.table in plan.schemas
        and letter.table not in plan.verified
    }
    for table in doubtful:
        report = out.tables[table]
        report.stop = report.stop or ("schema-check", "values do not fit the catalog as last read")
        _say_later(report)
    out.dead = [letter for letter in out.dead if letter.table not in doubtful]


def break_circuit(out: "Stretch", records: int, plan: "Plan") -> None:
    """Stops the table rather than shovel a topic into the dead letters.

    Records of which no table is known go there: there is nothing that could be stopped. A table is
    also known by its topic: what came in it before, or where one of that name is known.
    """
    if out.tables and len(out.dead) > plan.max_bad and len(out.dead) > plan.max_bad_share * records:
        reasons = sorted({letter.reason for letter in out.dead})
        for report in out.tables.values():
            report.stop = report.stop or (
                "too-many-bad-records",
                (
                    f"{len(out.dead)} of {records} records of {out.topic}-{out.partition} cannot "
                    f"be decoded ({', '.join(reasons)}); none was written to the dead letters"
                ),
            )
            _say_later(report)
        out.dead = []


def _say_later(report: "TableReport") -> None:
    """What is said again, if it is still true, when the table is read again."""
    report.reread, report.bad, report.unread = [], 0, 0
