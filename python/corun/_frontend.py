"""What LLM and AsyncLLM share: the arguments of vLLM's classes, prompts to token ids, parameters to
the library's, seeds. Invariant: what comes out for a prompt depends on the prompt, its parameters
and the model alone, but for equal prompts of one call, which have different seeds.
"""
from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import (Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type,
                    TypedDict, TypeVar, Union)

import numpy as np

from ._abi import Library
from .engine import Array, Engine, Job, Messages, Model, Sampling
from .outputs import RequestOutput
from .sampling_params import SamplingParams

J = TypeVar("J", bound=Job)


class TextPrompt(TypedDict):
    """A prompt as text."""
    prompt: str


class _Tokens(TypedDict):
    prompt_token_ids: Union[Sequence[int], Array]


class TokensPrompt(_Tokens, total=False):
    """A prompt as token ids; prompt, where given, is only copied into the output."""
    prompt: str


SinglePrompt = Union[str, TextPrompt, TokensPrompt, Mapping[str, Any], Sequence[int], Array]

# Arguments of vLLM that choose how it works, not what it answers: accepted, without effect.
NO_EFFECT = frozenset("""
    gpu_memory_utilization swap_space enforce_eager trust_remote_code enable_prefix_caching
    enable_chunked_prefill max_num_batched_tokens max_num_partial_prefills max_seq_len_to_capture
    disable_log_stats disable_log_requests disable_custom_all_reduce disable_cascade_attn
    distributed_executor_backend async_scheduling scheduling_policy compilation_config
    cudagraph_capture_sizes download_dir hf_token max_logprobs served_model_name tokenizer_mode
    kv_cache_memory_bytes use_tqdm_on_load ignore_patterns allowed_local_media_path
    num_gpu_blocks_override preemption_mode attention_backend worker_use_ray
""".split())

# Arguments with values that can be honoured; any other is refused.
ONLY: Dict[str, Tuple[Any, ...]] = {
    "tensor_parallel_size": (1,), "pipeline_parallel_size": (1,), "data_parallel_size": (1,),
    "decode_context_parallel_size": (1,), "enable_expert_parallel": (False, None),
    "quantization": (None,), "kv_cache_dtype": ("auto", "bfloat16"), "dtype": ("auto", "bfloat16"),
    "load_format": ("auto", "safetensors", "gguf", "dummy"), "runner": ("auto", "generate"),
    "task": ("auto", "generate"), "convert": ("auto", "none"), "revision": (None,),
    "tokenizer_revision": (None,), "code_revision": (None,), "skip_tokenizer_init": (False,),
    "cpu_offload_gb": (0,), "hf_overrides": (None, {}), "hf_config_path": (None,),
    "rope_scaling": (None, {}), "rope_theta": (None,), "enable_lora": (False, None),
    "speculative_config": (None,), "logits_processors": (None, []), "pooler_config": (None,),
    "mm_processor_kwargs": (None,), "limit_mm_per_prompt": (None, {}),
    "logprobs_mode": ("raw_logprobs", "processed_logprobs"), "generation_config": ("auto", "vllm"),
    "override_generation_config": (None, {}), "enable_sleep_mode": (False,),
    "kv_transfer_config": (None,), "model_impl": ("auto",), "structured_outputs_config": (None,),
}


def check_arguments(given: Mapping[str, Any]) -> Dict[str, Any]:
    """vLLM's arguments that have an effect here; the others are dropped or refused."""
    kept: Dict[str, Any] = {}
    for name, value in given.items():
        if name in ONLY:
            if value not in ONLY[name]:
                allowed = ", ".join(map(repr, ONLY[name]))
                raise ValueError(f"{name}={value!r} is not supported, only {allowed}")
            kept[name] = value
        elif name not in NO_EFFECT:
            raise TypeError(f"unexpected keyword argument {name!r}")
    return kept


