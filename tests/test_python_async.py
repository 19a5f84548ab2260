"""corun.AsyncLLM: many streams at once, their answers against those of LLM."""
import asyncio
import gc
import random
import subprocess
import sys
import threading
import weakref

import pytest

from conftest import ROOT

np = pytest.importorskip("numpy")
sys.path.insert(0, str(ROOT / "python"))
from corun import AsyncLLM, CorunError, LLM, RequestOutputKind, SamplingParams  # noqa: E402
from test_python_llm import LIB, bits, library  # noqa: E402,F401

CUMULATIVE, DELTA, FINAL = RequestOutputKind


@pytest.fixture
def engine(library):  # noqa: F811
    e = AsyncLLM("fake:phase", slots=4)
    yield e
    e.shutdown()


async def last(engine, prompt, params, name):
    out = None
    async for out in engine.generate(prompt, params, name):
        pass
    return out


async def idle(engine, full_pages):
    """Waits until no request is alive; all pages are free but those of kept prefixes."""
    for _ in range(500):
        s = await engine.stats()
        if s["requests_running"] + s["requests_waiting"] == 0:
            assert s["pages_free"] == full_pages
            return
        await asyncio.sleep(0.01)
    raise AssertionError("requests are still alive")


def params(i, kind=CUMULATIVE, **more):
    return SamplingParams(max_tokens=6 + i % 20, logprobs=2, prompt_logprobs=1 if i % 3 == 0 else None,
                          n=1 + i % 3, stop=["q"] if i % 4 == 0 else None, output_kind=kind, **more)


def test_answers_are_those_of_llm(engine):
    """Concurrent requests that arrive at random, of each output kind: every value equals LLM's,
    and the parts of a stream make the whole."""
    prompts = [f"prompt {i} " * (1 + i % 5) for i in range(60)]
    with LLM("fake:phase", slots=4) as llm:
        want = llm.generate(prompts, [params(i) for i in range(60)], use_tqdm=False)
    rng = random.Random(5)
    delays = [rng.random() * 0.05 for _ in prompts]

    async def one(i):
        kind = (CUMULATIVE, DELTA, FINAL)[i % 3]
        await asyncio.sleep(delays[i])
        outs = [o async for o in engine.generate(prompts[i], params(i, kind), f"r{i}")]
        assert [o.finished for o in outs] == [False] * (len(outs) - 1) + [True]
        assert all(o.request_id == f"r{i}" for o in outs)
        if kind is FINAL:
            assert len(outs) == 1
        if kind is DELTA:
            for c in want[i].outputs:
                parts = [p for o in outs for p in o.outputs if p.index == c.index]
                assert "".join(p.text for p in parts) == c.text
                assert [t for p in parts for t in p.token_ids] == c.token_ids
                assert repr([d for p in parts for d in p.logprobs]) == repr(c.logprobs)
                assert [p.finish_reason for p in parts][:-1] == [None] * (len(parts) - 1)
                assert (parts[-1].finish_reason, parts[-1].stop_reason) == \
                    (c.finish_reason, c.stop_reason)
            assert repr(outs[0].prompt_logprobs) == repr(want[i].prompt_logprobs)
            return None
        for a, b in zip(outs, outs[1:]):
            for x, y in zip(a.outputs, b.outputs):
                assert y.text.startswith(x.text) and y.token_ids[:len(x.token_ids)] == x.token_ids
        return outs[-1]

    async def main():
        return await asyncio.gather(*(one(i) for i in range(60)))

    for w, g in zip(want, asyncio.run(main())):
        assert g is None or bits([w]) == bits([g])


def test_streaming_is_by_token(engine):
    async def main():
        p = SamplingParams(max_tokens=3000, ignore_eos=True, output_kind=DELTA)
        return [o async for o in engine.generate("abc", p, "x")]
    outs = asyncio.run(main())
    # The fake model draws thousands of tokens in the time of one switch of threads.
    assert len(outs) > 1
    assert sum(len(o.outputs[0].token_ids) for o in outs) == 3000


LONG = dict(max_tokens=None, ignore_eos=True, seed=1)


