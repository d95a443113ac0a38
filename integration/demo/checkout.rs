//! The ways to place an order.

use std::thread;
use std::time::Duration;

use dlock_integration::redis::{self, cmd, Connection, RedisResult};
use dlock_integration::rivals::COMPARE_AND_DELETE;
use dlock_integration::Grant;

/// Where the stock is kept.
pub const STOCK: &str = "stock";

const LOCK: &str = "stock-lock";

/// A lock that its holder forgot is free again after this time. Nobody forgets here.
const LEASE_MS: u64 = 10_000;

/// The lease where customers do freeze: all others wait so long for one that did.
const SHORT_LEASE_MS: u64 = 40;

/// Longer than the lease: who was frozen so long has lost the lock without knowing.
const FREEZE: Duration = Duration::from_millis(100);

/// One order in so many is frozen in the middle.
const FREEZES_ONE_IN: u32 = 120;

/// Between two tries to get a lock that cannot be waited for.
const PAUSE: Duration = Duration::from_millis(50);

/// A way to place an order: a row of the table.
pub struct Way {
    /// What the table calls it.
    pub name: &'static str,
    /// Does it promise that no order is lost?
    pub promises: bool,
    /// Are some customers frozen in the middle of an order?
    pub freezes: bool,
    /// What customer number so-and-so uses, who thinks so long between reading the stock and writing it back.
    pub checkout: fn(customer: usize, thinking: Duration) -> Box<dyn Checkout>,
}

/// One customer's way to place orders.
pub trait Checkout {
    /// Places one order.
    fn order(&mut self, connection: &mut Connection) -> RedisResult<()>;

    /// How often this customer was frozen in the middle of an order.
    fn frozen(&self) -> u64 {
        0
    }

    /// How many writes of this customer were fenced.
    fn fenced(&self) -> u64 {
        0
    }
}

/// All rows of the table, in order.
pub const WAYS: [Way; 4] = [
    Way {
        name: "no lock",
        promises: false,
        freezes: false,
        checkout: |_, thinking| Box::new(Unlocked { thinking }),
    },
    Way {
        name: "SET NX PX, retry",
        promises: true,
        freezes: false,
        checkout: |customer, thinking| {
            Box::new(ClientSide {
                owner: owner(customer),
                thinking,
            })
        },
    },
    Way {
        name: "DLOCK",
        promises: true,
        freezes: false,
        checkout: |customer, thinking| {
            Box::new(Dlock {
                owner: owner(customer),
                thinking,
            })
        },
    },
    Way {
        name: "GUARD, some freeze",
        promises: true,
        freezes: true,
        checkout: |customer, thinking| {
            Box::new(Guarded {
                owner: owner(customer),
                thinking,
                random: fastrand::Rng::with_seed(customer as u64),
                frozen: 0,
                fenced: 0,
            })
        },
    },
];

fn owner(customer: usize) -> String {
    format!("customer-{customer}")
}

/// What needs the lock.
fn sell_one(connection: &mut Connection, thinking: Duration) -> RedisResult<()> {
    let stock: i64 = cmd("GET").arg(STOCK).query(connection)?;
    think(thinking);
    cmd("SET").arg(STOCK).arg(stock - 1).query(connection)
}

/// A price to work out, another service to ask. Even the shortest sleep would take a part of a millisecond.
fn think(thinking: Duration) {
    if !thinking.is_zero() {
        thread::sleep(thinking);
    }
}

/// Without a lock.
struct Unlocked {
    thinking: Duration,
}

impl Checkout for Unlocked {
    fn order(&mut self, connection: &mut Connection) -> RedisResult<()> {
        sell_one(connection, self.thinking)
    }
}

/// With a lock as clients make it of a plain key: whoever can set it has it, whoever cannot tries again.
struct ClientSide {
    owner: String,
    thinking: Duration,
}

impl Checkout for ClientSide {
    fn order(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let mut acquire = cmd("SET");
        acquire
            .arg(LOCK)
            .arg(&self.owner)
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS);
        while acquire.query::<Option<String>>(connection)?.is_none() {
            thread::sleep(PAUSE);
        }
        sell_one(connection, self.thinking)?;
        let deleted: u64 = cmd("EVAL")
            .arg(COMPARE_AND_DELETE)
            .arg(1)
            .arg(LOCK)
            .arg(&self.owner)
            .query(connection)?;
        expect_held(deleted == 1)
    }
}

/// With this module's lock: the server says when it is our turn.
struct Dlock {
    owner: String,
    thinking: Duration,
}

impl Checkout for Dlock {
    fn order(&mut self, connection: &mut Connection) -> RedisResult<()> {
        let _: Grant = cmd("DLOCK.ACQUIRE")
            .arg(LOCK)
            .arg(&self.owner)
            .arg(LEASE_MS)
            .arg("BLOCK")
            .arg(0)
            .query(connection)?;
        sell_one(connection, self.thinking)?;
        let holds: u64 = cmd("DLOCK.RELEASE")
            .arg(LOCK)
            .arg(&self.owner)
            .query(connection)?;
        expect_held(holds == 0)
    }
}

/// With this module's lock and a short lease, by customers that are frozen in the middle now and then: the write
/// names the token of the lock, and the server takes it only from who still holds it.
struct Guarded {
    owner: String,
    thinking: Duration,
    random: fastrand::Rng,
    frozen: u64,
    fenced: u64,
}

impl Guarded {
    /// One try. False when the lock was lost before the stock was written.
    fn try_order(&mut self, connection: &mut Connection) -> RedisResult<bool> {
        let (token, _): Grant = cmd("DLOCK.ACQUIRE")
            .arg(LOCK)
            .arg(&self.owner)
            .arg(SHORT_LEASE_MS)
            .arg("BLOCK")
            .arg(0)
            .query(connection)?;
        let stock: i64 = cmd("GET").arg(STOCK).query(connection)?;
        think(self.thinking);
        if self.random.u32(..FREEZES_ONE_IN) == 0 {
            self.frozen += 1;
            thread::sleep(FREEZE);
        }
        let written = cmd("DLOCK.GUARD")
            .arg(LOCK)
            .arg(token)
            .arg("SET")
            .arg(STOCK)
            .arg(stock - 1)
            .query::<()>(connection);
        if is_refused(&written, "FENCED") {
            return Ok(false);
        }
        written?;
        // The stock is written. If the lease ends only now, there is nothing left to give back.
        let released = cmd("DLOCK.RELEASE")
            .arg(LOCK)
            .arg(&self.owner)
            .arg("TOKEN")
            .arg(token)
            .query::<u64>(connection);
        if !is_refused(&released, "NOTHELD") {
            expect_held(released? == 0)?;
        }
        Ok(true)
    }
}

impl Checkout for Guarded {
    fn order(&mut self, connection: &mut Connection) -> RedisResult<()> {
        while !self.try_order(connection)? {
            self.fenced += 1;
        }
        Ok(())
    }

    fn frozen(&self) -> u64 {
        self.frozen
    }

    fn fenced(&self) -> u64 {
        self.fenced
    }
}

fn is_refused<T>(reply: &RedisResult<T>, code: &str) -> bool {
    matches!(reply, Err(error) if error.code() == Some(code))
}

fn expect_held(held: bool) -> RedisResult<()> {
    match held {
        true => Ok(()),
        false => Err(redis::RedisError::from((
            redis::ErrorKind::ClientError,
            "the lock was lost",
        ))),
    }
}
