"""LLM: vLLM's offline interface. A script changes its import and goes on."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._abi import CorunError
from ._frontend import Frontend, Ready, SinglePrompt, Tokenizer
from .engine import Engine, Job, Messages
from .outputs import EncodingOutput, RequestOutput, ScoreOutput
from .sampling_params import SamplingParams

Params = Union[None, SamplingParams, Sequence[SamplingParams]]
Progress = Union[bool, Callable[..., Any]]


class _Bar:
    """The tqdm bar of one call, or nothing."""

    def __init__(self, use: Progress, total: int) -> None:
        self.bar: Any = None
        self.tokens = 0
        if use:
            from tqdm.auto import tqdm
            make: Any = tqdm if use is True else use
            self.bar = make(total=total, desc="Processed prompts", dynamic_ncols=True)

    def __call__(self, job: Job) -> None:
        self.tokens += sum(len(t.id) for t in job.samples)
        if self.bar is not None:
            elapsed = self.bar.format_dict["elapsed"] if hasattr(self.bar, "format_dict") else 0
            if elapsed:
                self.bar.set_postfix_str(f"{self.tokens / elapsed:.2f} toks/s", refresh=False)
            self.bar.update(1)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class LLM:
    """A model for offline work.

    model: a .gguf file, a folder with safetensors and configuration, or "fake:LEVEL". The keywords
    are those of vLLM's LLM (docs/python.md lists which have an effect, which are accepted without
    one and which are refused) and those of CoRun: policy, slots (= max_num_seqs), ctx
    (= max_model_len), page_tokens (= block_size), kv_bytes, swap_bytes, prefill_chunk, threads,
    isa, device, template_date, allow_special_rows, library.

    An instance belongs to one thread at a time, and to the process that made it: RuntimeError
    otherwise. close() frees it, as does the end of a with.
    """

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._front = Frontend(model, **arguments)
        self._next_id = 0

    # ---- the model and its parts ----------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The library's engine: requests in, numpy arrays out."""
        return self._front.engine

    @property
    def fingerprint(self) -> str:
        """The digest of the numeric identity: equal ones give equal answers."""
        return self.engine.fingerprint

    def get_tokenizer(self) -> Tokenizer:
        return self._front.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return self._front.default_params()

    def load_weights(self, weights: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]) -> None:
        """New values for every weight from (name, tensor) pairs; see Model.refill."""
        self._front.model.refill(weights)

    def close(self) -> None:
        self._front.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- work -----------------------------------------------------------------------------------

    def generate(self, prompts: Union[None, SinglePrompt, Sequence[SinglePrompt]] = None,
                 sampling_params: Params = None, *, use_tqdm: Progress = True,
                 prompt_token_ids: Optional[Sequence[Sequence[int]]] = None,
                 lora_request: None = None, priority: Any = None) -> List[RequestOutput]:
        """Answers in the order of the prompts: texts, {"prompt": ...}, {"prompt_token_ids": ...},
        or lists of ids. sampling_params: one for all or one for each; None: the model's own."""
        _no_lora(lora_request)
        if prompts is None:
            if prompt_token_ids is None:
                raise ValueError("prompts are missing")
            prompts = [{"prompt_token_ids": ids} for ids in prompt_token_ids]
        elif prompt_token_ids is not None:
            raise ValueError("prompts and prompt_token_ids exclude each other")
        return self._run(self._front.prompts(prompts), sampling_params, use_tqdm)

    def chat(self, messages: Union[Messages, Sequence[Messages]], sampling_params: Params = None,
             use_tqdm: Progress = True, lora_request: None = None,
             chat_template: Optional[str] = None, chat_template_content_format: str = "auto",
             add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Optional[Sequence[Mapping[str, Any]]] = None,
             chat_template_kwargs: Optional[Mapping[str, Any]] = None) -> List[RequestOutput]:
        """Answers to one chat or to several (a list of lists of messages)."""
        _no_lora(lora_request)
        if isinstance(messages, (str, Mapping)):
            raise TypeError("messages must be a list of messages, or a list of such lists")
        chats: Sequence[Any] = list(messages)
        if not chats:
            raise ValueError("messages: the list is empty")
        if isinstance(chats[0], Mapping):
            chats = [chats]
        ready = [self._front.chat(c, add_generation_prompt, continue_final_message, tools,
                                  chat_template, chat_template_kwargs) for c in chats]
        return self._run(ready, sampling_params, use_tqdm)

    def score(self, texts: Union[SinglePrompt, Sequence[SinglePrompt]], *more: Any,
              top_logprobs: int = 0, use_tqdm: Progress = False) -> List[ScoreOutput]:
        """The log-probability of every token of given texts. (vLLM's score compares pairs of texts
        with a cross-encoder, which this engine does not run.)"""
        if more:
            raise TypeError("score takes texts and gives log-probabilities; pairs of texts for a "
                            "cross-encoder are not supported")
        ready = self._front.prompts(texts)
        params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=top_logprobs)
        out: List[ScoreOutput] = []
        for o in self._run(ready, params, use_tqdm):
            if o.outputs[0].error:
                raise CorunError("EINTERNAL", f"text {len(out)}: {o.outputs[0].error}")
            arrays = o.result.score
            lps = arrays.logprobs[1:].tolist()
            out.append(ScoreOutput(o.request_id, o.prompt, o.prompt_token_ids, [None, *lps],
                                   sum(lps), arrays))
        return out

    def encode(self, prompts: Union[SinglePrompt, Sequence[SinglePrompt]]) -> List[EncodingOutput]:
        """The token ids of prompts. (vLLM's encode pools hidden states, which this engine does not
        give.)"""
        return [EncodingOutput(self._request_id(), p.text, p.ids.tolist())
                for p in self._front.prompts(prompts)]

    def _request_id(self) -> str:
        self._next_id += 1
        return str(self._next_id - 1)

    def _run(self, ready: List[Ready], params: Params, use_tqdm: Progress) -> List[RequestOutput]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            params = [params] * len(ready)
        if len(params) != len(ready):
            raise ValueError("The lengths of prompts and sampling_params must be the same: "
                             f"{len(ready)} and {len(params)}")
        base = {id(p): self._front.sampling(p) for p in {id(p): p for p in params}.values()}
        ready = [self._front.cut(r, p) for r, p in zip(ready, params)]
        before: Dict[bytes, int] = {}
        jobs: List[Job] = []
        for r, p in zip(ready, params):
            key = r.ids.tobytes()
            n = before.get(key, 0)
            jobs.append(self._front.job(r, p, base[id(p)], n))
            before[key] = n + p.n
        bar = _Bar(use_tqdm, len(jobs))
        try:
            self.engine.run(jobs, bar)
        finally:
            bar.close()
        return [self._front.output(self._request_id(), r, j) for r, j in zip(ready, jobs)]


def _no_lora(request: Any) -> None:
    if request is not None:
        raise ValueError("lora_request is not supported")


def _refused(name: str, why: str) -> Callable[..., Any]:
    def method(self: LLM, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"LLM.{name} is not supported: {why}")
    method.__name__ = name
    return method


for _name, _why in {"beam_search": "there is no beam search",
                    "embed": "the engine gives no hidden states",
                    "classify": "the engine gives no hidden states",
                    "reward": "the engine gives no hidden states",
                    "set_tokenizer": "the tokenizer is that of the model's own files"}.items():
    setattr(LLM, _name, _refused(_name, _why))
