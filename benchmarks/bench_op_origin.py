"""How long does the op-level origin analysis take? A step of 100,000 recorded calls, all of them bad.

Run: python benchmarks/bench_op_origin.py [--calls 100000] [--quick]
One origin, then a chain of carriers with one output and one input record each; the last one reaches the root's output.
Rows go to benchmarks/results/op_origin.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent))
import rows

from nanscan.origin import OpOrigin
from nanscan.origin.op_calls import CALL_DTYPE, CallKind, Holds
from nanscan.record import RECORD_DTYPE, Flag, Phase
from nanscan.sites import NO_SITE, SiteTable

AIM = 1.0  # seconds for 100,000 calls


def step_of(n: int) -> np.ndarray:
    """[3 * n] records: call, output, input; n times."""
    records = np.zeros(3 * n, RECORD_DTYPE)
    records["seq"] = np.arange(3 * n)
    records["call"] = np.repeat(np.arange(1, n + 1), 3)
    records["site"] = NO_SITE
    records["n"], records["n_nan"], records["flags"] = 4, 1, int(Flag.BAD)
    records["flags"][2::3] |= int(Flag.INPUT)
    calls = np.zeros(n, CALL_DTYPE)
    calls["seq"], calls["call"] = np.arange(0, 3 * n, 3), np.arange(1, n + 1)
    calls["site"], calls["flags"], calls["phase"] = NO_SITE, int(Flag.CALL), int(Phase.FORWARD)
    calls["line"] = calls["op"] = np.arange(n) % 97
    calls["n_inputs"], calls["n_outputs"], calls["output_bits"] = 1, 1, int(Holds.NAN)
    calls["inputs"][:, 0] = np.arange(n) << 8 | int(Holds.NAN)
    calls["inputs"][0, 0] = 0
    calls["kind"][-1] = CallKind.TOP
    records[0::3] = calls.view(RECORD_DTYPE)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="1,000 calls, nothing written")
    args = parser.parse_args()
    n = 1_000 if args.quick else args.calls
    records = step_of(n)
    seconds = []
    for _ in range(3):
        origin = OpOrigin(SiteTable(), lambda i: (), lambda i: f"aten::op{i}", lambda i: "")
        start = time.perf_counter()
        origin.feed(records)
        events = origin.decide("boundary")
        seconds.append(time.perf_counter() - start)
        assert [event.severity for event in events] == ["error"]
    best = min(seconds)
    print(
        f"{n} calls, {len(records)} records: {best:.3f} s (aim {AIM} s per 100,000), {n / best:,.0f} calls per second"
    )
    if not args.quick:
        print(f"rows added to {rows.append('op_origin', [{'calls': n, 'seconds': best, 'calls_per_s': n / best}])}")


if __name__ == "__main__":
    main()
