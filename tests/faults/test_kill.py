"""kill -9 at random moments: what had been said to be written is found, whole, by whoever comes after."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.cache.stores import END, make_store, recall, remember

from onceread.cache.disk import DiskTier

THREADS = 3


def conversation(seed: int) -> np.ndarray:
    """Some share beginnings, and part in the middle of a chunk."""
    rng = np.random.default_rng(seed)
    system = np.random.default_rng(seed % 5).integers(10, 1000, 150)[: rng.integers(60, 150)]
    parts = [system, *(np.append(rng.integers(10, 1000, rng.integers(20, 120)), END) for _ in range(5))]
    return np.concatenate(parts).astype(np.int32)


def child(directory: str, budget: int, seed: int) -> None:
    """Remembers conversations turn by turn as fast as it can, and says what is written: a line each."""
    store = make_store(memory=200_000, directory=Path(directory), disk=budget)
    out = threading.Lock()

    def work(mine: int) -> None:
        rng = random.Random(f"{seed} {mine}")
        while True:
            number = rng.randrange(1 << 20)
            path = conversation(number)
            ends = sorted({*rng.sample(range(1, len(path)), 2), len(path)})
            kept = all(remember(store, path[:end]) for end in ends)
            store.use("n", path, text=True)
            if kept and store.wait_written(60) and written(store, path):
                with out:
                    print(json.dumps([number, len(path)]), flush=True)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
    print("begun", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def written(store, path: np.ndarray) -> bool:
    """Does all of it lie on disk now?"""
    with store._lock:
        match = store.match("n", path)
        return match.length == len(path) and all(part.chunk.file_bytes for part in match.parts)


def run_and_kill(directory: Path, budget: int, seed: int, after: int, moment: float) -> list[tuple[int, int]]:
    """What the child said until it was killed: ``moment`` seconds after its line number ``after``."""
    code = f"from tests.faults.test_kill import child; child({str(directory)!r}, {budget}, {seed})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        said = [tuple(json.loads(process.stdout.readline())) for _ in range(after)]
        threading.Event().wait(moment)
        process.kill()
        # The last line may be cut off.
        said += [tuple(json.loads(line)) for line in process.stdout if line.endswith("]\n")]
    return said


@pytest.mark.soak
def test_whatever_was_said_to_be_written_is_found_after_a_kill(
    tmp_path: Path, soak_scale: float, soak_seed: int, record_property
) -> None:
    rounds = 8 if soak_scale < 1 else 100
    rng = random.Random(soak_seed)
    said: list[tuple[int, int]] = []
    for number in range(rounds):
        said += run_and_kill(tmp_path, 1 << 30, number, rng.randrange(4), rng.random() * 0.15)
        admin = DiskTier.admin(tmp_path)
        assert [finding.problem for finding in admin.verify()] == []
        admin.close()
        store = make_store(directory=tmp_path)
        assert not list(tmp_path.glob("v1/tmp/*.part")), "what was begun is tidied away"
        # All of the last rounds, and some of those before.
        for seed, length in said[-30:] + rng.sample(said, min(len(said), 20)):
            assert recall(store, conversation(seed)) == length
        store.close()
    record_property("conversations", len(said))
    assert len(said) >= 2 * rounds


@pytest.mark.soak
def test_a_kill_in_the_middle_of_evictions_leaves_nothing_wrong_and_the_budget_kept(
    tmp_path: Path, soak_scale: float, soak_seed: int
) -> None:
    budget = 60 * 4096
    rng = random.Random(soak_seed)
    found = 0
    for number in range(2 if soak_scale < 1 else 20):
        said = run_and_kill(tmp_path, budget, number, 5 + rng.randrange(10), rng.random() * 0.05)
        admin = DiskTier.admin(tmp_path)
        assert [finding.problem for finding in admin.verify()] == []
        admin.close()
        store = make_store(directory=tmp_path, disk=budget)
        found += sum(recall(store, conversation(seed)) for seed, _ in said)  # every byte is looked at
        store.close()
        lies = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("v1/chunks/*/*"))
        assert 0 < lies <= budget
    assert found > 0


# -- the same with a server and a model ------------------------------------------


class Server:
    """`onceread serve` over a cache directory, in a process of its own."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "onceread", "serve", "--port", "0", "--ctx-size", "4096"]
        command += ["--cache-dir", str(directory), "--resident-cells", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if "Ready after" in line:
                break
        address = re.search(r"http://\S+", said)
        assert address, said
        self.client = httpx.Client(base_url=address[0], timeout=60)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate()

    def ask(self, prompt: str) -> tuple[int, int]:
        """The tokens of a prompt, and how many of them were known."""
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0}
        usage = self.client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def written(self, prompts: dict[str, int]) -> set[str]:
        """Which of these prompts, with their tokens, the server shows as lying on disk."""
        paths = self.client.get("/cache/tree", params={"limit": 100}).raise_for_status().json()["paths"]
        return {
            prompt
            for prompt, n in prompts.items()
            for path in paths
            if prompt[-20:] in path["tail"] and "disk" in path["tiers"] and path["tokens"] >= n - 1
        }


def prompt_of(round_: int, number: int) -> str:
    rng = random.Random(f"{round_} {number}")
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(80, 250)))
    return f"Night {100 * round_ + number}: {words}. This is tale {100 * round_ + number + 10_000}."


WORDS = (
    "lamp",
    "oil",
    "tower",
    "island",
    "keeper",
    "rock",
    "night",
    "wave",
    "sailor",
    "storm",
    "bell",
    "glass",
)


@pytest.mark.model
@pytest.mark.soak
def test_a_server_that_is_killed_under_load_knows_again_all_that_it_showed_as_written(
    tmp_path: Path, soak_scale: float, soak_seed: int
) -> None:
    rng = random.Random(soak_seed)
    server = Server(tmp_path)
    shown = 0
    for round_ in range(2 if soak_scale < 1 else 20):
        asked: dict[str, int] = {}

        def load(server: Server = server, asked: dict[str, int] = asked, round_: int = round_) -> None:
            with suppress(httpx.HTTPError):  # it is killed under this
                for number in range(90):
                    prompt = prompt_of(round_, number)
                    n, _ = server.ask(prompt)
                    asked[prompt] = n

        client = threading.Thread(target=load)
        client.start()
        written: set[str] = set()
        end = time.monotonic() + 60
        wanted = rng.randrange(3, 8)
        while len(written) < wanted:
            assert time.monotonic() < end, f"{len(written)} of {len(asked)} prompts are written"
            written |= server.written(dict(asked))
        server.process.kill()
        client.join()
        server.kill()
        server = Server(tmp_path)
        for prompt in sorted(written):
            n, cached = server.ask(prompt)
            assert cached == n - 1, "all but the last token, which is evaluated for its logits"
        shown += len(written)
    server.kill()
    admin = DiskTier.admin(tmp_path)
    assert [finding.problem for finding in admin.verify()] == []
    admin.close()
    assert shown >= 6
