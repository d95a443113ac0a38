// SPDX-License-Identifier: MIT
package dlock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dlock.DLocks;
import dlock.FakeLocks;
import io.lettuce.core.resource.ClientResources;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.function.IntSupplier;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.springframework.beans.factory.BeanCreationException;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.PriorityOrdered;

/** What @Locked cannot lock keeps the program from starting; what it can needs nothing but the starter. */
class RefusalTest {
    private final ApplicationContextRunner program = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(DLockAutoConfiguration.class))
            .withPropertyValues("dlock.url=redis://" + System.getenv("DLOCK_SINGLE"));

    static class Works {
        String held(DLocks locks) {
            return heldAs(locks, "refusal:works");
        }

        @Locked("'refusal:works'")
        public String heldAs(DLocks locks, String key) {
            return String.valueOf(locks.lock(key).isHeldByCurrentThread());
        }
    }

    static class ReturnsAFuture {
        @Locked("'x'")
        public Future<String> work() {
            return CompletableFuture.completedFuture("");
        }
    }

    static class ReturnsAStage {
        @Locked("'x'")
        public CompletableFuture<String> work() {
            return CompletableFuture.completedFuture("");
        }
    }

    static class ReturnsAPublisher {
        @Locked("'x'")
        public Flow.Publisher<String> work() {
            return subscriber -> {};
        }
    }

    static class ReturnsACallable {
        @Locked("'x'")
        public Callable<String> work() {
            return () -> "";
        }
    }

    static class ReturnsASupplier {
        @Locked("'x'")
        public Supplier<String> work() {
            return () -> "";
        }
    }

    static class ReturnsANumberLater {
        @Locked("'x'")
        public IntSupplier work() {
            return () -> 1;
        }
    }

    static class ReturnsAStream {
        @Locked("'x'")
        public Stream<String> work() {
            return Stream.of("");
        }
    }

    static class ReturnsAnIterator {
        @Locked("'x'")
        public Iterator<String> work() {
            return List.of("").iterator();
        }
    }

    static class ReturnsAnIterable {
        @Locked("'x'")
        public Iterable<String> work() {
            return List.of("");
        }
    }

    /** What is an Object where it is declared, and work that is still to be done at run time. And what is not. */
    static class ReturnsAnObject {
        @Locked("'refusal:object'")
        public Object work(Object result) {
            return result;
        }

        @Locked("'refusal:object'")
        public <T> T generic(T result) {
            return result;
        }

        /** A program's own type says by itself what it is: Spring Data's pages are iterable, and suppliers. */
        @Locked("'refusal:object'")
        public Rows rows() {
            return new Rows();
        }
    }

    static class Rows implements Iterable<String>, Supplier<String> {
        @Override
        public Iterator<String> iterator() {
            return List.of("").iterator();
        }

        @Override
        public String get() {
            return "";
        }
    }

    static class IsPrivate {
        @Locked("'x'")
        private void work() {}
    }

    static class IsFinal {
        @Locked("'x'")
        public final void work() {}
    }

    static class IsStatic {
        @Locked("'x'")
        public static void work() {}
    }

    static class Inherited extends IsPrivate {}

    static class SharesAndCounts {
        @Locked(value = "'x'", shared = true, limit = 2)
        public void work() {}
    }

    static class TakesMoreThanThereAre {
        @Locked(value = "'x'", limit = 2, permits = 3)
        public void work() {}
    }

    static class WaitsForNoTime {
        @Locked(value = "'x'", timeout = "soon")
        public void work() {}
    }

    static class MisspellsAParameter {
        @Locked("'x' + #itm")
        public void work(String item) {}
    }

    static class MisspellsAParameterWithin {
        @Locked({"'x'", "'x'.concat(#item + (#p1 ?: #this))"})
        public void work(String item) {}
    }

    static class IsNoExpression {
        @Locked("'x' + #")
        public void work(String item) {}
    }

    static class IsBlank {
        @Locked(" ")
        public void work(String item) {}
    }

    record Order(String item) {}

    interface Generic<T> {
        String work(T one);
    }

    /** Each way to name the parameters; javac makes a bridge without names. */
    static class Names implements Generic<Order> {
        @Override
        @Locked({"'names:' + #order.item", "'names:' + #p0.item + #a0.item() + (#root == null)", "'names:' + (#order?.item ?: '-')"})
        public String work(Order order) {
            return order.item;
        }

        @Locked("#item")
        public String alone(String item) {
            return item;
        }
    }

    /** Each way to lock. */
    static class Ways {
        @Locked({"'ways:' + #work.class.name.length()", "'ways:b'"})
        public void several(Runnable work) {
            work.run();
        }

        @Locked(value = "'ways:c'", shared = true, lease = "60s", maxHold = "40s", timeout = "1s")
        public void shared(Runnable work) {
            work.run();
        }

        @Locked(value = "'ways:d'", limit = 3, permits = 2)
        public void counted(Runnable work) {
            work.run();
        }
    }

    private static boolean elsewhere(BooleanSupplier work) {
        return CompletableFuture.supplyAsync(work::getAsBoolean).join();
    }

    @Test
    void aMethodIsLockedInEachWay() {
        program.withBean("ways", Ways.class).run(context -> {
            DLocks locks = context.getBean(DLocks.class);
            Ways ways = context.getBean(Ways.class);
            Runnable both = new Runnable() {
                @Override
                public void run() {
                    assertTrue(locks.lock("ways:" + getClass().getName().length()).isHeldByCurrentThread());
                    assertTrue(locks.lock("ways:b").isHeldByCurrentThread());
                }
            };
            ways.several(both);
            var readWrite = locks.readWrite("ways:c");
            ways.shared(() -> {
                Duration left = readWrite.readLock().current().left();
                assertTrue(left.toSeconds() > 20 && left.toSeconds() < 40, "maxHold: " + left);
                assertTrue(readWrite.readLock().remainTimeToLive() > 40_000, "lease");
                assertTrue(elsewhere(() -> {
                    boolean isShared = readWrite.readLock().tryLock() && !readWrite.writeLock().tryLock();
                    readWrite.readLock().unlock();
                    return isShared;
                }));
            });
            var lock = readWrite.writeLock();
            lock.lock();
            assertThrows(LockTakenException.class, () -> {
                try {
                    CompletableFuture.runAsync(() -> ways.shared(() -> {})).join();
                } catch (CompletionException taken) {
                    throw taken.getCause();
                }
            });
            lock.unlock();
            ways.counted(() -> assertTrue(elsewhere(() -> {
                var permits = locks.semaphore("ways:d", 3);
                boolean isCounted = !permits.tryAcquire(2) && permits.tryAcquire();
                permits.release();
                return isCounted;
            })));
            assertFalse(locks.lock("ways:d").isLocked());
        });
    }

    static Stream<Class<?>> mistakes() {
        return Stream.of(ReturnsAFuture.class, ReturnsAStage.class, ReturnsAPublisher.class, ReturnsACallable.class,
                ReturnsASupplier.class, ReturnsANumberLater.class, ReturnsAStream.class, ReturnsAnIterator.class,
                ReturnsAnIterable.class, IsPrivate.class, IsFinal.class, IsStatic.class, Inherited.class,
                SharesAndCounts.class, TakesMoreThanThereAre.class, WaitsForNoTime.class, MisspellsAParameter.class,
                MisspellsAParameterWithin.class, IsNoExpression.class, IsBlank.class);
    }

    @ParameterizedTest
    @MethodSource("mistakes")
    void whatCannotBeLockedDoesNotStart(Class<?> bean) {
        program.withBean("mistake", bean).run(context -> {
            Throwable why = context.getStartupFailure();
            assertTrue(why instanceof BeanCreationException && why.getMessage().contains("@Locked") && why.getMessage().contains("mistake"),
                    String.valueOf(why));
        });
    }

    @Test
    void aNameThatIsNotKnownIsNamed() {
        program.withBean("mistake", MisspellsAParameter.class).run(context -> {
            String why = context.getStartupFailure().getMessage();
            assertTrue(why.contains("#itm in 'x' + #itm is none of its parameters, which are [item]"), why);
        });
        program.withBean("mistake", MisspellsAParameterWithin.class).run(context -> {
            String why = context.getStartupFailure().getMessage();
            assertTrue(why.contains("#p1"), why);
        });
    }

    @Test
    void aKeyWithNullIsRefused() {
        program.withBean("names", Names.class).run(context -> {
            Names bean = context.getBean(Names.class);
            assertEquals("a", bean.work(new Order("a")));
            assertEquals("names:a", bean.alone("names:a"));
            var refused = assertThrows(IllegalArgumentException.class, () -> bean.work(new Order(null)));
            for (String said : List.of("#order.item is null", "Names.work(")) {
                assertTrue(refused.getMessage().contains(said), refused.getMessage());
            }
            assertThrows(IllegalArgumentException.class, () -> bean.alone(null));
            assertThrows(IllegalArgumentException.class, () -> bean.alone(""));
        });
    }

    /** As Spring Boot does with its metrics, and the customizers of the program. */
    @AutoConfiguration(after = DLockAutoConfiguration.class)
    static class Boots {
        final AtomicInteger measured = new AtomicInteger();

        @Bean(destroyMethod = "shutdown")
        @ConditionalOnMissingBean(ClientResources.class)
        ClientResources lettuceClientResources() {
            return ClientResources.builder().commandLatencyRecorder((local, remote, command, first, whole) -> measured.incrementAndGet())
                    .build();
        }
    }

    @Test
    void theResourcesOfSpringBootAreUsed() {
        program.withConfiguration(AutoConfigurations.of(Boots.class)).run(context -> {
            assertFalse(context.getBean(DLocks.class).lock("refusal:resources").isLocked());
            Shop.until("it is measured", () -> context.getBean(Boots.class).measured.get() > 0);
            assertEquals(1, context.getBeansOfType(ClientResources.class).size());
        });
    }

    @Test
    void theStartersOwnResourcesEndWithTheProgram() {
        var own = new AtomicReference<ClientResources>();
        program.run(context -> {
            assertTrue(context.getBeansOfType(ClientResources.class).isEmpty());
            own.set(context.getBean(DLockAutoConfiguration.Resources.class).own);
            assertFalse(own.get().eventExecutorGroup().isShuttingDown());
        });
        assertTrue(own.get().eventExecutorGroup().isShuttingDown());
    }

    @Configuration(proxyBeanMethods = false)
    static class Fake {
        @Bean
        DLocks dLocks() {
            return new FakeLocks().locks();
        }
    }

    @Test
    void aTestNeedsNoServer() {
        program.withPropertyValues("dlock.url=redis://localhost:1").withUserConfiguration(Fake.class).withBean("works", Works.class)
                .run(context -> assertEquals("true", context.getBean(Works.class).heldAs(context.getBean(DLocks.class), "refusal:works")));
    }

    @Test
    void aUrlOfSentinelNamesThePrimary() {
        for (String url : List.of("redis-sentinel://:secret@localhost:26379", "rediss-sentinel://localhost,localhost:26380/1#")) {
            program.withPropertyValues("dlock.url=" + url).run(context -> {
                StringWriter shown = new StringWriter();
                context.getStartupFailure().printStackTrace(new PrintWriter(shown));
                assertTrue(shown.toString().contains("dlock.url must end with # and the primary's name"), shown.toString());
                assertFalse(shown.toString().contains("secret"), "the password is in the trace");
            });
        }
        program.withPropertyValues("dlock.url=redis-sentinel://localhost:26379,localhost#name")
                .run(context -> assertNull(context.getStartupFailure()));
    }

    @Test
    void aUrlThatCannotBeReadIsNotShown() {
        program.withPropertyValues("dlock.url=redis://app:pass%word@localhost").run(context -> {
            StringWriter shown = new StringWriter();
            context.getStartupFailure().printStackTrace(new PrintWriter(shown));
            assertTrue(shown.toString().contains("dlock.url must be redis://"), shown.toString());
            assertFalse(shown.toString().contains("word@localhost"), "the password is in the trace");
        });
    }

    @Test
    void whatIsStillToBeDoneIsRefusedAtRunTime() {
        program.withBean("object", ReturnsAnObject.class).run(context -> {
            ReturnsAnObject bean = context.getBean(ReturnsAnObject.class);
            Callable<String> callable = () -> "";
            Supplier<String> supplier = () -> "";
            IntSupplier number = () -> 1;
            Iterable<String> iterable = () -> List.of("").iterator();
            for (Object later : List.of(callable, supplier, number, iterable, Stream.of(""), List.of("").iterator(),
                    CompletableFuture.completedFuture(""))) {
                var refused = assertThrows(IllegalStateException.class, () -> bean.work(later));
                assertTrue(refused.getMessage().contains("@Locked"), refused.getMessage());
                assertThrows(IllegalStateException.class, () -> bean.generic(later));
            }
            for (Object done : List.of("", 1, List.of(""), Map.of(), Optional.empty(), Path.of("x"), new Object[0])) {
                assertEquals(done, bean.work(done));
            }
            assertEquals("", bean.rows().get());
            assertFalse(context.getBean(DLocks.class).lock("refusal:object").isLocked(), "it is given back all the same");
        });
    }

    /** It makes its bean before others can see that. */
    record EarlyProcessor(Works works) implements BeanPostProcessor, PriorityOrdered {
        @Override
        public int getOrder() {
            return 0;
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class Early {
        @Bean
        static EarlyProcessor early(Works works) {
            return new EarlyProcessor(works);
        }
    }

    @Test
    void aBeanThatNothingWeavesDoesNotStart() {
        program.withBean("works", Works.class).withUserConfiguration(Early.class).run(context -> {
            Throwable why = context.getStartupFailure();
            assertTrue(why != null && why.getMessage().contains("nothing takes the locks"), String.valueOf(why));
        });
        program.withInitializer(context -> context.getBeanFactory().registerSingleton("raw", new Works())).run(context -> {
            Throwable why = context.getStartupFailure();
            assertTrue(why != null && why.getMessage().contains("raw"), String.valueOf(why));
        });
    }

    @Test
    void theStarterAloneLocks() {
        program.withBean("works", Works.class).run(context -> {
            DLocks locks = context.getBean(DLocks.class);
            assertEquals("true", context.getBean(Works.class).heldAs(locks, "refusal:works"));
            assertEquals("false", context.getBean(Works.class).held(locks), "a bean that calls itself passes by the lock");
        });
    }

    @Test
    void theHealthOfTheLocksCanBeSwitchedOff() {
        program.run(context -> assertTrue(context.containsBean("dlockHealthIndicator")));
        program.withPropertyValues("management.health.dlock.enabled=false")
                .run(context -> assertFalse(context.containsBean("dlockHealthIndicator")));
    }

    @Test
    void aLeaseThatMakesNoSenseIsRefused() {
        assertThrows(IllegalStateException.class, () -> program.withPropertyValues("dlock.lease=1ms").run(
                context -> context.getBean(DLocks.class)));
    }
}
