"""The C interface of corun.h for ctypes: structs, enums, functions, and where the library is found.

Every struct here has the fields of its C namesake, in order; tests/test_python.py compares sizes
and offsets with a compiler's.
"""
from __future__ import annotations

import ctypes as C
import pathlib
from typing import Any, Optional

VERSION = "0.1.0"
SONAME = "libcorun.so.0"

MAX_TOP = 20
MAX_SAMPLE = 128
MAX_DIM = 8

STATUS = ["OK", "EINVAL", "ENOMEM", "EIO", "EFORMAT", "EUNSUPPORTED", "ECAPACITY", "EDEVICE",
          "EMISMATCH", "EINTERNAL"]
OK, ECAPACITY = 0, 6
EVENT_NONE, EVENT_IDLE, EVENT_PROMPT, EVENT_TOKEN, EVENT_DONE, EVENT_FAILED = range(6)
FINISH_STOP, FINISH_LENGTH = range(2)
DTYPE_BF16, DTYPE_F16, DTYPE_F32 = range(3)
TEXT_ADD_SPECIAL, TEXT_LITERAL, TEXT_SKIP_SPECIAL = 1, 2, 4


class ModelOpts(C.Structure):
    _c_name_ = "corun_model_opts"
    _fields_ = [("path", C.c_char_p), ("n_thread", C.c_int), ("isa", C.c_char_p),
                ("device", C.c_char_p), ("template_date", C.c_char_p), ("dummy_weights", C.c_bool),
                ("plan", C.c_char_p)]


class ModelInfo(C.Structure):
    _c_name_ = "corun_model_info"
    _fields_ = [("family", C.c_char * 32), ("isa", C.c_char * 16), ("device", C.c_char * 80),
                ("device_note", C.c_char * 256), ("n_layer", C.c_int32),
                ("n_embd", C.c_int32), ("n_head", C.c_int32), ("n_kv_head", C.c_int32),
                ("head_dim", C.c_int32), ("n_ff", C.c_int32), ("n_vocab", C.c_int32),
                ("n_token", C.c_int32), ("n_ctx", C.c_int32), ("bos", C.c_int32),
                ("eos", C.c_int32), ("tied", C.c_bool), ("has_template", C.c_bool),
                ("n_param", C.c_uint64), ("weight_bytes", C.c_uint64),
                ("kv_bytes_per_token", C.c_uint64), ("weights_digest", C.c_char * 33),
                ("tokenizer_digest", C.c_char * 33), ("template_digest", C.c_char * 33),
                ("tensor_types", C.c_char * 160)]


class Tensor(C.Structure):
    _c_name_ = "corun_tensor"
    _fields_ = [("name", C.c_char_p), ("dtype", C.c_int), ("n_dim", C.c_int32),
                ("dim", C.POINTER(C.c_int64)), ("data", C.c_void_p)]


class Bytes(C.Structure):
    _c_name_ = "corun_bytes"
    _fields_ = [("data", C.c_char_p), ("len", C.c_size_t)]


I32P = C.POINTER(C.c_int32)


class Sampling(C.Structure):
    _c_name_ = "corun_sampling"
    _fields_ = [("temperature", C.c_double), ("top_p", C.c_double), ("min_p", C.c_double),
                ("top_k", C.c_int32), ("repetition_penalty", C.c_double),
                ("presence_penalty", C.c_double), ("frequency_penalty", C.c_double),
                ("max_tokens", C.c_int32), ("min_tokens", C.c_int32), ("n", C.c_int32),
                ("seed", C.c_uint64), ("ignore_eos", C.c_bool), ("include_stop", C.c_bool),
                ("skip_special", C.c_bool), ("logprobs", C.c_int32),
                ("prompt_logprobs", C.c_int32), ("bias_id", I32P), ("bias", C.POINTER(C.c_float)),
                ("n_bias", C.c_size_t), ("allowed", I32P), ("n_allowed", C.c_size_t),
                ("bad_id", I32P), ("bad_len", I32P), ("n_bad", C.c_size_t), ("stop_id", I32P),
                ("n_stop_id", C.c_size_t), ("stop", C.POINTER(Bytes)), ("n_stop", C.c_size_t)]


class Request(C.Structure):
    _c_name_ = "corun_request"
    _fields_ = [("tokens", I32P), ("n_token", C.c_size_t), ("sampling", Sampling)]


class EngineOpts(C.Structure):
    _c_name_ = "corun_engine_opts"
    _fields_ = [("policy", C.c_int), ("n_slot", C.c_int32), ("n_ctx", C.c_int32),
                ("page_tokens", C.c_int32), ("kv_bytes", C.c_uint64), ("swap_bytes", C.c_int64),
                ("prefill_chunk", C.c_int32), ("processed_logprobs", C.c_bool),
                ("allow_special_rows", C.c_bool)]


class Event(C.Structure):
    _c_name_ = "corun_event"
    _fields_ = [("kind", C.c_int), ("id", C.c_uint64), ("sample", C.c_int32),
                ("index", C.c_int32), ("token", C.c_int32), ("logprob", C.c_float),
                ("n_top", C.c_int32), ("top_id", C.c_int32 * MAX_TOP),
                ("top_logprob", C.c_float * MAX_TOP), ("text", C.c_void_p),
                ("text_len", C.c_size_t), ("finish", C.c_int), ("stop_index", C.c_int32),
                ("stop_token", C.c_int32), ("n_prompt", C.c_int32), ("n_new", C.c_int32),
                ("status", C.c_int)]


