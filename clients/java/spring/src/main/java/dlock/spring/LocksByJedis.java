// SPDX-License-Identifier: MIT
package dlock.spring;

import dlock.DLocks;
import dlock.JedisConnector;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration;
import org.springframework.boot.autoconfigure.data.redis.RedisProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** The locks by Jedis, with {@code spring.data.redis.client-type=jedis}: on connections of their own. */
@AutoConfiguration(after = RedisAutoConfiguration.class)
@ConditionalOnBean(JedisConnectionFactory.class)
public class LocksByJedis {
    @Bean
    public DLocks dlocks(RedisProperties properties) {
        var config = DefaultJedisClientConfig.builder().user(properties.getUsername())
                .password(properties.getPassword()).build();
        return new DLocks(new JedisConnector(config, new HostAndPort(properties.getHost(), properties.getPort())));
    }
}
