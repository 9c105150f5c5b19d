"""The calls that were handed out: found again by id, in their namespace, within a limit."""

from __future__ import annotations

from onceread.chat.issued import Issued, IssuedCalls, new_call_id
from onceread.chat.toolcalls import Wording


def issued(arguments: str = "{}") -> Issued:
    return Issued("f", arguments, Wording(arguments))


def test_the_least_recently_used_goes_first() -> None:
    calls = IssuedCalls(max_bytes=100 * 1024)
    calls.add("a", "first", issued())
    for i in range(1000):
        calls.add("a", f"id{i}", issued())
        assert calls.find("a", "first", "f", "{}")
    assert calls.find("a", "id0", "f", "{}") is None
    assert calls.find("a", "id999", "f", "{}")


def test_large_calls_count_for_more() -> None:
    calls = IssuedCalls(max_bytes=100 * 1024)
    calls.add("a", "small", issued())
    calls.add("a", "large", issued('{"x": "' + "y" * 100_000 + '"}'))
    assert calls.find("a", "small", "f", "{}") is None


def test_the_same_call_again_counts_once() -> None:
    calls = IssuedCalls(max_bytes=100 * 1024)
    calls.add("a", "other", issued())
    for _ in range(1000):
        calls.add("a", "same", issued())
    assert calls.find("a", "other", "f", "{}")


def test_what_is_no_json_must_be_the_same_text() -> None:
    calls = IssuedCalls()
    calls.add("a", "1", issued('{"x": '))
    assert calls.find("a", "1", "f", '{"x": ')
    assert calls.find("a", "1", "f", '{"x":') is None
    assert calls.find("a", "1", "g", '{"x": ') is None
    assert calls.find("b", "1", "f", '{"x": ') is None


def test_ids() -> None:
    assert len({new_call_id(short=True) for _ in range(1000)}) == 1000
    assert len(new_call_id(short=True)) == 9
    assert new_call_id(short=True).isalnum()
