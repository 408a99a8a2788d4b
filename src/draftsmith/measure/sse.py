"""From the bytes of a response body to its events: chunked transfer coding and server-sent events, whatever the cuts of the network.

Works on bytes only, so a character or a line that is split over two segments is whole again before anything is decoded.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

DONE = b"[DONE]"
FIELD, SEAM = b"data: ", b"\n\ndata: "


class BadBody(ValueError):
    """The body breaks the rules of its coding."""


class ChunkedBody:
    """Takes the chunked transfer coding off (RFC 9112, section 7.1); `done` after the last chunk and its trailer."""

    def __init__(self) -> None:
        self.rest = b""
        self.missing = 0  # bytes of the current chunk, with its CRLF, that have not come
        self.trailer = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The content bytes in `data`. Raises BadBody for a chunk size that is no number."""
        out = []
        if self.rest:
            data, self.rest = self.rest + data, b""
        at, end = 0, len(data)
        while at < end and not self.done:
            if self.missing:
                take = min(self.missing, end - at)
                if (content := take - max(0, 2 - (self.missing - take))) > 0:  # the last two bytes are CRLF
                    out.append(data[at : at + content])
                self.missing -= take
                at += take
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self.rest = data[at:]
                break
            line, at = data[at:line_end], line_end + 2
            if self.trailer:
                self.done = not line
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError as error:
                raise BadBody(f"chunk size {line[:20]!r}") from error
            if 0 < size <= end - at - 2:  # the whole chunk is here, as nearly always
                out.append(data[at : at + size])
                at += size + 2
                continue
            self.trailer = size == 0
            self.missing = size + 2 if size else 0
        return out[0] if len(out) == 1 else b"".join(out)


class EventSplitter:
    """Collects whole events: the joined `data:` lines of each block up to an empty line. Comments and other fields are left aside."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes."""
        if self.rest:
            data = self.rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        whole, end, self.rest = data.rpartition(b"\n\n")
        if not end:
            return []
        if whole.startswith(FIELD):
            events = whole[len(FIELD) :].split(SEAM)
            if whole.count(b"\n") == 2 * (len(events) - 1) and b"" not in events:  # one line of data each, as nearly always
                return events
        return [event for block in whole.split(b"\n\n") if (event := event_data(block))]

    def finish(self) -> list[bytes]:
        """What a stream without a last empty line leaves."""
        event, self.rest = event_data(self.rest.rstrip(b"\r\n")), b""
        return [event] if event else []


def event_data(block: bytes) -> bytes:
    """The data of one event; empty for a comment."""
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def parse_events(events: list[bytes]) -> list[Any]:
    """JSON of each event; one call for all of them costs less than half of one each, and pydantic's parser less than Python's, which knows
    more (half a surrogate pair) and has the last word. Raises ValueError (not JSON)."""
    try:
        found = from_json(b"[" + b",".join(events) + b"]")
    except ValueError:
        return [json.loads(event) for event in events]
    return found if len(found) == len(events) else [json.loads(event) for event in events]
