// What locks do, as metrics of OpenTelemetry. Run it with DLOCK_SINGLE=host:port.
import { metrics } from '@opentelemetry/api';
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
import Redis from 'ioredis';

import { Locks } from 'dlock-redis';

/** An observer. A lock's name is no attribute: there may be as many as there are orders. */
export function measured(meter = metrics.getMeter('dlock-redis')) {
  const seconds = (name) => meter.createHistogram(name, { unit: 's', advice: { explicitBucketBoundaries: [0.001, 0.01, 0.1, 1, 10, 60] } });
  const [granted, held] = [seconds('dlock.granted.after'), seconds('dlock.held')];
  const [refused, lost] = ['dlock.refused', 'dlock.lost'].map((name) => meter.createCounter(name));
  const waiting = meter.createUpDownCounter('dlock.waiting');
  return {
    waiting: () => waiting.add(1),
    waited: () => waiting.add(-1),
    granted: (key, after) => granted.record(after / 1000),
    refused: (key, after, error) => refused.add(1, { why: error?.code ?? error?.name ?? 'taken' }),
    released: (key, after) => held.record(after / 1000),
    lost: (key, reason) => lost.add(1, { reason }),
  };
}

const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE); // yours sends it somewhere
const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 60_000 });
metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));

const client = new Redis(`redis://${process.env.DLOCK_SINGLE}`, { lazyConnect: true });
const locks = new Locks(client, { observer: measured() });
await locks.using('metrics', async () => {
  await locks.tryLock('metrics');
  await locks.lock('metrics', { wait: 3_000 }).catch(() => {});
});
await locks.close();
await reader.forceFlush();
for (const { descriptor, dataPoints } of exporter.getMetrics()[0].scopeMetrics[0].metrics) {
  for (const { attributes, value } of dataPoints) console.log(descriptor.name, attributes.why ?? '', value.count ?? value);
}
await reader.shutdown();
