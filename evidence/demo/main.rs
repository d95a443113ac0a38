//! The shop: the purpose of a lock, and its cost.
//!
//! A hundred customers buy six thousand pieces of one article. Each order reads the stock, thinks, and writes the stock less one:
//! exactly the program that needs a lock. It runs with each way to [`checkout`]; in the end no piece may be left, or orders were
//! lost. In the last run some customers are frozen in the middle of an order until their lease is over, and then continue
//! unaware.
//!
//! Then fifty customers who neither look around nor think buy as fast as they can: that shows the cost of the lock itself.

mod checkout;
mod report;
mod shop;

use std::process::ExitCode;

use dlock_harness::Server;

use crate::checkout::WAYS;
use crate::shop::{Outcome, RUSH, SHOP};

fn main() -> ExitCode {
    let server = Server::start();
    println!(
        "The shop: {} orders by {} customers, on {}.",
        SHOP.orders,
        SHOP.customers,
        server.version()
    );
    println!(
        "Each looks around ({:?} on average), then orders: read the stock, think, write it back.\n",
        SHOP.looking_around
    );
    let calm: Vec<Outcome> = WAYS
        .iter()
        .map(|way| shop::open(&server, SHOP, way))
        .collect();
    show(&calm);
    println!(
        "\nThe rush: {} orders by {} customers, who neither look around nor think.\n",
        RUSH.orders, RUSH.customers
    );
    // No customer freezes in a rush.
    let rush: Vec<Outcome> = WAYS
        .iter()
        .filter(|way| !way.freezes)
        .map(|way| shop::open(&server, RUSH, way))
        .collect();
    show(&rush);
    println!(
        "An unfair lock has a low median, because the client that has just given it back gets it again; the others wait, and \
         are in p99 and max."
    );
    if calm.iter().chain(&rush).all(Outcome::is_as_promised) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn show(outcomes: &[Outcome]) {
    println!("{}", report::table(outcomes));
    outcomes
        .iter()
        .filter_map(report::remark)
        .for_each(|remark| println!("{remark}"));
}
