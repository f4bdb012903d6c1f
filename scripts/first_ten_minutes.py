"""The README's own commands, run one after the other before an engine, each held to what it promises.

The commands are taken from README.md and not repeated here: one that is not there any more ends the walk. What differs is
only where things are: ports that are free, a directory of its own. The transcript says the README's words again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE, PICTURE = ROOT / "docs" / "first-ten-minutes.md", ROOT / "docs" / "first-ten-minutes.png"
HEADWORKS = ".venv/bin/headworks"
PLACES = {"engine": "http://127.0.0.1:8000", "listen": "http://127.0.0.1:8080", "admin": "http://127.0.0.1:8081"}
"""Where the README has them."""
CROWD, PROMPT_WORDS, ANSWER_TOKENS = 24, 60, 32
"""So many at once ask for so much that not all can have a first token within a second."""
WAIT_S, ANSWER_S_MAX = 60.0, 300.0
SHOWN_LINES_MAX = 24
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WORDS = "river stone harbour market copper signal forest letter engine winter bridge island"


class Broken(Exception):
    """A step did not do what it promises."""


@dataclass
class Walk:
    """Where everything is, and what has been said."""

    directory: Path
    ports: dict[str, str]
    """Where things really are, by their names in `PLACES`."""
    keys: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    product: str = "an engine"
    began_s: float = field(default_factory=time.monotonic)

    def title(self, text: str) -> None:
        print(f"\n{text}", flush=True)
        self.lines += ["", f"## {text}", ""]

    def holds(self, claim: str, is_so: bool, saw: object = "") -> None:
        """One promise. The walk ends where it is not kept."""
        if not is_so:
            raise Broken(f"{claim}: no. {saw}")
        after = f" ({saw})" if saw else ""
        print(f"  holds: {claim}{after}", flush=True)
        self.lines += [f"- {claim}{after}"]

    def shown(self, command: str, said: str) -> None:
        """A command and what it said, in the README's places and without this machine's own."""
        for name, real in self.ports.items():
            said = said.replace(real, PLACES[name]).replace(real.removeprefix("http://"), PLACES[name].removeprefix("http://"))
        said = re.sub(r"\x1b\[[0-9;]*m", "", said.replace(str(self.directory) + "/", ""))
        said = re.sub(r"(_KEY=)\S+", r"\1…", said)
        for key in self.keys.values():
            said = said.replace(key, "…")
        kept = [line.rstrip() for line in said.strip().splitlines()]
        more = [f"… {len(kept) - SHOWN_LINES_MAX} lines more"] if len(kept) > SHOWN_LINES_MAX else []
        print("\n".join(f"  {line}" for line in (f"$ {command}", *kept[:6])), flush=True)
        self.lines += ["```", f"$ {command}", *kept[:SHOWN_LINES_MAX], *more, "```", ""]

    def words(self, command: str) -> list[str]:
        """The command as it is run here."""
        for name, real in self.ports.items():
            command = command.replace(PLACES[name], real)
        first, *rest = shlex.split(command)
        return [sys.executable, "-m", "headworks.cli.main", *rest] if first in (HEADWORKS, "headworks") else [first, *rest]

    def run(self, command: str, *more: str, is_shown: bool = True) -> str:
        """A command to its end. `more`: what the README leaves to defaults that are taken here, or asks of no reader."""
        ended = subprocess.run(
            [*self.words(command), *more],
            check=False,
            cwd=self.directory,
            env=self.around(),
            capture_output=True,
            text=True,
            timeout=ANSWER_S_MAX,
        )
        said = ended.stdout + (ended.stderr if ended.returncode else "")
        if is_shown:
            self.shown(command, said)
        if ended.returncode:
            raise Broken(f"{command} ended with {ended.returncode}: {said[-1_000:]}")
        return ended.stdout

    def around(self) -> dict[str, str]:
        return {**os.environ, **self.keys, "PYTHONUNBUFFERED": "1", "COLUMNS": "110", "NO_COLOR": "1"}

    @contextmanager
    def serving(self, command: str, *more: str) -> Iterator[None]:
        """`headworks serve …`, ready; ended as an operator ends it."""
        command = " ".join([command, *more])
        where = [f"--{name}={self.ports[name].removeprefix('http://')}" for name in ("listen", "admin")]
        said = self.directory / "said"

        def is_ready() -> bool:
            """And has said so: its last line may come a moment later."""
            return get(self.ports["admin"] + "/readyz").status_code == 200 and "\nready " in said.read_text()

        with said.open("w") as out:
            words = [*self.words(command), *where]
            child = subprocess.Popen(words, cwd=self.directory, env=self.around(), stdout=out, stderr=out, text=True)
            try:
                came = until(is_ready, child)
                self.shown(command, said.read_text())
                if not came:
                    ended = "runs" if child.poll() is None else f"ended with {child.returncode}"
                    raise Broken(f"{command} does not become ready: it {ended}, and said: {said.read_text()[-1_000:]}")
                yield
            finally:
                child.terminate()
                try:
                    child.wait(WAIT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def until(condition: Any, child: subprocess.Popen[str]) -> bool:
    """False: it ended before, or took too long."""
    end_s = time.monotonic() + WAIT_S
    while child.poll() is None and time.monotonic() < end_s:
        with suppress(httpx.HTTPError):
            if condition():
                return True
        time.sleep(0.05)
    return False


def get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=10, trust_env=False)


def block(start: str) -> str:
    """The one command of the README's blocks that starts so."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    found = [line for text in blocks for line in text.splitlines() if line.startswith(start)]
    if len(found) != 1:
        raise Broken(f"README.md has {len(found)} commands that begin with {start!r}")
    return found[0]


