"""Payback: worked by hand, never said as never, intervals that follow the speed-ups', and the command around it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from draftsmith import cli
from draftsmith.errors import UsageError
from draftsmith.measure.payback import Band, Costs, gpu_hours_per_day, payback

COSTS = Costs(training_gpu_hours=300, price=2.5, training_price=2.5)


def band(concurrency: int, share: float, speedup: float, spread: float = 0.0, tok_s: float | None = None) -> Band:
    return Band(concurrency, share, speedup, speedup * (1 - spread), speedup * (1 + spread), tok_s)


def test_by_hand() -> None:
    """40 % at 1.6x and 60 % at 1.2x leave 0.25 + 0.5 of 1,000 GPU-hours a day; 300 training hours are 1.2 days of the 250 saved."""
    found = payback([band(1, 0.4, 1.6), band(8, 0.6, 1.2)], 1000, COSTS)["everywhere"]
    assert found["saved_share"]["value"] == pytest.approx(0.25)
    assert found["days"]["value"] == found["days"]["low"] == found["days"]["high"] == pytest.approx(1.2)
    assert found["saved_per_day"] == pytest.approx(625) and found["chance_of_never"] == 0


def test_the_price_of_serving_cancels_unless_training_costs_more() -> None:
    bands = [band(1, 1.0, 1.5)]
    cheap = payback(bands, 100, Costs(300, 1.0, 1.0))["everywhere"]["days"]["value"]
    dear = payback(bands, 100, Costs(300, 4.0, 4.0))["everywhere"]["days"]["value"]
    assert cheap == pytest.approx(dear) == pytest.approx(9.0)
    assert payback(bands, 100, Costs(300, 1.0, 2.0, fixed_cost=300))["everywhere"]["days"]["value"] == pytest.approx(27.0)


def test_tokens_become_gpu_hours_and_shares_of_time() -> None:
    """Half the tokens at 10 tok/s and half at 100: 10/11 of the time is spent at the slow ones."""
    hours, bands = gpu_hours_per_day([band(1, 0.5, 1.6, tok_s=10), band(8, 0.5, 1.2, tok_s=100)], 7.2e6)
    assert hours == pytest.approx(110) and [b.share for b in bands] == pytest.approx([10 / 11, 1 / 11])
    with pytest.raises(UsageError, match="no baseline rate"):
        gpu_hours_per_day([band(1, 1.0, 1.6)], 1e6)


def test_a_mix_that_loses_never_pays_unless_it_is_switched_off_there() -> None:
    found = payback([band(1, 0.3, 1.5), band(64, 0.7, 0.7)], 100, COSTS)
    assert found["everywhere"]["days"] == {"value": None, "low": None, "high": None}
    assert found["where_it_pays"]["off"] == [64] and found["where_it_pays"]["days"]["value"] == pytest.approx(30)
    assert "off at concurrency 64" in found["verdict"] and "left on everywhere it never pays back" in found["verdict"]
    nowhere = payback([band(1, 1.0, 0.9)], 100, COSTS)
    assert nowhere["verdict"].startswith("never") and nowhere["where_it_pays"]["days"]["value"] is None


def test_the_interval_follows_the_speedups() -> None:
    sure = payback([band(1, 1.0, 1.5, 0.02)], 100, COSTS)["everywhere"]
    assert sure["days"]["low"] == pytest.approx(300 / (100 * (1 - 1 / 1.53)), rel=0.02)
    assert sure["days"]["high"] == pytest.approx(300 / (100 * (1 - 1 / 1.47)), rel=0.02)
    unsure = payback([band(1, 1.0, 1.05, 0.10)], 100, COSTS)
    assert unsure["everywhere"]["days"]["high"] is None and 0.1 < unsure["everywhere"]["chance_of_never"] < 0.3
    assert "never pays" in unsure["verdict"]


def test_a_band_that_may_gain_is_not_a_never() -> None:
    found = payback([band(1, 1.0, 0.99, 0.10)], 100, COSTS)
    assert found["open"] == [1] and found["verdict"].startswith("not shown to pay back") and "concurrency 1" in found["verdict"]
    assert payback([band(1, 1.0, 0.9, 0.05)], 100, COSTS)["open"] == []


@pytest.mark.parametrize(
    ("hours", "costs", "speedup"),
    [(math.inf, COSTS, 1.5), (100, Costs(-5, 1.0, -3.0), 1.5), (100, Costs(math.nan, 1.0, 1.0), 1.5), (100, COSTS, math.inf)],
)
def test_numbers_that_cannot_be_are_refused(hours: float, costs: Costs, speedup: float) -> None:
    with pytest.raises(UsageError):
        payback([band(1, 1.0, speedup)], hours, costs)


def test_tokens_and_a_band_that_is_switched_off_by_hand() -> None:
    """2e8, 2e8 and 1e8 tokens a day at 26.3, 208.9 and 807.5 tok/s are 2,112.4, 265.9 and 34.4 hours. 1.6x and 1.2x save 792.1 and 44.3
    of them, 2,091 a day; 300 hours at 4 and 100 once are paid back in 0.622 days."""
    bands = [band(1, 0.4, 1.6, tok_s=26.3), band(8, 0.4, 1.2, tok_s=208.9), band(32, 0.2, 0.8, tok_s=807.5)]
    hours, timed = gpu_hours_per_day(bands, 5e8)
    best = payback(timed, hours, Costs(300, 2.5, 4.0, 100.0))["where_it_pays"]
    assert hours == pytest.approx(2412.7, abs=0.1) and best["off"] == [32]
    assert best["saved_per_day"] == pytest.approx(2091, abs=1) and best["days"]["value"] == pytest.approx(0.622, abs=0.001)


def test_shares_must_make_a_whole() -> None:
    with pytest.raises(UsageError, match=r"60\.0%"):
        payback([band(1, 0.6, 1.5)], 100, COSTS)


WORDS = ["payback", "--traffic", "1:40%,8:60%", "--gpu-hours-per-day", "1000", "--training-gpu-hours", "300", "--gpu-hour", "2.5"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main([*WORDS, *words])
    return code, capsys.readouterr().out


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = answer(capsys, "--speedup", "1:1.6:1.5:1.7", "--speedup", "8:1.2:1.15:1.25")
    assert code == 0 and text.startswith("paid back after 1.2 days (")
    code, text = answer(capsys, "--speedup", "1:0.9,8:0.8")
    assert code == 1 and text.startswith("never")
    for words in ("1:1.01:0.9:1.13,8:1.01:0.9:1.13", "1:1.0:0.9:1.2,8:0.8"):
        assert answer(capsys, "--speedup", words)[0] == 3


def test_the_command_reads_a_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [{"concurrency": c, "speedup": {"ratio": s, "low": s - 0.05, "high": s + 0.05}} for c, s in ((1, 1.6), (8, 1.2))]
    (tmp_path / "summary.json").write_text(json.dumps({"cells": cells}))
    code, text = answer(capsys, "--bench", str(tmp_path / "summary.json"), "--json")
    assert code == 0 and json.loads(text)["everywhere"]["saved_share"]["value"] == pytest.approx(0.25)
    (tmp_path / "report.json").write_text(json.dumps({"verdict": {"cells": cells}}))
    assert answer(capsys, "--bench", str(tmp_path / "report.json"), "--json")[1] == text
    lost = [*cells[:1], {"concurrency": 8, "speedup": None}, {"concurrency": None, "speedup": cells[0]["speedup"]}]
    (tmp_path / "summary.json").write_text(json.dumps({"cells": lost}))
    assert answer(capsys, "--bench", str(tmp_path / "summary.json"))[0] == 2  # concurrency 8 has none
    assert answer(capsys, "--bench", str(tmp_path / "summary.json"), "--speedup", "8:1.2")[0] == 0
    (tmp_path / "summary.json").write_text(json.dumps({"cells": [*cells, cells[0]]}))
    assert answer(capsys, "--bench", str(tmp_path / "summary.json"))[0] == 2


def test_what_cannot_be_meant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, complaint in (
        (["--speedup", "1:1.6"], "concurrency 8: no speed-up"),
        (["--speedup", "1:1.6,1:1.7,8:1.2"], "twice"),
        (["--speedup", "fast"], "expected CONCURRENCY:VALUE"),
        (["--speedup", "1:1.6,8:1.2", "--tokens-per-day", "1e9"], "needs one size"),
    ):
        assert cli.main([*WORDS, *words]) == 2
        assert complaint in capsys.readouterr().err


def test_collectives_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collectives", "--device", "cpu", "--rows", "1,16,256", "--hidden", "64", "--out", str(tmp_path)]
    assert cli.main([*words, "-q"]) == 0
    assert "knee at" in capsys.readouterr().out and (tmp_path / "collectives.json").is_file()
    assert cli.main([*words, "--arms", "warp"]) == 2
    for wrong in (["--ranks", "1"], ["--rows", "1,-4"], ["--rows", "1.5"], ["--hidden", "0"]):
        assert cli.main([*words, *wrong]) == 2, wrong
