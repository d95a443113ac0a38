//! The shop: what a lock is for, and what it costs.
//!
//! A hundred customers buy six thousand pieces of one article. Each order reads the stock, thinks, and writes
//! the stock less one: exactly the program that needs a lock. It is run with each way to [`checkout`]; in the
//! end no piece may be left, or orders were lost. In the last run some customers are frozen in the middle of an
//! order until their lease is over, and then go on as if nothing had been.

mod checkout;
mod report;
mod shop;

use std::process::ExitCode;

use dlock_integration::Server;

use crate::checkout::WAYS;
use crate::shop::{CUSTOMERS, LOOKING_AROUND, ORDERS};

fn main() -> ExitCode {
    let server = Server::start();
    println!(
        "The shop: {ORDERS} orders by {CUSTOMERS} customers, on {}.",
        server.version()
    );
    println!("Each looks around ({LOOKING_AROUND:?} on average), then orders: read the stock, think, write it back.\n");
    let results: Vec<_> = WAYS.iter().map(|way| shop::open(&server, way)).collect();
    println!("{}", report::table(&results));
    for result in &results {
        if let Some(remark) = report::remark(result) {
            println!("{remark}");
        }
    }
    if results.iter().all(|result| result.is_as_promised()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
