// SPDX-License-Identifier: MIT
package dlock.lettuce;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Whatever comes by RESP2: integers, strings, arrays, nothing. None of Lettuce's own outputs takes all of it. */
public final class Reply extends CommandOutput<byte[], byte[], Object> {
    private final Deque<List<Object>> lists = new ArrayDeque<>();
    private final Deque<Integer> missing = new ArrayDeque<>();

    /** For one command. */
    public Reply() {
        super(ByteArrayCodec.INSTANCE, null);
    }

    private void add(Object value) {
        if (lists.isEmpty()) {
            output = value;
        } else {
            lists.peek().add(value);
        }
        while (!lists.isEmpty() && lists.peek().size() == missing.peek()) {
            lists.pop();
            missing.pop();
        }
    }

    @Override
    public void multi(int count) {
        if (count < 0) {
            add(null);
            return;
        }
        List<Object> list = new ArrayList<>(count);
        if (count == 0) {
            add(list);
            return;
        }
        if (lists.isEmpty()) {
            output = list;
        } else {
            lists.peek().add(list); // it is full when the inner one is
        }
        lists.push(list);
        missing.push(count);
    }

    @Override
    public void set(ByteBuffer bytes) {
        add(bytes == null ? null : codec.decodeValue(bytes));
    }

    @Override
    public void set(long integer) {
        add(integer);
    }
}