def inline(start: str) -> str:
    """A command in the README's text."""
    found = re.search(rf"`({re.escape(start)}[^`]*)`", README)
    if found is None:
        raise Broken(f"README.md does not speak of `{start}`")
    return found[1]


def crowd(url: str, key: str | None = None) -> list[httpx.Response]:
    """Many at once, each with a long question of its own.

    Connected before, and written without a wait: on a busy machine a client of its own for each would take longer over
    asking than the engine over answering.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    model = httpx.get(url + "/v1/models", headers=headers, timeout=10, trust_env=False).json()["data"][0]["id"]
    clients = [HTTPConnection(url.removeprefix("http://"), timeout=ANSWER_S_MAX) for _ in range(CROWD)]
    for client in clients:
        client.connect()
    for number, client in enumerate(clients):
        text = f"{number} {secrets.token_hex(4)} " + " ".join(WORDS.split()[(number + n) % 12] for n in range(PROMPT_WORDS))
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": ANSWER_TOKENS}
        client.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return [answered(client) for client in clients]


def answered(client: HTTPConnection) -> httpx.Response:
    with closing(client):
        answer = client.getresponse()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


# the walk


def first_answer(walk: Walk) -> None:
    walk.title("Serve, with no file at all")
    with walk.serving(block(f"{HEADWORKS} serve --upstream"), "--decisions", "first/"):
        model = get(walk.ports["listen"] + "/v1/models").json()["data"][0]["id"]
        curl = block("curl ").replace('"model": "tiny"', f'"model": "{model}"')
        answer = json.loads(walk.run(curl, "--silent"))
        walk.holds("the first request is answered", answer["usage"]["completion_tokens"] > 0, f"{answer['usage']}")
        page = get(walk.ports["admin"] + "/dashboard")
        walk.holds("the dashboard is there", page.status_code == 200 and "<html" in page.text, f"{len(page.text):,} bytes")
        refused = refusal(walk, crowd(walk.ports["listen"]), "more at once than the engine can begin in a second")
        story(walk, refused)
        walk.run(block(f"{HEADWORKS} ledger show"), "--admin", walk.ports["admin"])
        walk.run(block(f"{HEADWORKS} ledger audit"), "--admin", walk.ports["admin"])


def refusal(walk: Walk, answers: list[httpx.Response], why: str) -> httpx.Response:
    refused = [answer for answer in answers if answer.status_code == 429]
    told = f"{len(refused)} of {len(answers)} were refused, {sum(one.status_code == 200 for one in answers)} answered"
    walk.holds(f"some are refused: {why}", bool(refused), told)
    strange = [answer.text[:200] for answer in answers if answer.status_code not in (200, 429)]
    walk.holds("everybody is answered or refused", not strange, strange or "")
    one = refused[0]
    walk.holds("a refusal says when to come back", "retry-after-ms" in one.headers, f"{one.headers.get('retry-after-ms')} ms")
    message = one.json()["error"]["message"]
    walk.holds("and why, with the numbers", bool(re.search(r"\d", message)) and "unknown number" not in message, message)
    return one


def story(walk: Walk, refused: httpx.Response) -> None:
    body = refused.json()
    told = walk.run(inline("headworks explain ID").replace("ID", body["headworks"]["decision"]), "--admin", walk.ports["admin"])
    walk.holds("its story names what decided", body["error"]["code"] in told, body["error"]["code"])


def policy(walk: Walk) -> None:
    walk.title("Write a policy down")
    walk.product = walk.run(inline("headworks init http://")).partition("written: ")[2].partition(",")[0]
    walk.keys = {"ACME_KEY": secrets.token_urlsafe(32)}
    file = (walk.directory / "headworks.yaml").read_text()
    walk.shown("cat headworks.yaml", file)
    walk.holds("every value says where it comes from", "[engine]" in file and "[default]" in file)
    said = walk.run(block(f"{HEADWORKS} check"))
    walk.holds("the file can be used as it stands", "can be used" in said)


def planned(walk: Walk) -> None:
    walk.title("Look before it refuses anything, then plan")
    serve, key = block(f"{HEADWORKS} serve --config"), walk.keys["ACME_KEY"]
    inline("--observe")
    with walk.serving(serve, "--observe"):
        answers = crowd(walk.ports["listen"], key)
        others = Counter(
            one.headers.get("x-overload-reason", str(one.status_code)) for one in answers if one.status_code != 200
        )
        said = ", ".join(f"{count} {what}" for what, count in others.items()) or f"{len(answers)} answered"
        walk.holds("observing refuses nobody", not others, said)
    command = inline("headworks plan NEW.yaml").replace("NEW.yaml", "headworks.yaml")
    walk.run(command)
    told = json.loads(walk.run(command, "--json", is_shown=False))
    would, log = told["all"]["all"]["plan"]["refused"], told["log"]["arrivals"]
    walk.holds("the log's own policy is reproduced", told["holds"], f"{told['control']['reproduced_ratio']:.1%}")
    walk.holds("the plan says who would have been refused", would > 0, f"{would} of {log}")


def enforced(walk: Walk) -> None:
    walk.title("Enforce it")
    serve, key = block(f"{HEADWORKS} serve --config"), walk.keys["ACME_KEY"]
    with walk.serving(serve):
        nobody = httpx.get(walk.ports["listen"] + "/v1/models", timeout=10, trust_env=False)
        walk.holds("without a key nobody gets in", nobody.status_code == 401)
        with ThreadPoolExecutor(1) as beside, looking(walk) as picture:
            coming = beside.submit(crowd, walk.ports["listen"], key)
            picture()
            answers = coming.result()
        story(walk, refusal(walk, answers, "the plan said so"))
        walk.run(block(f"{HEADWORKS} ledger audit"), "--admin", walk.ports["admin"])


@contextmanager
def looking(walk: Walk) -> Iterator[Callable[[], None]]:
    """At the dashboard, where there is a browser; what is given takes a picture of it."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        yield lambda: None
        return
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=os.environ.get("HEADWORKS_BROWSER") or found)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(walk.ports["admin"] + "/dashboard")
            page.wait_for_selector("body[data-state=live]")
        except Error as error:
            print(f"  no picture: {str(error).splitlines()[0]}", flush=True)
            yield lambda: None
            return

        def picture() -> None:
            page.wait_for_timeout(1_500)  # two or three looks at what comes meanwhile
            page.screenshot(path=str(walk.directory / PICTURE.name))

        yield picture
        browser.close()


