"""Models are found where other programs put them, under names that find them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.models.gguf_files import write_gguf

from onceread.models.catalog import record
from onceread.models.errors import ModelAmbiguous, ModelUnknown
from onceread.models.places import Found, at_path, find_all, hugging_face_cache
from onceread.models.resolve import looks_like_path, resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and no variable that leads out of it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "ONCEREAD_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / ".local" / "share"))
    monkeypatch.setattr("onceread.models.places._OLLAMA_SYSTEM", tmp_path / "no-ollama")
    return home


def hub_model(home: Path, repo: str, file: str, *, commit: str = "a" * 40, main: bool = True) -> Path:
    """As the hub's client lays it out: a blob, and a link by its name."""
    folder = home / ".cache" / "huggingface" / "hub" / f"models--{repo.replace('/', '--')}"
    blob = write_gguf(folder / "blobs" / f"{abs(hash((file, commit))):x}")
    link = folder / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return link


def ollama_model(home: Path, *manifest: str, digest: str = "ab" * 32) -> Path:
    models = home / ".ollama" / "models"
    blob = write_gguf(models / "blobs" / f"sha256-{digest}")
    file = models / "manifests" / Path(*manifest)
    file.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 1},
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:cd", "size": 1},
    ]
    file.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def names(*folders: Path) -> dict[str, str]:
    return {one.name: one.place for one in find_all(folders)}


def test_an_empty_machine(home: Path) -> None:
    assert names() == {}


def test_hugging_face(home: Path) -> None:
    link = hub_model(home, "org/repo", "m-Q4_K_M.gguf")
    hub_model(home, "org/repo", "sub/m-Q8_0.gguf")
    hub_model(home, "org/repo", "mmproj-F16.gguf")
    assert names() == {"org/repo:Q4_K_M": "Hugging Face", "org/repo:Q8_0": "Hugging Face"}
    assert resolve("org/repo:Q4_K_M").path == link
    assert resolve("ORG/Repo:q4_k_m").path == link
    assert resolve("org/repo/m-Q4_K_M.gguf").path == link


@pytest.mark.parametrize(
    ("variable", "value", "folder"),
    [
        ("HF_HUB_CACHE", "/a", "/a"),
        ("HUGGINGFACE_HUB_CACHE", "/b", "/b"),
        ("HF_HOME", "/c", "/c/hub"),
        ("XDG_CACHE_HOME", "/d", "/d/huggingface/hub"),
    ],
)
def test_the_hubs_cache_is_where_its_variables_say(variable: str, value: str, folder: str) -> None:
    assert hugging_face_cache({variable: value}) == Path(folder)


def test_of_two_revisions_the_main_one(home: Path) -> None:
    main = hub_model(home, "org/repo", "m-Q8_0.gguf", commit="b" * 40)
    hub_model(home, "org/repo", "m-Q8_0.gguf", commit="f" * 40, main=False)
    assert [one.path for one in find_all()] == [main]


def test_a_link_to_nowhere_is_no_model(home: Path) -> None:
    link = hub_model(home, "org/repo", "m-Q8_0.gguf")
    link.resolve().unlink()
    assert names() == {}


def test_two_files_of_one_quantization_have_names_of_their_own(home: Path) -> None:
    a = hub_model(home, "org/repo", "a-Q8_0.gguf")
    hub_model(home, "org/repo", "b-Q8_0.gguf")
    assert set(names()) == {"org/repo:a-Q8_0.gguf", "org/repo:b-Q8_0.gguf"}
    assert resolve("org/repo:a-Q8_0.gguf").path == a
    with pytest.raises(ModelAmbiguous, match=r"name the file, as org/repo:a-Q8_0\.gguf"):
        resolve("org/repo:Q8_0")


def test_lm_studio_of_today_and_before_and_where_its_settings_say(home: Path, tmp_path: Path) -> None:
    write_gguf(home / ".lmstudio" / "models" / "org" / "new" / "m-Q4_0.gguf")
    write_gguf(home / ".cache" / "lm-studio" / "models" / "org" / "old" / "m-Q4_0.gguf")
    write_gguf(tmp_path / "chosen" / "org" / "other" / "m-Q4_0.gguf")
    (home / ".lmstudio" / "settings.json").write_text(
        json.dumps({"downloadsFolder": str(tmp_path / "chosen")})
    )
    assert names() == dict.fromkeys(("org/new:Q4_0", "org/old:Q4_0", "org/other:Q4_0"), "LM Studio")


def test_ollama(home: Path) -> None:
    blob = ollama_model(home, "registry.ollama.ai", "library", "llama3.2", "3b")
    ollama_model(home, "registry.ollama.ai", "me", "mine", "latest", digest="cd" * 32)
    ollama_model(home, "hf.co", "org", "repo", "Q4_K_M", digest="ef" * 32)
    assert set(names()) == {"llama3.2:3b", "me/mine:latest", "hf.co/org/repo:Q4_K_M"}
    assert resolve("llama3.2:3b").path == blob
    assert resolve("me/mine").name == "me/mine:latest"
    assert resolve("hf.co/org/repo:Q4_K_M").place == "Ollama"


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "[]",
        '{"layers": 3}',
        '{"layers": [{}]}',
        "{",
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}',
    ],
)
def test_a_broken_manifest_is_left_out(home: Path, manifest: str) -> None:
    ollama_model(home, "registry.ollama.ai", "library", "good", "1")
    file = home / ".ollama/models/manifests/registry.ollama.ai/library/bad/1"
    file.parent.mkdir()
    file.write_text(manifest)
    assert set(names()) == {"good:1"}


