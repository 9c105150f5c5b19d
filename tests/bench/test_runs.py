"""A run of the benchmark and its report, with servers that compute nothing."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import pytest

from onceread.bench.compare import compared
from onceread.bench.estimate import estimated
from onceread.bench.figures import quantile
from onceread.bench.machine import Load
from onceread.bench.report import markdown, write_report
from onceread.bench.results import Judgement, Results, ResultsUnreadable, load_results
from onceread.bench.runner import Plan, run_benchmark
from onceread.bench.targets import targets
from onceread.bench.twin import Twin, common
from onceread.bench.workloads import load_workloads
from tests.bench.fakes import SETTING, FakePeer
from tests.server.fakes import FakeModel


class Measured(FakeModel):
    def kv_bytes_per_token(self) -> float:
        return 23_040.0


@pytest.fixture(autouse=True)
def _nobody_is_alive() -> None:
    FakePeer.alive.clear()


def play(
    work: Path, *peers: FakePeer, only: list[str] | None = None, **plan: Any
) -> tuple[Results, list[str]]:
    """Results, and what was said meanwhile. Without a reference: that needs a model that computes."""
    said: list[str] = []
    given = {"passes": 2, "minutes": 60.0, **plan}
    made = Plan(peers, load_workloads("small", only), work=work, command="onceread bench", **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onceread.bench.runner._Bench.judge", lambda *_args: None)
        return run_benchmark(made, SETTING, Measured(), said.append), said  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    peers = FakePeer("onceread"), FakePeer("llama-server", "last", slow=1.05), FakePeer("binding", "nothing")
    found, _said = play(tmp_path_factory.mktemp("work"), *peers)
    return found


class TestARun:
    def test_plays_everything_on_everyone_in_turns(self, results: Results) -> None:
        assert len(results.runs) == 12 * 3 * 2
        firsts = [results.runs[i].peer for i in range(0, len(results.runs), 3)]
        assert len(set(firsts[:3])) == 3, "the same peer always began"
        assert firsts[0] != firsts[12], "the passes were not alternated"

    def test_one_that_remembers_everything_reads_the_ideal_and_the_others_more(
        self, results: Results
    ) -> None:
        for run in results.runs:
            for s in run.samples:
                assert s.evaluated is not None
                assert s.ideal is not None
                if run.peer == "onceread" and "restart" not in s.label:
                    assert s.evaluated == s.ideal, (run.workload, s.label)
                assert s.evaluated >= s.ideal
            assert run.counted == sum(s.evaluated or 0 for s in run.samples)

    def test_a_restart_is_a_new_process_and_its_count_goes_on(self, tmp_path: Path) -> None:
        peer = FakePeer("onceread")
        found, _ = play(tmp_path, peer, only=["restart"], passes=1)
        assert peer.started == 2
        assert found.runs[0].counted == sum(s.evaluated or 0 for s in found.runs[0].samples)

    def test_a_peer_that_cant_be_had_is_left_out_and_named(self, tmp_path: Path) -> None:
        found, said = play(
            tmp_path, FakePeer("onceread"), FakePeer("odd", broken="prepare"), only=["restart"], passes=1
        )
        assert list(found.peers) == ["onceread"]
        assert "odd is left out: no such wheel" in said
        assert "odd in whole: no such wheel" in markdown(found)

    def test_one_that_does_not_start_or_answer_is_an_error_in_the_report(self, tmp_path: Path) -> None:
        found, _ = play(
            tmp_path,
            FakePeer("a", broken="start"),
            FakePeer("b", broken="answer"),
            only=["chat-growth"],
            passes=1,
        )
        text = markdown(found)
        assert "failed: it did not start: out of memory" in text
        assert {s.error for run in found.of("chat-growth", "b") for s in run.samples} == {"status 500: a bug"}
        assert not FakePeer.alive

    def test_when_time_is_up_the_rest_is_left_out_and_said_so(self, tmp_path: Path) -> None:
        found, _ = play(tmp_path, FakePeer("onceread"), only=["restart"], minutes=-1.0)
        assert found.runs == []
        assert "restart on onceread, pass 1: no time" in found.skipped

    def test_one_that_is_broken_off_reports_what_there_is(self, tmp_path: Path) -> None:
        found, said = play(
            tmp_path, FakePeer("onceread", broken="interrupted"), only=["restart", "chat-growth"]
        )
        assert [run.workload for run in found.runs] == ["chat-growth"]
        assert "broken off" in said[-1]
        assert "was broken off" in markdown(found)
        assert not FakePeer.alive

    def test_what_takes_long_is_played_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("onceread.bench.runner.SHORT", -1.0)
        found, _ = play(tmp_path, FakePeer("onceread"), only=["restart"])
        assert [run.turn for run in found.runs] == [0]

    def test_its_folders_are_gone_afterwards(self, tmp_path: Path) -> None:
        play(tmp_path, FakePeer("onceread"), only=["restart"], passes=1)
        assert list(tmp_path.iterdir()) == []


class TestTheReport:
    def test_is_written_with_its_plots_and_read_again(self, results: Results, tmp_path: Path) -> None:
        report = write_report(results, tmp_path)
        pictures = ("first-token-by-turn", "evaluated-against-ideal", "bytes-against-conversations")
        for name in pictures:
            assert f"]({name}.svg)" in report.read_text()
            assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
            assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert load_results(tmp_path) == results
        plain = tmp_path / "results.json"
        (tmp_path / "results.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
        assert load_results(tmp_path) == results

    def test_tells_the_promises_from_what_was_measured(self, results: Results) -> None:
        found = {target.what: target for target in targets(results)}
        decode = found["decode, fresh: tokens a second, of llama-server's"]
        assert decode.measured == pytest.approx(1.05)
        assert decode.met
        bytes_in_ram = found["shared-system: bytes in RAM, of the distinct tokens'"]
        assert bytes_in_ram.measured == pytest.approx(24_000 / 23_040)
        assert any(what.startswith("cold-prompt, next turn, after a restart: first token") for what in found)
        text = markdown(results)
        assert f"{sum(t.met for t in found.values())} of {len(found)} kept" in text

    def test_marks_disturbed_runs_and_wrong_replies(self, results: Results) -> None:
        run = results.runs[0]
        other = dataclasses.replace(
            results,
            noise=0.5,
            runs=[
                dataclasses.replace(run, load=Load(10.0, 5.0, 1.0, 9.0)),
                dataclasses.replace(results.runs[1], counted=7),
                *results.runs[2:],
            ],
            judged=[
                Judgement("rotation", "onceread", "visit", 12, 100, 0.9),
                Judgement("rotation", "binding", "visit", 12, 100, 4.2),
            ],
        )
        text = markdown(other)
        assert f"{run.workload} on {run.peer}, pass 1, was disturbed: 9.0 CPU seconds" in text
        assert "were computed, its own counter 7" in text
        assert "own counter" not in markdown(results)
        assert "| rotation | 0.90 | – | **4.20 wrong** |" in text

    def test_does_without_what_a_server_does_not_tell(self, tmp_path: Path) -> None:
        found, _ = play(tmp_path, FakePeer("somewhere", tells=False), only=["chat-growth"], passes=1)
        assert "| somewhere |" in markdown(found)
        assert "· –" in markdown(found)


class TestComparing:
    def test_says_what_became_slower_and_that_it_is_another_version(
        self, results: Results, tmp_path: Path
    ) -> None:
        later, _ = play(tmp_path, FakePeer("onceread", slow=1.5), only=["chat-growth"])
        later.peers["onceread"]["version"] = "onceread 2.0"
        text = compared(results, later)
        assert "onceread: onceread 1.0 in A, onceread 2.0 in B" in text
        assert "| 1.50 | slower |" in text
        assert "| 0.67 | faster |" in compared(later, results)
        assert "slower" not in compared(results, results)

    def test_refuses_what_holds_no_results(self, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        with pytest.raises(ResultsUnreadable, match="No such file"):
            load_results(file)
        for text, why in (
            ("{}", "another format"),
            ("no json", "no results"),
            ('{"schema": 1}', "no results"),
        ):
            file.write_text(text)
            with pytest.raises(ResultsUnreadable, match=why):
                load_results(tmp_path)
        zipped = tmp_path / "some.json.gz"
        for content in (b"no gzip", gzip.compress(b"{}" * 99)[:-9]):
            zipped.write_bytes(content)
            with pytest.raises(ResultsUnreadable, match="no results"):
                load_results(zipped)


class TestTheTwin:
    def test_knows_the_longest_common_beginning_of_all_it_read(self) -> None:
        twin = Twin()
        twin.read((1, 2, 3, 4))
        twin.read((1, 2, 9))
        assert twin.distinct == 5
        assert twin.evaluated((1, 2, 9, 5, 6)) == 2
        assert twin.evaluated((1, 2, 3, 4)) == 1, "the last token is computed for its logits"
        assert twin.evaluated((7,)) == 1

    @pytest.mark.parametrize(
        ("a", "b", "n"), [((), (1,), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 2, 4, 3), 2)]
    )
    def test_common(self, a: tuple[int, ...], b: tuple[int, ...], n: int) -> None:
        assert common(a, b) == common(b, a) == n


def test_an_estimate_is_the_arithmetic_of_what_servers_remember() -> None:
    lines = estimated(load_workloads("small"), Measured(), 3).splitlines()  # type: ignore[arg-type]
    rows = {
        cells[1].strip(): [float(c.replace(",", "")) for c in cells[2:-1]]
        for cells in map(_cells, lines[5:-2])
    }
    assert set(rows) == {workload.name for workload in load_workloads("small")}
    for _requests, new, prompts, _written, remembers, last, nothing in rows.values():
        assert new < prompts
        assert remembers <= last <= nothing
    assert "minutes for one server" in lines[-1]


def _cells(line: str) -> list[str]:
    return line.split("|")


def test_quantiles_are_by_the_nearest_rank() -> None:
    values = [float(i) for i in range(1, 21)]
    assert (quantile(values, 0.5), quantile(values, 0.95), quantile(values[:3], 0.95)) == (10.0, 19.0, 3.0)
    assert quantile([], 0.5) is None


def test_a_machine_that_others_use_is_called_disturbed() -> None:
    assert not Load(10.0, 18.0, 1.0, 0.3).disturbed
    assert Load(10.0, 5.0, 1.0, 12.0 + 10).disturbed
