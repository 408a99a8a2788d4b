"""The audits on a GPU engine, as a user types them, with a drafter that was trained before: wiring, lossless, replay, watch.

    python benchmarks/gpu/audits.py --trained DIR --kit DIR --out DIR

`--trained`: as in modes.py. The training store is captured anew on this machine. OUT/audits.json has every command with its exit code,
time and output, OUT/run what the commands leave. Exit code 1 when one did not end as it should.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from modes import opened, parser_of
from serve_commands import Session

from draftsmith.capture import stage as capture
from draftsmith.engines.home import home
from draftsmith.job import Job
from draftsmith.measure.prompts import heldout_prompts

SETTINGS = ["engine.flags.max-running-requests=16", "engine.flags.cuda-graph-max-bs=16"]
CLIENTS, WATCHED_S = 8, 24


@contextmanager
def traffic(url: str, prompts: Sequence[Sequence[int]]) -> Iterator[None]:
    """Greedy answers, `CLIENTS` at a time, until the block ends."""
    stop = threading.Event()

    def client(first: int) -> None:
        place = first
        while not stop.is_set():
            sampling = {"temperature": 0.0, "max_new_tokens": 128}
            body = json.dumps({"input_ids": list(prompts[place % len(prompts)]), "sampling_params": sampling}).encode()
            request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            place += CLIENTS

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def watched(session: Session, recipe: Sequence[str], job: Job) -> None:
    """A server with the drafter: replayed against what it serves, and watched under load; then against an expectation that is wrong."""
    session.start("start with the drafter", *recipe, name="audited")
    status = session.run("status", "serve", "status", "audited", "--json", must_say="healthy")
    if not session.steps[-1]["right"]:
        return
    [server] = json.loads(status["stdout"])["servers"]
    url = server["url"]
    words = (*recipe, "--url", url, "--output-tokens", "128", "--prompts", "20")
    session.run("replay against the server", "verify", "replay", session.recipe, *words, "--json", must_say="accept_len")
    prompts = [prompt.token_ids for prompt in heldout_prompts(job.folder("data"))]
    often = ("--interval-s", "2", "--window-s", "10", "--for-s", str(WATCHED_S), "--json")
    with traffic(url, prompts):
        session.run("watch, as expected", "watch", url, "--expect-accept-len", "2.2", *often)
        session.run("watch, expecting more", "watch", url, "--expect-accept-len", "3.2", *often, code=4, must_say="drift_from_report")
    session.run("watch once", "watch", url, "--expect-accept-len", "2.2", "--once", "--json")
    session.run("stop", "serve", "stop", "audited")


def main() -> int:
    arguments = parser_of(__doc__).parse_intermixed_args()
    recipe, job, overrides = opened(arguments, SETTINGS)
    begun = time.monotonic()
    capture.run(recipe.capture, job)
    print(f"captured in {time.monotonic() - begun:.0f} s", flush=True)
    session = Session(arguments.recipe, job.folder("export"), arguments.out, "audits.json")
    words = [*overrides, "--run-folder", str(job.run)]
    session.run("wiring against the training store", "verify", "wiring", session.recipe, *words, must_say="wiring is right")
    session.run("lossless", "verify", "lossless", session.recipe, *words, must_say="lossless")
    watched(session, words, job)
    for log in (home() / "servers").glob("*.log"):
        shutil.copy(log, arguments.out)
    return 0 if all(step["right"] for step in session.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
