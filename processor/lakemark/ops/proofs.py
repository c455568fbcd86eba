"""The proofs of tables in the words of `status`; pure."""

from typing import Final

from lakemark.model.proof import TableProof
from lakemark.ops.status import ProofNow
from lakemark.state.tables import STREAMING, TableState

WAITS_STOPPED: Final = "it does not stream"
WAITS_REBUILT: Final = "it is being rebuilt"
WAITS_INCOMPLETE: Final = "its rows have not all been brought yet"
WAITS_READ: Final = "it is to be read again first"
WAITS_EMPTY: Final = "it has never had a row, and there is no Delta table"


def proof_of(proof: TableProof, entry: TableState, *, expected: bool) -> ProofNow | None:
    """Return what is shown of a table's proof; None if it has none, and is not to have one.

    Args:
        proof: of the table.
        entry: the table.
        expected: whether it is verified by itself.
    """
    if not expected and not proof.ended_ms:
        return None
    return ProofNow(
        expected=expected,
        proved_ms=proof.proved_ms or None,
        position=proof.position,
        rows=proof.rows,
        newer=proof.newer,
        run=proof.run,
        ended_ms=proof.ended_ms or None,
        found=proof.found,
        mended=proof.mended,
        unlike=proof.unlike,
        code=proof.code,
        reason=proof.reason,
        hint=proof.hint,
        retried=proof.retried,
        waits=_waits(entry) if expected else "",
    )


def _waits(entry: TableState) -> str:
    """Return why a table cannot be verified now, as `own_verifying` sees it; empty if it can."""
    if entry.files.rebuild:
        return WAITS_REBUILT
    if entry.state != STREAMING:
        return WAITS_STOPPED
    if not entry.repair.complete:
        return WAITS_INCOMPLETE
    if entry.repair.resnapshot_since >= 0 or entry.repair.reread_missed >= 0:
        return WAITS_READ
    return "" if entry.files.engine else WAITS_EMPTY