def both(name: str, value: Any, other: str, other_value: Any) -> Any:
    """One value with two names."""
    if value is not None and other_value is not None and value != other_value:
        raise ValueError(f"{name}={value!r} and {other}={other_value!r} mean the same thing")
    return value if value is not None else other_value


class Tokenizer:
    """The model's tokenizer, with the names that scripts expect of one of Hugging Face."""

    def __init__(self, model: Model) -> None:
        self._model = model
        info = model.info
        self.bos_token_id: Optional[int] = info["bos"] if info["bos"] >= 0 else None
        self.eos_token_id: Optional[int] = info["eos"] if info["eos"] >= 0 else None
        self.pad_token_id: Optional[int] = None
        self.vocab_size: int = info["n_token"]
        self.name_or_path: str = model.path
        self._text: Dict[int, str] = {}

    def __len__(self) -> int:
        return self.vocab_size

    def _token(self, i: Optional[int]) -> Optional[str]:
        return None if i is None else self.token_text(i)

    @property
    def bos_token(self) -> Optional[str]:
        return self._token(self.bos_token_id)

    @property
    def eos_token(self) -> Optional[str]:
        return self._token(self.eos_token_id)

    def token_text(self, token: int) -> str:
        """The text of one token alone; bytes that are no UTF-8 become U+FFFD."""
        text = self._text.get(token)
        if text is None:
            text = self._text[token] = self._model.decode([token])
        return text

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        ids: List[int] = self._model.encode(text, add_special=add_special_tokens).tolist()
        return ids

    def __call__(self, text: Union[str, Sequence[str]],
                 add_special_tokens: bool = True) -> Dict[str, Any]:
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens)}
        return {"input_ids": [self.encode(t, add_special_tokens) for t in text]}

    def decode(self, token_ids: Union[int, Iterable[int]],
               skip_special_tokens: bool = False) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._model.decode(ids, skip_special=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> List[str]:
        return [self.token_text(int(i)) for i in ids]

    def apply_chat_template(self, conversation: Messages, *, tokenize: bool = True,
                            add_generation_prompt: bool = False,
                            continue_final_message: bool = False,
                            tools: Optional[Sequence[Mapping[str, Any]]] = None,
                            documents: Optional[Sequence[Mapping[str, Any]]] = None,
                            chat_template: Optional[str] = None,
                            **kwargs: Any) -> Union[str, List[int]]:
        """The prompt of a chat: ids, or with tokenize=False text. kwargs go to the template."""
        if add_generation_prompt and continue_final_message:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        more: Dict[str, Any] = {"tools": tools, "documents": documents,
                                "chat_template": chat_template,
                                "chat_template_kwargs": kwargs or None}
        text = self._model.chat_render(
            conversation, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **{k: v for k, v in more.items() if v is not None})
        return self.encode(text, add_special_tokens=False) if tokenize else text


class Ready(NamedTuple):
    """A prompt as the engine takes it."""
    text: Optional[str]
    ids: Array


class Frontend:
    """A model with an engine, behind the arguments of vLLM's LLM and those of CoRun."""

    def __init__(self, model: Union[str, "pathlib.PurePath"], *, tokenizer: Optional[str] = None,
                 seed: Optional[int] = 0, max_model_len: Optional[int] = None,
                 max_num_seqs: Optional[int] = None, block_size: Optional[int] = None,
                 policy: str = "auto", slots: Optional[int] = None, ctx: Optional[int] = None,
                 page_tokens: Optional[int] = None, kv_bytes: int = 0, swap_bytes: int = -1,
                 prefill_chunk: int = 0, threads: int = 0, isa: str = "auto",
                 device: str = "auto", template_date: Optional[str] = None,
                 allow_special_rows: bool = False,
                 library: Union[None, str, Library] = None, **vllm: Any) -> None:
        kept = check_arguments(vllm)
        if tokenizer is not None and str(tokenizer) != str(model):
            raise ValueError(f"tokenizer={tokenizer!r} is not supported: the tokenizer is that of "
                             "the model's own files")
        if seed is not None and not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be in 0 ... {(1 << 64) - 1}, got {seed}")
        self.seed = seed or 0
        self.neutral = kept.get("generation_config") == "vllm"
        self.model = Model(str(model), threads=threads, isa=isa, device=device,
                           dummy_weights=kept.get("load_format") == "dummy",
                           template_date=template_date, library=library)
        self.lib = self.model.lib
        try:
            info = self.model.info
            ctx = both("ctx", ctx, "max_model_len", max_model_len) or info["n_ctx"]
            if not 0 < ctx <= info["n_ctx"]:
                raise ValueError(f"max_model_len={ctx}: the model was made for {info['n_ctx']} "
                                 "tokens")
            self.n_ctx: int = ctx
            self.bos: int = info["bos"]
            self.engine = Engine(
                self.model, policy=policy, ctx=ctx, kv_bytes=kv_bytes, swap_bytes=swap_bytes,
                slots=both("slots", slots, "max_num_seqs", max_num_seqs) or 16,
                page_tokens=both("page_tokens", page_tokens, "block_size", block_size) or 64,
                prefill_chunk=prefill_chunk, allow_special_rows=allow_special_rows,
                processed_logprobs=kept.get("logprobs_mode") == "processed_logprobs")
        except BaseException:
            self.model.close()
            raise
        self.tokenizer = Tokenizer(self.model)

    def close(self) -> None:
        self.model.close()

    # ---- prompts --------------------------------------------------------------------------------

    def _ids(self, values: Any) -> Array:
        ids = self.model.prompt_tokens(values if isinstance(values, np.ndarray) else list(values))
        return self._not_empty(ids)

    def _not_empty(self, ids: Array) -> Array:
        """An empty prompt is the bos token alone, as in batch files."""
        if ids.size == 0:
            if self.bos < 0:
                raise ValueError("the prompt is empty, and the model has no bos token to start from")
            ids = np.array([self.bos], np.int32)
        return ids

    def text_prompt(self, text: str, add_special: bool = True) -> Ready:
        return Ready(text, self._not_empty(self.model.encode(text, add_special=add_special)))

    def prompt(self, prompt: SinglePrompt) -> Ready:
        if isinstance(prompt, str):
            return self.text_prompt(prompt)
        if not isinstance(prompt, Mapping):
            return Ready(None, self._ids(prompt))
        given: Mapping[str, Any] = prompt
        more = set(given) - {"prompt", "prompt_token_ids", "cache_salt"}
        if more:
            raise ValueError(f"a prompt with {', '.join(sorted(more))} is not supported")
        if given.get("prompt_token_ids") is not None:
            return Ready(given.get("prompt"), self._ids(given["prompt_token_ids"]))
        if not isinstance(given.get("prompt"), str):
            raise TypeError("a prompt dictionary needs prompt (text) or prompt_token_ids")
        return self.text_prompt(given["prompt"])

    def prompts(self, prompts: Any) -> List[Ready]:
        """One prompt, or several in a list."""
        if isinstance(prompts, (str, Mapping, np.ndarray)):
            prompts = [prompts]
        else:
            prompts = list(prompts)
            if prompts and hasattr(prompts[0], "__index__"):
                prompts = [prompts]  # ids of one prompt
        return [self.prompt(p) for p in prompts]

    def chat(self, messages: Messages, add_generation_prompt: bool, continue_final_message: bool,
             tools: Any, chat_template: Optional[str], kwargs: Optional[Mapping[str, Any]]) -> Ready:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, tools=tools,
            chat_template=chat_template, **dict(kwargs or {}))
        assert isinstance(text, str)
        return self.text_prompt(text, add_special=False)

    # ---- parameters -----------------------------------------------------------------------------

    def default_params(self) -> SamplingParams:
        """Those of the model's generation_config.json over vLLM's defaults."""
        if self.neutral:
            return SamplingParams()
        c = self.model.sampling_default()
        return SamplingParams(
            temperature=c.temperature, top_p=c.top_p or 1.0, top_k=c.top_k, min_p=c.min_p,
            repetition_penalty=c.repetition_penalty,
            max_tokens=c.max_tokens if c.max_tokens >= 0 else 16)

    def _bad_words(self, words: Iterable[str]) -> List[List[int]]:
        """Each word as it stands and, where that is another word of as many tokens, with a space
        in front: the rule of batch files."""
        out: List[List[int]] = []
        for word in words:
            plain = self.model.encode(word.lstrip(" ")).tolist()
            spaced = self.model.encode(" " + word.lstrip(" ")).tolist()
            if not plain:
                raise ValueError(f"bad_words: {word!r} has no token")
            out.append(plain)
            if len(spaced) == len(plain) and spaced[0] != plain[0]:
                out.append(spaced)
        return out

    def sampling(self, p: SamplingParams) -> Sampling:
        """The library's form, without what depends on the prompt."""
        return Sampling(
            temperature=p.temperature, top_p=p.top_p, min_p=p.min_p, top_k=p.top_k,
            repetition_penalty=p.repetition_penalty, presence_penalty=p.presence_penalty,
            frequency_penalty=p.frequency_penalty,
            max_tokens=-1 if p.max_tokens is None else p.max_tokens, min_tokens=p.min_tokens,
            n=p.n, seed=p.seed or 0, ignore_eos=p.ignore_eos,
            include_stop=p.include_stop_str_in_output, skip_special=p.skip_special_tokens,
            logprobs=p.logprobs, prompt_logprobs=p.prompt_logprobs,
            logit_bias=p.logit_bias or {}, allowed_token_ids=p.allowed_token_ids or (),
            bad_token_ids=self._bad_words(p.bad_words or ()),
            stop_token_ids=p.stop_token_ids or (), stop=list(p.stop or ()))

    def cut(self, prompt: Ready, p: SamplingParams) -> Ready:
        """The prompt after truncate_prompt_tokens."""
        n = p.truncate_prompt_tokens
        n = self.n_ctx - 1 if n == -1 else n
        if n is None or prompt.ids.size <= n:
            return prompt
        return Ready(prompt.text, prompt.ids[-n:].copy())

    def job(self, prompt: Ready, p: SamplingParams, base: Sampling, before: int = 0,
            make: Type[J] = Job) -> J:  # type: ignore[assignment]
        """before: samples of equal prompts of the same call that came earlier."""
        ids, seed = prompt.ids, p.seed
        if seed is None:
            seed = self.lib.seed_sample(self.seed_of(ids), before)
        room = self.n_ctx - ids.size
        max_tokens = base.max_tokens
        if max_tokens is not None and max_tokens > room > 0:
            max_tokens = room  # as vLLM's offline class: the context ends the answer
        return make(ids, dataclasses.replace(base, seed=seed, max_tokens=max_tokens),
                    self.lib.seed_sample, p.detokenize)

    def seed_of(self, ids: Array) -> int:
        """The seed of a request that names none: 53 bits of a digest of the prompt's ids."""
        data = self.seed.to_bytes(8, "little") + ids.astype("<i4").tobytes()
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 11

    def output(self, request_id: str, prompt: Ready, job: Job, finished: bool = True,
               since: Optional[Sequence[Tuple[int, int]]] = None) -> RequestOutput:
        r = job.result(since)
        seen = [] if r.prompt_logprobs is None else [r.prompt_tokens, r.prompt_top_ids]
        for s in r.samples:
            if s.logprobs is not None:
                seen += [s.tokens, s.top_ids]
        texts: Dict[int, str] = {}
        if seen:
            ids = np.unique(np.concatenate([a.ravel() for a in seen if a is not None])).tolist()
            texts = {i: self.tokenizer.token_text(i) for i in ids if i >= 0}
        return RequestOutput(request_id, prompt.text, r, finished, texts)
