"""AsyncLLM: many requests at a time from asyncio, each a stream of outputs.

The engine has a thread of its own, which alone touches the library's handles; it takes commands
from a queue between steps. A stream and the thread share a _Stream, under its lock. Invariant: a
request whose generator ended, in whatever way, is not in the engine after the running step.
"""
from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import weakref
from typing import (Any, AsyncGenerator, Callable, Dict, Iterable, List, Mapping, Optional, Tuple,
                    Union)

from . import _abi
from ._abi import CorunError
from ._frontend import Frontend, Ready, SinglePrompt, Tokenizer
from .engine import Array, Job, Sampling
from .outputs import RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> bool:
    """Has an event loop call a function. False: it is closed, nobody will come back."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True


class _Stream(Job):
    """A job whose consumer waits in an event loop."""

    def __init__(self, tokens: Array, s: Sampling, seed_of: Callable[[int, int], int],
                 keep_text: bool) -> None:
        super().__init__(tokens, s, seed_of, keep_text)
        self.lock = threading.Lock()
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.final_only = False
        self.told = False  # the loop will look
        self.error: Optional[BaseException] = None
        self.engine_id: Optional[int] = None
        self.gone = False  # the consumer left

    def event(self, e: _abi.Event) -> None:
        with self.lock:
            super().event(e)
        if e.kind != _abi.EVENT_PROMPT and (self.done or not self.final_only):
            self.tell()

    def tell(self) -> None:
        with self.lock:
            if self.told:
                return
            self.told = True
        if not _tell(self.loop, self.changed.set):
            self.gone = True

    def stop(self, error: Optional[BaseException] = None) -> None:
        """Ends what is open: with an error, else as aborted."""
        with self.lock:
            self.error = self.error or error
            for i, end in enumerate(self.end):
                if end is None:
                    self.end[i] = ("abort", None, None)
            self.n_open = 0
        self.tell()


class _Core:
    """The engine's thread. AsyncLLM holds it, never the other way round."""

    def __init__(self, front: Frontend) -> None:
        self.front, self.engine = front, front.engine
        self.commands: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self.streams: Dict[str, _Stream] = {}  # by request id; the event loop's side
        self.error: Optional[BaseException] = None
        self.lock, self.closed = threading.Lock(), False
        self.thread = threading.Thread(target=self.work, name="corun", daemon=True)
        self.thread.start()
        atexit.register(_at_exit, weakref.ref(self))

    def work(self) -> None:
        event = _abi.Event()
        try:
            while self.take():
                if self.engine._alive:
                    job = self.engine.next(event)
                    if isinstance(job, _Stream) and job.gone and not job.done:
                        self.end(job)
        except BaseException as e:  # the engine cannot go on: everybody learns why
            self.error = e
        alive = [j for j in self.engine._alive.values() if isinstance(j, _Stream)]
        self.error = self.error or CorunError("EINVAL", "the engine was shut down")
        for job in alive:
            job.stop(self.error)
        try:
            self.engine.drop()
        finally:
            self.front.close()
            with self.lock:
                self.closed = True
            while self.commands.qsize():  # what came too late must be answered too
                command = self.commands.get()
                if command is not None:
                    command()

    def check(self) -> None:
        """Raises why nothing more can be asked."""
        self.engine.owner.check()
        if self.error is not None:
            raise self.error

    def post(self, command: Callable[[], None]) -> None:
        """Hands a command to the thread; after its end it is run here, and finds the error set."""
        if not self.engine.owner.here:  # the thread is not in this process, and may hold the lock
            return
        with self.lock:
            if not self.closed:
                self.commands.put(command)
                return
        command()

    def take(self) -> bool:
        """Runs the commands that wait; without a request, waits for one. False: the end."""
        while self.commands.qsize() or not self.engine._alive:
            command = self.commands.get()
            if command is None:
                return False
            command()
        return True

    def start(self, job: _Stream) -> None:
        if self.error is not None:
            job.stop(self.error)
        elif not job.gone:
            try:
                job.engine_id = self.engine.submit(job)
            except (CorunError, ValueError, TypeError) as e:
                job.stop(e)

    def end(self, job: _Stream) -> None:
        if job.engine_id is not None and job.engine_id in self.engine._alive:
            self.engine.cancel(job.engine_id)
        job.stop()

    def stop(self) -> None:
        self.commands.put(None)


def _at_exit(ref: "weakref.ref[_Core]") -> None:
    """Before the interpreter ends, the thread does: it must not wake up in what is left."""
    core = ref()
    if core is not None:
        core.stop()
        core.thread.join()


