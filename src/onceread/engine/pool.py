"""The sequences in the context: running ones, residents that wait to be continued, and free ids."""

from __future__ import annotations

from collections.abc import Callable, Collection

from onceread.engine.cells import CellLedger
from onceread.engine.sequence import Sequence
from onceread.native.context import Context
from onceread.native.model import MemoryKind


class SequencePool:
    """Hands out sequences and takes them back. Every change is made in llama.cpp and in the ledger at once.

    ``running`` are in the hands of replies; ``residents`` finished, and stay while nobody needs their room.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.ledger = CellLedger(context.n_ctx)
        self.running: list[Sequence] = []
        self.residents: list[Sequence] = []  # the last finished one last
        # The last id is the context's scratch sequence.
        self._free_ids = list(range(context.n_seq_max - 2, -1, -1))
        # Can any prefix of a sequence be shared, or only the whole?
        self.cuttable = context.model.memory_kind is MemoryKind.PLAIN
        self.evictions = 0
        # What is to be done with a finished sequence before it is dropped.
        self.before_eviction: Callable[[Sequence], None] = lambda sequence: None

    @property
    def n_sequences(self) -> int:
        return len(self.running) + len(self.residents)

    # -- taking ------------------------------------------------------------

    def open(self, namespace: str, alignable: bool, *, keep: Sequence | None = None) -> Sequence:
        """A new, empty, running sequence. The least valuable resident but ``keep`` gives its id if none is free."""
        if not self._free_ids:
            self._evict_for_id(keep)
        sequence = Sequence(self._free_ids.pop(), namespace, alignable=alignable)
        self._context.drop(sequence.id)
        self.running.append(sequence)
        return sequence

    def branch(self, source: Sequence, length: int) -> Sequence:
        """A new running sequence over the first ``length`` tokens of ``source``, sharing its cells."""
        assert length == len(source) or (self.cuttable and length < len(source))
        sequence = self.open(source.namespace, source.alignable, keep=source)
        if length == len(source):
            self._context.share_all(source.id, sequence.id)
        else:
            self._context.share(source.id, sequence.id, 0, length)
        if self._context.model.memory_kind is MemoryKind.PLAIN:
            self._context.verify(sequence.id, length)
        cells = source.cells[:length]
        self.ledger.share(cells)
        sequence.append(source.tokens[:length], cells)
        return sequence

    def resume(self, resident: Sequence) -> Sequence:
        """Take a resident as it is, to grow it."""
        self.residents.remove(resident)
        self.running.append(resident)
        resident.saved = resident.refused = False
        return resident

    # -- giving back -------------------------------------------------------

    def retire(self, sequence: Sequence, clock: int) -> None:
        """A running sequence is finished: it stays as a resident, unless another one holds all of it."""
        self.running.remove(sequence)
        sequence.last_used = clock
        if len(sequence) == 0 or self._held_elsewhere(sequence):
            self._free(sequence)
            return
        # What the new resident contains adds nothing but an id.
        for other in [r for r in self.residents if self._contains(sequence, r)]:
            sequence.hits += other.hits
            self.residents.remove(other)
            self._free(other)
        self.residents.append(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Drop a running sequence and its state."""
        self.running.remove(sequence)
        self._free(sequence)

    def reset(self) -> None:
        """Forget everything, after a failure that leaves the context's content in doubt."""
        self._context.clear()
        for sequence in self.running + self.residents:
            self._free_ids.append(sequence.id)
            sequence.release(self.ledger)
        self.running.clear()
        self.residents.clear()

    # -- room --------------------------------------------------------------

    def evictable_cells(self, keep: Sequence | None = None, keep_length: int = 0) -> int:
        """Cells that dropping all residents would free, if ``keep``'s first ``keep_length`` tokens are shared."""
        groups = [r.cells for r in self.residents if r is not keep]
        if keep is not None and keep in self.residents:
            groups.append(keep.cells[keep_length:])
        return self.ledger.freed_by(groups)

    def make_room(self, n_cells: int, clock: int) -> bool:
        """Evict residents, least valuable first, until ``n_cells`` are free. False if that was not enough."""
        while self.ledger.free < n_cells:
            # A resident whose cells are all shared gives no room, whatever it is worth.
            useful = [r for r in self.residents if self.ledger.freed_by([r.cells])]
            if not useful and not self.residents:
                return False
            useful = useful or self.residents
            # Those that are nowhere else last: exporting them takes time that others wait.
            saved = [r for r in useful if r.saved]
            self._evict(self._least_valuable(saved or useful, clock))
        return True

    def trim(self, cells: int, clock: int) -> None:
        """Drop residents that the store has, until those left take at most ``cells``; the last finished one stays.

        Every used cell slows every sequence, and loading one back costs a thousandth of reading it.
        """
        while len(self.residents) > 1 and self.ledger.freed_by([r.cells for r in self.residents]) > cells:
            candidates = [r for r in self.residents[:-1] if r.saved]
            if not candidates:
                return
            self._evict(self._least_valuable(candidates, clock))

    def make_way(self) -> None:
        """A request begins: drop residents that the store has, for their cells would slow its every token.

        Attention runs up to the highest used cell, whoever owns it; even a short resident that lies high costs.
        What shares its cells with a running sequence costs nothing more, and stays.
        """
        for resident in [r for r in self.residents if r.saved]:
            if self.ledger.freed_by([resident.cells]):
                self._evict(resident)

    def forget(self, namespaces: Collection[str] | None) -> None:
        """Drop the residents of these namespaces, or all."""
        for resident in list(self.residents):
            if namespaces is None or resident.namespace in namespaces:
                self.residents.remove(resident)
                self._free(resident)

    def check(self) -> None:
        """Assert that ledger, sequences and llama.cpp agree."""
        for sequence in self.running + self.residents:
            self.ledger.check(sequence.cells, sequence.tokens)
            in_context = self._context.length(sequence.id)
            assert in_context == len(sequence), f"{in_context} positions in llama.cpp, {len(sequence)} here"
        owned = {int(c) for s in self.running + self.residents for c in s.cells}
        assert len(owned) == self.ledger.used, f"{self.ledger.used - len(owned)} cells leaked"
        assert len(self._free_ids) + self.n_sequences == self._context.n_seq_max - 1, "a sequence id leaked"

    def _evict_for_id(self, keep: Sequence | None) -> None:
        candidates = [r for r in self.residents if r is not keep]
        assert candidates, "no resident to take an id from: more sequences run than --parallel allows"
        self._evict(self._least_valuable(candidates, max(r.last_used for r in candidates)))

    def _evict(self, resident: Sequence) -> None:
        self.evictions += 1
        self.before_eviction(resident)
        self.residents.remove(resident)
        self._free(resident)

    @staticmethod
    def _least_valuable(candidates: list[Sequence], clock: int) -> Sequence:
        # Often used is worth more, long ago is worth less. Size cancels out: a longer one costs more to read
        # again and takes more room in the same proportion.
        return min(candidates, key=lambda r: ((1 + r.hits) / (1 + max(0, clock - r.last_used)), r.last_used))

    def _free(self, sequence: Sequence) -> None:
        self._context.drop(sequence.id)
        sequence.release(self.ledger)
        self._free_ids.append(sequence.id)

    def _held_elsewhere(self, sequence: Sequence) -> bool:
        return any(self._contains(s, sequence) for s in self.running + self.residents)

    def _contains(self, outer: Sequence, inner: Sequence) -> bool:
        if outer.namespace != inner.namespace or outer.alignable < inner.alignable:
            return False
        reachable = self.cuttable or len(outer) == len(inner)
        return reachable and outer.starts_with(inner.tokens)
