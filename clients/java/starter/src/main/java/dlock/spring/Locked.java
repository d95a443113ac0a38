// SPDX-License-Identifier: MIT
package dlock.spring;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The method runs under a lock, which is released after its transaction has been committed. If the lock is lost meanwhile, the call throws
 * {@link dlock.NotHeld} when the method has ended, which can be after the commit. Times are such as {@code 5s} or {@code PT5S}.
 */
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Locked {
    /**
     * The lock's key: an expression over the arguments, such as {@code "'stock:' + #item"}; none of what it adds up may be null. Several locks
     * are taken as one.
     */
    String[] value();

    /** How long to wait: then {@link LockTakenException}. Empty: without bound. */
    String timeout() default "";

    /** How long the lock lasts after the program dies or loses the server. Empty: as long as all others. */
    String lease() default "";

    /** How long the lock may be held: then it is reported lost, and released, even if the method is still running. Empty: without bound. */
    String maxHold() default "";

    /** Shares the lock with all others who share it. */
    boolean shared() default false;

    /** How many may hold the lock at once. */
    int limit() default 1;

    /** How many of the {@link #limit} the method takes. */
    int permits() default 1;
}
