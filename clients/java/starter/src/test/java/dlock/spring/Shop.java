// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLock;
import dlock.DLocks;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** A program with a database whose rows two may not change at once. */
@SpringBootApplication
class Shop {
    @Service
    static class Stock {
        private final JdbcTemplate database;
        private final DLocks locks;
        private Runnable afterReading;
        private Runnable beforeCommit;

        Stock(JdbcTemplate database, DLocks locks) {
            this.database = database;
            this.locks = locks;
            database.execute("CREATE TABLE IF NOT EXISTS stock"
                    + " (item VARCHAR(100) PRIMARY KEY, sold INT NOT NULL, token BIGINT NOT NULL)");
        }

        /** What runs when a sale has read, and when one is about to commit. */
        void when(Runnable afterReading, Runnable beforeCommit) {
            this.afterReading = afterReading;
            this.beforeCommit = beforeCommit;
        }

        void add(String item) {
            database.update("INSERT INTO stock VALUES (?, 0, 0)", item);
        }

        int sold(String item) {
            return database.queryForObject("SELECT sold FROM stock WHERE item = ?", Integer.class, item);
        }

        /** Lock, begin, commit, unlock. */
        @Locked("'stock:' + #item")
        @Transactional
        public void sell(String item) {
            sellOne(item);
        }

        /** Gives up in time. */
        @Locked(value = "'stock:' + #item", timeout = "2s")
        public void sellSoon(String item) {
            sold(item);
        }

        /** The mistake: begin, lock, unlock, commit. What is read by the next is not yet written. */
        @Transactional
        public void sellAndReleaseBeforeCommit(String item) {
            DLock lock = locks.lock("stock:" + item);
            lock.lock();
            try {
                sellOne(item);
            } finally {
                lock.unlock();
            }
        }

        /** Another mistake, which is refused: a caller further outside commits. */
        @Transactional
        public void sellWithin(Stock proxy, String item) {
            proxy.sell(item);
        }

        private void sellOne(String item) {
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                @Override
                public void beforeCommit(boolean readOnly) {
                    beforeCommit.run();
                }
            });
            int sold = sold(item);
            afterReading.run();
            database.update("UPDATE stock SET sold = ? WHERE item = ?", sold + 1, item);
        }

        /** Raises the high-water mark of the tokens, before anything is read: from now on every older holder is too late. */
        boolean begin(String item, long token) {
            return database.update("UPDATE stock SET token = ? WHERE item = ? AND token <= ?", token, item, token) == 1;
        }

        /** Writes only if the mark is still the one that {@link #begin} has set. */
        boolean write(String item, int sold, long token) {
            return database.update("UPDATE stock SET sold = ? WHERE item = ? AND token = ?", sold, item, token) == 1;
        }
    }

    static <T> T until(String what, Callable<T> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            T value = condition.call();
            if (value != null && !Boolean.FALSE.equals(value)) {
                return value;
            }
            if (System.nanoTime() > end) {
                throw new TimeoutException("gave up waiting until " + what);
            }
            Thread.sleep(5);
        }
    }
}
