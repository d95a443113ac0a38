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
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * Locks from {@code dlock.url}, by Lettuce. A program that has a {@link Connector} of its own (by Jedis, with keys of TLS) is
 * taken at its word; an {@link Observer} is told what happens.
 */
@AutoConfiguration
@EnableConfigurationProperties(DLockProperties.class)
public class DLockAutoConfiguration {
    /** Threads of its own, ended with the program. */
    @Bean(destroyMethod = "shutdown")
    @ConditionalOnMissingBean({ClientResources.class, Connector.class})
    ClientResources dlockResources() {
        return ClientResources.create();
    }

    @Bean
    @ConditionalOnMissingBean
    Connector dlockConnector(DLockProperties properties, ClientResources resources) {
        RedisURI uri = RedisURI.create(properties.url() == null ? "redis://localhost" : properties.url());
        return properties.clustered() ? new LettuceConnector(RedisClusterClient.create(resources, uri))
                : new LettuceConnector(RedisClient.create(resources), uri);
    }

    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    DLocks dlocks(Connector connector, DLockProperties properties, ObjectProvider<Observer> observer) {
        Settings usual = Settings.DEFAULT;
        return new DLocks(connector, new Settings(or(properties.lease(), usual.lease()), or(properties.auto(), usual.auto()),
                or(properties.claim(), usual.claim()), or(properties.bound(), usual.bound()), usual.allowance(),
                observer.getIfAvailable(usual::observer)));
    }

    private static Duration or(Duration set, Duration usual) {
        return set == null ? usual : set;
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

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = {"org.aspectj.lang.annotation.Aspect", "org.springframework.transaction.TransactionException"})
    static class Aspects {
        @Bean
        @ConditionalOnMissingBean
        LockedAspect dlockAspect(DLocks locks) {
            return new LockedAspect(locks);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(name = "org.springframework.boot.health.contributor.HealthIndicator")
    static class Healthy {
        @Bean
        HealthIndicator dlockHealthIndicator(DLocks locks) {
            return () -> {
                try {
                    locks.lock("dlock:health").isLocked(); // takes nothing
                    return Health.up().build();
                } catch (RuntimeException error) {
                    return Health.down(error).build();
                }
            };
        }
    }
}
