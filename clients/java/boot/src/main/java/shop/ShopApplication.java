// SPDX-License-Identifier: MIT
package shop;

import dlock.DLocks;
import dlock.spring.Locked;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.stereotype.Service;

/** A program with a locked method, which is called, and one that is scheduled. */
@SpringBootApplication
@EnableScheduling
public class ShopApplication {
    static final AtomicInteger WITHIN = new AtomicInteger();
    static final AtomicInteger MOST = new AtomicInteger();
    static final CompletableFuture<Boolean> TICKED = new CompletableFuture<>();

    @Service
    public static class Stock {
        private final DLocks locks;

        Stock(DLocks locks) {
            this.locks = locks;
        }

        @Locked("'shop:' + #item")
        public void sell(String item) throws InterruptedException {
            MOST.accumulateAndGet(WITHIN.incrementAndGet(), Math::max);
            Thread.sleep(20);
            WITHIN.decrementAndGet();
        }

        @Locked("'shop:tick'")
        @Scheduled(fixedDelay = 100)
        public void tick() {
            TICKED.complete(locks.lock("shop:tick").isHeldByCurrentThread());
        }
    }

    /** Started with "mistake" it must not start. */
    public static class Mistake {
        @Locked("'shop:mistake'")
        public CompletableFuture<String> later() {
            return new CompletableFuture<>();
        }
    }

    @Bean
    CommandLineRunner run(Stock stock) {
        return arguments -> {
            Thread[] sellers = Stream.generate(() -> new Thread(() -> {
                try {
                    for (int i = 0; i < 5; i++) {
                        stock.sell("pen");
                    }
                } catch (InterruptedException over) {
                    throw new IllegalStateException(over);
                }
            })).limit(8).toArray(Thread[]::new);
            for (Thread one : sellers) {
                one.start();
            }
            for (Thread one : sellers) {
                one.join();
            }
            if (MOST.get() != 1 || !TICKED.get()) {
                throw new IllegalStateException(MOST + " at once; the tick had its lock: " + TICKED.get());
            }
        };
    }

    public static void main(String[] arguments) {
        SpringApplication.run(ShopApplication.class, arguments).close();
        try {
            new SpringApplication(ShopApplication.class, Mistake.class).run(arguments).close();
        } catch (RuntimeException refused) {
            System.out.println("locked, and what cannot be locked does not start: " + refused.getMessage());
            return;
        }
        throw new IllegalStateException("it has started with a method that returns before its work is done");
    }
}
