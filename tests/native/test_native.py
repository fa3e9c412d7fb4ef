"""The C++ parts that need no torch, built and run as programs, with and without sanitizers."""

from __future__ import annotations

import re

import pytest

MEMORY = ("-fsanitize=address,undefined",)
# GCC expands small memcpy in place, where ThreadSanitizer does not see it: called, it is intercepted.
RACES = ("-fsanitize=thread", "-fno-builtin")


def test_ring(build, run):
    run(build("ring_unit", *MEMORY))


def test_calls_on_a_device_are_put_together(build, run):
    run(build("late_unit", *MEMORY))


def test_merge(build, run):
    run(build("merge_unit", *MEMORY))


@pytest.mark.parametrize("sanitizer", [RACES, MEMORY], ids=["tsan", "asan-ubsan"])
@pytest.mark.parametrize("capacity", [2, 64, 1 << 18], ids=["tiny", "small", "ample"])
def test_eight_threads_hammer_the_ring(build, run, sanitizer, capacity):
    n_threads, n_each = 8, 5000
    output = run(build("ring_stress", *sanitizer), n_threads, n_each, capacity)
    seen, dropped = map(int, re.findall(r"\d+", output))
    assert seen + dropped == n_threads * n_each
    assert seen >= min(capacity, n_threads * n_each)
    if capacity >= n_threads * n_each:
        assert dropped == 0


@pytest.mark.parametrize("sanitizer", [RACES, MEMORY], ids=["tsan", "asan-ubsan"])
def test_eight_threads_scan(build, run, sanitizer):
    output = run(build("scan_stress", *sanitizer, scan=True), 8)
    assert "portable 0 failures" in output
