//! A server's own account of its expenses.

use dlock_harness::Server;

use crate::failure::Failure;

/// The expenses of a server since its start.
#[derive(Clone, Copy)]
pub struct Meter {
    cpu_s: f64,
    net_bytes: f64,
}

impl Meter {
    /// Reads the expenses: all threads of the server, in user and in kernel mode, to the microsecond (getrusage).
    pub fn read(server: &Server) -> Meter {
        let cpu = server.info("cpu");
        let stats = server.info("stats");
        let seconds = |field| cpu.number::<f64>(field);
        let bytes = |field| stats.number::<f64>(field);
        Meter {
            cpu_s: seconds("used_cpu_user") + seconds("used_cpu_sys"),
            net_bytes: bytes("total_net_input_bytes") + bytes("total_net_output_bytes"),
        }
    }

    /// Returns the microseconds of CPU time since an earlier reading.
    pub fn cpu_us_since(&self, earlier: &Meter) -> f64 {
        (self.cpu_s - earlier.cpu_s) * 1e6
    }

    /// Returns the microseconds of CPU time that a server needs for `work`.
    pub fn cpu_us(
        server: &Server,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let before = Meter::read(server);
        work()?;
        Ok(Meter::read(server).cpu_us_since(&before))
    }

    /// Returns the bytes received and sent since an earlier reading.
    pub fn net_bytes_since(&self, earlier: &Meter) -> f64 {
        self.net_bytes - earlier.net_bytes
    }
}