class AsyncLLM:
    """A model for concurrent requests; the arguments are those of LLM.

    async for output in engine.generate(prompt, sampling_params, request_id): partial outputs as
    sampling_params.output_kind says. A generator that is closed, cancelled or forgotten frees its
    pages after the running step. Answers are those of LLM, bit for bit; request_id has no effect on
    them. All methods but shutdown belong to an event loop.
    """

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._front = Frontend(model, **arguments)
        self._core = _Core(self._front)
        self._finalizer = weakref.finalize(self, self._core.stop)
        self._finalizer.atexit = False
        self._unnamed = 0

    async def generate(self, prompt: SinglePrompt, sampling_params: Optional[SamplingParams] = None,
                       request_id: Optional[str] = None, *,
                       lora_request: None = None) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come; the last one has finished set."""
        if lora_request is not None:
            raise ValueError("lora_request is not supported")
        core, front = self._core, self._front
        core.check()
        if request_id is None:
            self._unnamed += 1
            request_id = f"corun-{self._unnamed}"
        if request_id in core.streams:
            raise ValueError(f"a request {request_id!r} is running already")
        params = sampling_params if sampling_params is not None else front.default_params()
        ready = front.cut(front.prompt(prompt), params)
        job = front.job(ready, params, front.sampling(params), make=_Stream)
        job.final_only = params.output_kind is RequestOutputKind.FINAL_ONLY
        core.streams[request_id] = job
        try:
            core.post(lambda: core.start(job))
            since, said = [(0, 0)] * len(job.samples), [False] * len(job.samples)
            first = True
            while True:
                await job.changed.wait()
                job.changed.clear()
                with job.lock:
                    job.told = False
                    if job.error is not None:
                        raise job.error
                    done = job.done
                    if params.output_kind is RequestOutputKind.DELTA:
                        output, since = self._delta(request_id, ready, job, since, said)
                    else:
                        output = front.output(request_id, ready, job, done)
                    if not first and params.output_kind is RequestOutputKind.DELTA:
                        output.result.prompt_logprobs = None
                first = False
                if output.outputs or done:
                    yield output
                if done:
                    return
        finally:
            core.streams.pop(request_id, None)
            job.gone = True
            if not job.done:
                core.post(lambda: core.end(job))

    def _delta(self, request_id: str, ready: Ready, job: _Stream, since: List[Tuple[int, int]],
               said: List[bool]) -> Tuple[RequestOutput, List[Tuple[int, int]]]:
        """What is new: samples with new tokens, text, or an end."""
        now = [(len(t.id), len(x)) for t, x in zip(job.samples, job.text)]
        output = self._front.output(request_id, ready, job, job.done, since)
        output.outputs = [o for o, a, b, s in zip(output.outputs, since, now, said)
                          if a != b or (o.finish_reason is not None and not s)]
        for o in output.outputs:
            said[o.index] = o.finish_reason is not None
        return output, now

    async def abort(self, request_id: Union[str, Iterable[str]]) -> None:
        """Ends requests: their generators give a last output with finish_reason "abort"."""
        self._core.engine.owner.check()
        for name in [request_id] if isinstance(request_id, str) else list(request_id):
            job = self._core.streams.get(name)
            if job is not None:
                self._core.post(lambda job=job: self._core.end(job))  # type: ignore[misc]

    async def get_tokenizer(self) -> Tokenizer:
        return self._front.tokenizer

    async def get_default_sampling_params(self) -> SamplingParams:
        return self._front.default_params()

    async def load_weights(self,
                           weights: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]) -> None:
        """New values for every weight (Model.refill); no request may be running."""
        await self._call(lambda: self._front.model.refill(weights))

    async def stats(self) -> Dict[str, Any]:
        """Counters of the engine, by the names of corun_stats."""
        stats: Dict[str, Any] = await self._call(lambda: self._front.engine.stats)
        return stats

    async def fingerprint(self) -> str:
        """The digest of the numeric identity."""
        digest: str = await self._call(lambda: self._front.engine.fingerprint)
        return digest

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Runs a function between steps, in the engine's thread."""
        loop, core = asyncio.get_running_loop(), self._core
        answer: "asyncio.Future[Any]" = loop.create_future()

        def give(set_: Callable[[Any], None], value: Any) -> None:
            if not answer.done():
                set_(value)

        def run() -> None:
            try:
                if core.error is not None:
                    raise core.error
                value = function()
            except Exception as e:
                _tell(loop, give, answer.set_exception, e)
            else:
                _tell(loop, give, answer.set_result, value)

        core.check()
        core.post(run)
        return await answer

    @property
    def errored(self) -> bool:
        """The engine failed, was shut down, or was opened before a fork."""
        return self._core.error is not None or not self._core.engine.owner.here

    def shutdown(self) -> None:
        """Ends all requests (their generators raise) and frees the model. May be called twice."""
        self._finalizer()
        if threading.current_thread() is not self._core.thread:
            self._core.thread.join()
