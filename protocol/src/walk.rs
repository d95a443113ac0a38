//! A random walk with a seed: run after run from the beginning, each with its own mixture of steps, until two own the lock or the
//! steps are used up. A found schedule is shortened.

use crate::action::{Action, Full, Kept};
use crate::system::{Setup, System, NODES};

/// xorshift64*: one multiplication a number.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Makes a generator from any seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self((seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    /// Returns a number below `n`.
    fn below(&mut self, n: u8) -> u8 {
        ((self.next() * u64::from(n)) >> 32) as u8
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == 0
    }
}

/// How often each kind of step is tried, before a run changes the mixture. Steps that are rarely possible are tried often.
const KINDS: [(Kind, u8); 23] = [
    (Kind::Tick, 8),
    (Kind::Acquire, 16),
    (Kind::Renew, 10),
    (Kind::Keep, 4),
    (Kind::Held, 2),
    (Kind::Release, 1),
    (Kind::Auto, 4),
    (Kind::Force, 1),
    (Kind::Answer, 24),
    (Kind::TimeOut, 1),
    (Kind::Stream, 40),
    (Kind::Live, 16),
    (Kind::Promote, 5),
    (Kind::Follow, 12),
    (Kind::Partial, 24),
    (Kind::Full, 8),
    (Kind::Loaded, 16),
    (Kind::Break, 2),
    (Kind::Drop, 1),
    (Kind::Restart, 2),
    (Kind::Lose, 1),
    (Kind::Cut, 4),
    (Kind::Heal, 2),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tick,
    Acquire,
    Renew,
    Keep,
    Held,
    Release,
    Auto,
    Force,
    Answer,
    TimeOut,
    Stream,
    Live,
    Promote,
    Follow,
    Partial,
    Full,
    Loaded,
    Break,
    Drop,
    Restart,
    Lose,
    Cut,
    Heal,
}

/// The most steps of a schedule: a longer one finds nothing that another would not find sooner.
const LONGEST: usize = 120;
/// The most steps of a run, whether it began at the beginning or at a kept state.
const RUN: usize = 60;
/// Levels of nearness, and the states kept of each.
const LEVELS: usize = 2 * NODES + 3;
const KEPT: usize = 64;

fn action(dice: &mut Dice, kind: Kind, nodes: u8) -> Action {
    let x = dice.below(nodes);
    let client = dice.below(2);
    match kind {
        Kind::Tick => Action::Tick,
        Kind::Acquire => Action::Acquire(client, x),
        Kind::Renew => Action::Renew {
            client,
            at: x,
            token: !dice.one_in(3),
            short: dice.one_in(8),
        },
        Kind::Keep => Action::Keep(client, x),
        Kind::Held => Action::Held(client, x),
        Kind::Release => Action::Release(client, x),
        Kind::Auto => Action::Auto(x),
        Kind::Force => Action::Force(x),
        Kind::Answer => Action::Answer(client),
        Kind::TimeOut => Action::TimeOut(client),
        Kind::Stream => Action::Stream(x),
        Kind::Live => Action::Live(x),
        Kind::Promote => Action::Promote(x),
        Kind::Follow => Action::Follow(x, dice.below(nodes)),
        Kind::Partial => Action::Partial {
            node: x,
            heard: !dice.one_in(16),
        },
        Kind::Full => Action::Full(
            x,
            match dice.below(16) {
                0 => Full::Unheard,
                1 => Full::Fails,
                _ => Full::Begins,
            },
        ),
        Kind::Loaded => Action::Loaded(x),
        Kind::Break => Action::Break(x),
        Kind::Drop => Action::Drop(x, dice.below(nodes)),
        Kind::Restart => Action::Restart(
            x,
            if dice.one_in(3) {
                Kept::AllAnew
            } else {
                Kept::All
            },
        ),
        Kind::Lose => {
            let n = 1 + dice.below(4);
            Action::Restart(
                x,
                match dice.below(4) {
                    0 => Kept::LessAnew(n),
                    1 => Kept::Nothing,
                    _ => Kept::Less(n),
                },
            )
        }
        Kind::Cut => Action::Cut(1 + dice.below((1 << nodes) - 1)),
        Kind::Heal => Action::Heal,
    }
}

/// The outcome of a walk.
#[derive(Debug)]
pub struct Walked {
    /// Steps taken, without the impossible ones.
    pub steps: u64,
    /// The first schedule that gave two owners, shortened.
    pub found: Option<Vec<Action>>,
}

