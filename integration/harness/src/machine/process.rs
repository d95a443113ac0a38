//! Child processes: they do not outlive this one, and can be stopped.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{channel, Sender};
use std::sync::OnceLock;
use std::thread;

use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;

use crate::machine::patience::{await_until, PATIENCE};

struct Order {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

/// Starts `command` so that the kernel kills the child when this process ends, even by SIGKILL.
///
/// The kernel watches the *thread* that made the child, and a test's thread ends with its test while its server may live on in
/// another test. So one thread that lives as long as the process makes all children.
pub fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for mut order in orders {
                    die_with_parent(&mut order.command);
                    // The thread that ordered waits for the answer, so this fails only when the process ends.
                    let _ = order.reply.send(order.command.spawn());
                }
            })
            .expect("a thread can be started");
        sender
    });
    let (reply, child) = channel();
    spawner
        .send(Order { command, reply })
        .expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers every order")
}

/// Stops a child without ending it, like a machine that hangs, and waits until it has stopped. SIGCONT resumes it.
#[track_caller]
pub fn stop(child: Pid) {
    kill(child, Signal::SIGSTOP).expect("a child can be signalled");
    // A signal that was sent may not have arrived.
    let options = WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG;
    await_until("the process has stopped", PATIENCE, || {
        matches!(waitpid(child, Some(options)), Ok(WaitStatus::Stopped(..)))
    });
}

#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    use nix::sys::prctl::set_pdeathsig;
    use nix::unistd::{getpid, getppid};
    use std::os::unix::process::CommandExt;

    let parent = getpid();
    let hook = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died between the fork and the line above.
        if getppid() == parent {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(nix::libc::ESRCH))
        }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the hook makes two system
    // calls (prctl, getppid) and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(hook);
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
