//! The settings: `CONFIG GET/SET dlock.*`, the configuration file, module arguments.

use crate::ffi::callbacks::setting::{self, Setting};
use crate::ffi::ctx::Ctx;
use crate::ffi::panic;
use crate::node::timer;
use dlock_commands::error::shown;
use redis_module::configuration::{
    get_bool_default_config_value, get_enum_default_config_value, get_i64_default_config_value,
    register_bool_configuration, register_enum_configuration, ConfigurationFlags,
};
use redis_module::{enum_configuration, Context, RedisError, RedisString};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::Mutex;

/// A whole-number setting: its name, value, default and bounds.
pub(crate) struct Number {
    /// Its name, without the module's.
    pub name: &'static str,
    /// Its value now.
    pub value: AtomicI64,
    /// Its default.
    pub default: i64,
    /// The least it may be.
    pub least: i64,
    /// The most it may be.
    pub most: i64,
}

/// Refuses `replicas` without a quarantine: confirmations rely on leases that end within it.
///
/// The settings come in any order, and the server restores them in the same order after an error. So they are checked only when
/// all are set.
fn check_pair() -> Result<(), &'static str> {
    if REPLICAS.amount() > 0 && QUARANTINE_MS.amount() == 0 {
        return Err(NO_QUARANTINE);
    }
    Ok(())
}

/// The error for `replicas` without a quarantine.
const NO_QUARANTINE: &str =
    "dlock.replicas needs dlock.quarantine-ms above 0: it bounds leases, and is how long a server waits that has lost its data";

impl Number {
    /// Returns the value as an amount.
    pub(crate) fn amount(&self) -> usize {
        self.value.load(Ordering::Relaxed).max(0) as usize
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $ident:ident $name:literal = $default:literal in $least:literal ..= $most:expr;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $ident: Number = Number {
                name: $name,
                value: AtomicI64::new($default),
                default: $default,
                least: $least,
                most: $most,
            };
        )*
        /// Every whole-number setting.
        pub(crate) static NUMBERS: &[&Number] = &[$(&$ident),*];
    };
}

/// The longest time that may be configured: a century, so that sums with the clock stay far from the end of the numbers.
const CENTURY_MS: i64 = 3_155_760_000_000;

/// The most of anything that may be configured.
const MANY: i64 = 1_000_000_000;

numbers! {
    /// The lease of a request that names none, in ms.
    DEFAULT_LEASE_MS "default-lease-ms" = 30_000 in 1 ..= CENTURY_MS;
    /// The longest lease, in ms.
    MAX_LEASE_MS "max-lease-ms" = 2_592_000_000 in 1 ..= CENTURY_MS;
    /// How long a polled ticket is kept while no connection waits on it, in ms.
    CLAIM_WINDOW_MS "claim-window-ms" = 5_000 in 1 ..= CENTURY_MS;
    /// The longest claim window that may be asked for, in ms.
    MAX_CLAIM_MS "max-claim-ms" = 600_000 in 1 ..= CENTURY_MS;
    /// The most places of a lock.
    MAX_QUEUE "max-queue" = 100_000 in 1 ..= MANY;
    /// The most blocked connections over all locks.
    MAX_WAITERS "max-waiters" = 50_000 in 0 ..= MANY;
    /// The most places over all locks.
    MAX_PLACES "max-places" = 1_000_000 in 1 ..= MANY;
    /// The most holders of a lock.
    MAX_HOLDERS "max-holders" = 100_000 in 1 ..= MANY;
    /// The most sessions.
    MAX_SESSIONS "max-sessions" = 10_000 in 1 ..= MANY;
    /// The age beyond which renewals and re-entry cannot carry a hold, in ms; 0: none.
    MAX_HOLD_MS "max-hold-ms" = 0 in 0 ..= CENTURY_MS;
    /// Holders and places that one search for a circle of waiting owners passes at most.
    DEADLOCK_MAX_STEPS "deadlock-max-steps" = 1_000 in 1 ..= MANY;
    /// How many entries the log keeps; 0: none.
    LOG_MAX_LEN "log-max-len" = 1_024 in 0 ..= 100_000;
    /// From how long on a hold or a wait is logged for that, in ms; -1: never.
    LOG_SLOWER_THAN_MS "log-slower-than-ms" = 10_000 in -1 ..= CENTURY_MS;
    /// How many replicas this primary should have; an answer waits until half of them have confirmed it; 0: no answer waits.
    REPLICAS "replicas" = 0 in 0 ..= 100;
    /// How long an answer waits for its confirmation at least, in ms.
    ACK_TIMEOUT_MS "ack-timeout-ms" = 1_000 in 1 ..= CENTURY_MS;
    /// How long nothing is granted after a start or promotion, in ms; 0: no quarantine.
    QUARANTINE_MS "quarantine-ms" = 0 in 0 ..= CENTURY_MS;
}

/// `dlock.grants`.
pub(crate) static GRANTS: AtomicBool = AtomicBool::new(true);

/// `dlock.deadlock-detection`.
pub(crate) static DEADLOCK_DETECTION: AtomicBool = AtomicBool::new(true);

/// Every yes-or-no setting; their default is `yes`.
pub(crate) static SWITCHES: &[(&str, &AtomicBool)] = &[
    ("grants", &GRANTS),
    ("deadlock-detection", &DEADLOCK_DETECTION),
];

