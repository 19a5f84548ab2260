"""The page at "/" of `corun serve`, in headless Chromium: chat, the comparison under load, what it
shows of the server, keys, and that it talks to its own server alone."""
import base64
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess

import pytest

from conftest import CORUN, ROOT
from server import Server, row_bodies

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser"])), None)
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUICK = 10_000  # ms: for what takes a moment
LONG = 240_000  # ms: for answers of the demo model on a busy machine


def missing(what):
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Starts servers, and ends them after the module; the same arguments: the same server."""
    if not CORUN.exists():
        missing(f"{CORUN} is not built")
    if b"has no server" in subprocess.run([str(CORUN), "serve", "--help"],
                                          capture_output=True).stderr:
        pytest.skip("a build without the server")
    servers = {}

    def start(model, *options):
        key = (str(model), *map(str, options))
        if key not in servers:
            servers[key] = Server(tmp_path_factory.mktemp("serve"), "--no-state", *options,
                                  model=model)
        return servers[key]

    yield start
    for s in servers.values():
        s.stop()


@contextlib.contextmanager
def open_chromium(*args):
    from playwright.sync_api import sync_playwright
    if os.geteuid() == 0:
        args += ("--no-sandbox",)  # Chromium has none for root
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM:
        missing("no Chromium here (tools/setup test installs it)")
    if not importlib.util.find_spec("playwright"):
        missing("playwright is not installed (tools/setup test)")
    with open_chromium() as browser:
        yield browser


class Tab:
    """A page of the browser; what it asked for, and what it complained of."""

    def __init__(self, browser, url, **options):
        self.page = browser.new_context(**options).new_page()
        self.page.set_default_timeout(QUICK)
        self.url, self.requests, self.errors = url, [], []
        self.page.on("request", lambda r: self.requests.append(r))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("console", lambda m: self.errors.append(m.text)
                     if m.type in ("error", "warning") else None)

    def open(self):
        self.page.goto(self.url + "/")
        return self.page

    def asked(self, path):
        return [r for r in self.requests if r.url == self.url + path]


@pytest.fixture
def tab(chromium):
    """Opens tabs; at the end none has asked another host or complained."""
    tabs = []

    def new(server, **options):
        tabs.append(Tab(chromium, server.url, **options))
        return tabs[-1]

    yield new
    for t in tabs:
        t.page.context.close()
    for t in tabs:
        assert t.errors == []
        outside = [r.url for r in t.requests if not r.url.startswith((t.url + "/", "data:"))]
        assert outside == []


def say(page, text, **fields):
    for name, value in fields.items():
        page.get_by_label(name.replace("_", " ").capitalize()).fill(str(value))
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


def wait_answer(page, n=1, timeout=QUICK):
    """The n-th answer's text and the line under it, once it has ended."""
    turn = page.locator(".turn.assistant").nth(n - 1)
    turn.locator("p.soft").wait_for(timeout=timeout)
    return turn.locator(".text").text_content(), turn.locator("p.soft").text_content()


def prove(page, timeout=QUICK):
    page.get_by_role("button", name="Prove it").press("Enter")
    page.locator("#verdict").wait_for(timeout=timeout)
    return page.locator(".run .digest").all_text_contents()


def batch_digest(corun, model, request):
    """The digest of the body that `corun batch` writes for a request of the page."""
    asked = (request.url[request.url.index("/v1/"):], json.loads(request.post_data))
    return hashlib.sha256(row_bodies(corun, [asked], model)[0]).hexdigest()


# ---- without a browser ---------------------------------------------------------------------------

