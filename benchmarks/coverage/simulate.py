"""Does the 95 % interval hold the truth in 95 % of experiments? Simulated experiments whose speed-up is known.

    python benchmarks/coverage/simulate.py [--experiments 20000] [--out benchmarks/coverage]

writes coverage.json and coverage.svg. Log tok/s of a launch = arm * log(true speed-up) + drift at its time + restart noise (one draw a
launch) + noise inside the launch. The same figures go through the code that `bench` uses (statistics.fit_arm, stopping.Looks), and
through "three trials, then three trials": one server each, t interval over the trials, as benchmark clients do it. `said_unsteady` is the
share of experiments in which the baseline launches spread so far that `bench` would say that the machine was not steady.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from draftsmith.bench.findings import CANARY_TOLERANCE
from draftsmith.manifest import atomic_write_json, tool_versions
from draftsmith.measure.bootstrap import stretch
from draftsmith.measure.protocol import launch_arms
from draftsmith.measure.statistics import Measured, design_matrix, fit_arm
from draftsmith.measure.stopping import FUTILE_POWER, Looks, chance_left

TRUE = 1.10
PAIRS = (2, 3, 4, 8)
LOOKS = Looks(3, 8)
RESAMPLES = 400
BOOTSTRAPPED = 2000  # experiments of each scenario that also go through the bootstrap over launches


@dataclass(frozen=True)
class Machine:
    """What disturbs the measurement; shares of the speed (0.02 = 2 %)."""

    name: str
    restart: float = 0.02
    inside: float = 0.01
    linear: float = 0.0  # loss of speed from the first launch to the last
    wave: float = 0.0  # amplitude of a sinusoidal drift with a random phase
    periods: float = 1.0  # of the wave, in one experiment
    walk: float = 0.0  # step of a random walk from launch to launch
    outlier_share: float = 0.0  # of launches that run slower by `outlier`
    outlier: float = 0.0
    spread: float = 1.0  # restart noise of the speculative arm over the baseline's


MACHINES = (
    Machine("restart noise 1 %", restart=0.01),
    Machine("restart noise 2 %"),
    Machine("restart noise 3 %", restart=0.03),
    Machine("noise inside the launch only, 2 %", restart=0.0, inside=0.02),
    Machine("linear drift -8 %, restart 1 %", restart=0.01, linear=0.08),
    Machine("linear drift -8 %, restart 3 %", restart=0.03, linear=0.08),
    Machine("sinusoidal drift 2 %, one period", wave=0.02),
    Machine("sinusoidal drift 2 %, three periods", wave=0.02, periods=3.0),
    Machine("sinusoidal drift 4 %, one period, restart 1 %", restart=0.01, wave=0.04),
    Machine("random walk 1 % a launch, restart 1 %", restart=0.01, walk=0.01),
    Machine("speculative arm scatters twice as much", spread=2.0),
    Machine("outliers: 5 % of launches 10 % slower", restart=0.01, outlier_share=0.05, outlier=0.10),
    Machine("outliers: 10 % of launches 30 % slower", restart=0.01, outlier_share=0.10, outlier=0.30),
)


def drift(rng: np.random.Generator, machine: Machine, num: int, times: int) -> np.ndarray:
    """Log speed of the machine [experiments, times], the times evenly spread over the experiment."""
    place = np.arange(times) / max(times - 1, 1)
    wave = machine.wave * np.sin(2 * np.pi * (machine.periods * place + rng.random((num, 1))))
    return wave - machine.linear * place + np.cumsum(rng.normal(0, machine.walk, (num, times)), axis=1)


def restarts(rng: np.random.Generator, machine: Machine, num: int, speculative_L: np.ndarray) -> np.ndarray:
    """What each launch draws once, outliers included [experiments, launches]."""
    shape = (num, len(speculative_L))
    noise = rng.normal(0, 1, shape) * machine.restart * np.where(speculative_L, machine.spread, 1.0)
    return noise - (rng.random(shape) < machine.outlier_share) * machine.outlier


def log_rates(rng: np.random.Generator, machine: Machine, speculative_L: np.ndarray, num: int, true: float) -> np.ndarray:
    """Log tok/s [experiments, launches] in the order of launches; one measurement a launch."""
    y = math.log(true) * speculative_L + restarts(rng, machine, num, speculative_L) + drift(rng, machine, num, len(speculative_L))
    return y + rng.normal(0, machine.inside, y.shape)


def paired(rng: np.random.Generator, machine: Machine, pairs: int, num: int, true: float = TRUE) -> dict[str, Any]:
    """Our protocol: A B B A ..., the interval of `bench`."""
    launches = [Measured(order, arm, 1.0) for order, arm in enumerate(launch_arms(pairs))]
    design = design_matrix(launches)
    y = log_rates(rng, machine, design[:, 1], num, true)
    estimate, error, df = fit_arm(y, design)
    half = stats.t.ppf(0.975, df) * error
    baseline = y[:, design[:, 1] == 0]
    steady = np.ptp(baseline, axis=1) <= math.log1p(CANARY_TOLERANCE)
    found = tell(estimate, half, true) | {"bootstrap": bootstrap_coverage(rng, y[:BOOTSTRAPPED], design[:, 1] > 0, true)}
    return found | {"said_unsteady": float(1 - steady.mean()), "coverage_if_steady": tell(estimate[steady], half[steady], true)["coverage"]}


def bootstrap_coverage(rng: np.random.Generator, y: np.ndarray, speculative_L: np.ndarray, true: float) -> float:
    """Coverage of the bootstrap over launches (within each arm), stretched as measure/bootstrap.py does it."""
    n = int(speculative_L.sum())
    centre = y[:, speculative_L].mean(axis=1) - y[:, ~speculative_L].mean(axis=1)
    means = []
    for arm in (True, False):
        values = y[:, speculative_L == arm]
        weights = rng.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n
        means.append(values @ weights.T)
    low, high = centre + stretch(n) * (np.quantile(means[0] - means[1], [0.025, 0.975], axis=1) - centre)
    return float(np.mean((low <= math.log(true)) & (math.log(true) <= high)))


def three_then_three(rng: np.random.Generator, machine: Machine, num: int, true: float = TRUE) -> dict[str, Any]:
    """Three trials on one baseline server, then three on one speculative server; Welch would change little, pooled t interval."""
    launch = restarts(rng, machine, num, np.array([0.0, 1.0])) + np.array([0.0, math.log(true)])
    trials = np.repeat(launch, 3, axis=1) + drift(rng, machine, num, 6)
    trials += rng.normal(0, machine.inside, trials.shape)
    a, b = trials[:, :3], trials[:, 3:]
    error = np.sqrt((a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / 2 * (2 / 3))
    return tell(b.mean(axis=1) - a.mean(axis=1), stats.t.ppf(0.975, 4) * error, true)


def tell(estimate: np.ndarray, half: np.ndarray, true: float) -> dict[str, Any]:
    """Coverage (share of intervals that hold the truth), bias and mean half width on the log scale."""
    log_true = math.log(true)
    if not len(estimate):
        return {"coverage": None, "bias": None, "half_width": None}
    return {
        "coverage": float(np.mean(np.abs(estimate - log_true) <= half)),
        "bias": float(np.mean(estimate) - log_true),
        "half_width": float(np.mean(half)),
    }


def sequential(rng: np.random.Generator, machine: Machine, num: int, true: float, looks: Looks = LOOKS) -> dict[str, Any]:
    """Stop at the first look whose interval excludes 1, or when it is futile, else at the last. Shares over experiments."""
    arms = launch_arms(looks.last)
    y = log_rates(rng, machine, np.array([arm == "speculative" for arm in arms], float), num, true)
    running = np.ones(num, bool)
    above, below, held = np.zeros(num, bool), np.zeros(num, bool), np.zeros(num, bool)
    used = np.zeros(num)
    for pairs in range(looks.first, looks.last + 1):
        design = design_matrix([Measured(order, arm, 1.0) for order, arm in enumerate(arms[: 2 * pairs])])
        estimate, error, df = fit_arm(y[:, : 2 * pairs], design)
        half = stats.t.ppf(0.5 + looks.confidence(pairs) / 2, df) * error
        up, down = estimate > half, estimate < -half
        futile = ~up & ~down & (chance_left(np.abs(estimate), error, df, pairs, looks) < FUTILE_POWER) & (pairs < looks.last)
        ends = running & (up | down | futile | np.array(pairs == looks.last))
        above |= ends & up
        below |= ends & down
        held |= ends & (np.abs(estimate - math.log(true)) <= half)
        used[ends] = pairs
        running &= ~ends
    return {
        "true": true,
        "says_pays": float(above.mean()),
        "says_does_not_pay": float(below.mean()),
        "coverage": float(held.mean()),
        "mean_pairs": float(used.mean()),
    }


def simulate(num: int, seed: int = 0) -> dict[str, Any]:
    """Every scenario; `num` experiments each."""
    rng = np.random.default_rng(seed)
    scenarios = []
    for machine in MACHINES:
        ours = {str(pairs): paired(rng, machine, pairs, num) for pairs in PAIRS}
        scenarios.append({"machine": asdict(machine), "pairs": ours, "three_then_three": three_then_three(rng, machine, num)})
    errors = [{"machine": machine.name, **sequential(rng, machine, num, 1.0)} for machine in MACHINES]
    power = [
        {"machine": machine.name, **sequential(rng, machine, num, true)}
        for machine in MACHINES[:3]
        for true in (1.01, 1.02, 1.05, 1.10, 1.30)
    ]
    return {
        "true_speedup": TRUE,
        "experiments": num,
        "seed": seed,
        "scenarios": scenarios,
        "sequential": {"rule": LOOKS.rule, "false_positives": errors, "power": power},
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Coverage by scenario: ours at 3, 4 and 8 pairs, three then three, and the 93-97 % band."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "coverage"
    import matplotlib.pyplot as plt

    names = [row["machine"]["name"] for row in found["scenarios"]]
    figure, axes = plt.subplots(figsize=(9, 5.2))
    axes.axvspan(93, 97, color="#d8ead8", label="93-97 %")
    series: list[tuple[str, str, Callable[[dict[str, Any]], float]]] = [
        (f"A B B A, {pairs} pairs", marker, lambda row, pairs=pairs: row["pairs"][pairs]["coverage"])
        for pairs, marker in (("3", "o"), ("4", "s"), ("8", "D"))
    ]
    series.append(("three trials, then three trials", "X", lambda row: row["three_then_three"]["coverage"]))
    for label, marker, value in series:
        axes.plot([100 * value(row) for row in found["scenarios"]], range(len(names)), marker, label=label, alpha=0.85)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(30, 101)
    axes.set_xlabel(f"95 % intervals that hold the true speed-up, % of {found['experiments']} experiments")
    axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.1), ncol=3, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    started = time.monotonic()
    found: dict[str, Any] = simulate(args.experiments) | {"tools": tool_versions()}
    atomic_write_json(args.out / "coverage.json", found)
    draw(found, args.out / "coverage.svg")
    for row in found["scenarios"]:
        ours = "  ".join(f"{pairs}: {100 * cell['coverage']:5.1f} ({100 * cell['bootstrap']:4.1f})" for pairs, cell in row["pairs"].items())
        print(f"{row['machine']['name']:48} {ours}   3+3: {100 * row['three_then_three']['coverage']:5.1f}")
    for row in (*found["sequential"]["false_positives"], *found["sequential"]["power"]):
        rest = " ".join(f"{key} {row[key]:.3f}" for key in ("says_pays", "says_does_not_pay", "coverage", "mean_pairs"))
        print(f"sequential, true {row['true']:.2f}: {row['machine']:46} {rest}")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
