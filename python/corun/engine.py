"""The library as it is: a model, an engine over it, requests in and arrays out.

corun.LLM and corun.AsyncLLM stand on this. A model with its engine belongs to one thread at a time
(another one is refused), and to the process that opened it; encode, decode, token_bytes and
chat_render may be called from any thread. Calls release the interpreter's lock while they run.
"""
from __future__ import annotations

import ctypes as C
import dataclasses
import json
from typing import (Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple,
                    Union)

import numpy as np

from . import _abi
from ._abi import CorunError, Library
from ._owner import Owner, alone, between, text as text_call
from ._tensors import KINDS, as_array

Array = np.ndarray[Any, Any]
Messages = Sequence[Mapping[str, Any]]
Prompt = Union[str, Sequence[int], Array, Messages]


@dataclasses.dataclass
class Sampling:
    """How tokens are drawn. None: the default of the model (its generation_config.json)."""
    temperature: Optional[float] = None  # below 1e-5: greedy
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    top_k: Optional[int] = None  # 0 or -1: off
    repetition_penalty: Optional[float] = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: Optional[int] = None  # new tokens; -1: the rest of the context
    min_tokens: int = 0
    n: int = 1  # samples; sample i draws with the seed that stands in Sample.seed
    seed: int = 0  # requests with equal prompts and seeds have equal answers
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special: bool = True
    logprobs: Optional[int] = None  # k: of the drawn token and of the k likeliest; 0 ... 20
    prompt_logprobs: Optional[int] = None  # likewise for the prompt's own tokens
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    bad_token_ids: Sequence[Sequence[int]] = ()  # sequences that may not be drawn
    stop_token_ids: Sequence[int] = ()
    stop: Sequence[str] = ()


@dataclasses.dataclass
class Sample:
    """One answer. Arrays have one entry a new token, an end token included."""
    tokens: Array  # int32 [n]
    text: str
    logprobs: Optional[Array]  # float32 [n]: natural logarithms; None: not asked for
    top_ids: Optional[Array]  # int32 [n, k], likeliest first; -1: fewer
    top_logprobs: Optional[Array]  # float32 [n, k]; NaN: fewer
    finish: str  # "stop", "length", "error"; of AsyncLLM also "abort", and "" while it runs
    stop_reason: Union[None, str, int]  # the stop string or stop token id that ended it
    seed: int
    error: Optional[str]  # why the request failed; tokens drawn before stay


@dataclasses.dataclass
class Result:
    """What became of one prompt."""
    prompt_tokens: Array  # int32 [m]
    prompt_logprobs: Optional[Array]  # float32 [m], the first NaN; None: not asked for
    prompt_top_ids: Optional[Array]  # int32 [m, k]
    prompt_top_logprobs: Optional[Array]  # float32 [m, k]
    samples: List[Sample]

    @property
    def score(self) -> "Score":
        """The prompt's part alone, where its log-probabilities were asked for."""
        assert self.prompt_logprobs is not None
        return Score(self.prompt_tokens, self.prompt_logprobs, self.prompt_top_ids,
                     self.prompt_top_logprobs)


@dataclasses.dataclass
class Score:
    """Log-probabilities of a given text."""
    tokens: Array  # int32 [m]
    logprobs: Array  # float32 [m]: of each token after those before it; the first NaN
    top_ids: Optional[Array]  # int32 [m, k]; the first row -1
    top_logprobs: Optional[Array]  # float32 [m, k]; the first row NaN


def _ids(values: Iterable[int]) -> Array:
    a = np.asarray(values if isinstance(values, np.ndarray) else list(values))
    if a.size == 0:
        return np.zeros(0, np.int32)
    if a.ndim != 1 or a.dtype.kind not in "iu":
        raise TypeError("token ids must be a flat sequence of integers")
    if a.min() < -(1 << 31) or a.max() >= 1 << 31:
        raise ValueError("a token id does not fit 32 bits")
    return np.ascontiguousarray(a, np.int32)


def _pointer(a: Array, kind: Any) -> Any:
    return a.ctypes.data_as(C.POINTER(kind))


