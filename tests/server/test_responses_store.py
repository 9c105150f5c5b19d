"""The file of the stored responses: limits, chains, several processes, damage, and a death without warning."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from onceread.cache.errors import DiskUnusable
from onceread.chat.issued import Issued
from onceread.chat.toolcalls import Wording
from onceread.server.responses_database import FILE
from onceread.server.responses_store import ResponseMissing, ResponseStore, TooLarge, Turn

SPACE = "7:default0:"
DAY = 24 * 3600


def opened(directory: Path | None, *, keep_days: float = 30, max_bytes: int = 2**28) -> ResponseStore:
    return ResponseStore(directory, keep_days=keep_days, max_bytes=max_bytes)


def turn(name: str, previous: str | None = None, text: str = "Hi") -> Turn:
    item = {"id": f"msg_{name}", "type": "message", "role": "user", "content": text}
    return Turn(name, previous, [item], [], {}, "hermes")


def put(
    store: ResponseStore, name: str, previous: str | None = None, text: str = "Hi", space: str = SPACE
) -> None:
    store.put(space, turn(name, previous, text), {"id": name})


def names(store: ResponseStore, last: str) -> list[str]:
    return [each.id for each in store.chain(SPACE, last)]


def has(store: ResponseStore, name: str, space: str = SPACE) -> bool:
    try:
        return bool(store.response(space, name) == {"id": name})
    except ResponseMissing:
        return False


def change(directory: Path, sql: str, *values: Any) -> None:
    connection = sqlite3.connect(directory / FILE)
    with connection:
        assert connection.execute(sql, values).rowcount > 0
    connection.close()


@pytest.fixture(params=["on disk", "in RAM"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResponseStore:
    return opened(tmp_path if request.param == "on disk" else None)


def test_a_turn_comes_back_as_it_was(store: ResponseStore) -> None:
    item = {"id": "fc_1", "type": "function_call", "arguments": "é\u2028", "status": None}
    calls = {
        "call_1": Issued("f", '{"x":1}', Wording('\n{"x":1}', "\n", "own")),
        "call_2": Issued("g", "{}", Wording("")),
    }
    said = Turn("resp_1", None, [item], [{"id": "msg_1"}], calls, "mistral")
    store.put(SPACE, said, {"id": "resp_1", "n": [1, None, True]})
    assert store.turn(SPACE, "resp_1") == said
    assert store.response(SPACE, "resp_1") == {"id": "resp_1", "n": [1, None, True]}
    assert store.chain(SPACE, "resp_1") == [said]


def test_a_chain_is_walked_to_its_beginning(store: ResponseStore) -> None:
    put(store, "a")
    put(store, "b", "a")
    put(store, "c", "b")
    put(store, "other", "a")
    assert names(store, "c") == ["a", "b", "c"]
    store.delete(SPACE, "b")
    with pytest.raises(ResponseMissing, match=r"^b$"):
        store.chain(SPACE, "c")
    with pytest.raises(ResponseMissing, match=r"^b$"):
        store.delete(SPACE, "b")
    assert names(store, "other") == ["a", "other"]


def test_a_chain_does_not_leave_its_namespace(store: ResponseStore) -> None:
    put(store, "a", space="other")
    put(store, "b", "a")
    with pytest.raises(ResponseMissing, match=r"^a$"):
        store.chain(SPACE, "b")


def test_items_are_found_where_they_were_last(store: ResponseStore) -> None:
    put(store, "a")
    found = store.holder(SPACE, "msg_a")
    assert found is not None
    assert found.id == "a"
    store.put(SPACE, Turn("b", None, turn("a").input, [], {}, "hermes"), {"id": "b"})
    found = store.holder(SPACE, "msg_a")
    assert found is not None
    assert found.id == "b"
    store.delete(SPACE, "b")
    found = store.holder(SPACE, "msg_a")
    assert found is not None
    assert found.id == "a"
    assert store.holder("other", "msg_a") is None
    store.delete(SPACE, "a")
    assert store.holder(SPACE, "msg_a") is None


def test_clearing_is_by_namespace(store: ResponseStore) -> None:
    for space in (SPACE, "other", "third"):
        put(store, space, space=space)
    assert store.clear([SPACE]) > 0
    assert not has(store, SPACE)
    assert has(store, "other", "other")
    assert store.clear([SPACE]) == 0
    assert store.clear(None) > 0
    assert not has(store, "third", "third")


class TestAge:
    def test_what_was_not_used_for_so_long_is_gone(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, "a")
        change(tmp_path, "UPDATE responses SET used = used - ?", 31 * DAY)
        assert not has(store, "a")
        assert store.holder(SPACE, "msg_a") is None
        with pytest.raises(ResponseMissing):
            store.chain(SPACE, "a")
        put(store, "b")  # whatever is stored next sweeps
        assert not has(opened(tmp_path, keep_days=365), "a")

    @pytest.mark.parametrize("reads", [False, True], ids=["by a new response", "by reading"])
    def test_going_on_with_a_conversation_keeps_all_of_it(self, tmp_path: Path, reads: bool) -> None:
        store = opened(tmp_path)
        put(store, "a")
        put(store, "b", "a")
        change(tmp_path, "UPDATE responses SET used = used - ?", 29 * DAY)
        last = "b"
        if reads:
            store.chain(SPACE, "b")
        else:
            put(store, last := "c", "b")
        change(tmp_path, "UPDATE responses SET used = used - ?", 29 * DAY)
        put(store, "other")
        assert names(store, last)[:2] == ["a", "b"]


class TestSize:
    def test_the_least_recently_used_go(self, tmp_path: Path) -> None:
        store = opened(tmp_path, max_bytes=100_000)
        for i in range(10):
            put(store, f"r{i}", text="x" * 20_000)
        assert [has(store, f"r{i}") for i in range(10)] == [False] * 6 + [True] * 4

    def test_what_a_kept_one_needs_stays(self, tmp_path: Path) -> None:
        store = opened(tmp_path, max_bytes=100_000)
        put(store, "a", text="x" * 20_000)
        for i in range(5):
            put(store, f"r{i}", text="x" * 20_000)
            put(store, f"a{i}", "a")
        assert names(store, "a4") == ["a", "a4"]
        assert not has(store, "r0")

    def test_one_that_is_larger_than_all_may_be(self) -> None:
        small = opened(None, max_bytes=1000)
        put(small, "a", text="x" * 100)
        with pytest.raises(TooLarge, match="at most 1,000"):
            put(small, "b", text="x" * 1000)
        assert has(small, "a")


class TestFile:
    def test_nobody_else_may_read_it(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            put(opened(tmp_path / "new"), "a")
        finally:
            os.umask(before)
        folder = tmp_path / "new" / FILE.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}

    def test_it_is_made_when_it_is_needed(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        assert store.clear(None) == 0
        assert not (tmp_path / FILE).exists()

    def test_two_servers_share_it(self, tmp_path: Path) -> None:
        one, other = opened(tmp_path), opened(tmp_path)
        put(one, "a")
        put(other, "b", "a")
        assert names(one, "b") == ["a", "b"]
        one.delete(SPACE, "b")
        assert not has(other, "b")

    def test_many_threads_share_it(self, tmp_path: Path) -> None:
        stores = [opened(tmp_path), opened(tmp_path)]
        failed: list[BaseException] = []

        def work(at: int) -> None:
            try:
                for i in range(20):
                    put(stores[at % 2], f"r{at}-{i}", f"r{at}-{i - 1}" if i else None)
                    assert len(names(stores[at % 2], f"r{at}-{i}")) == i + 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []

    def test_one_that_is_deleted_meanwhile_is_made_anew(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, "a")
        for path in (tmp_path / FILE.parent).iterdir():
            path.unlink()
        assert not has(store, "a")
        put(store, "b")
        assert has(opened(tmp_path), "b")

    def test_what_is_deleted_can_not_be_read_from_the_file(self, tmp_path: Path) -> None:
        store = opened(tmp_path)
        put(store, "a", text="a secret of somebody's" * 100)
        put(store, "b")
        store.delete(SPACE, "a")
        store.close()  # the log goes into the file
        assert b"secret" not in (tmp_path / FILE).read_bytes()


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def foreign(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE other (x); INSERT INTO other VALUES (1);")
    connection.close()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("damage", [garbage, torn, foreign, folder, link])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before a start", "while it is open"])
def test_a_damaged_file_is_a_miss(
    tmp_path: Path, damage: Any, meanwhile: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    for i in range(20):
        put(store, f"r{i}", text="x" * 5000)
    if not meanwhile:
        store.close()
    damage(tmp_path / FILE)
    if not meanwhile:
        store = opened(tmp_path)
    with caplog.at_level(logging.WARNING):
        for i in range(20):
            has(store, f"r{i}")  # whatever it says, it raises nothing
        put(store, "new")
    assert has(store, "new")
    assert has(opened(tmp_path), "new")
    if not meanwhile:
        assert "moved aside" in caplog.text
        assert not has(store, "r0")
        assert any(".moved-" in path.name for path in (tmp_path / FILE.parent).iterdir())


def test_a_flipped_bit_in_a_text_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    put(store, "a", text="twenty")
    put(store, "b", "a")
    change(tmp_path, "UPDATE texts SET turn = replace(turn, 'twenty', 'thirty')")
    with pytest.raises(ResponseMissing, match=r"^a$"):
        store.chain(SPACE, "b")
    assert "a is damaged" in caplog.text
    assert not has(store, "a")
    assert has(store, "b")


def test_a_full_disk_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "a")
    pages = "PRAGMA max_page_count = 20"
    store._database.look(lambda connection: connection.execute(pages).fetchone())
    with pytest.raises(DiskUnusable, match="full"):
        put(store, "b", text="x" * 200_000)
    assert has(store, "a")
    store._database.look(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchone())
    put(store, "b", text="x" * 200_000)
    assert has(store, "b")


def test_what_is_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE.parent).write_text("")
    with pytest.raises(DiskUnusable, match="is not a directory"):
        put(opened(tmp_path), "a")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.server.test_responses_store import opened, put
store = opened(Path(sys.argv[1]))
for i in range(50):
    put(store, f"r{i}", f"r{i - 1}" if i else None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), root], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(opened(tmp_path), "r49")) == 50