class Stats(C.Structure):
    _c_name_ = "corun_stats"
    _fields_ = [(name, C.c_uint64) for name in (  # type: ignore[assignment]
        "steps_prefill", "steps_decode", "steps_mixed", "tokens_prompt", "tokens_new", "rows_live",
        "rows_dead", "swaps_out", "swaps_in", "recomputes", "preempted_most", "prefix_hits",
        "prefix_tokens", "prompt_cuts", "pages", "pages_free", "pages_peak", "swap_pages",
        "swap_pages_free",
        "requests_waiting", "requests_running")] + [
        ("live_rows_seen", C.c_uint64 * 8), ("seconds_prefill", C.c_double),
        ("seconds_decode", C.c_double), ("seconds_sample", C.c_double),
        ("seconds_wait", C.c_double)]


STRUCTS = [ModelOpts, ModelInfo, Tensor, Bytes, Sampling, Request, EngineOpts, Event, Stats]

_P, _S, _SP = C.c_void_p, C.c_size_t, C.POINTER(C.c_size_t)
_FUNCTIONS = {
    "corun_status_name": (C.c_char_p, [C.c_int]),
    "corun_last_error": (C.c_char_p, []),
    "corun_version": (C.c_char_p, []),
    "corun_model_opts_default": (ModelOpts, []),
    "corun_model_open": (C.c_int, [C.POINTER(_P), C.POINTER(ModelOpts)]),
    "corun_model_close": (None, [_P]),
    "corun_model_describe": (C.c_int, [_P, C.POINTER(ModelInfo)]),
    "corun_model_refill": (C.c_int, [_P, C.POINTER(Tensor), _S]),
    "corun_encode": (C.c_int, [_P, C.c_char_p, _S, C.c_uint, I32P, _S, _SP]),
    "corun_decode": (C.c_int, [_P, I32P, _S, C.c_uint, C.c_char_p, _S, _SP]),
    "corun_token_bytes": (C.c_int, [_P, C.c_int32, C.c_char_p, _S, _SP]),
    "corun_chat_render": (C.c_int, [_P, C.c_char_p, _S, C.c_char_p, _S, _SP]),
    "corun_tokenizer_info": (C.c_int, [_P, C.c_char_p, _S, _SP]),
    "corun_sampling_default": (C.c_int, [_P, C.POINTER(Sampling)]),
    "corun_seed_sample": (C.c_uint64, [C.c_uint64, C.c_int32]),
    "corun_policy_parse": (C.c_int, [C.c_char_p, C.POINTER(C.c_int)]),
    "corun_engine_opts_default": (EngineOpts, []),
    "corun_engine_open": (C.c_int, [C.POINTER(_P), _P, C.POINTER(EngineOpts)]),
    "corun_engine_close": (None, [_P]),
    "corun_identity": (C.c_int, [_P, C.c_char_p, C.c_char_p, _S, _SP]),
    "corun_submit": (C.c_int, [_P, C.POINTER(Request), C.POINTER(C.c_uint64)]),
    "corun_cancel": (C.c_int, [_P, C.c_uint64]),
    "corun_next": (C.c_int, [_P, C.POINTER(Event)]),
    "corun_engine_stats": (C.c_int, [_P, C.POINTER(Stats)]),
}


class CorunError(RuntimeError):
    """A call of the library failed. `status` is its name ("EINVAL", ...), str() the cause."""

    def __init__(self, status: str, text: str):
        super().__init__(text)
        self.status = status


class Library:
    """libcorun with its functions declared. Calls go through `check`."""

    def __init__(self, path: Optional[str] = None):
        beside = pathlib.Path(__file__).with_name("libcorun.so")
        place = path if path is not None else str(beside) if beside.exists() else SONAME
        try:
            self.c = C.CDLL(str(place))
            for name, (result, arguments) in _FUNCTIONS.items():
                f = getattr(self.c, name)
                f.restype, f.argtypes = result, arguments
        except (OSError, AttributeError) as e:
            raise CorunError("EIO", f"{place}: cannot be used as libcorun: {e}") from None
        self.version = self.c.corun_version().decode()
        if self.version.split()[0].split(".")[:2] != VERSION.split(".")[:2]:
            raise CorunError("EMISMATCH", f"{place}: is version {self.version}, this package is of "
                                          f"{VERSION}")

    def error(self, status: int) -> CorunError:
        name = STATUS[status] if 0 <= status < len(STATUS) else str(status)
        return CorunError(name, (self.c.corun_last_error() or b"").decode("utf-8", "replace"))

    def check(self, status: int) -> None:
        if status != OK:
            raise self.error(status)

    def seed_sample(self, seed: int, i: int) -> int:
        """The seed of sample i of a request with this seed."""
        return int(self.c.corun_seed_sample(seed, i))

    def text(self, function: Any, *arguments: Any) -> bytes:
        """A function that fills (out, cap, n): called again with the room that it asks for."""
        n = C.c_size_t()
        room = 4096
        for _ in range(2):
            out = C.create_string_buffer(max(room, 1))
            status = function(*arguments, out, room, C.byref(n))
            if status != ECAPACITY or n.value <= room:  # a limit of a template is no lack of room
                break
            room = n.value
        self.check(status)
        return out.raw[:n.value]
