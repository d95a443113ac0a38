// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.Expression;
import org.springframework.expression.spel.standard.SpelExpressionParser;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Takes the lock of a {@link Locked} method around its transaction: lock, begin, commit, unlock. */
class LockedInterceptor implements MethodInterceptor {
    private final Supplier<DLocks> locks;
    private final SpelExpressionParser parser = new SpelExpressionParser();
    private final Map<String, Expression> expressions = new ConcurrentHashMap<>();
    private final DefaultParameterNameDiscoverer names = new DefaultParameterNameDiscoverer();

    LockedInterceptor(Supplier<DLocks> locks) {
        this.locks = locks;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Object target = call.getThis();
        Method method = AopUtils.getMostSpecificMethod(call.getMethod(), target.getClass());
        Locked locked = AnnotatedElementUtils.findMergedAnnotation(method, Locked.class);
        var arguments = new MethodBasedEvaluationContext(target, method, call.getArguments(), names);
        String key = expressions.computeIfAbsent(locked.value(), parser::parseExpression).getValue(arguments, String.class);
        if (key == null || key.isEmpty()) {
            throw new IllegalArgumentException("the key of @Locked on " + method + " must not be empty");
        }
        var lock = locks.get().lock(key);
        if (TransactionSynchronizationManager.isActualTransactionActive() && !lock.isHeldByCurrentThread()) {
            throw new IllegalTransactionStateException("the lock would be given back before the commit");
        }
        if (locked.timeout().isEmpty()) {
            lock.lock();
        } else if (!lock.tryLock(DurationStyle.detectAndParse(locked.timeout()))) {
            throw new LockTakenException(lock.key());
        }
        try (AutoCloseable release = lock::unlock) { // its error hides none of the method's
            Object result = call.proceed();
            if (Later.returned(method, result)) {
                throw new IllegalStateException("@Locked does nothing for the " + result.getClass().getName() + " that " + method
                        + " has returned: " + LockedProcessor.RETURNS_EARLY);
            }
            return result;
        }
    }
}