class Model:
    """An open model with its tokenizer and chat template.

    path: a .gguf file, a folder with safetensors, "ORG/NAME" in the Hugging Face cache (nothing is
    downloaded), or "fake:LEVEL". threads and isa never change a bit. device: "auto" (a CUDA device
    where one serves), "cpu", "cuda" or "cuda:N".
    dummy_weights: path is a config.json, weights are made up, prompts are token ids. plan: a file
    of matrix plans for a CUDA device (corun tune makes it) instead of the built-in ones. library:
    path of libcorun.so, or a Library; without it the one beside this package, else the system's.
    """

    def __init__(self, path: str, *, threads: int = 0, isa: str = "auto",
                 device: str = "auto", dummy_weights: bool = False,
                 template_date: Optional[str] = None, plan: Optional[str] = None,
                 library: Union[None, str, Library] = None):
        self.lib = library if isinstance(library, Library) else Library(library)
        self.owner = Owner()
        self._h: Optional[C.c_void_p] = None
        self._engine: Optional["Engine"] = None
        self.path = str(path)
        o = self.lib.c.corun_model_opts_default()
        o.path, o.n_thread, o.isa = str(path).encode(), threads, isa.encode()
        o.device, o.dummy_weights = device.encode(), dummy_weights
        if template_date is not None:
            o.template_date = template_date.encode()
        if plan is not None:
            o.plan = str(plan).encode()
        h = C.c_void_p()
        self.lib.check(self.lib.c.corun_model_open(C.byref(h), C.byref(o)))
        self._h = h

    @property
    def handle(self) -> C.c_void_p:
        if self._h is None:
            raise CorunError("EINVAL", "the model is closed")
        return self._h

    def close(self) -> None:
        """Closes the model and its engine; RuntimeError while they are in use. May be called twice.
        Text functions that are under way in other threads come to their end. In a child of fork it
        only forgets the handles."""
        if self.owner.here:
            self._close()
        self._h = self._engine = None

    @alone
    def _close(self) -> None:
        if self._engine is not None:
            self._engine._close_handle()
        h, self._h = self._h, None
        if h is not None:
            c_close = self.lib.c.corun_model_close
            self.owner.free(lambda: c_close(h))

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_h", None) is not None:
            self.close()

    @property
    @between
    def info(self) -> Dict[str, Any]:
        """Family, sizes, ids and digests, by the names of corun_model_info."""
        i = _abi.ModelInfo()
        self.lib.check(self.lib.c.corun_model_describe(self.handle, C.byref(i)))
        values = {f[0]: getattr(i, f[0]) for f in _abi.ModelInfo._fields_}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}

    @text_call
    def encode(self, text: str, *, add_special: bool = False, literal: bool = False) -> Array:
        """Token ids, int32. literal: control text is plain text."""
        data = text.encode("utf-8", "surrogatepass")
        flags = _abi.TEXT_ADD_SPECIAL * add_special | _abi.TEXT_LITERAL * literal
        n, room = C.c_size_t(), len(data) + 16
        for _ in range(2):
            out = np.empty(room, np.int32)
            status = self.lib.c.corun_encode(self.handle, data, len(data), flags,
                                             _pointer(out, C.c_int32), room, C.byref(n))
            if status != _abi.ECAPACITY:
                break
            room = n.value
        self.lib.check(status)
        return out[:n.value].copy()

    @text_call
    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        a = _ids(ids)
        flags = _abi.TEXT_SKIP_SPECIAL if skip_special else 0
        return self.lib.text(self.lib.c.corun_decode, self.handle, _pointer(a, C.c_int32), a.size,
                             flags).decode()

    @text_call
    def token_bytes(self, token: int) -> bytes:
        """The raw bytes of one token: may be half a character."""
        return self.lib.text(self.lib.c.corun_token_bytes, self.handle, token)

    @text_call
    def chat_render(self, messages: Messages, **more: Any) -> str:
        """The prompt that the model's chat template makes. more: tools, documents,
        add_generation_prompt (default True), continue_final_message, chat_template,
        chat_template_kwargs."""
        data = json.dumps({"messages": list(messages), **more}).encode()
        return self.lib.text(self.lib.c.corun_chat_render, self.handle, data, len(data)).decode()

    def refill(self, tensors: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]) -> None:
        """New values for every weight, in place: all tensors of the model's files by name, with
        their shapes, as float32, float16, bfloat16 (ml_dtypes) or uint16 (the bits of bfloat16).
        A tensor is a numpy array or has __dlpack__ (on the CPU).

        An iterator is read to its end first: the library checks all names and shapes before
        anything is written, so all tensors are in memory at once, beside the model's own weights.
        Afterwards digest, fingerprint and bits are those of a model opened from a file with these
        tensors. No request may be alive; prefixes that the engine had kept are gone.
        """
        pairs = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
        table = (_abi.Tensor * max(len(pairs), 1))()
        keep: List[Any] = []
        for t, (name, value) in zip(table, pairs):
            if not isinstance(name, str):
                raise TypeError(f"the name of a tensor must be a text, got {name!r}")
            if "\0" in name:
                raise ValueError(f"{name!r}: a NUL stands in the name of a tensor")
            a, owner = as_array(name, value)
            if a.ndim > _abi.MAX_DIM:
                raise ValueError(f"{name}: {a.ndim} dimensions, more than {_abi.MAX_DIM}")
            dim = (C.c_int64 * max(a.ndim, 1))(*a.shape)
            keep += [a, owner, dim]
            t.name, t.dtype, t.n_dim = name.encode(), KINDS[a.dtype.name], a.ndim
            t.dim, t.data = C.cast(dim, C.POINTER(C.c_int64)), a.ctypes.data
        self._refill(table, len(pairs))

    @alone
    def _refill(self, table: Any, n: int) -> None:
        self.lib.check(self.lib.c.corun_model_refill(self.handle, table, n))

    @text_call
    def sampling_default(self) -> _abi.Sampling:
        """The C struct with the defaults of the model's generation_config.json."""
        out = _abi.Sampling()
        self.lib.check(self.lib.c.corun_sampling_default(self.handle, C.byref(out)))
        return out

    def prompt_tokens(self, prompt: Prompt) -> Array:
        """The ids that generate and score take for a prompt: a text with the model's special
        tokens added, a chat by its template, ids as they are."""
        if isinstance(prompt, str):
            return self.encode(prompt, add_special=True)
        if isinstance(prompt, Mapping):
            raise TypeError("a prompt is a text, token ids or a list of messages, not one message")
        if isinstance(prompt, np.ndarray):
            return _ids(prompt)
        items: List[Any] = list(prompt)
        if items and isinstance(items[0], Mapping):
            return self.encode(self.chat_render(items))
        return _ids(items)

    def _sampling(self, s: Sampling) -> Tuple[_abi.Sampling, List[Any]]:
        """The C struct, and the arrays that it points to."""
        out, keep = self.sampling_default(), []  # type: Tuple[_abi.Sampling, List[Any]]
        for f in ("temperature", "top_p", "min_p", "top_k", "repetition_penalty",
                  "presence_penalty", "frequency_penalty", "max_tokens", "min_tokens", "n", "seed",
                  "ignore_eos", "include_stop", "skip_special", "logprobs", "prompt_logprobs"):
            v = getattr(s, f)
            if v is None:
                continue
            lo, hi = (0, 1 << 64) if f == "seed" else (-(1 << 31), 1 << 31)
            if isinstance(getattr(out, f), int) and not lo <= v < hi:
                raise ValueError(f"{f}: must be in {lo} ... {hi - 1}")
            setattr(out, f, v)

        def put(field: str, count: str, values: Sequence[int]) -> None:
            a = _ids(values)
            keep.append(a)
            setattr(out, field, _pointer(a, C.c_int32))
            setattr(out, count, a.size)

        put("bias_id", "n_bias", list(s.logit_bias))
        bias = np.array(list(s.logit_bias.values()), np.float32)
        keep.append(bias)
        out.bias = _pointer(bias, C.c_float)
        put("allowed", "n_allowed", s.allowed_token_ids)
        put("bad_id", "n_bad", [i for word in s.bad_token_ids for i in word])
        put("bad_len", "n_bad", [len(word) for word in s.bad_token_ids])
        put("stop_id", "n_stop_id", s.stop_token_ids)
        if isinstance(s.stop, str):
            raise TypeError("stop: must be a sequence of texts")
        texts = [t.encode() for t in s.stop]
        stops = (_abi.Bytes * max(len(texts), 1))(*[_abi.Bytes(t, len(t)) for t in texts])
        keep += [texts, stops]
        out.stop, out.n_stop = stops, len(texts)
        return out, keep


