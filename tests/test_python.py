"""The Python package: its structs against the C header, its answers against the program's."""
import ctypes
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import threading
import time

import pytest

from conftest import CORUN, ROOT, chat, completion

np = pytest.importorskip("numpy")
sys.path.insert(0, str(ROOT / "python"))
import corun as cr  # noqa: E402
from corun import _abi  # noqa: E402
from corun.engine import Job  # noqa: E402

LIB = CORUN.parent / "libcorun.so"
GOLDEN = ROOT / "tests" / "data" / "golden"


@pytest.fixture(scope="session")
def lib():
    if not LIB.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{LIB} is not built")
        pytest.skip(f"{LIB} is not built")
    return cr.Library(str(LIB))


@pytest.fixture
def fake(lib):
    with cr.Model("fake:phase", library=lib) as m:
        yield m


# ---- the C interface -----------------------------------------------------------------------------

def test_structs_are_those_of_the_header(tmp_path):
    """Sizes and offsets of every struct, and every enum value, as a C compiler has them."""
    lines, want = [], []
    for s in _abi.STRUCTS:
        lines.append(f'printf("%zu\\n", sizeof({s._c_name_}));')
        want.append(ctypes.sizeof(s))
        for name, *_ in s._fields_:
            lines.append(f'printf("%zu\\n", offsetof({s._c_name_}, {name}));')
            want.append(getattr(s, name).offset)
            lines.append(f'printf("%zu\\n", sizeof((({s._c_name_} *)0)->{name}));')
            want.append(getattr(s, name).size)
    constants = {"CORUN_MAX_TOP": _abi.MAX_TOP, "CORUN_MAX_SAMPLE": _abi.MAX_SAMPLE,
                 "CORUN_MAX_DIM": _abi.MAX_DIM, "CORUN_TEXT_ADD_SPECIAL": _abi.TEXT_ADD_SPECIAL,
                 "CORUN_TEXT_LITERAL": _abi.TEXT_LITERAL,
                 "CORUN_TEXT_SKIP_SPECIAL": _abi.TEXT_SKIP_SPECIAL,
                 "CORUN_EVENT_FAILED": _abi.EVENT_FAILED, "CORUN_EVENT_IDLE": _abi.EVENT_IDLE,
                 "CORUN_EVENT_PROMPT": _abi.EVENT_PROMPT, "CORUN_EVENT_TOKEN": _abi.EVENT_TOKEN,
                 "CORUN_EVENT_DONE": _abi.EVENT_DONE, "CORUN_FINISH_LENGTH": _abi.FINISH_LENGTH,
                 "CORUN_BF16": _abi.DTYPE_BF16, "CORUN_F16": _abi.DTYPE_F16,
                 "CORUN_F32": _abi.DTYPE_F32, "CORUN_API_VERSION": 1}
    constants.update({f"CORUN_{name}": i for i, name in enumerate(_abi.STATUS)})
    for name, value in constants.items():
        lines.append(f'printf("%d\\n", (int){name});')
        want.append(value)
    (tmp_path / "abi.c").write_text('#include <stdio.h>\n#include "corun.h"\nint main(void)\n{\n' +
                                    "\n".join(lines) + "\nreturn 0;\n}\n")
    subprocess.run(["gcc", "-I", str(ROOT / "include"), "abi.c", "-o", "abi"], cwd=tmp_path,
                   check=True)
    out = subprocess.run([str(tmp_path / "abi")], capture_output=True, check=True).stdout
    assert [int(x) for x in out.split()] == want


