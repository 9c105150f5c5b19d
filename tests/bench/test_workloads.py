"""The workloads: as data, seeded, and with what each is about."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from onceread.bench.texts import standard_library
from onceread.bench.workloads import KINDS, load_workloads
from onceread.bench.workloads.contract import Ask, Workload, seeded
from tests.bench.fakes import Asked, fixed_corpus

SMALL = {workload.name: workload for workload in load_workloads("small")}


def played(workload: Workload) -> list[Ask | str]:
    stage = Asked()
    workload.play(stage, seeded(workload, fixed_corpus()))
    return stage.asks


def asks(name: str) -> list[Ask]:
    return [ask for ask in played(SMALL[name]) if isinstance(ask, Ask)]


def test_every_kind_has_a_workload_at_full_and_at_small_scale() -> None:
    for scale in ("full", "small"):
        assert {workload.kind for workload in load_workloads(scale)} == set(KINDS)  # type: ignore[arg-type]
    assert len(load_workloads("quick")) == 3


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_asks_the_same(name: str) -> None:
    assert played(SMALL[name]) == played(SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_requests_begin_with_a_system_prompt_and_end_with_the_users_message(name: str) -> None:
    for ask in asks(name):
        roles = [message["role"] for message in ask.messages]
        assert roles == ["system"] + ["user", "assistant"] * ((len(roles) - 2) // 2) + ["user"]
        assert ask.reply > 0


def test_a_growing_chat_sends_all_of_what_was_before() -> None:
    for before, after in pairwise(asks("chat-growth")):
        assert after.messages[: len(before.messages)] == before.messages


def test_edits_and_regenerations_share_what_comes_before_them() -> None:
    by_label: dict[str, list[Ask]] = {}
    for ask in asks("edit-regenerate-branch"):
        by_label.setdefault(ask.label, []).append(ask)
    last = by_label["turn"][-1]
    assert all(ask.messages == last.messages for ask in by_label["regenerate"])
    for ask in by_label["edit the last"]:
        assert ask.messages[:-1] == last.messages[:-1]
        assert ask.messages[-1] != last.messages[-1]
    back = by_label["back to the first branch"][0]
    assert back.messages[: len(last.messages)] == last.messages


def test_a_client_at_the_limit_keeps_the_system_prompt_and_drops_the_oldest() -> None:
    workload = SMALL["past-the-limit"]
    for before, after in pairwise(asks("past-the-limit")):
        assert after.messages[0] == before.messages[0]
        assert after.messages[1] != before.messages[1]
        assert sum(len(m["content"]) for m in after.messages) <= workload.window  # type: ignore[attr-defined]


def test_the_clock_changes_and_the_rest_of_the_head_does_not() -> None:
    heads = [ask.messages[0]["content"].split("\n\n") for ask in asks("timestamp")]
    assert len({head[0] for head in heads}) == len({head[2] for head in heads}) == 1
    assert len({head[1] for head in heads}) == len(heads)


def test_a_restart_comes_between_the_turns_of_each_conversation() -> None:
    for name in ("restart", "cold-prompt"):
        assert played(SMALL[name]).count("restart") == 1


def test_a_size_that_a_class_does_not_know_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "workloads.yaml"
    data.write_text(
        "x: {kind: chat growth, about: y, small: {system: 1, turns: 1, message: 1, reply: 1, typo: 1}}"
    )
    with pytest.raises(ValueError, match="typo is not a size of chat growth"):
        load_workloads("small", data=data)


def test_texts_are_real_of_about_the_size_asked_for_and_have_a_name() -> None:
    corpus = standard_library()
    assert len(corpus.digest) == 12
    write = seeded(SMALL["agent"], corpus)
    assert 150 < len(write.prose(60).split()) * 4.4 < 400
    assert "def " in write.code(200)