@contextmanager
def engine(url: str | None) -> Iterator[str]:
    """The one that was named, or a fake one."""
    if url is not None:
        yield url.rstrip("/")
        return
    flags = ("--max-num-seqs", "16", "--max-model-len", "4096", "--speed", "0.5")
    command = [sys.executable, "-m", "headworks.testing.fake_engine", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().removeprefix("listening on ").strip()
        finally:
            child.terminate()


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to whoever connects: they are used again and again, minutes apart."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [] if port in found else [port]
    return found


def written(walk: Walk, is_fake: bool) -> None:
    """The transcript as a page."""
    product = f"a fake {walk.product}" if is_fake else walk.product
    has_picture = (walk.directory / PICTURE.name).exists()
    if has_picture:
        PICTURE.write_bytes((walk.directory / PICTURE.name).read_bytes())
    head = [
        "# The first ten minutes",
        "",
        f"What `scripts/first-ten-minutes` said on {time.strftime('%Y-%m-%d')}, before {product}: the README's own commands,",
        f"each held to what it promises, in {time.monotonic() - walk.began_s:.0f} s. Ports and paths are the README's.",
    ]
    tail = ["", f"![The dashboard while it is enforced]({PICTURE.name})"] if has_picture else []
    PAGE.write_text("\n".join([*head, *walk.lines, *tail]) + "\n", encoding="utf-8")
    print(f"\n{PAGE.relative_to(ROOT)} written", flush=True)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    which = flags.add_mutually_exclusive_group(required=True)
    which.add_argument("--engine", help="a live engine that nobody else uses: http://HOST:PORT")
    which.add_argument("--fake", action="store_true", help="a fake engine of this machine's own")
    flags.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = flags.parse_args()
    listen, admin = free_ports(2)
    with tempfile.TemporaryDirectory() as directory, engine(given.engine) as url:
        ports = {"engine": url, "listen": f"http://127.0.0.1:{listen}", "admin": f"http://127.0.0.1:{admin}"}
        walk = Walk(Path(directory), ports)
        try:
            for step in (first_answer, policy, planned, enforced):
                step(walk)
        except Broken as error:
            print(f"\nBROKEN: {error}", file=sys.stderr, flush=True)
            return 1
        print(f"\nAll of it holds, in {time.monotonic() - walk.began_s:.0f} s.", flush=True)
        if given.write:
            written(walk, given.fake)
    return 0


if __name__ == "__main__":
    sys.exit(main())
