"""`pull` against a look-alike of the hub that cuts connections, sends wrong bytes, and refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models import hub_server as hub_server_module
from tests.models.hub_server import Behaviour, hub_server, sha256

from onceread.models import download
from onceread.models.errors import ChecksumWrong, DiskTooSmall, ModelAmbiguous, ModelUnknown, PullFailed
from onceread.models.hub import Hub
from onceread.models.pull import Pulled, pull

_random = random.Random(20240229)
SMALL = _random.randbytes(300_000)
FIRST, SECOND = _random.randbytes(500_000), _random.randbytes(200_000)
REPO = {
    "m-Q4_K_M.gguf": SMALL,
    "m-Q8_0-00001-of-00002.gguf": FIRST,
    "m-Q8_0-00002-of-00002.gguf": SECOND,
    "mmproj-F16.gguf": b"image",
    "m-Q2_K-00001-of-00002.gguf": b"only a half",
}


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(repos={"org/repo": REPO})


@pytest.fixture
def endpoint(behaviour: Behaviour) -> Iterator[str]:
    with hub_server(behaviour) as url:
        yield url


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token of the developer's, and no waiting between attempts."""
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("onceread.models.download._PAUSE", 0.0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def get(text: str, endpoint: str, cache: Path, **options: Any) -> Pulled:
    return pull(text, hub=Hub(endpoint), cache=cache, **options)


def parts(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.incomplete"))


def test_a_model_comes_whole_and_where_other_programs_look(
    endpoint: str, cache: Path, behaviour: Behaviour
) -> None:
    from huggingface_hub import hf_hub_download

    done = get("org/repo:q4_k_m", endpoint, cache)
    assert done.name == "org/repo:Q4_K_M"
    assert (done.size_bytes, done.downloaded_bytes) == (len(SMALL), len(SMALL))
    assert done.paths[0].read_bytes() == SMALL
    assert done.paths[0].name == "m-Q4_K_M.gguf"
    assert done.paths[0].resolve().name == sha256(SMALL)
    found = hf_hub_download("org/repo", "m-Q4_K_M.gguf", cache_dir=cache, local_files_only=True)
    assert Path(found) == done.paths[0]
    assert len(behaviour.bodies()) == 1
    assert not parts(cache)


def test_a_split_model_comes_with_all_its_files(endpoint: str, cache: Path) -> None:
    done = get("org/repo:Q8_0", endpoint, cache)
    assert [path.read_bytes() for path in done.paths] == [FIRST, SECOND]
    assert done.paths[0].parent == done.paths[1].parent


def test_what_is_here_is_verified_and_not_downloaded(
    endpoint: str, cache: Path, behaviour: Behaviour
) -> None:
    get("org/repo:Q4_K_M", endpoint, cache)
    steps = []
    again = get("org/repo:Q4_K_M", endpoint, cache, progress=lambda _, doing, *__: steps.append(doing))
    assert again.downloaded_bytes == 0
    assert set(steps) == {"verifying"}
    assert len(behaviour.bodies()) == 1


def test_a_file_damaged_since_is_downloaded_again(endpoint: str, cache: Path) -> None:
    blob = get("org/repo:Q4_K_M", endpoint, cache).paths[0].resolve()
    blob.write_bytes(bytes(len(SMALL)))
    again = get("org/repo:Q4_K_M", endpoint, cache)
    assert again.paths[0].read_bytes() == SMALL


def test_a_cut_connection_is_taken_up_again(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.cuts = [200_000, 0, 50_000]
    assert get("org/repo:Q4_K_M", endpoint, cache).paths[0].read_bytes() == SMALL
    ranges = [one.range for one in behaviour.bodies()]
    assert ranges[0] is None
    assert len(ranges) == 4
    starts = [int(one.removeprefix("bytes=").rstrip("-")) for one in ranges[1:] if one]
    assert 0 < starts[0] <= 200_000
    assert starts[0] <= starts[1] < starts[2]  # nothing is read twice


def test_another_call_goes_on_where_the_last_one_was_stopped(
    endpoint: str, cache: Path, behaviour: Behaviour
) -> None:
    def stop(_: object, doing: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("org/repo:Q4_K_M", endpoint, cache, progress=stop)
    (part,) = parts(cache)
    have = part.stat().st_size
    assert have > len(SMALL) // 2
    done = get("org/repo:Q4_K_M", endpoint, cache)
    assert done.paths[0].read_bytes() == SMALL
    assert done.downloaded_bytes == len(SMALL) - have
    assert behaviour.bodies()[-1].range == f"bytes={have}-"


def test_a_hub_that_goes_silent_leaves_the_part(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.cuts = [100_000] + [0] * 20
    with pytest.raises(PullFailed, match="what was downloaded is kept"):
        get("org/repo:Q4_K_M", endpoint, cache)
    (part,) = parts(cache)
    assert 0 < part.stat().st_size <= 100_000
    behaviour.cuts = []
    assert get("org/repo:Q4_K_M", endpoint, cache).paths[0].read_bytes() == SMALL


def test_a_server_that_is_busy_is_asked_again(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.refuse = [503, 429, 500]
    assert get("org/repo:Q4_K_M", endpoint, cache).paths[0].read_bytes() == SMALL


def test_a_server_without_ranges_sends_it_all_again(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.knows_ranges = False
    behaviour.cuts = [200_000]
    assert get("org/repo:Q4_K_M", endpoint, cache).paths[0].read_bytes() == SMALL


def test_wrong_bytes_are_not_kept(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.serve_instead = {"m-Q4_K_M.gguf": bytes(len(SMALL))}
    with pytest.raises(ChecksumWrong, match=r"m-Q4_K_M\.gguf is not what the hub says it is"):
        get("org/repo:Q4_K_M", endpoint, cache)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_more_bytes_than_announced_are_not_taken(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.serve_instead = {"m-Q4_K_M.gguf": SMALL + bytes(500_000)}
    with pytest.raises(PullFailed, match="more came than the 300,000 bytes"):
        get("org/repo:Q4_K_M", endpoint, cache)


def test_the_token_goes_to_the_hub_and_not_to_where_it_sends_us(
    endpoint: str, cache: Path, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get("org/repo:Q4_K_M", endpoint, cache)
    assert {one.authorization for one in behaviour.requests if one.host == "hub"} == {"Bearer hf_secret"}
    assert {one.authorization for one in behaviour.requests if one.host == "cdn"} == {None}


def test_a_private_repository(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.token = "hf_secret"
    with pytest.raises(ModelUnknown, match=r"or it is private: check the name, or give a token in HF_TOKEN"):
        get("org/repo:Q4_K_M", endpoint, cache)


def test_a_gated_repository(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.token, behaviour.gated = "hf_secret", True
    with pytest.raises(PullFailed, match=r"org/repo is gated: accept its terms at http"):
        get("org/repo:Q4_K_M", endpoint, cache)


def test_a_repository_that_is_not_there(endpoint: str, cache: Path) -> None:
    with pytest.raises(ModelUnknown, match="there is no org/nothing at http"):
        get("org/nothing:Q4_K_M", endpoint, cache)


def test_a_file_that_is_gone(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.refuse = [404]
    with pytest.raises(ModelUnknown, match="does not have"):
        get("org/repo:Q4_K_M", endpoint, cache)


def test_no_hub_at_all(cache: Path) -> None:
    with pytest.raises(PullFailed, match=r"http://127\.0\.0\.1:9 can't be reached"):
        get("org/repo:Q4_K_M", "http://127.0.0.1:9", cache)


def test_what_there_is_is_listed(endpoint: str, cache: Path) -> None:
    with pytest.raises(ModelUnknown, match="org/repo has no Q5_0; there are: Q2_K, Q4_K_M, Q8_0"):
        get("org/repo:Q5_0", endpoint, cache)
    with pytest.raises(ModelAmbiguous, match="org/repo has several models; say which, as org/repo:Q4_K_M"):
        get("org/repo", endpoint, cache)
    with pytest.raises(ModelUnknown, match="names no repository: write org/repo:quant"):
        get("llama", endpoint, cache)
    with pytest.raises(PullFailed, match="has only 1 of the 2 files"):
        get("org/repo:Q2_K", endpoint, cache)


def test_a_disk_that_is_too_small_is_told_before_anything_is_downloaded(
    endpoint: str, cache: Path, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 64 * 2**20 + 100_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(DiskTooSmall, match=r"org/repo:Q4_K_M takes .* more and 0\.06 GiB are free"):
        get("org/repo:Q4_K_M", endpoint, cache)
    assert not behaviour.bodies()


def test_two_at_a_time_don_t_write_into_one_file(endpoint: str, cache: Path) -> None:
    blob = cache / "models--org--repo" / "blobs" / sha256(SMALL)
    blob.parent.mkdir(parents=True)
    with download.part_of(blob).open("ab") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PullFailed, match="another process is downloading"):
            get("org/repo:Q4_K_M", endpoint, cache)


def test_a_name_that_climbs_out_is_not_offered(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.repos["org/evil"] = {"../../../evil-Q4_0.gguf": b"x", "/tmp/evil-Q4_0.gguf": b"x"}
    with pytest.raises(ModelUnknown, match="has no GGUF model"):
        get("org/evil:Q4_0", endpoint, cache)


def test_progress_ends_at_the_whole(endpoint: str, cache: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    get(
        "org/repo:Q4_K_M",
        endpoint,
        cache,
        progress=lambda _, doing, done, total: steps.append((doing, done, total)),
    )
    read = [done for doing, done, _ in steps if doing == "downloading"]
    assert read == sorted(read)
    assert read[-1] == len(SMALL)
    assert steps[-1] == ("verifying", len(SMALL), len(SMALL))


@pytest.mark.parametrize(
    "said",
    [
        {"sha256": "../../../precious"},  # it names a file on the disk, and what is there would be replaced
        {"sha256": None},
        {"size": -1},
        {"size": "5"},
    ],
)
def test_a_hub_that_says_nonsense_of_a_file(
    endpoint: str, cache: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    precious = cache.parent / "precious"
    precious.write_text("mine")
    about = hub_server_module._Handler._about

    def lying(handler: Any, name: str, repo: dict[str, bytes]) -> dict[str, Any]:
        answer = about(handler, name, repo)
        answer["siblings"][1]["lfs"] |= said
        return answer

    monkeypatch.setattr(hub_server_module._Handler, "_about", lying)
    with pytest.raises(PullFailed, match="does not answer about org/repo as the hub does"):
        get("org/repo:Q4_K_M", endpoint, cache)
    assert precious.read_text() == "mine"


def test_a_commit_that_climbs_out(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.commit = "../../../../evil"
    with pytest.raises(PullFailed, match="says nonsense"):
        get("org/repo:Q4_K_M", endpoint, cache)


def test_an_etag_that_climbs_out(endpoint: str, cache: Path, behaviour: Behaviour) -> None:
    behaviour.etag = "../../../owned"
    with pytest.raises(PullFailed, match="says nonsense"):
        get("org/repo:Q4_K_M", endpoint, cache)
    assert not list(cache.parent.glob("**/owned"))
