"""The sequences in the context: running ones, residents that wait to be continued, and free ids."""

from __future__ import annotations

from collections.abc import Callable, Collection

from onceread.engine.cells import CellLedger
from onceread.engine.sequence import EXACT, Sequence
from onceread.native import checkpoints
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
        # Can any prefix of a sequence be shared, or only its attention, and all of it at a checkpoint?
        self.cuttable = context.model.memory_kind is MemoryKind.PLAIN
        self.evictions = 0
        room = checkpoints.window_room(context)
        window = context.window
        # Where windows are short or sequences few, there is room for a window of each, and nothing to count.
        self._window_room = room if room < window * context.n_seq_max + context.n_batch else 0
        # Sequences that may run at a time, so that the windows of all fit.
        self.most_running = context.n_seq_max
        if self._window_room:
            self.most_running = max(1, (room - context.n_batch) // window)
        # What is to be done with a finished sequence before it is dropped.
        self.before_eviction: Callable[[Sequence], None] = lambda sequence: None
        self.before_free: Callable[[Sequence], None] = lambda sequence: None

    @property
    def n_sequences(self) -> int:
        return len(self.running) + len(self.residents)

    @property
    def most_sequences(self) -> int:
        return self._context.n_seq_max - 1

    @property
    def free(self) -> int:
        """Tokens that the next batch can have: each takes a cell, and in the cache of windows another one."""
        if not self._window_room:
            return self.ledger.free
        held = sum(checkpoints.window_cells(self._context, len(s)) for s in self.running + self.residents)
        return min(self.ledger.free, self._window_room - held)

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
        if self.cuttable:
            self._context.share(source.id, sequence.id, 0, length)
            self._context.verify(sequence.id, length)
        else:
            checkpoints.fork(self._context, source.id, sequence.id, length)
        self._share_cells(source, sequence, length)
        return sequence

    def lend(self, source: Sequence, length: int) -> Sequence:
        """The same for a memory that needs a checkpoint to go on: the new sequence waits to be settled."""
        assert not self.cuttable
        assert length <= len(source)
        sequence = self.open(source.namespace, source.alignable, keep=source)
        checkpoints.lend(self._context, source.id, sequence.id, length)
        self._share_cells(source, sequence, length)
        sequence.settled = False
        return sequence

    def _share_cells(self, source: Sequence, sequence: Sequence, length: int) -> None:
        cells = source.cells[:length]
        self.ledger.share(cells)
        sequence.append(source.tokens[:length], cells)
        sequence.marks = [mark for mark in source.marks if mark <= length]
        if length > source.exact_until:
            sequence.exact_until = source.exact_until

    def resume(self, resident: Sequence) -> Sequence:
        """Take a resident as it is, to grow it."""
        self.residents.remove(resident)
        self.running.append(resident)
        resident.saved = resident.refused = False
        return resident

    def resume_alone(self, resident: Sequence | None, length: int) -> Sequence | None:
        """Take the first ``length`` tokens of a resident to grow them, and drop everything else.

        So the cells of what runs lie in order from the first one on.
        """
        for other in list(self.residents):
            if other is not resident:
                self._evict(other)
        if resident is None:
            return None
        self.before_eviction(resident)
        self._context.truncate(resident.id, length)
        self._context.verify(resident.id, length)
        resident.truncate(length, self.ledger)
        resident.looked = min(resident.looked, length)
        return self.resume(resident)

    # -- giving back -------------------------------------------------------

    def retire(self, sequence: Sequence, clock: int) -> None:
        """A running sequence is finished: it stays as a resident, unless another one holds all of it."""
        self.running.remove(sequence)
        sequence.last_used = clock
        if len(sequence) == 0 or not sequence.settled or self._held_elsewhere(sequence):
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

    def empty(self, sequence: Sequence) -> None:
        """Drop the state of a running sequence, which begins anew."""
        self._context.drop(sequence.id)
        sequence.release(self.ledger)
        sequence.settled = True
        sequence.exact_until = EXACT
        sequence.marks = []
        sequence.looked = 0

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
        while self.free < n_cells:
            # A resident whose cells are all shared gives no room, whatever it is worth.
            useful = [r for r in self.residents if self.ledger.freed_by([r.cells])]
            if not useful and not self.residents:
                return False
            useful = useful or self.residents
            # Those that are nowhere else last: exporting them takes time that others wait.
            saved = [r for r in useful if r.saved]
            self._evict(self._least_valuable(saved or useful, clock))
        return True

    def make_room_for_window(self, length: int, clock: int) -> bool:
        """Evict residents until another sequence of ``length`` tokens can have a window. False if it can't."""
        wanted = checkpoints.window_cells(self._context, length) if self._window_room else 0
        return self.make_room(wanted, clock)

    def trim(self, cells: int, clock: int) -> None:
        """Drop residents that the store has or will never have, until those left take at most ``cells``.

        The last finished one stays. Every used cell slows every sequence, and loading one back costs a thousandth
        of reading it.
        """
        while len(self.residents) > 1 and self.ledger.freed_by([r.cells for r in self.residents]) > cells:
            candidates = [r for r in self.residents[:-1] if r.saved or r.exact_until < len(r)]
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
            if not sequence.settled:
                continue  # llama.cpp does not tell how long its attention is
            in_context = self._context.length(sequence.id)
            assert in_context == len(sequence), f"{in_context} positions in llama.cpp, {len(sequence)} here"
        owned = {int(c) for s in self.running + self.residents for c in s.cells}
        assert len(owned) == self.ledger.used, f"{self.ledger.used - len(owned)} cells leaked"
        assert len(self._free_ids) + self.n_sequences == self.most_sequences, "a sequence id leaked"

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
        self.before_free(sequence)
        self._context.drop(sequence.id)
        sequence.release(self.ledger)
        self._free_ids.append(sequence.id)

    def _held_elsewhere(self, sequence: Sequence) -> bool:
        return any(self._contains(s, sequence) for s in self.running + self.residents)

    def _contains(self, outer: Sequence, inner: Sequence) -> bool:
        if outer.namespace != inner.namespace or outer.alignable < inner.alignable or not outer.settled:
            return False
        if min(outer.exact_until, len(inner)) < min(inner.exact_until, len(inner)):
            return False
        reachable = self.cuttable or len(outer) == len(inner)
        return reachable and outer.starts_with(inner.tokens)
