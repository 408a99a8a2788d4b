"""The command that watches a running server: watch. It imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from draftsmith.commands import Answer, Commands
from draftsmith.written import finite


def watch_server(args: argparse.Namespace) -> Answer:
    """Until Ctrl-C, which is its normal end; or --once, or --for-s."""
    from draftsmith.job import Talk
    from draftsmith.watch.command import Asked, watch
    from draftsmith.watch.monitor import Settings

    given = {name: getattr(args, name) for name in ("interval_s", "window_s", "baseline_s", "margin") if getattr(args, name) is not None}
    same = ("url", "expect", "expect_accept_len", "once", "for_s", "prometheus", "textfile")
    asked = Asked(**{name: getattr(args, name) for name in same}, json_lines=args.json and not args.once, settings=Settings(**given))
    return watch(asked, Talk(quiet=args.quiet))


def watch_options(command: argparse.ArgumentParser) -> None:
    command.usage = "draftsmith watch URL [--expect RUN | --expect-accept-len X] [options]"
    command.add_argument("url", metavar="URL", help="a running vLLM or SGLang server, for example http://127.0.0.1:8000")
    command.add_argument("--expect", metavar="PLACE", type=Path, help="run folder, its export folder, report.json, bench's summary.json")
    command.add_argument("--expect-accept-len", metavar="X", type=finite, help="or the number itself: tokens per round, bonus included")
    command.add_argument("--interval-s", metavar="S", type=finite, help="seconds between readings (default 10)")
    command.add_argument("--window-s", metavar="S", type=finite, help="what is shown, and the least length of a look (default 300)")
    command.add_argument("--baseline-s", metavar="S", type=finite, help="the start that decay is measured from (default 3600)")
    command.add_argument("--margin", metavar="SHARE", type=finite, help="of accept_len that may be lost without an alarm (default 0.1)")
    command.add_argument("--once", action="store_true", help="judge all that was counted since the server's start, and end")
    command.add_argument("--for-s", metavar="S", type=finite, help="end after so many seconds (default: at Ctrl-C)")
    command.add_argument("--prometheus", metavar="[HOST]:PORT", help="serve /metrics there; only for this machine unless HOST is given")
    command.add_argument("--textfile", metavar="FILE.prom", type=Path, help="write the same for node_exporter's textfile collector")
    command.epilog = (
        "--json prints one JSON line per interval and a summary as the last line; with --once the summary alone. Exit code 0 without an"
        " alarm, 4 when one went on, 3 when --once or --for-s saw fewer than 200 rounds. A key comes from"
        " the variable DRAFTSMITH_API_KEY, else from VLLM_API_KEY."
    )


COMMANDS: Commands = {
    "watch": (
        "is a running server's acceptance what it should be? Alarms, Prometheus",
        watch_server,
        watch_options,
        "watch URL",
    ),
}
