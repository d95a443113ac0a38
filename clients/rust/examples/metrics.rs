//! Reports grants, refusals, losses and waits, as metrics of the `metrics` crate. `metrics ADDRESS` runs it.

use std::time::Duration;

use dlock_redis::{Error, Locks, Observer, Settings};
use metrics_util::debugging::DebuggingRecorder;

struct Metrics;

impl Observer for Metrics {
    fn waiting(&self, _: &[u8]) {
        metrics::gauge!("dlock_waiting").increment(1.0);
    }
    fn waited(&self, _: &[u8]) {
        metrics::gauge!("dlock_waiting").decrement(1.0);
    }
    fn granted(&self, _: &[u8], after: Duration) {
        metrics::histogram!("dlock_granted_after_seconds").record(after);
    }
    fn refused(&self, _: &[u8], _: Duration, error: Option<&Error>) {
        metrics::counter!("dlock_refused", "taken" => error.is_none().to_string()).increment(1);
    }
    fn lost(&self, _: &[u8], reason: &str) {
        metrics::counter!("dlock_lost", "reason" => reason.to_owned()).increment(1);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    recorder.install()?;
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".into());
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let locks = Locks::with_settings(client, Settings::new().observer(Metrics))?;
    let key = format!("metrics:{}", std::process::id());
    let hold = locks.on(&key).lock().await?;
    assert!(locks.on(&key).try_lock().await?.is_none());
    hold.release().await?;
    let seen = seen.snapshot().into_vec();
    for (name, _, _, value) in &seen {
        println!("{} {value:?}", name.key());
    }
    assert_eq!(seen.len(), 2, "granted and refused");
    Ok(())
}
