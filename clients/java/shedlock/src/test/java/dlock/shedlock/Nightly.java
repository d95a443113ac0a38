// SPDX-License-Identifier: MIT
package dlock.shedlock;

import dlock.DLocks;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.sync.RedisCommands;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** A program with a schedule, of which there are several processes. */
@Configuration
@EnableScheduling
@EnableSchedulerLock(defaultLockAtMostFor = "2500ms")
public class Nightly {
    private final RedisURI address = RedisURI.create("redis://" + System.getenv("DLOCK_SINGLE"));
    private final RedisClient client = RedisClient.create();
    private final RedisCommands<String, String> redis = client.connect(address).sync();

    @Bean(destroyMethod = "close")
    DLocks locks() {
        return new DLocks(new LettuceConnector(client, address));
    }

    @Bean
    LockProvider lockProvider(DLocks locks) {
        return new DLockProvider(locks);
    }

    @Scheduled(cron = "*/4 * * * * *")
    @SchedulerLock(name = "${job}", lockAtLeastFor = "2s")
    void tick() throws InterruptedException {
        redis.rpush(System.getProperty("job") + ":log",
                System.currentTimeMillis() / 4000 + " " + ProcessHandle.current().pid());
        Thread.sleep(500); // the work
    }

    public static void main(String[] arguments) throws Exception {
        try (var context = new AnnotationConfigApplicationContext(Nightly.class)) {
            System.in.read();
        }
    }
}