class _Tokens:
    """Tokens and log-probabilities of one list, as events bring them."""

    def __init__(self) -> None:
        self.id: List[int] = []
        self.logprob: List[float] = []
        self.top: List[Tuple[List[int], List[float]]] = []

    def add(self, e: _abi.Event, keep: bool) -> None:
        self.id.append(e.token)
        if keep:
            n = e.n_top
            self.logprob.append(e.logprob)
            self.top.append((list(e.top_id[:n]), list(e.top_logprob[:n])))

    def tops(self, k: Optional[int], before: int = 0,
             start: int = 0) -> Tuple[Optional[Array], Optional[Array]]:
        """Arrays [before + n, k] of the k likeliest; (None, None) where none were asked for."""
        if not k or k < 0:
            return None, None
        top = self.top[start:]
        ids = np.full((before + len(top), k), -1, np.int32)
        lps = np.full(ids.shape, np.nan, np.float32)
        for row, (i, lp) in enumerate(top, before):
            m = min(k, len(i))
            ids[row, :m], lps[row, :m] = i[:m], lp[:m]
        return ids, lps


class Job:
    """One prompt on its way through the engine."""

    def __init__(self, tokens: Array, s: Sampling, seed_of: Callable[[int, int], int],
                 keep_text: bool = True) -> None:
        if not 1 <= s.n <= _abi.MAX_SAMPLE:
            raise ValueError(f"n: must be in 1 ... {_abi.MAX_SAMPLE}")
        self.tokens, self.s, self.keep_text = tokens, s, keep_text
        self.prompt = _Tokens()
        self.samples = [_Tokens() for _ in range(s.n)]
        self.text: List[List[bytes]] = [[] for _ in self.samples]
        self.end: List[Optional[Tuple[str, Any, Optional[str]]]] = [None] * len(self.samples)
        self.n_open = len(self.samples)
        self.seed = [seed_of(s.seed, i) for i in range(len(self.samples))]

    def event(self, e: _abi.Event) -> None:
        kind, sample = e.kind, e.sample
        if kind == _abi.EVENT_PROMPT:
            self.prompt.add(e, True)
            return
        if kind == _abi.EVENT_FAILED:
            text = C.string_at(e.text, e.text_len)
            self._end(sample, ("error", None, text.decode("utf-8", "replace")))
            return
        if kind == _abi.EVENT_TOKEN:
            self.samples[sample].add(e, self.s.logprobs is not None)
        if e.text_len and self.keep_text:
            self.text[sample].append(C.string_at(e.text, e.text_len))
        if kind == _abi.EVENT_DONE:
            why: Any = None
            if e.finish == _abi.FINISH_STOP:
                why = self.s.stop[e.stop_index] if e.stop_index >= 0 else (
                    e.stop_token if e.stop_token >= 0 else None)
            self._end(sample, ("stop" if e.finish == _abi.FINISH_STOP else "length", why, None))

    def _end(self, sample: int, end: Tuple[str, Any, Optional[str]]) -> None:
        # A prompt that is only scored ends once, for all its samples.
        which = range(len(self.end)) if self.s.max_tokens == 0 else [sample]
        for i in which:
            self.end[i] = end
            self.n_open -= 1

    @property
    def done(self) -> bool:
        return self.n_open == 0

    def result(self, since: Optional[Sequence[Tuple[int, int]]] = None) -> Result:
        """What came so far; all of it when done. since: of each sample, the tokens and pieces of
        text that are left out."""
        samples = []
        for i, t in enumerate(self.samples):
            finish, why, error = self.end[i] or ("", None, None)
            token, text = since[i] if since is not None else (0, 0)
            ids, lps = t.tops(self.s.logprobs, start=token)
            samples.append(Sample(
                np.array(t.id[token:], np.int32),
                b"".join(self.text[i][text:]).decode("utf-8", "replace"),
                None if self.s.logprobs is None else np.array(t.logprob[token:], np.float32),
                ids, lps, finish, why, self.seed[i], error))
        r = Result(self.tokens, None, None, None, samples)
        if self.s.prompt_logprobs is not None:
            r.prompt_logprobs = np.array([np.nan] + self.prompt.logprob, np.float32)
            r.prompt_top_ids, r.prompt_top_logprobs = self.prompt.tops(self.s.prompt_logprobs, 1)
        return r