def test_leaving_frees_pages(engine):
    """Aborted, closed, cancelled, and forgotten generators."""
    async def main():
        full = (await engine.stats())["pages_free"]
        p = SamplingParams(**LONG)
        ended = asyncio.create_task(last(engine, "a", p, "aborted"))
        await asyncio.sleep(0.02)
        await engine.abort("aborted")
        await engine.abort(["unknown"])
        out = await ended
        assert out.finished and out.outputs[0].finish_reason == "abort"
        await idle(engine, full)

        g = engine.generate("b", p, "closed")
        await g.__anext__()
        await g.aclose()
        await idle(engine, full)

        task = asyncio.create_task(last(engine, "c", p, "cancelled"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(engine, full)

        g = engine.generate("d", p, "forgotten")
        await g.__anext__()
        del g
        gc.collect()
        await idle(engine, full)

        many = [asyncio.create_task(last(engine, f"{i}", p, f"m{i}")) for i in range(100)]
        await asyncio.sleep(0.05)
        for t in many:
            t.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        await idle(engine, full)
        return await last(engine, "x", SamplingParams(max_tokens=5), "after")
    out = asyncio.run(main())
    with LLM("fake:phase", slots=4) as llm:
        assert bits([out]) == bits(llm.generate("x", SamplingParams(max_tokens=5), use_tqdm=False))


def test_errors(engine):
    async def main():
        with pytest.raises(CorunError, match="999999"):
            await last(engine, [999999], SamplingParams(), "a")
        with pytest.raises(TypeError):
            await last(engine, 5, SamplingParams(), "a")
        g = engine.generate("x", SamplingParams(**LONG), "same")
        await g.__anext__()
        with pytest.raises(ValueError, match="same"):
            await last(engine, "y", SamplingParams(), "same")
        with pytest.raises(CorunError):
            await engine.load_weights({})
        await g.aclose()
        assert (await engine.get_tokenizer()).encode("a") and len(await engine.fingerprint()) == 32
        assert not engine.errored
        many = [last(engine, "y", SamplingParams(max_tokens=3), None) for _ in range(5)]
        assert len({o.request_id for o in await asyncio.gather(*many)}) == 5
        return await last(engine, "y", SamplingParams(max_tokens=3), "same")
    assert asyncio.run(main()).finished


def test_shutdown(library):  # noqa: F811
    """Requests that run get an error, later ones too; the thread ends, also when the engine is
    only forgotten."""
    async def main():
        e = AsyncLLM("fake:phase", slots=2)
        tasks = [asyncio.create_task(last(e, "a", SamplingParams(**LONG), f"{i}")) for i in range(5)]
        await asyncio.sleep(0.05)
        e.shutdown()
        e.shutdown()
        for r in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(r, CorunError) and "shut down" in str(r)
        with pytest.raises(CorunError, match="shut down"):
            await last(e, "a", SamplingParams(), "x")
        with pytest.raises(CorunError, match="shut down"):
            await e.stats()
        assert e.errored and not e._core.thread.is_alive()
    asyncio.run(main())
    e = AsyncLLM("fake:phase", slots=2)
    thread, gone = e._core.thread, weakref.ref(e)
    del e
    gc.collect()
    thread.join(10)
    assert gone() is None and not thread.is_alive()


@pytest.mark.parametrize("end", ["", "; raise SystemExit(3)", "; 1 / 0"])
def test_exit_with_requests_alive(end):
    """A program that just ends does so in order."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT / 'python')!r})
from corun import AsyncLLM, SamplingParams
async def main():
    g = engine.generate('a', SamplingParams(max_tokens=None, ignore_eos=True), 'x')
    print((await g.__anext__()).request_id){end}
engine = AsyncLLM('fake:phase', library={str(LIB)!r})
asyncio.run(main())
"""
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert r.stdout == "x\n" and r.returncode == (0 if not end else 3 if "3" in end else 1), r.stderr
    assert bool(r.stderr) == ("1 / 0" in end)


def test_a_loop_that_ends_takes_its_requests_along(engine):
    """asyncio.run ends while a stream is open; the next loop finds an empty engine."""
    async def leave():
        g = engine.generate("a", SamplingParams(**LONG), "left")
        await g.__anext__()
        return g
    full = asyncio.run(engine.stats())["pages_free"]
    g = asyncio.run(leave())
    asyncio.run(idle(engine, full))
    del g
    assert threading.active_count() < 20


def test_a_call_that_nobody_waits_for(engine):
    """Calls that timed out, and whose loop is gone when their answer comes, leave the engine well:
    one that fails and one that succeeds."""
    gate, begun = threading.Event(), threading.Event()

    def slow():
        begun.set()
        gate.wait(30)
        yield from ()

    async def leave():
        calls = [asyncio.wait_for(engine.load_weights(slow()), 0.05),
                 asyncio.wait_for(engine.stats(), 0.05),
                 asyncio.wait_for(engine.fingerprint(), 0.05)]
        assert all(isinstance(x, asyncio.TimeoutError)
                   for x in await asyncio.gather(*calls, return_exceptions=True))
    asyncio.run(leave())
    assert begun.wait(30)
    gate.set()
    assert asyncio.run(engine.stats())["requests_running"] == 0 and not engine.errored
    assert asyncio.run(last(engine, "x", SamplingParams(max_tokens=3), "x")).finished


def test_after_a_fork(library):  # noqa: F811
    """The engine's thread is not in a child: calls are refused there, and it ends."""
    code = f"""
import asyncio, os, signal, sys, time
sys.path.insert(0, {str(ROOT / 'python')!r})
from corun import AsyncLLM, CorunError, SamplingParams
engine = AsyncLLM({str(ROOT / 'tests/data/golden/llama_plain')!r}, threads=2, max_model_len=128,
                  library={str(LIB)!r})
async def ask():
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    return [o async for o in engine.generate([1, 2, 3], params)][-1].outputs[0].token_ids
async def child(what):
    for call in what:
        try:
            await asyncio.wait_for(call(), 5)
            print("not refused")
        except CorunError as e:
            if "before a fork" not in str(e): print(e)
    if what and not engine.errored: print("well")
want = asyncio.run(ask())
calls = [ask, engine.stats, engine.fingerprint, lambda: engine.load_weights({{}}),
         lambda: engine.abort("x")]
for what, end in (([], False), (calls, False), (calls, True), ([], True)):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        asyncio.run(child(what))
        if end: engine.shutdown()
        raise SystemExit
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
print(asyncio.run(ask()) == want)
"""
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert (r.returncode, r.stdout, r.stderr) == (0, "0\n" * 4 + "True\n", "")
