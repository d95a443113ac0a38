// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.Connector;
import dlock.DLocks;
import dlock.Observer;
import dlock.Settings;
import dlock.lettuce.LettuceConnector;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.resource.ClientResources;
import java.time.Duration;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * Locks from {@code dlock.url}, by Lettuce. A {@link Connector} of the program's own (by Jedis, with keys of TLS) is used
 * instead; an {@link Observer} receives the events.
 */
@AutoConfiguration
@EnableConfigurationProperties(DLockProperties.class)
public class DLockAutoConfiguration {
    /**
     * The program's only {@link ClientResources}, or threads of our own, which end with the program. These are no bean, since Spring Boot
     * makes one, with its metrics and the program's customizers, only where there is none.
     */
    static final class Resources implements AutoCloseable {
        private final ObjectProvider<ClientResources> theirs;
        ClientResources own;

        Resources(ObjectProvider<ClientResources> theirs) {
            this.theirs = theirs;
        }

        ClientResources get() {
            return theirs.getIfUnique(() -> own = ClientResources.create());
        }

        @Override
        public void close() {
            if (own != null) {
                own.shutdown();
            }
        }
    }

    @Bean
    @ConditionalOnMissingBean(Connector.class)
    Resources dlockResources(ObjectProvider<ClientResources> theirs) {
        return new Resources(theirs);
    }

    @Bean
    @ConditionalOnMissingBean
    Connector dlockConnector(DLockProperties properties, Resources own) {
        RedisURI uri = uri(properties.url() == null ? "redis://localhost" : properties.url());
        ClientResources resources = own.get();
        return properties.clustered() ? new LettuceConnector(RedisClusterClient.create(resources, uri))
                : new LettuceConnector(RedisClient.create(resources), uri);
    }

    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    DLocks dlocks(Connector connector, DLockProperties properties, ObjectProvider<Observer> observer) {
        Settings usual = Settings.DEFAULT;
        return new DLocks(connector, new Settings(or(properties.lease(), usual.lease()), or(properties.hangTimeout(), usual.hangTimeout()),
                or(properties.replyTimeout(), usual.replyTimeout()), or(properties.clockMargin(), usual.clockMargin()),
                observer.getIfAvailable(usual::observer)));
    }

    /** Reads the URL. The library's own message has all of it, so it is no cause of this one: a log would show the password. */
    private static RedisURI uri(String url) {
        if (url.matches("rediss?-sentinel://[^#]*#?")) {
            throw new IllegalArgumentException("dlock.url must end with # and the primary's name in Sentinel: "
                    + "redis-sentinel://[user:password@]host[:port],…[/database]#name");
        }
        try {
            return RedisURI.create(url);
        } catch (IllegalArgumentException unreadable) {
            throw new IllegalArgumentException("dlock.url must be redis://[user:password@]host[:port][/database], with TLS rediss://…, "
                    + "with Sentinel redis-sentinel://[user:password@]host[:port],…[/database]#name. "
                    + "Write an @ in a password as %40, a / as %2F, a # as %23, a % as %25");
        }
    }

    private static Duration or(Duration set, Duration usual) {
        return set == null ? usual : set;
    }

    /** Static, so that it is there before the beans. */
    @Bean
    static LockedProcessor dlockLockedProcessor(ObjectProvider<DLocks> locks) {
        return new LockedProcessor(locks::getObject);
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.integration.support.locks.DistributedLock")
    static class Integration {
        @Bean
        @ConditionalOnMissingBean
        DLockRegistry dlockRegistry(DLocks locks, DLockProperties properties) {
            return new DLockRegistry(locks, properties.prefix() == null ? "" : properties.prefix());
        }
    }

    /** Spring Integration 6. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.integration.support.locks.LockRegistry")
    @ConditionalOnMissingClass("org.springframework.integration.support.locks.DistributedLock")
    static class PlainIntegration {
        @Bean
        @ConditionalOnMissingBean
        PlainLockRegistry dlockRegistry(DLocks locks, DLockProperties properties) {
            return new PlainLockRegistry(locks, properties.prefix() == null ? "" : properties.prefix());
        }
    }

    /** Spring Boot 4. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.boot.health.contributor.HealthIndicator")
    @ConditionalOnProperty(name = "management.health.dlock.enabled", matchIfMissing = true)
    static class HealthConfiguration {
        @Bean
        org.springframework.boot.health.contributor.HealthIndicator dlockHealthIndicator(DLocks locks) {
            return () -> {
                RuntimeException error = look(locks);
                return (error == null ? org.springframework.boot.health.contributor.Health.up()
                        : org.springframework.boot.health.contributor.Health.down(error)).build();
            };
        }
    }

    /** Spring Boot 3. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.boot.actuate.health.HealthIndicator")
    @ConditionalOnMissingClass("org.springframework.boot.health.contributor.HealthIndicator")
    @ConditionalOnProperty(name = "management.health.dlock.enabled", matchIfMissing = true)
    static class Boot3HealthConfiguration {
        @Bean
        org.springframework.boot.actuate.health.HealthIndicator dlockHealthIndicator(DLocks locks) {
            return () -> {
                RuntimeException error = look(locks);
                return (error == null ? org.springframework.boot.actuate.health.Health.up()
                        : org.springframework.boot.actuate.health.Health.down(error)).build();
            };
        }
    }

    /** Takes nothing. Returns why it could not look, or null. */
    private static RuntimeException look(DLocks locks) {
        try {
            locks.lock("dlock:health").isLocked();
            return null;
        } catch (RuntimeException error) {
            return error;
        }
    }
}
