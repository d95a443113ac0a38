// SPDX-License-Identifier: MIT
package dlock.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.springframework.data.redis.connection.RedisConnection;
import org.springframework.test.context.TestPropertySource;

/** The same by Jedis, whose connections take the commands as they are. */
@TestPropertySource(properties = "spring.data.redis.client-type=jedis")
class JedisTest extends SpringTest {
    @Test
    void commandsWorkAsTheyAre() {
        try (RedisConnection connection = factory.getConnection()) {
            List<?> grant = (List<?>) connection.execute("DLOCK.ACQUIRE", bytes(item, "me", 60_000));
            assertTrue((Long) grant.get(0) > 0);
            assertNull(connection.execute("DLOCK.ACQUIRE", bytes(item, "other", 60_000)));
            assertEquals(0L, connection.execute("DLOCK.RELEASE", bytes(item, "me")));
        }
    }
}
