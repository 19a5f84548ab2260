"""What a request gives, with the names of vLLM's classes.

Text and token ids are plain; dictionaries of log-probabilities are built when they are first read.
The arrays that they are built from are `CompletionOutput.sample` and `RequestOutput.result`. An output
holds the texts of its tokens, so that it outlives the model.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Union

import numpy as np

from .engine import Result, Sample, Score


@dataclasses.dataclass
class Logprob:
    """A token's log-probability (natural logarithm, of the raw distribution)."""
    logprob: float
    rank: Optional[int] = None  # from 1 on; None: not among the likeliest that were asked for
    decoded_token: Optional[str] = None


@dataclasses.dataclass
class RequestMetrics:
    """Counts of a request. There are no clock values: they would differ between equal runs."""
    num_prompt_tokens: int
    num_generation_tokens: int


LogprobDict = Dict[int, Logprob]
TokenText = Mapping[int, str]


def logprob_dicts(ids: "np.ndarray[Any, Any]", logprobs: "np.ndarray[Any, Any]",
                  top_ids: Optional["np.ndarray[Any, Any]"],
                  top_logprobs: Optional["np.ndarray[Any, Any]"],
                  text: TokenText) -> List[LogprobDict]:
    """For each token: its own log-probability first, then the likeliest, likeliest first."""
    out: List[LogprobDict] = []
    rows = top_ids.tolist() if top_ids is not None else [[]] * len(ids)
    values = top_logprobs.tolist() if top_logprobs is not None else [[]] * len(ids)
    for token, own, top, lps in zip(ids.tolist(), logprobs.tolist(), rows, values):
        d = {token: Logprob(own, None, text[token])}
        for rank, (i, lp) in enumerate(zip(top, lps), 1):
            if i == token:
                d[i].rank = rank
            elif i >= 0:
                d[i] = Logprob(lp, rank, text[i])
        out.append(d)
    return out


class CompletionOutput:
    """One sample of a request."""

    def __init__(self, index: int, sample: Sample, text: TokenText) -> None:
        self.index = index
        self.sample = sample  # the arrays
        self.text: str = sample.text
        self.token_ids: List[int] = sample.tokens.tolist()
        # "stop", "length", "abort", "error", or None while it runs
        self.finish_reason: Optional[str] = sample.finish or None
        self.stop_reason: Union[None, int, str] = sample.stop_reason
        self.error: Optional[str] = sample.error  # why the engine failed it
        self.seed: int = sample.seed  # a request alone with this seed gives the same tokens
        self.lora_request = None
        self._token_text = text
        self._logprobs: Optional[List[LogprobDict]] = None

    @property
    def logprobs(self) -> Optional[List[LogprobDict]]:
        """A dictionary a token; None where none were asked for."""
        s = self.sample
        if self._logprobs is None and s.logprobs is not None:
            self._logprobs = logprob_dicts(s.tokens, s.logprobs, s.top_ids, s.top_logprobs,
                                           self._token_text)
        return self._logprobs

    @property
    def cumulative_logprob(self) -> Optional[float]:
        """The sum over the tokens, from left to right; None where none were asked for."""
        return None if self.sample.logprobs is None else sum(self.sample.logprobs.tolist())

    def finished(self) -> bool:
        return self.finish_reason is not None

    def __repr__(self) -> str:
        return (f"CompletionOutput(index={self.index}, text={self.text!r}, "
                f"token_ids={self.token_ids}, cumulative_logprob={self.cumulative_logprob}, "
                f"logprobs={self.logprobs}, finish_reason={self.finish_reason}, "
                f"stop_reason={self.stop_reason})")


class RequestOutput:
    """The answer to one prompt."""

    def __init__(self, request_id: str, prompt: Optional[str], result: Result, finished: bool,
                 text: TokenText) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.result = result  # the arrays
        self.prompt_token_ids: List[int] = result.prompt_tokens.tolist()
        self.outputs = [CompletionOutput(i, s, text) for i, s in enumerate(result.samples)]
        self.finished = finished
        self.metrics = RequestMetrics(len(self.prompt_token_ids),
                                      sum(len(o.token_ids) for o in self.outputs))
        self.lora_request = None
        self.encoder_prompt = None
        self.encoder_prompt_token_ids = None
        self.num_cached_tokens: Optional[int] = None
        self._token_text = text
        self._prompt_logprobs: Optional[List[Optional[LogprobDict]]] = None

    @property
    def prompt_logprobs(self) -> Optional[List[Optional[LogprobDict]]]:
        """A dictionary a prompt token, None for the first; None where none were asked for."""
        r = self.result
        if self._prompt_logprobs is None and r.prompt_logprobs is not None:
            n = len(r.prompt_logprobs)  # fewer than the prompt while it is read
            self._prompt_logprobs = [None, *logprob_dicts(
                r.prompt_tokens[1:n], r.prompt_logprobs[1:],
                None if r.prompt_top_ids is None else r.prompt_top_ids[1:],
                None if r.prompt_top_logprobs is None else r.prompt_top_logprobs[1:],
                self._token_text)]
        return self._prompt_logprobs

    def __repr__(self) -> str:
        return (f"RequestOutput(request_id={self.request_id}, prompt={self.prompt!r}, "
                f"prompt_token_ids={self.prompt_token_ids}, "
                f"prompt_logprobs={self.prompt_logprobs}, outputs={self.outputs}, "
                f"finished={self.finished}, metrics={self.metrics})")


@dataclasses.dataclass
class EncodingOutput:
    """What LLM.encode gives: token ids (vLLM's encode pools hidden states instead)."""
    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]


@dataclasses.dataclass
class ScoreOutput:
    """What LLM.score gives: log-probabilities of a text (vLLM's score compares pairs of texts)."""
    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    token_logprobs: List[Optional[float]]  # the first is None
    sum_logprob: float
    arrays: Score
