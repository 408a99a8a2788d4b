"""Do the serve commands hold on a real GPU engine? Start, look, profile, kill, and starts that must fail, as a user would type them.

    python benchmarks/gpu/serve_commands.py --recipe FILE --drafter DIR --out DIR

Everything that was typed goes into OUT/serve_commands.json with its exit code, time and output. Exit code 1 when a step did not end
as it should.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from draftsmith.manifest import hardware, tool_versions

TIMEOUT_S = 330.0
# name -> (settings that make the start fail, what the error must name)
FAILURES = {
    "a backend that is not installed": (["engine.flags.attention-backend=fa3"], "fa3|flash_attn|sgl_kernel|ModuleNotFound|ImportError"),
    "no memory for the pools": (["engine.flags.mem-fraction-static=0.001"], "mem-fraction-static|memory"),
    "a context that the target lacks": (["engine.flags.context-length=1000000"], "context"),
}


class Session:
    """Runs commands one after the other and keeps what came of them."""

    def __init__(self, recipe: Path, drafter: Path, out: Path, record: str = "serve_commands.json") -> None:
        self.recipe, self.drafter, self.out, self.record = str(recipe), str(drafter), out, record
        self.out.mkdir(parents=True, exist_ok=True)
        self.steps: list[dict[str, Any]] = []

    def run(self, what: str, *words: str, code: int = 0, must_say: str = "") -> dict[str, Any]:
        """One `draftsmith` command; right when it ends with `code` and its output matches `must_say`. Nothing is raised."""
        started = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "draftsmith", *words], capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(os.environ)
            )
            ended, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            ended, output, errors = 124, str(late.stdout or ""), str(late.stderr or "")
        right = ended == code and bool(re.search(must_say, output + errors))
        step = {"what": what, "words": words, "exit_code": ended, "expected": code, "right": right}
        step |= {"seconds": round(time.perf_counter() - started, 2), "stdout": output, "stderr": errors[-3000:]}
        self.steps.append({**step, "stdout": output[-6000:]})
        print(f"{'ok   ' if right else 'WRONG'} {step['seconds']:7.2f} s  {what}: exit {ended}", flush=True)
        self.write()
        return step

    def start(self, what: str, *settings: str, code: int = 0, must_say: str = "", name: str = "gpu") -> dict[str, Any]:
        words = ("serve", "start", self.recipe, "--drafter", self.drafter, "--name", name)
        return self.run(what, *words, *settings, code=code, must_say=must_say)

    def write(self) -> None:
        document = {"hardware": hardware(), "tools": tool_versions(), "steps": self.steps}
        (self.out / self.record).write_text(json.dumps(document, indent=1) + "\n")


def healthy(session: Session) -> None:
    """A server that works: status, phases, profile at two concurrencies; then one of its processes is killed."""
    session.start("start with the drafter", "--trace-dir", str(session.out / "traces"))
    status = session.run("status", "serve", "status", "gpu", "--json", must_say="healthy")
    session.run("phases", "serve", "logs", "gpu", "--phase", must_say=".")
    session.run("the name is taken", "serve", "start", session.recipe, "--drafter", session.drafter, "--name", "gpu", code=2)
    for concurrency in (1, 8):
        words = ("--concurrency", str(concurrency), "--requests", str(2 * concurrency), "--output-tokens", "128", "--json")
        session.run(f"profile at {concurrency}", "serve", "profile", "gpu", *words, must_say="round_ms")
    [server] = json.loads(status["stdout"])["servers"]
    victims = [row["pid"] for row in server["processes"] if "scheduler" in row["title"].lower()]
    print(f"killing {victims} of {server['processes']}", flush=True)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    session.run("status one second after the scheduler was killed", "serve", "status", "gpu", code=4)
    session.run("stop", "serve", "stop", "gpu")
    session.run("stop again", "serve", "stop", "gpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    session = Session(arguments.recipe, arguments.drafter, arguments.out)
    healthy(session)
    for number, (what, (settings, must_say)) in enumerate(FAILURES.items()):
        session.start(what, *settings, code=4, must_say=must_say, name=f"fails-{number}")
    session.start("the baseline arm", "--arm", "baseline", name="plain")
    session.run("status of the baseline", "serve", "status", "plain", must_say="healthy")
    session.run("stop all", "serve", "stop", "--all")
    return 0 if all(step["right"] for step in session.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
