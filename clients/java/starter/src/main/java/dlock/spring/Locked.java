// SPDX-License-Identifier: MIT
package dlock.spring;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** The method runs under a lock, which is given back after its transaction has been committed. */
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface Locked {
    /** The lock's key: an expression over the arguments, such as {@code "'stock:' + #item"}. */
    String value();

    /** How long to wait, such as {@code 5s} or {@code PT5S}: then {@link LockTakenException}. Empty: without bound. */
    String timeout() default "";
}
