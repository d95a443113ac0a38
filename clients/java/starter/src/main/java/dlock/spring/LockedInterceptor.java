// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLock;
import dlock.DLocks;
import dlock.DSemaphore;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.BridgeMethodResolver;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.ExpressionException;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Takes the lock of a {@link Locked} method around its transaction: lock, begin, commit, unlock. */
class LockedInterceptor implements MethodInterceptor {
    private static final DefaultParameterNameDiscoverer NAMES = new DefaultParameterNameDiscoverer();

    private final Supplier<DLocks> locks;
    private final Map<String, KeyExpression> expressions = new ConcurrentHashMap<>();

    LockedInterceptor(Supplier<DLocks> locks) {
        this.locks = locks;
    }

    /** Returns why no lock is like this, or null. */
    static String mistake(Method method, Locked locked) {
        if (locked.value().length == 0) {
            return "value must name a lock";
        }
        Method named = BridgeMethodResolver.findBridgedMethod(method);
        for (String expression : locked.value()) {
            try {
                String wrong = new KeyExpression(expression).mistake(named, NAMES.getParameterNames(named));
                if (wrong != null) {
                    return wrong;
                }
            } catch (ExpressionException | IllegalArgumentException | IllegalStateException wrong) {
                return "its key cannot be read: " + wrong.getMessage();
            }
        }
        if (locked.limit() < 1 || locked.limit() > 1 && locked.shared()) {
            return "limit must be at least 1, and not beside shared";
        }
        if (locked.permits() < 1 || locked.permits() > locked.limit() || locked.permits() > 1 && locked.value().length > 1) {
            return "permits must be at least 1, at most limit, and more than 1 for one lock only";
        }
        for (String time : List.of(locked.timeout(), locked.lease(), locked.maxHold())) {
            try {
                within(time, DurationStyle::detectAndParse);
            } catch (IllegalArgumentException wrong) {
                return wrong.getMessage();
            }
        }
        return null;
    }

    private static void within(String time, Consumer<String> set) {
        if (!time.isEmpty()) {
            set.accept(time);
        }
    }

    private DLock lock(String key, Locked locked) {
        DLocks from = locks.get();
        DLock lock = locked.shared() ? from.readWrite(key).readLock()
                : locked.limit() > 1 ? from.semaphore(key, locked.limit()) : from.lock(key);
        within(locked.lease(), time -> lock.lease(DurationStyle.detectAndParse(time)));
        within(locked.maxHold(), time -> lock.maxHold(DurationStyle.detectAndParse(time)));
        return lock;
    }

    private static boolean take(Lock lock, Locked locked) throws InterruptedException {
        if (locked.timeout().isEmpty()) {
            if (locked.permits() > 1) {
                ((DSemaphore) lock).acquire(locked.permits());
            } else {
                lock.lock();
            }
            return true;
        }
        Duration timeout = DurationStyle.detectAndParse(locked.timeout());
        return locked.permits() > 1 ? ((DSemaphore) lock).tryAcquire(locked.permits(), timeout)
                : lock.tryLock(timeout.toMillis(), TimeUnit.MILLISECONDS);
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Object target = call.getThis();
        Method method = AopUtils.getMostSpecificMethod(call.getMethod(), target.getClass());
        Locked locked = AnnotatedElementUtils.findMergedAnnotation(method, Locked.class);
        var arguments = new MethodBasedEvaluationContext(target, method, call.getArguments(), NAMES);
        List<DLock> all = new ArrayList<>();
        for (String expression : locked.value()) {
            all.add(lock(expressions.computeIfAbsent(expression, KeyExpression::new).key(arguments, method), locked));
        }
        if (TransactionSynchronizationManager.isActualTransactionActive()) {
            for (DLock one : all) {
                if (!one.isHeldByCurrentThread()) {
                    throw new IllegalTransactionStateException("a transaction is active, so the lock " + one.key() + " of " + method
                            + " would be released before the commit: call it outside the transaction");
                }
            }
        }
        Lock lock = all.size() == 1 ? all.get(0) : DLocks.all(all.toArray(DLock[]::new));
        if (!take(lock, locked)) {
            throw new LockTakenException(all.stream().map(DLock::key).collect(Collectors.joining(", ")));
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
