//! One run: all customers, all orders.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use dlock_harness::{Ask, Server, Wire};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};

use crate::checkout::{Customer, Way, STOCK};

/// A shop: its customers and orders.
#[derive(Clone, Copy)]
pub struct Shop {
    /// The customers, each with a connection of its own.
    pub customers: usize,
    /// Orders in all, and pieces in stock at the beginning.
    pub orders: usize,
    /// A customer looks around before each order, for this time on average and at most twice as long.
    pub looking_around: Duration,
    /// The time between reading the stock and writing it back.
    pub thinking: Duration,
}

/// Looking around keeps the shop busy (without it, all would queue all the time, and a row would show the length of the queue)
/// but not beyond the capacity of one cashier.
pub const SHOP: Shop = Shop {
    customers: 100,
    orders: 6_000,
    looking_around: Duration::from_millis(130),
    thinking: Duration::from_millis(1),
};

/// No customer looks around or thinks: a row shows the cost of the lock itself when all want it all the time.
pub const RUSH: Shop = Shop {
    customers: 50,
    orders: 5_000,
    looking_around: Duration::ZERO,
    thinking: Duration::ZERO,
};

/// Latencies are kept to three digits.
const DIGITS: u8 = 3;

/// The outcome of a run.
pub struct Outcome {
    /// The way of the orders.
    pub way: &'static Way,
    /// The number of orders.
    pub orders: usize,
    /// Orders that left no trace in the stock.
    pub lost: i64,
    /// Microseconds from wanting an order to having it.
    pub latencies: Histogram<u64>,
    /// The duration of the run.
    pub duration: Duration,
    /// Customers that were frozen in the middle of an order.
    pub frozen: u64,
    /// Writes that came too late and were refused; their orders were placed again.
    pub fenced: u64,
}

impl Outcome {
    /// Returns the orders per second.
    pub fn rate(&self) -> f64 {
        self.orders as f64 / self.duration.as_secs_f64()
    }

    /// Returns true if no orders were lost or doubled, where that is promised, and each frozen customer was kept from writing.
    pub fn is_as_promised(&self) -> bool {
        !self.way.promises || (self.lost == 0 && self.fenced >= self.frozen)
    }
}

/// Opens the shop until everything is sold.
pub fn open(server: &Server, shop: Shop, way: &'static Way) -> Outcome {
    let mut connection = server.connection();
    connection.run(&format!("SET {STOCK} {}", shop.orders));
    let progress = progress_bar(way.name, shop.orders);
    // All customers are in the shop before it opens, and so is the cashier with the stop-watch.
    let door = Barrier::new(shop.customers + 1);
    let (latencies, frozen, fenced, duration) = thread::scope(|scope| {
        let customers: Vec<_> = (0..shop.customers)
            .map(|customer| {
                let (connection, door, progress) = (server.connection(), &door, &progress);
                scope.spawn(move || {
                    door.wait();
                    let customer = Customer::new(customer, shop.thinking);
                    buy(shop, way, customer, connection, progress)
                })
            })
            .collect();
        door.wait();
        let opened = Instant::now();
        let (mut latencies, mut frozen, mut fenced) = (empty_histogram(), 0, 0);
        for customer in customers {
            let (customer, own) = customer.join().expect("a customer does not panic");
            (latencies.add(own)).expect("all histograms have the same bounds");
            frozen += customer.frozen;
            fenced += customer.fenced;
        }
        (latencies, frozen, fenced, opened.elapsed())
    });
    progress.finish_and_clear();
    Outcome {
        way,
        orders: shop.orders,
        lost: connection.ask(&format!("GET {STOCK}")),
        latencies,
        duration,
        frozen,
        fenced,
    }
}

/// Places all orders of one customer. Returns how long each took.
fn buy(
    shop: Shop,
    way: &Way,
    mut customer: Customer,
    mut connection: Wire,
    progress: &ProgressBar,
) -> (Customer, Histogram<u64>) {
    let mut latencies = empty_histogram();
    for _ in 0..shop.orders / shop.customers {
        if !shop.looking_around.is_zero() {
            thread::sleep(shop.looking_around.mul_f64(2.0 * customer.random.f64()));
        }
        let wanted = Instant::now();
        if let Err(error) = (way.order)(&mut customer, &mut connection) {
            panic!("{}: {error}", way.name);
        }
        latencies.saturating_record(micros(wanted.elapsed()));
        progress.inc(1);
    }
    (customer, latencies)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_max(micros(Duration::from_secs(600)), DIGITS)
        .expect("bounds that are in order")
}

fn progress_bar(name: &'static str, orders: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:18} {bar:40} {pos}/{len} {per_sec}")
        .expect("a correct template");
    ProgressBar::new(orders as u64)
        .with_style(style)
        .with_prefix(name)
}