def test_our_own_folder_and_given_ones(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write_gguf(home / ".local/share/onceread/models/mine.gguf")
    given = write_gguf(tmp_path / "given" / "deep" / "m.gguf")
    always = write_gguf(tmp_path / "always" / "n.gguf")
    monkeypatch.setenv("ONCEREAD_MODELS", f"{tmp_path / 'always'}:{tmp_path / 'missing'}")
    assert names(tmp_path / "given") == {
        str(given): str(tmp_path / "given"),
        str(always): str(tmp_path / "always"),
        "mine": "Onceread",
    }
    assert resolve("mine").path == own


def test_a_file_in_two_places_is_told_once(home: Path, tmp_path: Path) -> None:
    link = hub_model(home, "org/repo", "m-Q8_0.gguf")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "m.gguf").symlink_to(link)
    assert len(names(tmp_path / "more")) == 1


def test_what_is_not_here_is_not_downloaded(home: Path) -> None:
    hub_model(home, "org/repo", "m-Q8_0.gguf")
    with pytest.raises(ModelUnknown, match=r"org/repo has no Q4_0; there are: Q8_0"):
        resolve("org/repo:Q4_0")
    with pytest.raises(ModelUnknown, match=r"onceread models pull org/other:Q4_0"):
        resolve("org/other:Q4_0")
    with pytest.raises(ModelUnknown, match=r"no model 'lama'"):
        resolve("lama")


def test_a_split_model_is_one_and_must_be_whole(home: Path) -> None:
    first = hub_model(home, "org/repo", "m-Q8_0-00001-of-00002.gguf")
    with pytest.raises(ModelUnknown, match=r"1 of its 2 files are here"):
        resolve("org/repo:Q8_0")
    hub_model(home, "org/repo", "m-Q8_0-00002-of-00002.gguf")
    assert resolve("org/repo:Q8_0").path == first
    assert at_path(first).is_whole
    assert len(at_path(first).paths) == 2


@pytest.mark.parametrize("text", ["./m", "/m", "~/m", "m.gguf", "sub/m.gguf"])
def test_what_can_only_be_a_path(text: str) -> None:
    assert looks_like_path(text)


@pytest.mark.parametrize("text", ["org/repo:Q4", "llama3.2:3b", "mine", "org/repo/m.gguf"])
def test_what_may_be_a_name(text: str) -> None:
    assert not looks_like_path(text)


class TestRecords:
    def test_say_what_a_model_is(self, tmp_path: Path) -> None:
        one = record(at_path(write_gguf(tmp_path / "m.gguf", "qwen2", file_type=1, words=10)))
        assert (one.architecture, one.title, one.quantization) == ("qwen2", "Tiny", "F16")
        assert (one.context_length, one.vocabulary, one.parameters) == (2048, 10, 16 * 64 + 64)
        assert one.size_bytes == (tmp_path / "m.gguf").stat().st_size
        assert one.problem is None
        assert list(one.tensor_types or {}) == ["F16", "F32"]

    def test_go_by_the_tensors_where_the_file_type_is_wrong_or_missing(self, tmp_path: Path) -> None:
        assert record(at_path(write_gguf(tmp_path / "a.gguf", file_type=15))).quantization == "F16"
        assert record(at_path(write_gguf(tmp_path / "b.gguf"))).quantization == "F16"

    def test_need_the_weights_and_the_state(self, tmp_path: Path) -> None:
        one = record(at_path(write_gguf(tmp_path / "m.gguf", attention__head_count_kv=2)))
        per_token = (
            2 * 2 * (16 + 16) * 2 + 12
        )  # layers, heads, keys and values, f16; and what a cell has beside
        assert one.needed_bytes(1000) == one.size_bytes + 1000 * per_token

    def test_say_what_is_wrong(self, tmp_path: Path) -> None:
        torn = write_gguf(tmp_path / "torn.gguf")
        torn.write_bytes(torn.read_bytes()[:-1000])
        assert "torn" in str(record(at_path(torn)).problem)
        (tmp_path / "no.gguf").write_bytes(b"hello")
        assert "not a GGUF" in str(record(at_path(tmp_path / "no.gguf")).problem)
        gone = record(Found("gone", "x", (tmp_path / "gone.gguf",)))
        assert "No such file" in str(gone.problem)
        half = record(at_path(write_gguf(tmp_path / "m-00001-of-00003.gguf")))
        assert half.problem == "1 of 3 files are here"

    @pytest.mark.parametrize("layers", [0, 513, 2**32 - 1])
    def test_a_claim_of_layers_that_no_model_has(self, tmp_path: Path, layers: int) -> None:
        one = record(at_path(write_gguf(tmp_path / "m.gguf", block_count=layers)))
        assert f"claims to have {layers:,} layers" in str(one.problem)

    def test_a_hybrid_that_says_no_interval(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", "qwen35", ssm__conv_kernel=4, full_attention_interval=0)
        assert "0th layer" in str(record(at_path(path)).problem)


def test_what_other_programs_left_that_can_t_be_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEREAD_MODELS", "~nobody-has-this-name/models")
    (home / ".lmstudio-home-pointer").write_text("/a\0b")
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/m/long"
    manifest.parent.mkdir(parents=True)
    kind = "application/vnd.ollama.image.model"
    manifest.write_text(json.dumps({"layers": [{"mediaType": kind, "digest": "sha256:" + "a" * 5000}]}))
    manifest.with_name("deep").write_text("[" * 100_000)
    assert find_all() == []
