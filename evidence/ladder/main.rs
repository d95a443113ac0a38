//! The ladder: why a lock made of `SETNX` is none, step by step, and how DLOCK behaves at each step.
//!
//! Every client is a process of its own. A step may kill it by SIGKILL or stop it by SIGSTOP. Each step runs twice at one server:
//! with a lock made of plain keys, and with DLOCK. Faults are counted alike on both sides.
//!
//! | file | contents |
//! |---|---|
//! | `steps.rs` | the steps: their clients, and what is counted |
//! | `stage.rs` | the server, and a step's views of it |
//! | `watch.rs` | how long the server stalled |
//! | `client.rs` | a client's process, as the step sees it |
//! | `part.rs` | a client's actions |
//! | `lock.rs` | the ways to make a lock |
//! | `report.rs` | the table |

mod client;
mod lock;
mod part;
mod report;
mod stage;
mod steps;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::part::Order;
use crate::stage::Stage;
use crate::steps::{play, STEPS};

/// Why a lock made of SETNX is none, and how dlock behaves at each step.
#[derive(Parser)]
struct Options {
    /// Smaller numbers: enough to see whether all is as it should be
    #[arg(long)]
    quick: bool,
    /// Use dlock wrongly at each step, to see that the step notices
    #[arg(long)]
    planted: bool,
    /// Be a client (the program starts itself like this)
    #[arg(long, hide = true)]
    order: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(order) = options.order {
        let order: Order = serde_json::from_str(&order).expect("an order of this program");
        order.carry_out();
        return ExitCode::SUCCESS;
    }
    let stage = Stage::new(options.quick, options.planted);
    println!(
        "The ladder, on {}. Each client is a process.\n",
        stage.server().version()
    );
    let results: Vec<_> = STEPS.iter().map(|step| play(step, &stage)).collect();
    println!("{}", report::table(&results));
    if results.iter().all(|result| result.faults().is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
