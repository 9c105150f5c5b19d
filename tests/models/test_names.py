"""Which file a person means by `org/repo:quant`."""

from __future__ import annotations

import pytest

from onceread.models.errors import ModelAmbiguous, ModelUnknown
from onceread.models.names import Reference, choose, file_sets, parse_reference, quant_of


@pytest.mark.parametrize(
    ("text", "repo", "which"),
    [
        ("bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M"),
        ("org/repo", "org/repo", None),
        ("org/repo:q4_k_m", "org/repo", "q4_k_m"),
        ("org/repo:sub/m-Q8_0.gguf", "org/repo", "sub/m-Q8_0.gguf"),
        ("org/repo/m-Q8_0.gguf", "org/repo", "m-Q8_0.gguf"),
        ("hf.co/org/repo:Q8_0", "org/repo", "Q8_0"),
        ("https://huggingface.co/org/repo", "org/repo", None),
        ("https://huggingface.co/org/repo/", "org/repo", None),
    ],
)
def test_references(text: str, repo: str, which: str | None) -> None:
    assert parse_reference(text) == Reference(repo, which)


@pytest.mark.parametrize(
    "text",
    ["model.gguf", "models/my.gguf", "./m", "/tmp/m", "llama3.2:3b", "a/../b", "org/repo:", "a b/c", ""],
)
def test_what_is_no_reference(text: str) -> None:
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-3.2-3b.q5_k_s.gguf", "Q5_K_S"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m.bf16.gguf", "BF16"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("m-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("BF16/m-00001-of-00002.gguf", "BF16"),
        ("Q4_K_M/model.gguf", "Q4_K_M"),
        ("Qwen2-Q4all.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantization_in_a_name(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


OFFERED = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0-00002-of-00002.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-UD-Q2_K.gguf",
    "m-Q2_K.gguf",
    "mmproj-m-F16.gguf",
    "m.imatrix.gguf",
    "BF16/m-BF16-00001-of-00001.gguf",
]


@pytest.mark.parametrize(
    ("which", "files"),
    [
        ("Q4_K_M", ("m-Q4_K_M.gguf",)),
        ("q4_k_m", ("m-Q4_K_M.gguf",)),
        ("Q8_0", ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")),
        ("Q4_K_XL", ("m-UD-Q4_K_XL.gguf",)),
        ("ud-q4_k_xl", ("m-UD-Q4_K_XL.gguf",)),
        ("Q2_K", ("m-Q2_K.gguf",)),
        ("UD-Q2_K", ("m-UD-Q2_K.gguf",)),
        ("bf16", ("BF16/m-BF16-00001-of-00001.gguf",)),
        ("m-Q4_K_S.gguf", ("m-Q4_K_S.gguf",)),
        ("m-Q8_0-00002-of-00002.gguf", ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")),
    ],
)
def test_the_file_for_a_quantization(which: str, files: tuple[str, ...]) -> None:
    assert choose(file_sets(OFFERED), which, "org/repo").files == files


@pytest.mark.parametrize("which", ["Q4", "Q4_K", "Q3_K_M", "F16", "Q8"])
def test_nothing_is_taken_for_something_else(which: str) -> None:
    """Neither a prefix (Q4_K of Q4_K_M), nor the image encoder (mmproj, F16)."""
    with pytest.raises(ModelUnknown, match=f"org/repo has no {which}; there are: BF16, Q2_K, Q4_K_M, Q4_K_S"):
        choose(file_sets(OFFERED), which, "org/repo")


def test_without_a_quantization_there_must_be_one_model() -> None:
    assert choose(file_sets(["m-Q4_0.gguf", "mmproj-F16.gguf"]), None, "org/repo").files == ("m-Q4_0.gguf",)
    with pytest.raises(ModelAmbiguous, match="say which, as org/repo:Q4_K_M: BF16, Q2_K, "):
        choose(file_sets(OFFERED), None, "org/repo")


def test_two_files_of_one_quantization_are_listed() -> None:
    sets = file_sets(["a-Q4_0.gguf", "b-Q4_0.gguf"])
    with pytest.raises(
        ModelAmbiguous, match=r"name the file, as org/repo:a-Q4_0\.gguf: a-Q4_0\.gguf, b-Q4_0\.gguf"
    ):
        choose(sets, "Q4_0", "org/repo")
    assert choose(sets, "b-Q4_0.gguf", "org/repo").files == ("b-Q4_0.gguf",)


def test_a_repository_without_models() -> None:
    with pytest.raises(ModelUnknown, match="org/repo has no GGUF model"):
        choose(file_sets(["README.md", "mmproj.gguf"]), "Q4_0", "org/repo")
