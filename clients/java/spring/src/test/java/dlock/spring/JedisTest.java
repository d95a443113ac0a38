// SPDX-License-Identifier: MIT
package dlock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.data.redis.connection.RedisConnection;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.test.context.TestPropertySource;

/** The same by Jedis, whose connections take the commands as they are. */
@TestPropertySource(properties = "spring.data.redis.client-type=jedis")
class JedisTest extends SpringTest {
    @Autowired RedisConnectionFactory factory;

    @Override
    Object run(String command, Object... words) {
        try (RedisConnection connection = factory.getConnection()) {
            return connection.execute(command, bytes(words));
        }
    }

    @Test
    void commandsWorkAsTheyAre() {
        List<?> grant = (List<?>) run("DLOCK.ACQUIRE", item, "me", 60_000);
        assertTrue((Long) grant.get(0) > 0);
        assertEquals(1L, grant.get(1));
        assertNull(run("DLOCK.ACQUIRE", item, "other", 60_000));
        assertEquals(0L, run("DLOCK.RELEASE", item, "me"));
    }
}
