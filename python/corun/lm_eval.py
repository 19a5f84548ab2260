"""A model for lm-evaluation-harness: `corun`.

    python -m corun.lm_eval --model corun --model_args model=PATH,max_length=2048 --tasks NAME

is the harness's own command with this model registered; in a script, `import corun.lm_eval` does
that. Invariant: the answer to a request of the harness depends on the request and the numeric
identity alone: not on the batch size, the order of the documents, the slots, or what ran before.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import lm_eval.models  # the harness's own: it registers them only where there are none yet
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from .llm import LLM
from .sampling_params import SamplingParams

# A prompt, its tokens, and the tokens of what follows.
Pair = Tuple[Any, List[int], List[int]]
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("corun")
class CorunLM(TemplateLM):  # type: ignore[misc]
    """model (or pretrained): what LLM takes. batch_size: requests handed to the engine at a time;
    "auto" is all of them, and nothing but speed depends on it. device: "cuda:0", the default of
    the harness's command, is "auto" here: a GPU where one serves. max_length: context and
    continuation together; default the model's context. Other arguments go to LLM: policy, slots,
    kv_bytes, threads, seed, ..."""

    def __init__(self, model: Optional[str] = None, pretrained: Optional[str] = None,
                 batch_size: Union[int, str, None] = "auto", max_batch_size: Any = None,
                 device: Optional[str] = None, max_length: Optional[int] = None,
                 max_gen_toks: int = 256, add_bos_token: Optional[bool] = None,
                 prefix_token_id: Optional[int] = None, **arguments: Any) -> None:
        super().__init__()
        path = model if model is not None else pretrained
        if path is None:
            raise ValueError("model_args: model=PATH is missing")
        self.batch_size = self._batch(batch_size)
        if device in (None, "cuda:0"):  # what the harness's command gives when it is not asked
            device = "auto"
        self.llm = LLM(path, device=device, max_model_len=max_length, **arguments)
        self.tokenizer = self.llm.get_tokenizer()
        self.max_length = self.llm._front.n_ctx
        self.max_gen_toks = int(max_gen_toks)
        self._add_special = True if add_bos_token is None else bool(add_bos_token)
        self._prefix = prefix_token_id
        self._template: Optional[str] = None
        self._first()

    @staticmethod
    def _batch(size: Union[int, str, None]) -> int:
        """0 is all at once."""
        if size is None or str(size).startswith("auto"):
            return 0
        if int(size) < 1:
            raise ValueError(f"batch_size must be auto or positive, got {size!r}")
        return int(size)

    # ---- tokens and chats -----------------------------------------------------------------------

    @property
    def eot_token_id(self) -> Optional[int]:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> Optional[int]:
        """What stands before a text that has no context: bos, else eos."""
        if self._prefix is not None:
            return int(self._prefix)
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None else self.tokenizer.eos_token_id

    def _first(self) -> int:
        first = self.prefix_token_id
        if first is None:
            raise ValueError("the model has no bos and no eos token: give prefix_token_id=ID")
        return first

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None,
                   **_: Any) -> List[int]:
        add = self._add_special if add_special_tokens is None else add_special_tokens
        bos = self.tokenizer.bos_token
        if add_special_tokens is None and bos and string.startswith(bos):
            add = False  # a chat template has put it there
        return self.tokenizer.encode(string, add_special_tokens=add)

    @property
    def tokenizer_name(self) -> str:
        return str(self.llm.engine.model.info["tokenizer_digest"])

    def chat_template(self, chat_template: Union[bool, str] = False) -> Optional[str]:
        """The digest of the model's templates, and the name of the one that is used."""
        if not chat_template:
            return None
        self._template = chat_template if isinstance(chat_template, str) else None
        return f"{self.llm.engine.model.info['template_digest']} {self._template or ''}".strip()

    def apply_chat_template(self, chat_history: List[Dict[str, str]],
                            add_generation_prompt: bool = True) -> str:
        text = self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt, chat_template=self._template)
        assert isinstance(text, str)
        return text

    def _chunks(self, items: Sequence[Any], what: str, quiet: bool) -> Iterator[Sequence[Any]]:
        size = self.batch_size or max(len(items), 1)
        with tqdm(total=len(items), desc=f"Running {what} requests", disable=quiet) as bar:
            for at in range(0, len(items), size):
                yield items[at:at + size]
                bar.update(min(size, len(items) - at))

    # ---- log-likelihoods ------------------------------------------------------------------------

    def _loglikelihood_tokens(self, requests: Sequence[Pair], disable_tqdm: bool = False,
                              **_: Any) -> List[Tuple[float, bool]]:
        """The sum over the continuation in double precision, from left to right, and whether each
        of its tokens is the likeliest (of equal ones the engine takes the lowest id)."""
        out: List[Tuple[float, bool]] = []
        for chunk in self._chunks(requests, "loglikelihood", disable_tqdm):
            texts, starts = [], []
            for _, context, continuation in chunk:
                if len(continuation) >= self.max_length:
                    raise ValueError(f"a continuation has {len(continuation)} tokens, and max_length "
                                     f"is {self.max_length}: there is no room for its context")
                texts.append((context + continuation)[-self.max_length:])
                starts.append(len(texts[-1]) - len(continuation))
            scores = self.llm.engine.score(texts, top=1)
            for (key, _, _), score, start in zip(chunk, scores, starts):
                assert score.top_ids is not None
                greedy = bool(np.all(score.top_ids[start:, 0] == score.tokens[start:]))
                out.append((float(sum(score.logprobs[start:].tolist())), greedy))
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, out[-1])
        return out

    def loglikelihood_rolling(self, requests: List[Any], disable_tqdm: bool = False) -> List[float]:
        windows: List[Pair] = []
        counts = []
        for (text,) in (r.args for r in requests):
            # A window is scored as one text of context and prediction: max_length tokens.
            pairs = [make_disjoint_window(w) for w in get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1, context_len=1)]
            windows += [(None, context, prediction) for context, prediction in pairs]
            counts.append(len(pairs))
        answers = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        out = []
        for r, n in zip(requests, counts):
            out.append(float(sum(next(answers)[0] for _ in range(n))))
            self.cache_hook.add_partial("loglikelihood_rolling", r.args, out[-1])
        return out

    # ---- generation -----------------------------------------------------------------------------

    def _gen_params(self, given: Dict[str, Any]) -> Tuple[SamplingParams, List[str]]:
        """The harness's gen_kwargs as parameters, and its stop strings. Without do_sample or a
        temperature it is greedy."""
        kw = dict(given)
        until = kw.pop("until", None) or []
        until = [until] if isinstance(until, str) else [u for u in until if u]
        limits = [kw.pop(k) for k in LIMITS if kw.get(k) is not None]
        sample = kw.pop("do_sample", None)
        if sample is False or (sample is None and kw.get("temperature") is None):
            kw["temperature"] = 0.0
        kw.setdefault("skip_special_tokens", False)
        return SamplingParams(max_tokens=int(limits[0]) if limits else self.max_gen_toks,
                              stop=until, **{k: v for k, v in kw.items() if v is not None}), until

    def generate_until(self, requests: List[Any], disable_tqdm: bool = False) -> List[str]:
        front = self.llm._front
        before: Dict[bytes, int] = {}
        work = []
        for text, given in (r.args for r in requests):
            params, until = self._gen_params(given)
            assert params.max_tokens is not None
            room = self.max_length - params.max_tokens
            if room < 1:
                raise ValueError(f"max_gen_toks {params.max_tokens} leaves no room for a prompt in "
                                 f"max_length {self.max_length}")
            ids = np.array(self.tok_encode(text)[-room:] or [self._first()], np.int32)
            if params.seed is None:  # as LLM's rule for one call, whatever the batch size
                nth = before.get(ids.tobytes(), 0)
                before[ids.tobytes()] = nth + params.n
                params.seed = front.lib.seed_sample(front.seed_of(ids), nth)
            work.append((text, given, ids, params, until))
        out: List[str] = []
        for chunk in self._chunks(work, "generate_until", disable_tqdm):
            answers = self.llm.generate([{"prompt_token_ids": w[2]} for w in chunk],
                                        [w[3] for w in chunk], use_tqdm=False)
            for (text, given, _, _, until), answer in zip(chunk, answers):
                if answer.outputs[0].error:
                    raise RuntimeError(f"generate_until: {answer.outputs[0].error}")
                result = answer.outputs[0].text
                for stop in until:  # the harness cuts at the first of any
                    result = result.split(stop)[0]
                out.append(result)
                self.cache_hook.add_partial("generate_until", (text, given), result)
        return out


def main() -> None:
    """The harness's command."""
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == "__main__":
    main()
