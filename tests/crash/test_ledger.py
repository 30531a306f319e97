"""The ledger that the crash tests judge by."""

from __future__ import annotations

from tests.crash.ledger import Audit, Ledger


def test_a_line_that_a_kill_cut_off_does_not_spoil_the_next(tmp_path):
    """The rest of a torn line is dropped by the next life, and the audit reads on from where it was."""
    path = tmp_path / "ledger"
    audit = Audit(path, "periodic", 1.0)
    Ledger(path).write("ack", "a", None)
    with path.open("ab") as file:
        file.write(b'["ack", 1.0, "to')
    audit.note_kill()
    Ledger(path).write("ack", "b", None)
    audit.read()
    assert list(audit.acked) == ["a", "b"]