enum_configuration! {
    /// `dlock.notify`: how unlock messages go out. The names are the words of the configuration.
    #[allow(non_camel_case_types)]
    #[derive(Debug, PartialEq, Eq)]
    pub enum Notify {
        auto = 0,
        pubsub = 1,
        sharded = 2,
        none = 3,
    }
}

/// `dlock.notify`.
static NOTIFY: Mutex<Notify> = Mutex::new(Notify::auto);

/// Returns `dlock.notify`.
pub(super) fn notify() -> Notify {
    NOTIFY.lock().map_or(Notify::auto, |notify| notify.clone())
}

/// A module of its own, since the macro has an import.
mod on_panic {
    redis_module::enum_configuration! {
        /// `dlock.on-panic`: the reaction to a panic of the module's.
        #[allow(non_camel_case_types)]
        #[derive(Debug, PartialEq, Eq)]
        pub enum OnPanic {
            refuse = 0,
            abort = 1,
        }
    }
}
use on_panic::OnPanic;

/// `dlock.on-panic`. Each change sets the flag in `ffi::panic`.
static ON_PANIC: Mutex<OnPanic> = Mutex::new(OnPanic::refuse);

/// Rises with each change of a setting.
pub(super) static EPOCH: AtomicU64 = AtomicU64::new(1);

/// Notes that a setting has changed, and wakes the module's event, since more may be granted now.
pub(crate) fn changed() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    timer::soon();
}

/// Registers every setting with the server, and reads the configuration file and the module's arguments.
///
/// Errors with what is wrong with an argument, or that the server refuses the settings.
pub(crate) fn register(context: &Context, args: &[RedisString]) -> Result<(), String> {
    let args = &without_prefix(args);
    check_arguments(args)?;
    let ctx = Ctx::of_load(context);
    let wrong = |error: RedisError| error.to_string();
    let flags = || ConfigurationFlags::DEFAULT;
    for number in NUMBERS {
        let default =
            get_i64_default_config_value(args, number.name, number.default).map_err(wrong)?;
        let setting = Setting {
            value: &number.value,
            check: check_pair,
            changed,
        };
        let bounds = number.least..=number.most;
        setting::register(ctx, number.name, default, bounds, setting);
    }
    for &(name, value) in SWITCHES {
        let default = get_bool_default_config_value(args, name, true).map_err(wrong)?;
        register_bool_configuration(
            context,
            name,
            value,
            default,
            flags(),
            Some(Box::new(|_, _, _| changed())),
        );
    }
    let notify = get_enum_default_config_value(args, "notify", Notify::auto).map_err(wrong)?;
    register_enum_configuration(
        context,
        "notify",
        &NOTIFY,
        notify,
        flags(),
        Some(Box::new(|_, _, _| changed())),
    );
    let on_panic =
        get_enum_default_config_value(args, "on-panic", OnPanic::refuse).map_err(wrong)?;
    register_enum_configuration(
        context,
        "on-panic",
        &ON_PANIC,
        on_panic,
        flags(),
        Some(Box::new(|_, _, set| {
            panic::set_aborts(set.lock().is_ok_and(|set| *set == OnPanic::abort));
        })),
    );
    if !ctx.load_configs() {
        return Err("the configuration is refused; see the log above".to_string());
    }
    check_pair().map_err(str::to_string)
}

/// Returns the module's arguments with the names as the crate looks for them: `dlock.max-queue` is `max-queue` as well.
fn without_prefix(args: &[RedisString]) -> Vec<RedisString> {
    let plain = |(index, word): (usize, &RedisString)| {
        let name = word.as_slice().strip_prefix(b"dlock.");
        match name.filter(|_| index % 2 == 0) {
            Some(name) => RedisString::create_from_slice(std::ptr::null_mut(), name),
            None => word.clone(),
        }
    };
    args.iter().enumerate().map(plain).collect()
}

/// Checks the module's arguments (`loadmodule … name value …`), which the crate then takes as defaults. The crate ignores unknown
/// names, and would hide a typing error.
fn check_arguments(args: &[RedisString]) -> Result<(), String> {
    for pair in args.chunks(2) {
        let mut texts = pair.iter().map(|word| word.to_string_lossy());
        let name = texts.next().unwrap_or_default();
        let value = texts.next().unwrap_or_default();
        if let Some(number) = NUMBERS.iter().find(|number| number.name == name) {
            let fits = value
                .parse()
                .is_ok_and(|value: i64| (number.least..=number.most).contains(&value));
            if !fits {
                return Err(format!(
                    "{name} must be an integer from {} to {}",
                    number.least, number.most
                ));
            }
        } else if SWITCHES.iter().any(|(switch, _)| *switch == name) {
            if !["yes", "no"].contains(&value.as_str()) {
                return Err(format!("{name} must be yes or no"));
            }
        } else if name == "notify" || name == "on-panic" {
            let (words, _) = if name == "notify" {
                Notify::auto.get_options()
            } else {
                OnPanic::refuse.get_options()
            };
            if !words.contains(&value) {
                return Err(format!("{name} must be one of {}", words.join(", ")));
            }
        } else {
            return Err(format!(
                "unknown module argument '{}'",
                shown(name.as_bytes())
            ));
        }
    }
    Ok(())
}
