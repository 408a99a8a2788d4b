"""Failures as a user meets them: what the tests of them share."""

from __future__ import annotations

import json

import pytest

from draftsmith import cli


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, message, hint) of a command that is to fail; its --json is one document that says the same."""
    code = cli.main([*words, "--json"] if "--" not in words else [words[0], "--json", *words[1:]])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert "Traceback" not in err
    assert document["exit_code"] == code
    return code, document["error"]["message"], document["error"]["hint"]
