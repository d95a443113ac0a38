"""Metrics of locks by OpenTelemetry. `python examples/metrics.py HOST:PORT` prints what a lock has counted."""

import sys

import redis
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dlock_redis import Locks, Observer


class Metrics(Observer):
    """Keys are no attributes: there may be a million of them."""

    def __init__(self) -> None:
        meter = metrics.get_meter("dlock_redis")
        self.waits = meter.create_up_down_counter("dlock.waiting", description="waits that have begun and not ended")
        self.grants = meter.create_histogram("dlock.granted", "s", "how long it took until a lock was granted")
        self.refusals = meter.create_histogram("dlock.refused", "s", "how long it took until a lock was not granted")
        self.holds = meter.create_histogram("dlock.held", "s", "how long a lock was held")
        self.losses = meter.create_counter("dlock.lost", description="holds that were lost")

    def waiting(self, key: str | bytes) -> None:
        self.waits.add(1)

    def waited(self, key: str | bytes) -> None:
        self.waits.add(-1)

    def granted(self, key: str | bytes, seconds: float) -> None:
        self.grants.record(seconds)

    def refused(self, key: str | bytes, seconds: float, error: BaseException | None) -> None:
        self.refusals.record(seconds, {"error": type(error).__name__ if error else "taken"})

    def released(self, key: str | bytes, seconds: float) -> None:
        self.holds.record(seconds)

    def lost(self, key: str | bytes, reason: str) -> None:
        self.losses.add(1, {"reason": reason})


def main(address: str) -> None:
    reader = InMemoryMetricReader()  # in a program: an exporter
    metrics.set_meter_provider(MeterProvider([reader]))
    host, port = address.split(":")
    with Locks(redis.Redis(host=host, port=int(port)), observer=Metrics()) as locks:
        with locks.lock("example:metrics"):
            locks.try_lock("example:metrics")
            locks.try_lock("example:metrics", blocking_timeout=3)
        hold = locks.acquire("example:metrics")
        locks.client.delete("example:metrics")
        hold.lost.wait(10)
    data = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        for point in metric.data.data_points:
            print(metric.name, dict(point.attributes or {}), getattr(point, "count", getattr(point, "value", None)))


if __name__ == "__main__":
    main(sys.argv[1])
