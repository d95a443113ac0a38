// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import org.aspectj.lang.ProceedingJoinPoint;
import org.aspectj.lang.annotation.Around;
import org.aspectj.lang.annotation.Aspect;
import org.aspectj.lang.reflect.MethodSignature;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Takes the lock of a {@link Locked} method around its transaction: lock, begin, commit, unlock. */
@Aspect
@Order(Ordered.LOWEST_PRECEDENCE - 1) // transactions have the lowest precedence: so they begin within the lock
public class LockedAspect {
    private final DLocks locks;
    private final SpelExpressionParser parser = new SpelExpressionParser();
    private final DefaultParameterNameDiscoverer names = new DefaultParameterNameDiscoverer();

    /** By these locks. */
    public LockedAspect(DLocks locks) {
        this.locks = locks;
    }

    /** Lock, call, unlock. */
    @Around("@annotation(locked)")
    public Object around(ProceedingJoinPoint call, Locked locked) throws Throwable {
        var method = ((MethodSignature) call.getSignature()).getMethod();
        var arguments = new MethodBasedEvaluationContext(call.getTarget(), method, call.getArgs(), names);
        var lock = locks.lock(parser.parseExpression(locked.value()).getValue(arguments, String.class));
        if (TransactionSynchronizationManager.isActualTransactionActive() && !lock.isHeldByCurrentThread()) {
            throw new IllegalTransactionStateException("the lock would be given back before the commit");
        }
        if (locked.timeout().isEmpty()) {
            lock.lock();
        } else if (!lock.tryLock(DurationStyle.detectAndParse(locked.timeout()))) {
            throw new LockTakenException(lock.key());
        }
        try (AutoCloseable release = lock::unlock) { // its error hides none of the method's
            return call.proceed();
        }
    }
}
