"""The examples run, and say what they should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stage import Server


def test_metrics():
    pytest.importorskip("opentelemetry.sdk")
    example = Path(__file__).parent / "examples/metrics.py"
    command = [sys.executable, str(example), os.environ["DLOCK_SINGLE"]]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert sorted(printed) == [
        "dlock.granted {} 2",
        "dlock.held {} 1",
        "dlock.lost {'reason': 'removed'} 1",
        "dlock.refused {'error': 'taken'} 2",
        "dlock.waiting {} 0",
    ]


def test_one_report_in_a_period():
    server = Server("single")
    example = Path(__file__).parent / "examples/report.py"
    command = [sys.executable, str(example), os.environ["DLOCK_SINGLE"], server.key]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True, timeout=60) for _ in range(2)]
    assert [run.stdout for run in runs] == ["made\n", ""]
    assert server.info()["holders"][0]["lease-ms"] > 50_000
