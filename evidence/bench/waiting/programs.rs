//! A lock that a hundred programs want, as our clients wait for it: each program has a session of its own, whose blocked SESSION
//! command the server answers with the grant. It is compared with as many clients that each wait by BLPOP for the element that the
//! holder before them pushes.
//!
//! The clock runs from just before the release to just after the next program has read its grant. The CPU time is that of all
//! commands of a turn: the release, the request that queues again, and the next SESSION; or RPUSH and BLPOP.

use std::collections::VecDeque;
use std::hint;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dlock_harness::{command, Server};

use crate::failure::Failure;
use crate::tools::line::Line;
use crate::tools::locking::Give;
use crate::tools::meter::Meter;
use crate::tools::percentile::Durations;
use crate::tools::replies::Pattern;
use crate::waiting::handover::{figures, Bystander, HANDOVERS};
use crate::waiting::session::QUEUED;
use crate::way::{way, Figure, Opened, Way};

const QUEUED_PROGRAMS: usize = 100;

/// The lock, and the list.
const KEY: &str = "turns";

/// In this time the server works off what was sent to it: the clock of the next turn runs for that turn alone.
const REST: Duration = Duration::from_micros(50);

/// Opens both queues on one server.
pub fn open() -> Opened {
    let server = Rc::new(Server::start());
    let programs = |number| Program::new(&server, number);
    let poppers = |number| Popper::new(&server, number);
    Ok(vec![
        way(
            "release → row, 100 programs",
            Turns::new(programs, &server)?,
        ),
        way("RPUSH → BLPOP, 100 clients", Turns::new(poppers, &server)?),
    ])
}

/// A client that takes turns with others.
trait Client: Sized {
    /// Hands over to the next client, and queues again. Returns how long it took until the next one knew.
    fn hand_over(&mut self, next: &mut Self) -> Result<Duration, Failure>;
}

/// The holder, and those who wait, the first of them in front.
struct Turns<C> {
    holder: C,
    waiters: VecDeque<C>,
    server: Rc<Server>,
}

impl<C: Client> Turns<C> {
    fn new(
        make: impl Fn(usize) -> Result<C, Failure>,
        server: &Rc<Server>,
    ) -> Result<Turns<C>, Failure> {
        let mut bystander = Bystander::new(server)?;
        let holder = make(0)?;
        let mut waiters = VecDeque::with_capacity(QUEUED_PROGRAMS);
        for number in 1..=QUEUED_PROGRAMS {
            waiters.push_back(make(number)?);
            // The server reads its connections in no certain order, and the first waiter must be known.
            bystander.wait_for_quiet()?;
        }
        Ok(Turns {
            holder,
            waiters,
            server: Rc::clone(server),
        })
    }
}

impl<C: Client> Way for Turns<C> {
    fn sample(&mut self) -> Result<Vec<Figure>, Failure> {
        let mut durations = Durations::new();
        let before = Meter::read(&self.server);
        for _ in 0..HANDOVERS {
            let mut next = self.waiters.pop_front().ok_or("nobody waits")?;
            durations.record(self.holder.hand_over(&mut next)?);
            self.waiters
                .push_back(std::mem::replace(&mut self.holder, next));
            let start = Instant::now();
            while start.elapsed() < REST {
                hint::spin_loop();
            }
        }
        Ok(figures(&durations, &before, &self.server))
    }
}

/// A program with one of our clients: a connection for commands, and one that keeps its session.
struct Program {
    commands: Line,
    keeper: Line,
    session: String,
    take: Vec<u8>,
    give: Give,
    token: u64,
    row: Pattern,
    queued: Pattern,
    released: Pattern,
}

