// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import dlock.LettuceConnector;
import io.lettuce.core.RedisURI;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration;
import org.springframework.boot.autoconfigure.data.redis.RedisProperties;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** The locks by Lettuce, Boot's default: with its threads and options, on connections of their own. */
@AutoConfiguration(after = RedisAutoConfiguration.class)
@ConditionalOnBean(LettuceConnectionFactory.class)
public class LocksByLettuce {
    @Bean
    public DLocks dlocks(LettuceConnectionFactory factory, RedisProperties properties) {
        RedisURI.Builder uri = RedisURI.builder().withHost(properties.getHost()).withPort(properties.getPort());
        if (properties.getPassword() != null) {
            uri.withAuthentication(
                    properties.getUsername() != null ? properties.getUsername() : "default", properties.getPassword());
        }
        return new DLocks(new LettuceConnector(factory.getRequiredNativeClient(), uri.build()));
    }
}