def test_one_file_with_a_strict_policy(serve):
    _, head, html = serve("fake:phase").get("/")
    assert head["Content-Type"] == "text/html; charset=utf-8"
    assert head["X-Content-Type-Options"] == "nosniff"
    policy = dict(d.strip().split(" ", 1) for d in head["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'" and policy["trusted-types"] == "'none'"
    for tag in ("script", "style"):
        text = re.search(f"<{tag}>(.*)</{tag}>".encode(), html, re.S).group(1)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        assert policy[tag + "-src"] == f"'sha256-{digest}'"
    named = set(re.findall(rb"https?://[^\s'\"<>]*", html))
    assert named == {b"http://www.w3.org/2000/svg"}  # the namespace of the icon
    assert re.findall(rb"\ssrc=|url\(|@import|innerHTML|style=\"|\son[a-z]+=", html) == []


# ---- chat ----------------------------------------------------------------------------------------

def test_chat_then_the_same_answer_under_load(serve, tab, corun):
    model = DEMO if DEMO.exists() else "fake:phase"
    t = tab(serve(model), viewport={"width": 1280, "height": 900})
    page = t.open()
    page.get_by_text("ready", exact=True).wait_for()
    say(page, "Why is the sky blue?", max_tokens=24, temperature=0, seed=7)
    text, facts = wait_answer(page, timeout=LONG)
    assert text and re.search(r"\d+ tokens? · \d+ a second", facts)
    asked = json.loads(t.asked("/v1/chat/completions")[0].post_data)
    assert (asked["max_tokens"], asked["temperature"], asked["seed"]) == (24, 0, 7)

    alone, loaded = prove(page, LONG)
    assert alone == loaded
    assert "Equal: all" in page.locator("#verdict").text_content()
    seen = page.locator(".run p").all_text_contents()
    rows = [float(re.search(r"Rows a step: ([\d.]+) on average", x).group(1)) for x in seen]
    assert rows[0] <= 1 < 4 < rows[1]
    question = [r for r in t.asked("/v1/chat/completions") if not json.loads(r.post_data).get("stream")]
    assert len(question) == 2 and question[0].post_data == question[1].post_data
    assert alone == batch_digest(corun, model, question[0])
    others = sum((json.loads(r.post_data)["prompt"] for r in t.asked("/v1/completions")), [])
    assert len(others) == len(set(others)) == 15

    assert page.locator("#identity").text_content() == serve(model).state()["identity"]


def test_second_turn_and_new_chat(serve, tab):
    t = tab(serve("fake:phase"))
    page = t.open()
    say(page, "one", max_tokens=3)
    first, _ = wait_answer(page)
    say(page, "two")
    wait_answer(page, 2)
    sent = json.loads(t.asked("/v1/chat/completions")[1].post_data)["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == first
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0


def test_stop_frees_the_row(serve, tab):
    if not DEMO.exists():
        missing(f"{DEMO} is not there (tools/fetch demo)")  # the fake model ends at once
    server = serve(DEMO)
    page = tab(server).open()
    say(page, "Count to one thousand.", max_tokens=1500, temperature=0)
    page.get_by_role("button", name="Stop").click()
    _, facts = wait_answer(page, timeout=LONG)
    assert facts.startswith("stopped")
    page.get_by_text("No request runs.").wait_for(timeout=LONG)
    server.idle()


def test_refused_request_is_said(serve, tab):
    t = tab(serve("fake:phase"))
    page = t.open()
    say(page, "too long", max_tokens=99999)
    error = page.locator(".turn .error")
    error.wait_for()
    assert "99999" in error.text_content()
    assert page.get_by_label("Your message").input_value() == "too long"
    assert [e for e in t.errors if "400" not in e] == []
    t.errors.clear()  # the browser's own line about the status


def test_text_is_never_html(serve, tab):
    t = tab(serve("fake:phase"))
    evil = "<img src=x onerror=\"document.title='bad'\"><b>b</b>"
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": evil}, "finish_reason": "stop"}]})
    t.page.route("**/v1/chat/completions", lambda r: r.fulfill(
        content_type="text/event-stream", body=f"data: {chunk}\n\ndata: [DONE]\n\n"))
    page = t.open()
    say(page, evil)
    text, _ = wait_answer(page)
    assert text == evil
    assert page.locator(".turn.user .text").text_content() == evil
    assert page.locator("img, #log b").count() == 0 and page.title() == "CoRun"


def test_without_chat_template(serve, tab):
    t = tab(serve("fake:phase"))
    t.page.route("**/v1/chat/completions", lambda r: r.fulfill(status=400, json={"error": {
        "message": "the model has no chat template, and the request none either"}}))
    page = t.open()
    say(page, "Once upon a time", max_tokens=4)
    wait_answer(page)
    assert json.loads(t.asked("/v1/completions")[0].post_data)["prompt"] == "Once upon a time"
    alone, loaded = prove(page)
    assert alone == loaded and len(t.asked("/v1/chat/completions")) == 1
    t.errors.clear()


def test_key(serve, tab, tmp_path):
    (tmp_path / "keys").write_text("sesame-0123456789\n")
    t = tab(serve("fake:phase", "--api-keys", tmp_path / "keys"))
    page = t.open()
    page.get_by_text("needs an API key").wait_for()
    page.get_by_label("API key").fill("sesame-0123456789")
    page.get_by_label("API key").press("Tab")
    page.get_by_text("ready", exact=True).wait_for()
    say(page, "hello", max_tokens=3)
    wait_answer(page)
    kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert kept == [0, 0, ""]
    assert all("401" in e for e in t.errors)
    t.errors.clear()


# ---- the comparison ------------------------------------------------------------------------------

def test_a_difference_is_shown(serve, tab):
    page = tab(serve("fake:run", "--policy", "dynamic")).open()
    page.get_by_text("ready", exact=True).wait_for()
    for _ in range(8):  # on a busy machine the others can be done before the question comes
        alone, loaded = prove(page)
        if alone != loaded:
            break
    assert alone != loaded
    verdict = page.locator("#verdict")
    assert "bad" in verdict.get_attribute("class")
    assert "Different from byte" in verdict.text_content()
    assert "whatever else runs" not in page.locator("#promise").text_content()


# ---- what it shows -------------------------------------------------------------------------------

def test_hidden_page_asks_nothing(serve, tab):
    t = tab(serve("fake:phase"))
    page = t.open()
    page.get_by_text("ready", exact=True).wait_for()
    page.evaluate("""Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});
        window.away = true; document.dispatchEvent(new Event('visibilitychange'))""")
    page.wait_for_timeout(200)
    n = len(t.asked("/corun/state"))
    page.wait_for_timeout(2500)
    assert len(t.asked("/corun/state")) == n
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(500)
    assert len(t.asked("/corun/state")) > n


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_window(serve, tab, width):
    page = tab(serve("fake:phase"), viewport={"width": width, "height": 800}).open()
    page.get_by_text("ready", exact=True).wait_for()
    say(page, "w" * 300, max_tokens=40)
    wait_answer(page)
    prove(page)
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CONTRAST = """() => {
    const pairs = [['text', 'panel'], ['text', 'back'], ['text', 'raised'], ['soft', 'panel'], ['soft', 'back'],
        ['on-accent', 'accent'], ['accent', 'panel'], ['good', 'good-back'], ['bad', 'bad-back'],
        ['edge', 'panel', 3], ['accent', 'empty', 3]];
    const light = (name) => {
        const e = document.body.appendChild(document.createElement('i'));
        e.style.color = 'var(--' + name + ')';
        const rgb = getComputedStyle(e).color.match(/[\\d.]+/g).map((v) => v / 255);
        e.remove();
        const [r, g, b] = rgb.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return pairs.filter(([a, b, least]) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05) < (least || 4.5);
    });
}"""


def test_light_dark_and_contrast(serve, tab):
    back = {}
    for scheme in ("light", "dark"):
        page = tab(serve("fake:phase"), color_scheme=scheme).open()
        back[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.evaluate(CONTRAST) == []
        other = "light" if scheme == "dark" else "dark"
        page.get_by_role("button", name=f"Change to {other} colours").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != back[scheme]
        assert page.evaluate(CONTRAST) == []
    assert back["light"] != back["dark"]


def test_names_and_keyboard(serve, tab):
    page = tab(serve("fake:phase"), reduced_motion="reduce").open()
    page.get_by_text("ready", exact=True).wait_for()
    unnamed = page.evaluate("""[...document.querySelectorAll('input, textarea, button')].filter((e) =>
        !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim()).length""")
    assert unnamed == 0
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    order = ["skip", "theme", "say", "temperature", "max-tokens", "seed", "send", "question",
             "others", "prove-button", "copy"]
    assert [x for x in dict.fromkeys(reached) if x in order] == order
    moving = page.evaluate("document.getAnimations().length")
    assert moving == 0
