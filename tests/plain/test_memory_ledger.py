"""What engines of one process reserve."""

from flyweight.plan.ledger import MemoryLedger


def test_reservations_count_as_held_until_they_are_released() -> None:
    ledger = MemoryLedger(100)
    ledger.reserve("a", 10)
    ledger.reserve("b", 20)
    assert (ledger.held, ledger.reserved) == (130, 30)
    ledger.reserve("a", 15)
    assert ledger.held == 135
    ledger.release("b")
    ledger.release("never")
    assert ledger.held == 115
