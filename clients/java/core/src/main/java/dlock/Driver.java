// SPDX-License-Identifier: MIT
package dlock;

import static java.lang.System.Logger.Level.ERROR;

import dlock.DLockException.Unavailable;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** Takes the steps of a job, one after the other, in whatever thread has the reply. */
final class Driver {
    private final Sessions s;
    private final Job job;

    Driver(Sessions s, Job job) {
        this.s = s;
        this.job = job;
    }

    /** Runs the steps. An error in a step is also an answer to the job, which continues. */
    void run() {
        try {
            steps();
        } catch (Throwable strange) {
            Sessions.LOG.log(ERROR, "a step has failed", strange);
            answered(Clock.now(), null, strange);
            s.timer.schedule(this::run, 100, TimeUnit.MILLISECONDS);
        }
    }

    private void steps() {
        for (Job.Step step = next(); step != null; step = next()) {
            Library.Reply reply = s.library.call(step.key(), step.words(), step.nanos(), step.isOfLoop());
            s.under(() -> job.waiting(() -> reply.cancel(false)));
            if (!reply.isDone()) {
                reply.whenComplete((value, why) -> {
                    try {
                        answered(reply.sent, value, why);
                    } finally {
                        run();
                    }
                });
                return;
            }
            reply.whenComplete((value, why) -> answered(reply.sent, value, why));
        }
    }

    private Job.Step next() {
        return s.under(() -> {
            Job.Step step = job.next();
            if (step == null || step.words() != null) {
                return step;
            }
            AtomicBoolean isOver = new AtomicBoolean();
            Future<?> timer = s.timer.schedule(() -> goOn(isOver), step.nanos(), TimeUnit.NANOSECONDS);
            job.waiting(() -> {
                timer.cancel(false);
                s.timer.execute(() -> goOn(isOver));
            });
            return null;
        });
    }

    private void goOn(AtomicBoolean isOver) {
        if (isOver.compareAndSet(false, true)) {
            run();
        }
    }

    private void answered(long sent, Object reply, Throwable why) {
        s.under(() -> {
            try {
                job.answered(sent, reply, why == null ? null : DLockException.of(why));
            } catch (Throwable strange) { // as a rule it is no reply of such a server
                job.answered(sent, null, new Unavailable("the server has answered " + reply, strange));
            }
        });
    }
}
