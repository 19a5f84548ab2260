"""SamplingParams: how tokens are drawn, with the names, defaults and checks of vLLM's class.

What the engine cannot do is refused here, never passed over. docs/python.md lists all fields.
"""
from __future__ import annotations

import copy
import dataclasses
import enum
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Union

from . import _abi

GREEDY_BELOW = 1e-5  # temperatures under it take the likeliest token


class RequestOutputKind(enum.Enum):
    """What an output of AsyncLLM holds."""
    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last output
    FINAL_ONLY = 2  # one output, at the end


def _list(name: str, value: Any) -> List[Any]:
    if value is None:
        return []
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, set, frozenset)):
        raise ValueError(f"{name} must be a list, got {value!r}")
    return list(value)


@dataclasses.dataclass
class SamplingParams:
    """Parameters of a request. A field that is refused has None (or False) as its only value."""

    n: int = 1  # samples of one prompt; sample i draws with a seed of its own
    best_of: Optional[int] = None  # only the value of n
    presence_penalty: float = 0.0  # -2 ... 2
    frequency_penalty: float = 0.0  # -2 ... 2
    repetition_penalty: float = 1.0  # above 0
    temperature: float = 1.0  # below 1e-5: greedy
    top_p: float = 1.0  # above 0, at most 1
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0  # 0 ... 1
    seed: Optional[int] = None  # None or -1: made from the prompt's ids (docs/python.md)
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    bad_words: Optional[Sequence[str]] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16  # None: the rest of the context; 0: nothing is drawn
    min_tokens: int = 0
    logprobs: Optional[int] = None  # k: of the drawn token and of the k likeliest; 0 ... 20
    prompt_logprobs: Optional[int] = None  # likewise for the prompt
    flat_logprobs: bool = False  # only False
    detokenize: bool = True  # False: text stays empty
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True  # no effect, as with any byte-level tokenizer
    logits_processors: Optional[Any] = None  # only None
    truncate_prompt_tokens: Optional[int] = None  # only the last tokens of the prompt; -1: fit
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    guided_decoding: Optional[Any] = None  # only None
    structured_outputs: Optional[Any] = None  # only None
    logit_bias: Optional[Mapping[int, float]] = None  # -100 ... 100
    allowed_token_ids: Optional[Sequence[int]] = None
    extra_args: Optional[Dict[str, Any]] = None  # only None
    skip_reading_prefix_cache: Optional[bool] = None  # no effect: reuse never changes a bit

    def __post_init__(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else _list("stop", self.stop)
        self.stop_token_ids = _list("stop_token_ids", self.stop_token_ids)
        self.bad_words = _list("bad_words", self.bad_words)
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if self.logprobs is False:
            self.logprobs = None
        if self.prompt_logprobs is False:
            self.prompt_logprobs = None
        if self.seed == -1:
            self.seed = None
        self.output_kind = RequestOutputKind(self.output_kind)
        self._check()
        if self.greedy:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        if self.logit_bias is not None:
            self.logit_bias = {int(k): float(v) for k, v in self.logit_bias.items()}

    def _whole(self, name: str, low: int, high: int = (1 << 31) - 1) -> None:
        v = getattr(self, name)
        if isinstance(v, bool) or not hasattr(v, "__index__"):
            raise ValueError(f"{name} must be an integer, got {v!r}")
        if not low <= v <= high:
            raise ValueError(f"{name} must be in {low} ... {high}, got {v}")
        setattr(self, name, int(v))

    def _real(self, name: str, low: float, high: float, open_low: bool = False) -> None:
        v = getattr(self, name)
        try:
            f = float(v)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a number, got {v!r}") from None
        if isinstance(v, (str, bytes)) or not (low < f if open_low else low <= f) or not f <= high:
            raise ValueError(f"{name} must be in {'(' if open_low else '['}{low}, {high}], got {v}")
        setattr(self, name, f)

    def _check(self) -> None:
        for name in ("logits_processors", "guided_decoding", "structured_outputs", "extra_args"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not supported")
        if self.flat_logprobs:
            raise ValueError("flat_logprobs is not supported")
        self._whole("n", 1, _abi.MAX_SAMPLE)
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError(f"best_of is supported with the value of n ({self.n}) only, got "
                             f"{self.best_of}")
        self._real("presence_penalty", -2, 2)
        self._real("frequency_penalty", -2, 2)
        self._real("repetition_penalty", 0, 1e6, open_low=True)
        self._real("temperature", 0, 100)
        self._real("top_p", 0, 1, open_low=True)
        self._real("min_p", 0, 1)
        self._whole("top_k", -1)
        if self.max_tokens is not None:
            self._whole("max_tokens", 0)
        self._whole("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens={self.max_tokens}, got "
                             f"{self.min_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._whole(name, 0, _abi.MAX_TOP)
        if self.seed is not None:
            self._whole("seed", 0, (1 << 64) - 1)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            self._whole("truncate_prompt_tokens", 1)
        if self.greedy and self.n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}")
        self._check_lists()

    def _check_lists(self) -> None:
        assert isinstance(self.stop, list)
        for name in ("stop", "bad_words"):
            if not all(isinstance(s, str) and s for s in getattr(self, name)):
                raise ValueError(f"{name} must hold texts that are not empty")
        if self.stop and not self.detokenize:
            raise ValueError("stop strings are only supported when detokenize is True")
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _list("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids is empty")
        for name in ("stop_token_ids", "allowed_token_ids"):
            ids = getattr(self, name) or []
            if not all(hasattr(i, "__index__") and not isinstance(i, bool) for i in ids):
                raise ValueError(f"{name} must hold integers")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def all_stop_token_ids(self) -> Set[int]:
        return set(self.stop_token_ids or ())

    @staticmethod
    def from_optional(**fields: Any) -> "SamplingParams":
        """Like the constructor; None means the default of each field."""
        none_is_a_value = {"max_tokens"}
        return SamplingParams(**{k: v for k, v in fields.items()
                                 if v is not None or k in none_is_a_value})

    def clone(self) -> "SamplingParams":
        """A copy that shares nothing."""
        return copy.deepcopy(self)
