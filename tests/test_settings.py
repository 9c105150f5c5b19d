"""Settings: which source wins, what is refused and how that is said; docs/configuration.md is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceread.server.setting_values import ApiKey, is_loopback
from onceread.server.settings import (
    Settings,
    SettingsError,
    default_config_path,
    field_meta,
    load_settings,
)

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return write


def refused(flags: dict[str, object] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, config=config)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestWhichSourceWins:
    def test_defaults(self) -> None:
        settings = load_settings()
        assert (settings.host, settings.port, settings.parallel, settings.batch_size) == (
            "127.0.0.1",
            8000,
            4,
            512,
        )
        assert settings.model is None
        assert settings.ctx_size is None
        assert settings.max_body_bytes == 16 * 2**20
        assert settings.keep_alive >= 75
        assert settings.cache_dir.name == "onceread"

    def test_flag_over_environment_over_file(self, toml, monkeypatch: pytest.MonkeyPatch) -> None:
        config = toml("port = 1001\nparallel = 2\nqueue_limit = 7\n")
        monkeypatch.setenv("ONCEREAD_PORT", "1002")
        monkeypatch.setenv("ONCEREAD_PARALLEL", "3")
        settings = load_settings({"port": "1003", "parallel": None}, config=config)
        assert (settings.port, settings.parallel, settings.queue_limit) == (1003, 3, 7)

    def test_the_usual_file_is_read_if_it_exists(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / name)
        assert load_settings().port == 8000
        default_config_path().parent.mkdir(parents=True)
        default_config_path().write_text("port = 1234\n")
        assert load_settings().port == 1234

    def test_the_file_may_be_named_by_the_environment(self, toml, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_CONFIG", str(toml("port = 4321\n")))
        assert load_settings().port == 4321

    def test_an_empty_variable_counts_as_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_PORT", "")
        monkeypatch.setenv("ONCEREAD_API_KEYS", "")
        assert load_settings().port == 8000
        assert load_settings().api_keys == ()

    def test_paths_in_the_file_are_relative_to_it(self, toml, tmp_path: Path) -> None:
        (tmp_path / "own.jinja").write_text("")
        settings = load_settings(
            config=toml('model = "m.gguf"\ncache_dir = "/c"\nchat_template = "own.jinja"\n')
        )
        assert settings.model == tmp_path / "m.gguf"
        assert settings.cache_dir == Path("/c")
        assert settings.chat_template == str(tmp_path / "own.jinja")

    def test_a_template_name_in_the_file_stays_a_name(self, toml) -> None:
        assert load_settings(config=toml('chat_template = "chatml"\n')).chat_template == "chatml"

    def test_so_does_a_template_that_is_written_out(self, toml) -> None:
        source = "{% for m in messages %}" + "{{ m.content }}" * 400 + "{% endfor %}"
        assert load_settings(config=toml(f"chat_template = '{source}'\n")).chat_template == source


class TestKeys:
    def test_by_flag_repeated(self) -> None:
        keys = load_settings({"api_keys": ["ann=s3cret", "just-a-secret"]}).api_keys
        assert [(key.name, key.secret.get_secret_value()) for key in keys] == [
            ("ann", "s3cret"),
            ("default", "just-a-secret"),
        ]

    def test_by_environment_with_commas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_API_KEYS", "ann=one, bob=two=2,")
        keys = load_settings().api_keys
        assert [(key.name, key.secret.get_secret_value()) for key in keys] == [
            ("ann", "one"),
            ("bob", "two=2"),
        ]

    def test_by_file(self, toml) -> None:
        assert [key.name for key in load_settings(config=toml('api_keys = ["ann=one"]\n')).api_keys] == [
            "ann"
        ]

    @pytest.mark.parametrize(
        "text",
        ["ann=", "=hunter2", "a b=hunter2", "ann=hunter2\n", "===", "ann=hünter2", "x" * 65 + "=hunter2"],
    )
    def test_a_malformed_key_is_refused_and_not_repeated(self, text: str) -> None:
        if text.endswith("\n"):
            text = "ann=hun\nter2"
        message = refused({"api_keys": [text]})
        assert message.startswith("--api-key: ")
        assert "hunter2" not in message
        assert "ter2" not in message

    def test_two_names_may_not_share_a_secret(self) -> None:
        assert "same secret" in refused({"api_keys": ["ann=one", "bob=one"]})

    def test_secrets_are_in_no_representation(self) -> None:
        settings = load_settings({"api_keys": ["ann=hunter2"], "admin_key": "hunter3"})
        for text in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
            assert "hunter" not in text
        assert "hunter" not in repr(ApiKey.parse("ann=hunter2"))


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("port", "http", "--port: must be a whole number, not 'http'"),
            ("port", "70000", "--port: must be less than or equal to 65535, not '70000'"),
            ("parallel", "0", "--parallel: must be greater than or equal to 1, not '0'"),
            ("cache_type_k", "q9", "--cache-type-k: must be 'f32', 'f16'"),
            ("flash_attn", "maybe", "--flash-attn: must be 'auto', 'on' or 'off', not 'maybe'"),
            ("max_body_bytes", "big", "--max-body-bytes: must be a size such as 16MiB"),
            ("cors_origins", ["example"], "--cors-origin: must be an origin such as http://localhost:3000"),
            ("host", "a b", "--host: must be a host name or an IP address"),
            ("host", "", "--host: must be a host name or an IP address"),
            ("keep_alive", "inf", "--keep-alive: must be a finite number"),
            ("admin_key", "", "--admin-key: must not be empty"),
            ("model_name", "", "--model-name: must not be empty"),
            ("admin_key", "pässword", "--admin-key: must be printable ASCII characters"),
            ("admin_key", " secret", "--admin-key: must be printable ASCII characters"),
            ("resident_cells", "-1", "--resident-cells: must be greater than or equal to 0, not '-1'"),
            (
                "cache_ram",
                "63MiB",
                "--cache-ram: must be at least 64MiB (it also holds what waits to be written",
            ),
            ("cache_ram", "9" * 400, "--cache-ram: must be a size such as 16MiB"),
            ("cache_ram", "0", "cache_ram 0 needs no_disk_cache: what is written to disk waits in RAM; give"),
            ("cache_disk", "255MiB", "--cache-disk: must be at least 256MiB, not '255MiB'"),
            ("cache_disk", "0", "--cache-disk: must be at least 256MiB, not '0'"),
        ],
    )
    def test_by_flag(self, name: str, value: object, says: str) -> None:
        assert refused({name: value}).startswith(says)

    def test_by_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_QUEUE_LIMIT", "many")
        assert refused() == "ONCEREAD_QUEUE_LIMIT: must be a whole number, not 'many'"

    def test_by_file(self, toml) -> None:
        config = toml("batch_size = 1\n")
        assert (
            refused(config=config) == f"'batch_size' in {config}: must be greater than or equal to 32, not 1"
        )

    def test_an_unknown_key_with_a_guess(self, toml) -> None:
        config = toml("ctx-size = 4096\n")
        assert refused(config=config) == f"unknown key 'ctx-size' in {config}; did you mean 'ctx_size'?"

    def test_a_file_that_is_no_toml(self, toml) -> None:
        assert "is not valid TOML" in refused(config=toml("port 8000"))

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
        assert "not UTF-8" in refused(config=tmp_path / "c.toml")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert (
            refused(config=tmp_path / "none.toml")
            == f"there is no configuration file {tmp_path / 'none.toml'}"
        )

    def test_a_quantized_value_cache_without_flash_attention(self) -> None:
        assert "needs flash attention" in refused({"cache_type_v": "q8_0", "flash_attn": "off"})

    @pytest.mark.parametrize(
        "other", [{"flash_attn": "on"}, {"cache_type_v": "q8_0"}, {"gpu_layers": "4"}], ids=str
    )
    def test_exact_mode_with_what_it_excludes(self, other: dict[str, str]) -> None:
        assert "exact" in refused({"exact": True} | other)


class TestWhoMayBind:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    def test_loopback_needs_no_key(self, host: str) -> None:
        assert is_loopback(host)
        assert load_settings({"host": host}).host == host

    @pytest.mark.parametrize(
        "host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", "127.1"]
    )
    def test_anything_else_does(self, host: str) -> None:
        assert "--api-key" in refused({"host": host})
        assert load_settings({"host": host, "api_keys": ["a=b"]}).host == host
        assert load_settings({"host": host, "allow_open": True}).host == host

    def test_an_admin_key_alone_is_not_enough(self) -> None:
        assert "--api-key" in refused({"host": "0.0.0.0", "admin_key": "x"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2048", 2048),
        ("2k", 2000),
        ("2KiB", 2048),
        ("1.5 MiB", 3 * 2**19),
        ("16MB", 16_000_000),
        ("1g", 10**9),
        ("0.5 TiB", 2**39),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert load_settings({"max_body_bytes": text}).max_body_bytes == size


class TestTheCachesSizes:
    def test_are_left_to_the_machine(self) -> None:
        settings = load_settings()
        assert (settings.cache_ram, settings.cache_disk, settings.resident_cells) == (None, None, 2048)

    def test_from_all_sources(self, toml, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONCEREAD_CACHE_DISK", "1TiB")
        settings = load_settings(
            {"cache_ram": "64MiB"}, config=toml('resident_cells = 0\ncache_disk = "2GiB"')
        )
        assert (settings.cache_ram, settings.cache_disk, settings.resident_cells) == (2**26, 2**40, 0)

    def test_none_at_all(self) -> None:
        assert load_settings({"cache_ram": "0", "no_disk_cache": True}).cache_ram == 0


def test_the_admin_key_is_nobody_elses() -> None:
    message = refused({"api_keys": ["ann=hunter2"], "admin_key": "hunter2"})
    assert message == "admin_key is also the secret of an API key: give it one of its own"


def test_keywords_do_without_a_file() -> None:
    settings = Settings(port=1, max_tokens_limit=5)
    assert (settings.port, settings.max_tokens_limit) == (1, 5)


def table_rows() -> list[str]:
    """docs/configuration.md's table as it should be: `python -m tests.test_settings` prints it."""
    rows = []
    for name, field in Settings.model_fields.items():
        _, flag, metavar, text = field_meta(name)
        default = field.default
        if name == "cache_dir":
            shown = "the user's cache folder"
        elif name in ("max_body_bytes", "responses_size"):
            shown = f"{default // 2**20}MiB"
        elif default in (None, ()):
            shown = ""
        elif isinstance(default, bool):
            shown = "off"
        else:
            shown = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
        option = f"{flag} {metavar}".strip().replace("|", "\\|")
        rows.append(f"| `{option}` | `ONCEREAD_{name.upper()}` | `{name}` | {shown} | {text} |")
    return rows


def test_the_documented_table_is_the_settings() -> None:
    documented = re.findall(r"^\| `--.*\|$", DOCS.read_text(), re.MULTILINE)
    assert documented == table_rows()


if __name__ == "__main__":
    print("\n".join(table_rows()))