class Engine:
    """One schedule over a model; a model carries one engine at a time.

    policy: "auto", "free", "invariant", "corun" or "dynamic". kv_bytes, swap_bytes in bytes (0 and
    -1: chosen). The options are those of corun_engine_opts.
    """

    WINDOW = 512  # requests alive at one time

    def __init__(self, model: Model, *, policy: str = "auto", slots: int = 16, ctx: int = 0,
                 page_tokens: int = 64, kv_bytes: int = 0, swap_bytes: int = -1,
                 prefill_chunk: int = 0, processed_logprobs: bool = False,
                 allow_special_rows: bool = False):
        self.model, self.lib, self.owner = model, model.lib, model.owner
        self._h: Optional[C.c_void_p] = None
        o, chosen = self.lib.c.corun_engine_opts_default(), C.c_int()
        self.lib.check(self.lib.c.corun_policy_parse(policy.encode(), C.byref(chosen)))
        o.policy, o.n_slot, o.n_ctx, o.page_tokens = chosen.value, slots, ctx, page_tokens
        self.slots = slots
        o.kv_bytes, o.swap_bytes, o.prefill_chunk = kv_bytes, swap_bytes, prefill_chunk
        o.processed_logprobs, o.allow_special_rows = processed_logprobs, allow_special_rows
        self._alive: Dict[int, Job] = {}
        self._coming: Optional[C.c_uint64] = None
        self._c_next = self.lib.c.corun_next
        self._open(o)

    @alone
    def _open(self, o: _abi.EngineOpts) -> None:
        h = C.c_void_p()
        self.lib.check(self.lib.c.corun_engine_open(C.byref(h), self.model.handle, C.byref(o)))
        self._h = h
        self.model._engine = self

    @property
    def handle(self) -> C.c_void_p:
        if self._h is None:
            raise CorunError("EINVAL", "the engine is closed")
        return self._h

    def close(self) -> None:
        """Closes the engine; the model stays. RuntimeError while it is in use. May be called
        twice. In a child of fork it only forgets the handle."""
        if self.owner.here:
            self._close()
        self._h = None

    @alone
    def _close(self) -> None:
        self._close_handle()

    def _close_handle(self) -> None:
        h, self._h = self._h, None
        if h is not None:
            self.lib.c.corun_engine_close(h)
            self.model._engine = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @between
    def _identity(self) -> Tuple[str, bytes]:
        digest = C.create_string_buffer(33)
        text = self.lib.text(self.lib.c.corun_identity, self.handle, digest)
        return digest.value.decode(), text

    @property
    def identity(self) -> Dict[str, Any]:
        """The fields of the numeric identity."""
        fields: Dict[str, Any] = json.loads(self._identity()[1])
        return fields

    @property
    def fingerprint(self) -> str:
        """The digest of the identity, as in system_fingerprint of result files."""
        return self._identity()[0]

    @property
    @between
    def stats(self) -> Dict[str, Any]:
        """Counters since the engine was opened, by the names of corun_stats."""
        s = _abi.Stats()
        self.lib.check(self.lib.c.corun_engine_stats(self.handle, C.byref(s)))
        out = {f[0]: getattr(s, f[0]) for f in _abi.Stats._fields_}
        out["live_rows_seen"] = [r + 1 for r in range(512)
                                 if s.live_rows_seen[r // 64] >> r % 64 & 1]
        return out

    def generate(self, prompts: Sequence[Prompt],
                 sampling: Union[None, Sampling, Sequence[Sampling]] = None,
                 **fields: Any) -> List[Result]:
        """Answers to all prompts, in their order.

        prompts: texts, token ids, or chats (lists of messages). sampling: one for all, or one for
        each; fields set single values of it (max_tokens=16, n=4, logprobs=0). A request that the
        library refuses is a CorunError that names the prompt's index, and nothing is left running;
        one that fails later (non-finite logits) has `error` in its samples.
        """
        if isinstance(prompts, (str, bytes)):
            raise TypeError("prompts must be a list")
        if sampling is None or isinstance(sampling, Sampling):
            sampling = [sampling or Sampling()] * len(prompts)
        if len(sampling) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, {len(sampling)} samplings")
        chosen = [dataclasses.replace(s, **fields) for s in sampling]
        jobs = [Job(self.model.prompt_tokens(p), s, self.lib.seed_sample)
                for p, s in zip(prompts, chosen)]
        self.run(jobs)
        return [j.result() for j in jobs]

    def score(self, texts: Sequence[Prompt], *, top: int = 0) -> List[Score]:
        """Log-probabilities of the tokens of texts, ids or chats; top: likeliest ids kept."""
        results = self.generate(texts, Sampling(temperature=0, max_tokens=0, prompt_logprobs=top))
        for i, r in enumerate(results):
            if r.samples[0].error:
                raise CorunError("EFORMAT", f"text {i}: {r.samples[0].error}")
        return [r.score for r in results]

    # The calls below are those of the handle's user; without the underscore, of anybody.

    def _submit(self, job: Job) -> int:
        """Hands a job in; its id in events. The id is known to `drop` before the library has it."""
        r, id_ = _abi.Request(), C.c_uint64()
        r.tokens, r.n_token = _pointer(job.tokens, C.c_int32), job.tokens.size
        r.sampling, keep = self.model._sampling(job.s)
        self._coming = id_
        self.lib.check(self.lib.c.corun_submit(self.handle, C.byref(r), C.byref(id_)))
        del keep
        self._alive[id_.value] = job
        self._coming = None
        return id_.value

    def _next(self, event: _abi.Event) -> Optional[Job]:
        """Runs until the next event; the job that it was of, which has taken it in."""
        self.lib.check(self._c_next(self._h, event))
        job = self._alive.get(event.id) if event.kind > _abi.EVENT_IDLE else None
        if job is not None:
            job.event(event)
            if job.done:
                del self._alive[event.id]
        elif event.kind == _abi.EVENT_IDLE and self._alive:
            raise CorunError("EINTERNAL", "the engine is idle while requests wait")
        return job

    def _cancel(self, id_: int) -> None:
        """Ends a request: no further event of it comes, its pages are free after the step."""
        if self._h is not None and self.owner.here:
            self.lib.check(self.lib.c.corun_cancel(self._h, id_))
        self._alive.pop(id_, None)

    def _drop(self) -> None:
        """Cancels every request, also one whose submission was interrupted."""
        if self._coming is not None:
            self._cancel(self._coming.value)
            self._coming = None
        while self._alive:
            self._cancel(next(iter(self._alive)))

    submit, next, cancel, drop = alone(_submit), alone(_next), alone(_cancel), alone(_drop)

    @alone
    def run(self, jobs: Sequence[Job], done: Optional[Callable[[Job], None]] = None) -> None:
        """Runs all jobs; done is called for each that ended, and may not use the engine but to look
        at it. RuntimeError while another thread, or the caller of this callback, runs it. After any
        exception, Ctrl-C among them, no job is left in the engine."""
        self._drop()  # what a second Ctrl-C may have left
        event, at, window = _abi.Event(), 0, max(self.WINDOW, self.slots)
        try:
            while at < len(jobs) or self._alive:
                while at < len(jobs) and len(self._alive) < window:
                    try:
                        self._submit(jobs[at])
                    except CorunError as e:
                        raise CorunError(e.status, f"prompt {at}: {e}") from None
                    at += 1
                job = self._next(event)
                if done is not None and job is not None and job.done:
                    done(job)
                    self.owner.check()  # the callback may have forked
            for i, job in enumerate(jobs):
                if not job.done:
                    raise CorunError("EINTERNAL", f"prompt {i} was left without an end")
        finally:
            self._drop()
