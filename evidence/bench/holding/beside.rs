//! A pair next to something else on its server: a client's pair next to a subscriber that no lock concerns, and a pair of plain
//! commands next to the module itself.

use std::rc::Rc;

use dlock_harness::Server;

use crate::failure::Failure;
use crate::holding::pair::Pipelined;
use crate::tools::line::Line;
use crate::tools::locking::{exclusive, CLIENT_27, SET_DEL};
use crate::tools::setting::Stage;
use crate::way::{way, Named, Opened, Way};

/// Opens two servers; one of them has a subscriber.
pub fn open_subscriber(pairs: usize) -> Opened {
    let (alone, beside) = (Server::start(), Server::start());
    let mut subscriber = Line::narrow(beside.port())?;
    subscriber.subscribe("news")?;
    Ok(vec![
        pair("client, nobody subscribes", CLIENT_27, alone, None, pairs)?,
        pair(
            "client, one subscriber",
            CLIENT_27,
            beside,
            Some(subscriber),
            pairs,
        )?,
    ])
}

/// Opens two servers; one of them has the module.
pub fn open_others(pairs: usize) -> Opened {
    let without = Server::builder().without_module().start();
    Ok(vec![
        pair(
            "SET + DEL, with the module",
            SET_DEL,
            Server::start(),
            None,
            pairs,
        )?,
        pair("SET + DEL, without it", SET_DEL, without, None, pairs)?,
    ])
}

fn pair(
    name: &'static str,
    locking: &str,
    server: Server,
    subscriber: Option<Line>,
    pairs: usize,
) -> Result<Named, Failure> {
    let stage = Rc::new(Stage::of(&Rc::new(server)));
    let mut pair = Pipelined::new(exclusive(locking)?, stage, pairs)?;
    Ok(way(name, move || {
        let _open = &subscriber;
        pair.sample()
    }))
}
