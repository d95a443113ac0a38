// SPDX-License-Identifier: MIT
package dlock.spring;

import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Enumeration;
import java.util.Iterator;
import java.util.Set;
import java.util.Spliterator;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.function.DoubleSupplier;
import java.util.function.IntSupplier;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.stream.BaseStream;
import java.util.stream.Stream;
import org.springframework.core.KotlinDetector;
import org.springframework.core.ReactiveAdapterRegistry;

/** Knows the results of a method whose work, or a part of it, runs after the method has returned: no lock is held for that. */
final class Later {
    private static final Set<Class<?>> KINDS = Set.of(Future.class, CompletionStage.class, Flow.Publisher.class, Callable.class,
            Runnable.class, BaseStream.class, Iterator.class, Spliterator.class, Enumeration.class);
    private static final Set<Class<?>> SUPPLIERS = Set.of(Supplier.class, BooleanSupplier.class, DoubleSupplier.class, IntSupplier.class,
            LongSupplier.class);
    /** By their names, since not every program has them. A result of Spring's web is written after the method has returned. */
    private static final Set<String> NAMES = Set.of("kotlin.sequences.Sequence",
            "org.springframework.web.context.request.async.DeferredResult",
            "org.springframework.web.context.request.async.WebAsyncTask",
            "org.springframework.web.servlet.mvc.method.annotation.ResponseBodyEmitter",
            "org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody");

    private Later() {}

    /** Returns whether the method is declared to return before its work is done. */
    static boolean declared(Method method) {
        Class<?> type = method.getReturnType();
        return is(type) || type == Iterable.class || isSupplier(type) && isOfJava(type) || KotlinDetector.isSuspendingFunction(method);
    }

    /** Returns whether this result of the method does its work later. A type of the program's own says what it is. */
    static boolean returned(Method method, Object result) {
        if (result == null || is(result.getClass())) {
            return result != null;
        }
        boolean data = result instanceof Collection || result instanceof Path || result instanceof Throwable;
        return isOfJava(method.getReturnType()) && !data && (result instanceof Iterable || isSupplier(result.getClass()));
    }

    private static boolean is(Class<?> type) {
        return KINDS.stream().anyMatch(kind -> kind.isAssignableFrom(type)) || isNamed(type)
                || ReactiveAdapterRegistry.getSharedInstance().getAdapter(type) != null;
    }

    private static boolean isNamed(Class<?> type) {
        return type != null && (NAMES.contains(type.getName()) || isNamed(type.getSuperclass())
                || Stream.of(type.getInterfaces()).anyMatch(Later::isNamed));
    }

    private static boolean isSupplier(Class<?> type) {
        return SUPPLIERS.stream().anyMatch(kind -> kind.isAssignableFrom(type));
    }

    private static boolean isOfJava(Class<?> type) {
        return type.getName().startsWith("java.");
    }
}
