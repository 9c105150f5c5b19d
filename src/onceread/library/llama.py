"""`Llama` as users of llama-cpp-python know it, over an engine that reads every prompt once."""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from typing_extensions import Self

from onceread.cache.contract import CacheStats
from onceread.library.answers import Stream, wait
from onceread.library.caches import Cache, LlamaRAMCache, made
from onceread.library.calls import Call, ChatCall, TextCall
from onceread.library.embedding import Embedding, Texts
from onceread.library.errors import told
from onceread.library.facts import Facts
from onceread.library.grammar import LlamaGrammar
from onceread.library.hooks import LogitsProcessorList, StoppingCriteriaList
from onceread.library.host import Host, close_from_anywhere
from onceread.library.pretrained import fetch
from onceread.library.requests import namespace_of
from onceread.library.setup import Setup, seed_of, setup_of, with_cache
from onceread.library.stepping import Stepping
from onceread.server.state import Serving

Answer = dict[str, Any]


class Llama(Facts, Stepping):
    """A model, loaded, and everything it has read. Thread-safe: calls of several threads are batched together.

    docs/migrating.md says what is the same as llama-cpp-python's, and what is not. ``with`` closes it.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = 0,
        split_mode: int = 1,
        main_gpu: int = 0,
        tensor_split: Sequence[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        seed: int | None = 0xFFFFFFFF,
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        attention_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool | None = None,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: object = None,
        draft_model: object = None,
        tokenizer: object = None,
        type_k: int | str | None = None,
        type_v: int | str | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        parallel: int = 4,
        cache: Cache = None,
        cache_ram: int | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_disk: int | str | None = None,
        resident_cells: int = 2048,
        exact: bool = False,
        overflow: str = "error",
        reuse_moved: bool = False,
    ) -> None:
        """Load a GGUF file. The parameters up to ``verbose`` are llama-cpp-python's; the others are ours.

        ``n_ctx``: tokens for all calls together, and so for one at most; None or 0 is four times what the model
        was trained for, or what a quarter of the free RAM holds. ``parallel``: calls that are computed together.
        ``cache_ram``, ``cache_disk``: budgets in bytes or such as ``"2GiB"``; what is read is kept in RAM (by
        default in a quarter of what is free), and on disk if there is a ``cache_dir``; ``cache`` says the same by
        an object. ``exact``, ``overflow``, ``reuse_moved``, ``resident_cells`` are the server's.

        Raises InvalidParameter, a ValueError, and NativeError or EngineError where the model can't be used.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "model_path")}
        with told():
            setup = setup_of(model_path, given)
            chosen = made(cache)
            if chosen is not None:
                setup = with_cache(setup, **chosen.tiers())
            _quiet(verbose)
            host = Host(setup)
        self.model_path = os.fspath(model_path)
        self.verbose = verbose
        self.chat_format = chat_format or ("chat_template.default" if host.model.chat_template else "chatml")
        self.metadata = dict(host.model.metadata)
        self.n_batch = setup.engine.batch_size
        self.cache = chosen
        self._host = host
        self._lock = threading.RLock()
        self._drawing = threading.Lock()
        self._namespace = namespace_of()
        self._finalizer = weakref.finalize(self, close_from_anywhere, host)
        self._begin_stepping(
            logits_all=setup.logits_all, last_n_tokens_size=setup.last_n_tokens, seed=setup.seed
        )
        self._random = random.Random(setup.seed)
        self._attach(chosen)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Download a model from the Hugging Face Hub, unless it is there, and load it with ``kwargs``.

        ``filename`` is a name or a pattern that only one file matches; ``additional_files`` are such for the other
        parts of a split model. ``cache_dir`` is the Hub's; for ours give ``cache``. Raises InvalidParameter.
        """
        path = fetch(repo_id, filename, additional_files, local_dir=local_dir, cache_dir=cache_dir)
        return cls(model_path=path, **kwargs)

    # -- completing --------------------------------------------------------

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | str | None = None,
        logit_bias: Mapping[int, float] | None = None,
        **options: Any,
    ) -> Answer | Iterator[Answer]:
        """How a text goes on: OpenAI's answer as a dict, or with ``stream`` an iterator of its chunks.

        ``max_tokens`` None or below 1 is up to the context's limit. A text before and one behind a gap
        (``suffix``) are for models that fill gaps. ``options`` are fields of ``/v1/completions`` that
        llama-cpp-python does not have, such as ``n`` or ``dry_multiplier``.

        Raises InvalidParameter and ContextLengthExceeded (ValueErrors), EngineError.
        """
        given, options = _said(locals())
        return self._answer(TextCall, given, options)

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: LogitsProcessorList | None = None,
        grammar: LlamaGrammar | str | None = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **options: Any,
    ) -> Answer | Iterator[Answer]:
        """The assistant's next message: OpenAI's answer as a dict, or with ``stream`` an iterator of its chunks.

        ``options`` are fields of ``/v1/chat/completions`` that llama-cpp-python does not have, such as ``n``,
        ``overflow`` or ``chat_template_kwargs``. The last chunk of a stream has ``usage`` and ``timings``.

        Raises InvalidParameter and ContextLengthExceeded (ValueErrors), EngineError.
        """
        given, options = _said(locals())
        return self._answer(ChatCall, given, options)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`create_chat_completion`, as objects of the package ``openai``."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer = self.create_chat_completion(*args, **kwargs)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**chunk) for chunk in answer)

    def _call(self, kind: type[Call], given: Mapping[str, Any], options: Mapping[str, Any]) -> Call:
        return kind(self._host, self.model_path, given, options, self._next_seed)

    def _answer(
        self, kind: type[Call], given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Answer | Iterator[Answer]:
        with told(kind.param), self._host.using():
            call = self._call(kind, given, options)
            handle = self._host.submit(call.request())
            if call.streams:
                return Stream(handle, call.chunks(), call.param)
            return call.whole(wait(handle, call.param))

    # -- embedding ---------------------------------------------------------

    def create_embedding(self, input: Texts, model: str | None = None) -> Answer:  # noqa: A002
        """OpenAI's answer as a dict, a vector for each text; see :meth:`embed` for what that is."""
        with told(Embedding.param), self._host.using():
            job = Embedding(self._host, input, truncate=True)
            return job.body(job.wait(), model or self.model_path)

    def embed(
        self,
        input: Texts,  # noqa: A002
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The vector of a text, or a list of them for a list.

        A model that was not made to embed, with no ``pooling_type`` given, has a vector for each token. Too long
        texts are cut with ``truncate``, else ContextLengthExceeded is raised. ``return_count`` adds the tokens.
        """
        with told(Embedding.param), self._host.using():
            job = Embedding(self._host, input, truncate=truncate)
            vectors = job.vectors(job.wait(), normalize=normalize)
        found = vectors[0] if job.single else vectors
        return (found, job.tokens) if return_count else found

    # -- the cache, the seed, the end --------------------------------------

    def set_cache(self, cache: Cache) -> None:
        """Set the cache's budgets, by an instance or a class. None keeps nothing beyond the context.

        Waits for calls that run, and begins with an empty RAM tier: best called first. Raises InvalidParameter.
        """
        with told():
            chosen = made(cache)
            setup = with_cache(self._host.setup, **(_NO_CACHE if chosen is None else chosen.tiers()))
            if setup.engine != self._host.setup.engine:
                self._rebuilt(setup)
        self.cache = chosen
        self._attach(chosen)

    def set_seed(self, seed: int) -> None:
        """Calls without a seed draw theirs from this one; -1 and 0 are random."""
        with self._drawing:
            self._seed = seed_of(seed)
            self._random = random.Random(self._seed)

    def close(self) -> None:
        """End what runs and free everything. Safe to call again; afterwards calls raise Closed."""
        self._end_stepping()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Llama can't be pickled or copied: it holds a model and its memory; "
            "make one in each process, with the same cache_dir to share what was read"
        )

    @property
    def _serving(self) -> Serving:  # type: ignore[override]
        return self._host.serving()

    def _next_seed(self) -> int | None:
        with self._drawing:
            return None if self._seed is None else self._random.getrandbits(32)

    def _attach(self, cache: LlamaRAMCache | None) -> None:
        if cache is not None:
            cache.attach(_stats_of(self._host))

    def _rebuilt(self, setup: Setup) -> None:
        with self._lock:
            state = self.save_state() if self.n_tokens else None
            self._end_stepping()
            self._host.change(setup)
            self._begin_stepping(
                logits_all=setup.logits_all, last_n_tokens_size=setup.last_n_tokens, seed=self._seed
            )
            if state is not None:
                self.load_state(state)


_NO_CACHE = {"cache_ram": 0, "cache_dir": None, "no_disk_cache": True, "cache_disk": None}


def _said(local: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a method by name, and apart from them what it takes beyond."""
    options = local.pop("options")
    del local["self"]
    return local, options


def _stats_of(host: Host) -> Any:
    held = weakref.ref(host)

    def stats() -> CacheStats | None:
        there = held()
        store = there.known().engine.store if there is not None else None
        return store.stats() if store is not None else None

    return stats


def _quiet(verbose: bool) -> None:
    """llama.cpp's log goes to Python's ``logging``; what is wrong with a model is in the exception anyway."""
    log = logging.getLogger("onceread.llama")
    if not verbose:
        log.setLevel(logging.CRITICAL)
    elif log.level == logging.CRITICAL:
        log.setLevel(logging.NOTSET)
