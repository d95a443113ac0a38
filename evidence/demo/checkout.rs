//! The ways to place an order.

use std::thread;
use std::time::Duration;

use dlock_harness::redis::{self, cmd, RedisResult};
use dlock_harness::rivals::COMPARE_AND_DELETE;
use dlock_harness::{command, Grant, Wire};

/// The key of the stock.
pub const STOCK: &str = "stock";

const LOCK: &str = "stock-lock";

/// A forgotten lock is free again after this time. No customer forgets one here.
const LEASE_MS: u64 = 10_000;

/// The lease where customers do freeze: all others wait this long for a frozen one.
const SHORT_LEASE_MS: u64 = 40;

/// Longer than the lease: a frozen customer has lost the lock without knowing.
const FREEZE: Duration = Duration::from_millis(100);

/// One order in this many is frozen in the middle.
const FREEZES_ONE_IN: u32 = 120;

/// The pause between two tries for a lock that cannot be waited for.
const PAUSE: Duration = Duration::from_millis(50);

/// A way to place an order: a row of the table.
pub struct Way {
    /// Its name in the table.
    pub name: &'static str,
    /// Whether it promises that no order is lost.
    pub promises: bool,
    /// Whether some customers are frozen in the middle of an order.
    pub freezes: bool,
    /// Places one order.
    pub order: fn(&mut Customer, &mut Wire) -> RedisResult<()>,
}

/// All rows of the table, in order.
pub const WAYS: [Way; 4] = [
    Way {
        name: "no lock",
        promises: false,
        freezes: false,
        order: Customer::sell_one,
    },
    Way {
        name: "SET NX PX, retry",
        promises: true,
        freezes: false,
        order: client_side,
    },
    Way {
        name: "DLOCK",
        promises: true,
        freezes: false,
        order: dlock,
    },
    Way {
        name: "GUARD, some freeze",
        promises: true,
        freezes: true,
        order: guarded,
    },
];

/// A customer, who places orders.
pub struct Customer {
    owner: String,
    /// How long the customer waits between reading the stock and writing it back.
    thinking: Duration,
    /// Decides how long the customer looks around, and when it freezes.
    pub random: fastrand::Rng,
    /// How often the customer was frozen in the middle of an order.
    pub frozen: u64,
    /// How many of its writes were fenced.
    pub fenced: u64,
}

impl Customer {
    /// Returns a customer without orders.
    pub fn new(number: usize, thinking: Duration) -> Customer {
        Customer {
            owner: format!("customer-{number}"),
            thinking,
            random: fastrand::Rng::with_seed(number as u64),
            frozen: 0,
            fenced: 0,
        }
    }

    /// Sells one piece, which needs the lock.
    fn sell_one(&mut self, connection: &mut Wire) -> RedisResult<()> {
        let stock: i64 = cmd("GET").arg(STOCK).query(connection)?;
        self.think();
        cmd("SET").arg(STOCK).arg(stock - 1).query(connection)
    }

    /// Thinks: a price to work out, another service to ask. Even the shortest sleep would take a part of a millisecond.
    fn think(&self) {
        if !self.thinking.is_zero() {
            thread::sleep(self.thinking);
        }
    }
}

/// Orders with a lock as clients make it of a plain key: the first to set it holds the lock, the others try again.
fn client_side(customer: &mut Customer, connection: &mut Wire) -> RedisResult<()> {
    let owner = customer.owner.clone();
    let acquire = command(&format!("SET {LOCK} {owner} NX PX {LEASE_MS}"));
    while acquire.query::<Option<String>>(connection)?.is_none() {
        thread::sleep(PAUSE);
    }
    customer.sell_one(connection)?;
    let mut delete = cmd("EVAL");
    delete.arg(COMPARE_AND_DELETE).arg(1).arg(LOCK).arg(owner);
    expect_held(delete.query::<u64>(connection)? == 1)
}

/// Orders with this module's lock: the server answers when it is our turn.
fn dlock(customer: &mut Customer, connection: &mut Wire) -> RedisResult<()> {
    let owner = customer.owner.clone();
    let line = format!("DLOCK.ACQUIRE {LOCK} {owner} {LEASE_MS} BLOCK 0");
    let _: Grant = command(&line).query(connection)?;
    customer.sell_one(connection)?;
    let line = format!("DLOCK.RELEASE {LOCK} {owner}");
    expect_held(command(&line).query::<u64>(connection)? == 0)
}

/// Orders with this module's lock and a short lease, with customers that are sometimes frozen in the middle: the write names the
/// token of the lock, and the server accepts it only from the present holder.
fn guarded(customer: &mut Customer, connection: &mut Wire) -> RedisResult<()> {
    while !try_guarded(customer, connection)? {
        customer.fenced += 1;
    }
    Ok(())
}

/// Tries once. Returns false if the lock was lost before the stock was written.
fn try_guarded(customer: &mut Customer, connection: &mut Wire) -> RedisResult<bool> {
    let owner = customer.owner.clone();
    let line = format!("DLOCK.ACQUIRE {LOCK} {owner} {SHORT_LEASE_MS} BLOCK 0");
    let (token, _): Grant = command(&line).query(connection)?;
    let stock: i64 = cmd("GET").arg(STOCK).query(connection)?;
    customer.think();
    if customer.random.u32(..FREEZES_ONE_IN) == 0 {
        customer.frozen += 1;
        thread::sleep(FREEZE);
    }
    let line = format!("DLOCK.GUARD {LOCK} {token} SET {STOCK} {}", stock - 1);
    let written = command(&line).query::<()>(connection);
    if is_refused(&written, "FENCED") {
        return Ok(false);
    }
    written?;
    // The stock is written. If the lease ends only now, there is nothing left to release.
    let line = format!("DLOCK.RELEASE {LOCK} {owner} TOKEN {token}");
    let released = command(&line).query::<u64>(connection);
    if !is_refused(&released, "NOTHELD") {
        expect_held(released? == 0)?;
    }
    Ok(true)
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