impl Program {
    /// Starts a program that takes the lock, or queues for it if it is not the first.
    fn new(server: &Server, number: usize) -> Result<Program, Failure> {
        let session = format!("checkout/{number:05}/q3VdPxYbT0kR2mW8s4Nz1A");
        let owner = format!("{session}/107");
        let take = format!("DLOCK.FAIRACQUIRE {KEY} {owner} 3600000 IN {session} BLOCK 0");
        let length = owner.len();
        let row = format!(
            "*4\r\n:@\r\n:@\r\n:#\r\n*1\r\n*6\r\n:#\r\n$7\r\ngranted\r\n$5\r\n{KEY}\r\n${length}\r\n{owner}\r\n:@\r\n:#\r\n"
        );
        let mut program = Program {
            commands: Line::narrow(server.port())?,
            keeper: Line::narrow(server.port())?,
            take: command(&take).get_packed_command(),
            give: Give::naming_token(&format!("DLOCK.RELEASE {KEY} {owner} TOKEN")),
            session,
            token: 0,
            row: Pattern::new(&row),
            queued: Pattern::new(QUEUED),
            released: Pattern::new(":0\r\n"),
        };
        let keep = format!("DLOCK.SESSION {KEY} {} 600000", program.session);
        let begun = Pattern::new("*4\r\n:@\r\n:0\r\n$-1\r\n*0\r\n");
        program
            .keeper
            .exchange(&command(&keep).get_packed_command(), &begun)?;
        let id = program.keeper.numbers().first().copied();
        if number == 0 {
            let granted = Pattern::new("*2\r\n:@\r\n:#\r\n");
            program.commands.exchange(&program.take, &granted)?;
            program.token = program.commands.numbers()[0];
        } else {
            program.commands.exchange(&program.take, &program.queued)?;
        }
        program.listen(id.unwrap_or_default(), 0)?;
        Ok(program)
    }

    /// Sends a SESSION that is answered when there is a row above this one.
    fn listen(&mut self, id: u64, seen: u64) -> Result<(), Failure> {
        let session = &self.session;
        let listen = format!("DLOCK.SESSION {KEY} {session} 600000 SEEN {id} {seen} BLOCK 60000");
        self.keeper.send(&command(&listen).get_packed_command())
    }
}

impl Client for Program {
    fn hand_over(&mut self, next: &mut Program) -> Result<Duration, Failure> {
        let mut release = Vec::new();
        self.give.write(self.token, &mut release);
        let start = Instant::now();
        self.commands.send(&release)?;
        next.keeper.expect(&next.row, 1)?;
        let duration = start.elapsed();
        let [id, seen, token] = next.keeper.numbers() else {
            return Err("the row of a grant has three numbers".into());
        };
        let (id, seen) = (*id, *seen);
        next.token = *token;
        next.listen(id, seen)?;
        self.commands.expect(&self.released, 1)?;
        self.commands.exchange(&self.take, &self.queued)?;
        Ok(duration)
    }
}

/// A client that waits for an element of a list.
struct Popper {
    line: Line,
    push: Vec<u8>,
    pop: Vec<u8>,
    popped: Pattern,
    pushed: Pattern,
}

impl Popper {
    /// Connects a client, which waits if it is not the first.
    fn new(server: &Server, number: usize) -> Result<Popper, Failure> {
        let list = format!("{KEY}:list");
        let length = list.len();
        let mut popper = Popper {
            line: Line::narrow(server.port())?,
            push: command(&format!("RPUSH {list} 1")).get_packed_command(),
            pop: command(&format!("BLPOP {list} 0")).get_packed_command(),
            popped: Pattern::new(&format!("*2\r\n${length}\r\n{list}\r\n$1\r\n1\r\n")),
            pushed: Pattern::new(":1\r\n"),
        };
        if number > 0 {
            popper.line.send(&popper.pop)?;
        }
        Ok(popper)
    }
}

impl Client for Popper {
    fn hand_over(&mut self, next: &mut Popper) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.line.send(&self.push)?;
        next.line.expect(&next.popped, 1)?;
        let duration = start.elapsed();
        self.line.expect(&self.pushed, 1)?;
        self.line.send(&self.pop)?;
        Ok(duration)
    }
}
