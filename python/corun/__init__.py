"""CoRun in Python: deterministic LLM inference through libcorun.

    from corun import LLM, SamplingParams        # in place of vLLM's
    llm = LLM(model="SmolLM2-135M-Instruct.gguf")
    for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
        print(output.outputs[0].text)

LLM has vLLM's offline interface, AsyncLLM its asynchronous one; Model and Engine are the library
with numpy arrays. The promise is that of the library: with the same fingerprint the same request
gives the same tokens and log-probability bits, whatever else is asked, in any order.

Every failure of the library is a CorunError with the library's text. docs/python.md has it all.
"""
from ._abi import VERSION as __version__, CorunError, Library
from ._frontend import TextPrompt, TokensPrompt
from .async_llm import AsyncLLM
from .engine import Engine, Model, Result, Sample, Sampling, Score
from .llm import LLM
from .outputs import (CompletionOutput, EncodingOutput, Logprob, RequestMetrics, RequestOutput,
                      ScoreOutput)
from .sampling_params import RequestOutputKind, SamplingParams

__all__ = ["AsyncLLM", "CompletionOutput", "CorunError", "EncodingOutput", "Engine", "LLM",
           "Library", "Logprob", "Model", "RequestMetrics", "RequestOutput", "RequestOutputKind", "Result",
           "Sample", "Sampling", "SamplingParams", "Score", "ScoreOutput", "TextPrompt",
           "TokensPrompt", "__version__"]
