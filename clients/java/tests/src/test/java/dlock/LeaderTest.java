// SPDX-License-Identifier: MIT
package dlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Optional;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** One leader at a time, and a term for each. */
class LeaderTest {
    @Test
    void oneAfterTheOther() throws Exception {
        String name = UUID.randomUUID().toString();
        try (Stage s = new Stage("lettuce", "single")) {
            Leader one = new Leader(s.locks(Stage.LONG), name, "one");
            Leader two = new Leader(s.locks(Stage.LONG), name, "two");
            Hold first = Stage.result(one.campaign());
            Stage.until("one leads", one::isLeader);
            var second = two.campaign();
            assertEquals(Optional.of("one"), two.who());
            assertFalse(two.isLeader());
            one.resign();
            assertFalse(one.isLeader());
            assertTrue(Stage.result(second).token() > first.token());
            Stage.until("two leads", two::isLeader);
            assertThrows(DLockException.Fenced.class, () -> first.guard("SET", name + "x", 1));
            s.ask(name, "DLOCK.FORCERELEASE", name);
            Stage.until("two has stepped down", () -> !two.isLeader());
            Stage.result(two.campaign());
            Stage.until("two leads again", two::isLeader);
            two.close();
            Stage.until("nobody leads", () -> one.who().isEmpty());
        }
    }
}