def test_every_struct_of_the_header_is_known():
    header = (ROOT / "include" / "corun.h").read_text()
    names = set(re.findall(r"typedef struct (corun_\w+) \{", header))
    fields = {s._c_name_: [n for n, *_ in s._fields_] for s in _abi.STRUCTS}
    assert names == set(fields)
    for name in names:
        body = re.search(rf"typedef struct {name} \{{(.*?)\n\}} {name};", header, re.S).group(1)
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        found = [re.sub(r"\[.*|[\s*]", "", part.split()[-1])
                 for line in body.split(";") if line.strip() for part in line.split(",")]
        assert found == fields[name], name
    functions = set(re.findall(r"\b(corun_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    assert set(_abi._FUNCTIONS) <= functions


# ---- a model -------------------------------------------------------------------------------------

def test_errors(lib, fake, tmp_path):
    with pytest.raises(cr.CorunError) as e:
        cr.Model("fake:nonsense", library=lib)
    assert e.value.status == "EINVAL" and "nonsense" in str(e.value)
    with pytest.raises(cr.CorunError) as e:
        cr.Model(str(tmp_path / "none.gguf"), library=lib)
    assert e.value.status == "EFORMAT" and "none.gguf" in str(e.value)
    with pytest.raises(cr.CorunError, match="libcorun"):
        cr.Library(str(tmp_path / "no.so"))
    with pytest.raises(cr.CorunError, match="page_tokens"):
        cr.Engine(fake, page_tokens=7)
    with pytest.raises(cr.CorunError, match="fast"):
        cr.Engine(fake, policy="fast")
    with cr.Engine(fake) as e1:
        with pytest.raises(cr.CorunError, match="already carries"):
            cr.Engine(fake)
        for bad in ({"temperature": -1.0}, {"top_p": 2.0}, {"logprobs": 21},
                    {"stop_token_ids": [-1]}, {"logit_bias": {99999: 1.0}}, {"min_tokens": -1}):
            with pytest.raises(cr.CorunError, match="prompt 1") as e:
                e1.generate(["x", [65]], [cr.Sampling(max_tokens=5), cr.Sampling(**bad)])
            assert e.value.status == "EINVAL"
        for bad in ({"n": 0}, {"n": 129}, {"seed": -1}, {"max_tokens": 1 << 40}):
            with pytest.raises(ValueError):
                e1.generate(["x"], **bad)
        for bad in ("x", [[1.5]], [["a"]]):
            with pytest.raises(TypeError):
                e1.generate(bad)
        with pytest.raises(TypeError):
            e1.generate(["x"], no_such=1)
        assert e1.stats["requests_waiting"] + e1.stats["requests_running"] == 0
        assert e1.generate(["x"], max_tokens=3)[0].samples[0].tokens.size <= 3
    with pytest.raises(cr.CorunError, match="closed"):
        e1.stats
    fake.close()
    with pytest.raises(cr.CorunError, match="closed"):
        fake.info


def test_text(fake):
    text = "h\u00e9llo \U0001f600\0 w\u00f6rld"
    ids = fake.encode(text)
    assert ids.dtype == np.int32 and fake.decode(ids) == text
    assert b"".join(fake.token_bytes(int(i)) for i in ids) == text.encode()
    assert fake.encode("").size == 0 and fake.decode([]) == ""
    long = "ab " * 20000
    assert fake.decode(fake.encode(long)) == long
    chat_text = fake.chat_render([{"role": "user", "content": "hi"}])
    assert "hi" in chat_text and chat_text != fake.chat_render(
        [{"role": "user", "content": "hi"}], add_generation_prompt=False)
    with pytest.raises(cr.CorunError):
        fake.chat_render([{"role": "wizard"}])
    out = []
    threads = [threading.Thread(target=lambda: out.append(fake.decode(ids))) for _ in range(4)]
    [t.start() for t in threads] and [t.join() for t in threads]
    assert out == [text] * 4


def test_info_and_identity(fake, corun):
    want = json.loads(corun("info", "fake:phase", "--json", "--identity").stdout)
    info = fake.info
    assert all(want[k] == v for k, v in info.items() if k != "device_note")
    with cr.Engine(fake) as e:
        assert e.fingerprint == want["identity_digest"] and e.identity == want["identity"]


def test_answers_are_those_of_the_program(fake, corun):
    """The same requests through `corun batch` and through the package: the same tokens, texts, and
    log-probability bits."""
    lines, prompts, samplings = [], [], []
    for i in range(12):
        text = "abc " * (i + 1)
        more = [{"temperature": 0.0}, {"n": 3}, {"top_k": 9, "top_p": 0.8}, {"stop": ["q", "e"]},
                {"logit_bias": {70: 4.0}}, {"min_tokens": 5}][i % 6]
        body = {"max_tokens": 20, "seed": i, "logprobs": 3, "prompt_logprobs": 2,
                "return_token_ids": True, **more}
        if i % 2:
            body.update(logprobs=True, top_logprobs=3)
            lines.append(chat(f"r{i}", text, **body))
            prompts.append([{"role": "user", "content": text}])
        else:
            lines.append(completion(f"r{i}", text, **body))
            prompts.append(text)
        samplings.append(cr.Sampling(max_tokens=20, seed=i, logprobs=3, prompt_logprobs=2, **more))
    want = corun.bodies(lines)
    with cr.Engine(fake) as e:
        got = e.generate(prompts, samplings)
        assert want[0]["system_fingerprint"] == e.fingerprint
    for w, g in zip(want, got):
        first = w["choices"][0]
        assert list(g.prompt_tokens) == w.get("prompt_token_ids", first.get("prompt_token_ids"))
        plp = w.get("prompt_logprobs", first.get("prompt_logprobs"))
        assert np.isnan(g.prompt_logprobs[0]) and g.prompt_logprobs.dtype == np.float32
        for k in range(1, len(plp)):
            own = plp[k][str(g.prompt_tokens[k])]["logprob"]
            assert np.float32(own) == g.prompt_logprobs[k]
            assert np.float32(plp[k][str(g.prompt_top_ids[k, 1])]["logprob"]) == \
                g.prompt_top_logprobs[k, 1]
        assert len(w["choices"]) == len(g.samples)
        for c, s in zip(w["choices"], g.samples):
            assert c["token_ids"] == list(s.tokens) and s.tokens.dtype == np.int32
            assert (c["text"] if "text" in c else c["message"]["content"]) == s.text
            lps = (c["logprobs"]["token_logprobs"] if "text" in c else
                   [t["logprob"] for t in c["logprobs"]["content"]])
            assert np.array(lps, np.float32).tobytes() == s.logprobs.tobytes()
            assert s.top_ids.shape == s.top_logprobs.shape == (s.tokens.size, 3)
            assert (c["finish_reason"], c["stop_reason"], c["seed"]) == \
                (s.finish, s.stop_reason, s.seed)


def test_order_and_number_do_not_matter(fake):
    prompts = [[65 + i] * (i + 1) for i in range(40)]
    with cr.Engine(fake, slots=4) as e:
        a = e.generate(prompts, max_tokens=12, logprobs=0)
        b = e.generate(prompts[::-1], max_tokens=12, logprobs=0)[::-1]
        c = [e.generate([p], max_tokens=12, logprobs=0)[0] for p in prompts]
        e.WINDOW = 3
        d = e.generate(prompts, max_tokens=12, logprobs=0)
        assert e.stats["tokens_new"] > 0 and 4 in e.stats["live_rows_seen"]
    for other in (b, c, d):
        for x, y in zip(a, other):
            assert x.samples[0].tokens.tobytes() == y.samples[0].tokens.tobytes()
            assert x.samples[0].logprobs.tobytes() == y.samples[0].logprobs.tobytes()


def test_score(fake, corun):
    corun.write("s.jsonl", [{"text": "abcdef"}, {"tokens": [70, 71, 72]}])
    assert corun("score", "-m", "fake:phase", "-i", "s.jsonl", "-o", "o", "--top",
                 "2").returncode == 0
    want = [json.loads(x) for x in (corun.folder / "o").read_bytes().splitlines()]
    with cr.Engine(fake) as e:
        got = e.score(["abcdef", [70, 71, 72]], top=2)
        assert e.score(["abc"])[0].top_ids is None
        with pytest.raises(cr.CorunError):
            e.score([[]])
    for w, g in zip(want, got):
        assert w["tokens"] == list(g.tokens) and np.isnan(g.logprobs[0])
        lps = np.array(w["token_logprobs"][1:], np.float32)
        assert lps.tobytes() == g.logprobs[1:].tobytes()
        assert [i for i, _ in w["top_logprobs"][2]] == list(g.top_ids[2])


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a + b %}{% endfor %}"
             "{% endfor %}",
    "upper": "{% set s = 'a'*1000000 %}{% for a in range(99999) %}{% set x = s|upper %}"
             "{% endfor %}",
    "tojson": "{% set s = range(99999)|list %}{% for a in range(99999) %}{% set x = s|tojson %}"
              "{% endfor %}",
    "find": "{% set s = 'a'*1000000 %}{% set t = 'a'*500000 ~ 'b' %}{% for a in range(99999) %}"
            "{% if t in s %}{% endif %}{% endfor %}",
    "date": "{% for a in range(99999) %}{% for b in range(99999) %}"
            "{% set x = strftime_now('%d %B %Y') %}{% endfor %}{% endfor %}",
    "join": "{% set s = range(99999)|list %}{% for a in range(99999) %}"
            "{% set x = s|map('string')|join(',') %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
             "{{ f(60) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_ends(fake, name):
    """About two seconds of one core; five times that here, for slow machines."""
    begin = time.process_time()
    with pytest.raises(cr.CorunError, match="more than .* steps") as e:
        fake.chat_render([{"role": "user", "content": "x"}], chat_template=HOSTILE[name])
    assert e.value.status == "ECAPACITY" and time.process_time() - begin < 10


# ---- new weights in place ------------------------------------------------------------------------

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_tensors(folder):
    raw = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head, out = json.loads(raw[8:8 + n]), {}
    for name, t in head.items():
        if name != "__metadata__":
            b, e = (8 + n + x for x in t["data_offsets"])
            out[name] = np.frombuffer(raw[b:e], TYPES[t["dtype"]]).reshape(t["shape"])
    return out


def write_tensors(folder, tensors):
    head, at = {}, 0
    for name, a in tensors.items():
        kind = next(k for k, v in TYPES.items() if v == a.dtype)
        head[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


def to_f32(a):
    return (a.astype(np.uint32) << 16).view(np.float32) if a.dtype == np.uint16 else \
        a.astype(np.float32)


def perturbed(tensors, kind, seed):
    """Other values of the given type."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, a in tensors.items():
        v = (to_f32(a) * rng.uniform(0.9, 1.1, a.shape)).astype(np.float32)
        out[name] = (v.view(np.uint32) >> 16).astype(np.uint16) if kind == "BF16" else \
            v.astype(TYPES[kind])
    return out


PROMPTS = [[5, 9, 12, 40, 7], [33] * 70, [1, 2, 3]]


def answers(engine):
    """Bytes of everything that some requests give; the later ones may reuse kept prefixes."""
    out = []
    for prompt_logprobs in (2, None, None):
        for y in engine.generate(PROMPTS, max_tokens=24, logprobs=4, temperature=0.8, n=2,
                                 prompt_logprobs=prompt_logprobs, ignore_eos=True):
            if prompt_logprobs:
                out += [y.prompt_logprobs, y.prompt_top_logprobs]
            out += [z for s in y.samples for z in (s.tokens, s.logprobs, s.top_logprobs)]
    return b"".join(x.tobytes() for x in out)


def fresh(lib, folder, source, tensors):
    """Digest, fingerprint and answers of a model opened from a file with these tensors."""
    shutil.copytree(source, folder)
    write_tensors(folder, tensors)
    with cr.Model(str(folder), library=lib) as m, cr.Engine(m, ctx=256) as e:
        return m.info["weights_digest"], e.fingerprint, answers(e)


def state(model, engine):
    return model.info["weights_digest"], engine.fingerprint, answers(engine)


@pytest.mark.parametrize("name,kind", [("llama_plain", "BF16"), ("qwen2_tied", "F32"),
                                       ("llama3_tied_bias", "F16"), ("qwen3_tied", "BF16")])
def test_refill_is_a_fresh_start(lib, tmp_path, name, kind):
    """Refilled in place, with and without an engine: digest, identity and every bit are those of a
    model opened from a file with the new weights; back again they are the old ones."""
    source = GOLDEN / name
    old = read_tensors(source)
    first, second = perturbed(old, kind, 1), perturbed(old, kind, 2)
    want = [fresh(lib, tmp_path / str(i), source, t) for i, t in enumerate((first, second, old))]
    assert len({w[0] for w in want}) == len({w[1] for w in want}) == len({w[2] for w in want}) == 3
    with cr.Model(str(source), library=lib) as m:
        with cr.Engine(m, ctx=256) as e:
            before = state(m, e)
            assert e.stats["prefix_hits"] > 0
            m.refill(first)
            assert state(m, e) == want[0]
            m.refill(dict(reversed(list(second.items()))))
            assert state(m, e) == want[1]
        m.refill(first)
        with cr.Engine(m, policy="corun", ctx=256) as e:
            assert m.info["weights_digest"] == want[0][0]
        m.refill(old)
        with cr.Engine(m, ctx=256) as e:
            assert state(m, e) == want[2] == before


def test_refill_is_all_or_nothing(lib):
    source = GOLDEN / "llama_plain"
    old = read_tensors(source)
    new = perturbed(old, "BF16", 3)
    last = sorted(new)[-1]
    with cr.Model(str(source), library=lib) as m, cr.Engine(m, ctx=256) as e:
        before = state(m, e)
        for change, word in (
                (lambda t: t.pop(last), last),
                (lambda t: t.update({last: t[last][..., :-1]}), last),
                (lambda t: t.update({last: t[last][..., None]}), last),
                (lambda t: t.update(extra=t[last]), "extra")):
            bad = dict(new)
            change(bad)
            with pytest.raises(cr.CorunError, match=re.escape(word)) as err:
                m.refill(bad)
            assert err.value.status == "EFORMAT"
            assert state(m, e) == before
        with pytest.raises(TypeError, match=re.escape(last)):
            m.refill({**new, last: new[last].astype(np.int64)})
        with pytest.raises(ValueError, match="NUL"):  # C would see the name before it
            m.refill({**{k: v for k, v in new.items() if k != last}, last + "\0x": new[last]})
        with pytest.raises(TypeError, match="name"):
            m.refill([(5, new[last])])
        with pytest.raises(cr.CorunError):
            m.refill({})
        assert state(m, e) == before
        id_ = e.submit(Job(m.prompt_tokens([5, 6]), cr.Sampling(max_tokens=4), lib.seed_sample))
        with pytest.raises(cr.CorunError, match="alive"):
            m.refill(new)
        e.cancel(id_)
        m.refill(new)
        assert state(m, e) != before


def test_refill_takes_any_layout(lib):
    """Arrays that are views, or not contiguous, hold the same values; a fake model has none."""
    source = GOLDEN / "llama_plain"
    new = perturbed(read_tensors(source), "F32", 4)
    strided = {k: np.asfortranarray(v) if v.ndim == 2 else np.repeat(v, 2)[::2]
               for k, v in new.items()}
    with cr.Model(str(source), library=lib) as m, cr.Engine(m, ctx=256) as e:
        m.refill(new)
        want = state(m, e)
        m.refill(read_tensors(source))
        m.refill(strided)
        assert state(m, e) == want
    with cr.Model("fake:phase", library=lib) as m:
        with pytest.raises(cr.CorunError) as err:
            m.refill(new)
        assert err.value.status == "EUNSUPPORTED"


# ---- threads and processes -----------------------------------------------------------------------

IN_USE = "in use by another thread or by this one's callback"


def jobs_of(e, n=6):
    return [Job(np.array([65 + i] * (i + 1), np.int32),
                cr.Sampling(max_tokens=9 + i, ignore_eos=True), e.lib.seed_sample)
            for i in range(n)]


def tokens_of(jobs):
    return [j.result().samples[0].tokens.tolist() for j in jobs]


def test_one_thread_at_a_time(fake):
    """While a thread runs the engine, another one is refused whatever needs the handles, and the
    run is as if it had been alone; the text functions go on."""
    with cr.Engine(fake) as e:
        alone, jobs = jobs_of(e), jobs_of(e)
        e.run(alone)
        inside, leave, failed = threading.Event(), threading.Event(), []

        def done(job):
            inside.set()
            leave.wait(30)

        def work():
            try:
                e.run(jobs, done)
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(30)
        for call in (lambda: e.generate(["x"], max_tokens=3), lambda: e.score(["abc"]),
                     lambda: e.run([]), lambda: e.submit(jobs_of(e)[0]), lambda: e.cancel(1), e.drop,
                     lambda: e.next(_abi.Event()), lambda: e.stats, lambda: e.identity,
                     lambda: e.fingerprint, lambda: fake.info, lambda: fake.refill({}), e.close,
                     fake.close, lambda: cr.Engine(fake)):
            with pytest.raises(RuntimeError, match=IN_USE):
                call()
        assert fake.decode(fake.encode("ab")) == "ab" and "hi" in fake.chat_render(
            [{"role": "user", "content": "hi"}])
        leave.set()
        thread.join()
        assert not failed and tokens_of(jobs) == tokens_of(alone)
        assert e.stats["requests_running"] + e.stats["requests_waiting"] == 0


def test_two_threads_by_chance(fake):
    """Each call from one of two threads is answered in full, or refused."""
    with cr.Engine(fake) as e:
        want = [r.samples[0].tokens.tolist() for r in e.generate(["a", "b"], max_tokens=400)]
        seen = []

        def work():
            for _ in range(30):
                try:
                    seen.append([r.samples[0].tokens.tolist()
                                 for r in e.generate(["a", "b"], max_tokens=400)])
                except RuntimeError as error:
                    seen.append(str(error))
        threads = [threading.Thread(target=work) for _ in range(2)]
        [t.start() for t in threads] and [t.join() for t in threads]
        assert want in seen and len(seen) == 60
        assert all(x == want or IN_USE in x for x in seen)


def test_a_callback_that_runs_the_engine(fake):
    """It is refused; what looks on is not. The run's own answers are whole, or an error."""
    with cr.Engine(fake) as e:
        alone, jobs, seen = jobs_of(e), jobs_of(e), []
        e.run(alone)

        def look(job):
            for call in (lambda: e.generate(["x"], max_tokens=3), e.close, fake.close, e.drop,
                         lambda: fake.refill({})):
                with pytest.raises(RuntimeError, match=IN_USE):
                    call()
            seen.append((e.stats["tokens_new"] > 0, e.fingerprint, fake.info["family"]))
        e.run(jobs, look)
        assert tokens_of(jobs) == tokens_of(alone)
        assert seen == [(True, e.fingerprint, "fake")] * len(jobs)
        with pytest.raises(RuntimeError, match=IN_USE):
            e.run(jobs_of(e), lambda job: e.generate(["x"], max_tokens=3))
        with pytest.raises(cr.CorunError, match="without an end"):
            e.run(jobs_of(e), lambda job: e._alive.clear())
        assert len(e.generate(["x"], max_tokens=3, ignore_eos=True)[0].samples[0].tokens) == 3


def script(code, *arguments):
    """Runs code with the built library; `path` is a small model with weights."""
    head = (f"import os, signal, sys, threading, time\nsys.path.insert(0, {str(ROOT / 'python')!r})\n"
            f"import corun as cr\nlib = cr.Library({str(LIB)!r})\n"
            f"path = {str(GOLDEN / 'llama_plain')!r}\n")
    return subprocess.run([sys.executable, "-c", head + code, *arguments], capture_output=True,
                          text=True, timeout=60)


@pytest.mark.parametrize("how,closes", [("thread", "not yet closed"), ("signal", "closed")])
def test_close_beside_a_text_call(lib, how, closes):
    """close from another thread, or from a signal's handler, takes no memory away from a text call
    that is under way, and none is kept after it."""
    r = script(f"""
class Spy:  # the library, and what runs in it
    busy, closes = 0, []
    def __init__(self, c):
        self.c = c
    def __getattr__(self, name):
        return getattr(self.c, name)
    def corun_chat_render(self, *arguments):
        self.busy += 1
        inside.set()
        status = self.c.corun_chat_render(*arguments)
        if m._h is None and sys.argv[1] == "thread": self.closes.append("not yet")
        self.busy -= 1
        return status
    def corun_model_close(self, h):
        self.closes.append("busy" if self.busy else "closed")
        self.c.corun_model_close(h)
def render():
    try:
        m.chat_render([{{"role": "user", "content": "x"}}], chat_template={HOSTILE["tojson"]!r})
    except cr.CorunError as e:
        print(e.status)
inside, spy = threading.Event(), Spy(lib.c)
lib.c = spy
m = cr.Model("fake:phase", library=lib)
if sys.argv[1] == "thread":
    t = threading.Thread(target=render)
    t.start()
    inside.wait()
    m.close()
    t.join()
else:
    signal.signal(signal.SIGALRM, lambda *_: m.close())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    render()
try:
    m.encode("x")
except cr.CorunError as e:
    print(e)
print(*spy.closes)
""", how)
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout.splitlines() == ["ECAPACITY", "the model is closed", closes]


FORK = """
m = cr.Model(path, threads=2, library=lib)
e = cr.Engine(m, ctx=128)
def answer(e):
    return [x.samples[0].tokens.tolist() for x in e.generate([[5, 9, 12]] * 3, max_tokens=8)]
want = answer(e)
def in_child(f):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        print("hangs")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    f()
    raise SystemExit
def refused(f):
    try:
        f()
        print("not refused")
    except cr.CorunError as error:
        if "opened before a fork: open a model in this process" not in str(error):
            print(error)
"""


@pytest.mark.parametrize("code", [
    "in_child(lambda: None)",
    "in_child(lambda: (e.close(), m.close(), e.close()))",
    "in_child(lambda: (m.close(), m.close(), refused(lambda: answer(e)), refused(lambda: m.info)))",
    """in_child(lambda: [refused(f) for f in (lambda: answer(e), lambda: e.score([[1, 2]]),
        lambda: e.stats, lambda: e.fingerprint, lambda: m.info, lambda: m.encode("x"),
        lambda: m.decode([1]), lambda: m.refill({}), lambda: cr.Engine(m), e.drop)])""",
    # A new model in the child, with the same library.
    """def again():
    with cr.Model(path, threads=2, library=lib) as m2, cr.Engine(m2, ctx=128) as e2:
        if answer(e2) != want: print("other answers")
in_child(again)""",
    # While a thread of the parent runs the engine, and out of a callback of its own run.
    """stop = []
def work():
    while not stop: answer(e)
t = threading.Thread(target=work)
t.start()
for _ in range(5): in_child(lambda: (refused(lambda: answer(e)), m.close()))
stop.append(1)
t.join()""",
    """from corun.engine import Job
parent = os.getpid()
def run():
    jobs = [Job(m.prompt_tokens([5, 9, i]), cr.Sampling(max_tokens=8), lib.seed_sample)
            for i in range(9)]
    e.run(jobs, lambda job: os.getpid() == parent and in_child_of_callback())
def in_child_of_callback():
    pid = os.fork()
    if pid: os.waitpid(pid, 0)
signal.alarm(10)
try:
    run()
except cr.CorunError:
    if os.getpid() == parent: raise
if os.getpid() != parent: raise SystemExit""",
    # By multiprocessing, with the model among the globals.
    """import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    if pool.map(abs, [-1, -2]) != [1, 2]: print("pool")""",
], ids=["exit", "close", "close twice", "calls", "new", "thread", "callback", "pool"])
def test_after_a_fork(lib, code):
    """A child of the process that opened a model has none of the library's threads: calls are
    refused, close and a plain exit only forget the handles. The parent is not touched."""
    r = script(FORK + code + "\nif answer(e) != want: print('the parent changed')\nprint('end')")
    assert (r.returncode, r.stdout, r.stderr) == (0, "end\n", "")


# ---- installed -----------------------------------------------------------------------------------

def run_installed(site, code, **more):
    """Runs code with the installed package alone, in an environment that holds nothing."""
    path = pathlib.Path(np.__file__).parent.parent
    bare = {"PATH": "/usr/bin:/bin", "CC": "/bin/false", "CORUN_LIBRARY": "/nonsense"}
    return subprocess.run([sys.executable, "-c", "import sys; sys.path[:0] = [%r, %r]\n" % (
        str(site), str(path)) + code], cwd=site, env=bare, capture_output=True, text=True, **more)


FINGERPRINT = ("import corun; m = corun.Model('fake:phase'%s); print(corun.__file__);"
               "print(corun.Engine(m).fingerprint)")


@pytest.mark.parametrize("compiled", [True, False])
def test_install(lib, tmp_path, compiled):
    """`pip install .` compiles the library and puts it beside the package; without CMake the
    Python files come alone, and take the library that they are given, or one put beside them."""
    pytest.importorskip("scikit_build_core")
    site = tmp_path / "site"
    r = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-input",
                        "--no-build-isolation", "--disable-pip-version-check", "--target",
                        str(site), str(ROOT), *([] if compiled else ["-C", "wheel.cmake=false"])],
                       capture_output=True, env={**os.environ, "CC": "gcc" if compiled else "false"})
    assert r.returncode == 0, r.stderr.decode()
    beside = site / "corun" / "libcorun.so"
    assert beside.exists() == compiled and (site / "corun" / "py.typed").exists()
    r = run_installed(site, FINGERPRINT % f", library={str(LIB)!r}")
    assert r.returncode == 0 and str(site / "corun") in r.stdout, r.stderr
    fingerprint = r.stdout.splitlines()[-1]
    if not compiled:
        shutil.copy(LIB.resolve(), beside)
    r = run_installed(site, FINGERPRINT % "")
    assert r.returncode == 0 and r.stdout.splitlines()[-1] == fingerprint, r.stderr