/// Walks until two own the lock, or `steps` were taken.
///
/// A run begins at the beginning, or at a state of an earlier one that was near two owners: some states of each level of
/// [nearness](System::nearness) are kept, and levels are tried alike ("importance splitting").
#[must_use]
pub fn walk(setup: &Setup, seed: u64, steps: u64) -> Walked {
    let nodes = setup.world.nodes();
    let start = System::new(&setup.world);
    let mut dice = Dice::new(seed);
    let mut taken = 0;
    let mut trace = Vec::with_capacity(LONGEST);
    let mut wheel = Vec::with_capacity(4096);
    let mut kept: [Vec<(System, Vec<Action>)>; LEVELS] = Default::default();
    while taken < steps {
        turn_wheel(&mut dice, setup, &mut wheel);
        let mut system = start;
        trace.clear();
        let level = dice.below(LEVELS as u8);
        let states = &kept[usize::from(level)];
        if states.is_empty() {
            for x in 0..nodes {
                let ahead = Action::Ahead(x);
                if dice.one_in(2) && system.apply(setup, ahead) {
                    trace.push(ahead);
                }
            }
        } else {
            let (state, before) = &states[usize::from(dice.below(states.len() as u8))];
            system = *state;
            trace.extend_from_slice(before);
        }
        let mut nearest = system.nearness(nodes);
        let began = trace.len();
        let end = LONGEST.min(began + RUN);
        let mut tries = 0;
        while trace.len() < end && tries < RUN * 32 {
            tries += 1;
            let kind = wheel[((dice.next() * wheel.len() as u64) >> 32) as usize];
            let action = action(&mut dice, kind, nodes);
            if !system.apply(setup, action) {
                continue;
            }
            trace.push(action);
            if system.two_owners() {
                let found = Some(shorten(setup, &trace));
                return Walked {
                    steps: taken + (trace.len() - began) as u64,
                    found,
                };
            }
            let near = system.nearness(nodes);
            if near > nearest && trace.len() < LONGEST * 3 / 4 {
                nearest = near;
                keep(&mut dice, &mut kept[near], &system, &trace);
            }
        }
        taken += (trace.len() - began) as u64;
    }
    Walked {
        steps: taken,
        found: None,
    }
}

/// Keeps a state, replacing another one if there are enough.
fn keep(dice: &mut Dice, kept: &mut Vec<(System, Vec<Action>)>, system: &System, trace: &[Action]) {
    if kept.len() < KEPT {
        kept.push((*system, trace.to_vec()));
        return;
    }
    let (state, before) = &mut kept[usize::from(dice.below(KEPT as u8))];
    *state = *system;
    before.clear();
    before.extend_from_slice(trace);
}

/// Chooses a mixture for one run: each kind more or less often than usual, some never. Runs that leave kinds out go deeper with
/// the rest (Groce and others, "Swarm testing", 2012).
fn turn_wheel(dice: &mut Dice, setup: &Setup, wheel: &mut Vec<Kind>) {
    wheel.clear();
    for (kind, weight) in KINDS {
        let useless = match kind {
            Kind::Live => setup.conduct.min_replicas == 0,
            Kind::Cut | Kind::Heal => setup.world.orderly.is_none(),
            Kind::Answer | Kind::TimeOut => setup.conduct.confirmations() == 0,
            Kind::Force => !setup.world.force,
            Kind::Held => !setup.world.held,
            Kind::Lose => !(setup.world.lossy || setup.world.losses || setup.world.older_primary),
            _ => false,
        };
        let needed = matches!(
            kind,
            Kind::Tick | Kind::Acquire | Kind::Answer | Kind::Stream | Kind::Partial
        );
        let often = match dice.below(8) {
            0 | 1 if !needed => 0,
            0..=2 => 1,
            3..=5 => 3,
            _ => 9,
        };
        if !useless {
            wheel.extend((0..usize::from(weight) * often).map(|_| kind));
        }
    }
}

/// Returns true if the schedule, without its impossible steps, ends with two owners.
#[must_use]
pub fn breaks(setup: &Setup, schedule: &[Action]) -> bool {
    let mut system = System::new(&setup.world);
    schedule
        .iter()
        .any(|action| system.apply(setup, *action) && system.two_owners())
}

/// Leaves out one step or two or three at a time, until none can be left out.
#[must_use]
pub fn shorten(setup: &Setup, schedule: &[Action]) -> Vec<Action> {
    let mut short = possible(setup, schedule);
    let mut size = short.len() / 2;
    loop {
        let before = short.len();
        size = size.max(1);
        let mut start = 0;
        while start < short.len() {
            let mut less = short.clone();
            less.drain(start..(start + size).min(short.len()));
            if breaks(setup, &less) {
                short = possible(setup, &less);
            } else {
                start += 1;
            }
        }
        if size > 1 {
            size /= 2;
        } else if short.len() == before {
            if let Some(less) = without_two(setup, &short) {
                short = less;
            } else {
                return short;
            }
        }
    }
}

fn without_two(setup: &Setup, short: &[Action]) -> Option<Vec<Action>> {
    for a in 0..short.len() {
        for b in a + 1..short.len() {
            let less: Vec<Action> = short
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != a && *i != b)
                .map(|(_, action)| *action)
                .collect();
            if breaks(setup, &less) {
                return Some(possible(setup, &less));
            }
        }
    }
    None
}

/// Returns the possible steps, up to the one that gives two owners.
fn possible(setup: &Setup, schedule: &[Action]) -> Vec<Action> {
    let mut system = System::new(&setup.world);
    let mut steps = Vec::new();
    for action in schedule {
        if system.apply(setup, *action) {
            steps.push(*action);
            if system.two_owners() {
                break;
            }
        }
    }
    steps
}
