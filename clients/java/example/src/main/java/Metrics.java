// SPDX-License-Identifier: MIT
import dlock.Observer;
import io.micrometer.core.instrument.MeterRegistry;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;

/** What happens, as Micrometer's meters. The names of locks are no labels: there may be too many. */
public final class Metrics implements Observer {
    private final MeterRegistry registry;
    private final AtomicInteger waiting = new AtomicInteger();

    /** Counts there. */
    public Metrics(MeterRegistry registry) {
        this.registry = registry;
        registry.gauge("dlock.waiting", waiting);
        registry.counter("dlock.lost");
    }

    @Override
    public void waiting(String key) {
        waiting.incrementAndGet();
    }

    @Override
    public void waited(String key) {
        waiting.decrementAndGet();
    }

    @Override
    public void granted(String key, Duration after) {
        registry.timer("dlock.granted").record(after);
    }

    @Override
    public void refused(String key, Duration after, Throwable error) {
        registry.counter("dlock.refused", "why", error == null ? "taken" : error.getClass().getSimpleName()).increment();
    }

    @Override
    public void released(String key, Duration after) {
        registry.timer("dlock.held").record(after);
    }

    @Override
    public void lost(String key, String reason) {
        registry.counter("dlock.lost").increment();
    }
}
