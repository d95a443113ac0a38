//! Connections that have ended: where they came from. The hold of a program that has died ends after its connection, and the log is
//! to name both.

use crate::ffi::ctx::Ctx;
use crate::ffi::memory::MainThread;
use crate::ffi::server;
use std::collections::VecDeque;

/// How many connections are remembered.
const REMEMBERED: usize = 1_024;

/// The address of a connection, and the name that its program gave it.
type Origin = (Vec<u8>, Vec<u8>);

static DEPARTED: MainThread<VecDeque<(u64, Origin)>> = MainThread::new(VecDeque::new());

/// Returns address and name of a connection, if it exists.
pub(crate) fn look(ctx: Ctx, client: u64) -> Option<Origin> {
    if ctx.is_scripts_own(client) {
        return None;
    }
    let (host, port) = server::address(client)?;
    // As CLIENT LIST writes it.
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let name = ctx.client_name(client).unwrap_or_default();
    Some((address.into_bytes(), name))
}

/// Notes a connection that is about to end.
pub(crate) fn note(ctx: Ctx, client: u64) {
    let Some((origin, mut departed)) = look(ctx, client).zip(DEPARTED.borrow()) else {
        return;
    };
    if departed.len() == REMEMBERED {
        departed.pop_front();
    }
    departed.push_back((client, origin));
}

/// Returns where a connection came from that has ended not long ago.
pub(crate) fn find(client: u64) -> Option<Origin> {
    let departed = DEPARTED.borrow()?;
    let found = departed.iter().rev().find(|(id, _)| *id == client);
    found.map(|(_, origin)| origin.clone())
}
