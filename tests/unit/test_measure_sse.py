"""The bytes of a stream, cut anywhere: the same events come out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftsmith.measure.sse import DONE, BadBody, ChunkedBody, EventSplitter, parse_events

TEXTS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8)
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces whose sizes repeat `cuts`."""
    out, at, turn = [], 0, 0
    while at < len(data):
        out.append(data[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    return out


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), CUTS, st.booleans())
def test_chunked_coding_comes_off_whatever_the_cuts(contents: list[bytes], cuts: list[int], trailer: bool) -> None:
    data = b"".join(b"%X;name=value\r\n%s\r\n" % (len(content), content) for content in contents)
    data += b"0\r\n" + (b"x-trailer: 1\r\n" if trailer else b"") + b"\r\n"
    body = ChunkedBody()
    got = b"".join(body.feed(piece) for piece in pieces(data, cuts))
    assert got == b"".join(contents) and body.done


def test_a_body_that_is_not_chunked_is_an_error() -> None:
    with pytest.raises(BadBody, match="chunk size"):
        ChunkedBody().feed(b"data: {}\r\n")


@given(TEXTS, CUTS, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_events_are_whole_whatever_the_cuts(texts: list[str], cuts: list[int], end: bytes, comments: bool) -> None:
    """Cuts go through letters of several bytes, through line ends and between the two line ends of an event."""
    stream = b""
    for text in texts:
        stream += b": ping" + end + end if comments else b""
        stream += b"event: chunk" + end + b"data: " + json.dumps({"text": text}, ensure_ascii=False).encode() + end + end
    stream += b"data: [DONE]" + end + end
    splitter = EventSplitter()
    events = [event for piece in pieces(stream, cuts) for event in splitter.feed(piece)]
    assert events.pop() == DONE
    assert [chunk["text"] for chunk in parse_events(events)] == texts


def test_an_event_of_several_data_lines_is_joined() -> None:
    assert EventSplitter().feed(b'data: {"a":\ndata:1}\n\n') == [b'{"a":\n1}']


def test_the_last_event_may_lack_its_empty_line() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: [DONE]\n") == [b"1"]
    assert splitter.finish() == [DONE] and splitter.finish() == []


def test_events_are_parsed_one_by_one_when_together_they_are_not_json() -> None:
    assert parse_events([b"1", b"[2]"]) == [1, [2]]
    with pytest.raises(ValueError, match="Expecting"):
        parse_events([b"{", b"}"])
    with pytest.raises(ValueError, match="Extra data"):
        parse_events([b"1, 2"])  # JSON inside a list, but not an event


def test_what_only_pythons_parser_takes_is_still_taken() -> None:
    assert parse_events([b'{"text": "\\ud83d"}', b'{"logprob": NaN}'])[0] == {"text": "\ud83d"}


def test_events_without_data_and_data_without_a_blank_are_told_apart() -> None:
    assert EventSplitter().feed(b"data: 1\n\ndata:2\n\nid: 7\n\ndata: \n\ndata: 3\n\n") == [b"1", b"2", b"3"]
    assert EventSplitter().feed(b"data: 1\n\ndata: \n\ndata: 2\n\ndata: 3") == [b"1", b"2"]
