"""The account of cells against a dictionary that does the same slowly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceread.engine.cells import CellLedger

SIZE = 24


class LedgerAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CellLedger(SIZE)
        self.groups: list[np.ndarray] = []
        self.owners: dict[int, int] = {}

    @rule(n=st.integers(1, 8))
    def take(self, n: int) -> None:
        n = min(n, self.ledger.free)
        cells = self.ledger.take(np.arange(n), 0)
        assert not set(cells.tolist()) & set(self.owners), "a cell was handed out twice"
        self.owners.update(dict.fromkeys(cells.tolist(), 1))
        self.groups.append(cells)

    @precondition(lambda self: self.groups)
    @rule(which=st.randoms(), part=st.floats(0, 1))
    def share(self, which, part: float) -> None:
        cells = which.choice(self.groups)
        cells = cells[: int(len(cells) * part)]
        self.ledger.share(cells)
        for c in cells.tolist():
            self.owners[c] += 1
        self.groups.append(cells)

    @precondition(lambda self: self.groups)
    @rule(which=st.randoms())
    def release(self, which) -> None:
        cells = self.groups.pop(which.randrange(len(self.groups)))
        alone = sum(self.owners[c] == 1 for c in cells.tolist())
        assert self.ledger.freed_by([cells]) == alone
        self.ledger.release(cells)
        for c in cells.tolist():
            self.owners[c] -= 1
            if not self.owners[c]:
                del self.owners[c]

    @invariant()
    def free_is_what_nobody_owns(self) -> None:
        assert self.ledger.free == SIZE - len(self.owners)
        assert self.ledger.freed_by(self.groups) == len(self.owners)


TestLedgerAgainstDict = LedgerAgainstDict.TestCase


def test_check_notices_a_foreign_token() -> None:
    ledger = CellLedger(8)
    cells = ledger.take(np.array([5, 6, 7]), 0)
    ledger.check(cells, np.array([5, 6, 7]))
    with pytest.raises(AssertionError, match="other tokens"):
        ledger.check(cells, np.array([5, 9, 7]))
