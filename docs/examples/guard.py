"""A write in another database, guarded by the token, as docs/cookbook.md shows it. Run alone, it shows that a late write is not made."""

import sqlite3


def begin(database, item, token):
    """Raises the high-water mark of the tokens, before anything is read: from now on every older holder is too late."""
    done = database.execute("UPDATE stock SET token = ? WHERE item = ? AND token <= ?", (token, item, token))
    database.commit()
    return done.rowcount == 1


def write(database, item, sold, token):
    """Writes only if the mark is still the one that `begin` has set."""
    done = database.execute("UPDATE stock SET sold = ? WHERE item = ? AND token = ?", (sold, item, token))
    return done.rowcount == 1


if __name__ == "__main__":
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, sold INTEGER, token INTEGER NOT NULL DEFAULT 0)")
    database.execute("INSERT INTO stock VALUES ('book', 0, 0)")
    early, late = 1795257735768587, 1795257740022703
    assert begin(database, "book", early)
    assert begin(database, "book", late)
    assert not write(database, "book", 9, early), "it was paused, and is too late, though nobody has written yet"
    assert not begin(database, "book", early)
    assert not write(database, "book", 9, late + 1), "without begin it may have read what is older"
    assert write(database, "book", 1, late)
    assert write(database, "book", 2, late), "the holder may write again"
    assert database.execute("SELECT sold FROM stock").fetchone() == (2,)
