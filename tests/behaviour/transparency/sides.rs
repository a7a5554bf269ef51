//! Runs a session directly and through the proxy, and compares the responses.

use super::session::{EMPTY_QUERIES, Session, Step, Then};
use crate::support::postgres::SUPERUSER;
use crate::support::wire::exact;
use crate::support::{Address, DEADLINE, Frame, Postgres, Wire, message, wait_until};
use std::fmt;
use std::thread;

/// A server and the address for its clients.
pub struct Side<'a> {
    pub postgres: &'a Postgres,
    pub address: Address,
}

/// The greeting of each client, and then the responses in each step.
type Transcript = Vec<Vec<Frame>>;

/// The comparisons so far.
#[derive(Default)]
pub struct Counts {
    pub sessions: usize,
    messages: usize,
    frames: usize,
    bytes: usize,
    errors: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, messages, frames, bytes, errors } = self;
        write!(f, "{sessions} sessions, {messages} messages, {frames} frames ({errors} errors), {bytes} bytes")
    }
}

/// Runs the session on both sides. If the responses differ, the test fails and shows where.
pub fn compare(session: &Session, direct: &Side, proxied: &Side, counts: &mut Counts) {
    let play = |side: &Side| side.play(session);
    let (expected, found) = thread::scope(|scope| {
        let [expected, found] = [direct, proxied].map(|side| scope.spawn(|| play(side)));
        (expected.join(), found.join())
    });
    let (Ok(expected), Ok(found)) = (expected, found) else { panic!("{}", Shown(session, session.steps.len())) };
    if let Some(place) = (0..expected.len()).find(|place| expected[*place] != found[*place]) {
        let steps = (place + 1).saturating_sub(session.clients.len());
        let (expected, found) = from_first_difference(&expected[place], &found[place]);
        let logs = [direct, proxied].map(|side| last_lines(&side.postgres.log()));
        let logs = logs.join("\nlog of the server behind the proxy:\n");
        panic!("{}\ndirect:\n{expected}\nproxied:\n{found}\nlog:\n{logs}", Shown(session, steps));
    }
    counts.sessions += 1;
    counts.messages += session.steps.iter().map(|step| step.messages.len()).sum::<usize>();
    for frame in expected.iter().flatten() {
        counts.frames += 1;
        counts.bytes += frame.body.len() + 5;
        counts.errors += usize::from(frame.tag == b'E');
    }
}

/// The last steps of a session up to the difference.
struct Shown<'a>(&'a Session, usize);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LAST: usize = 8;
        let Self(session, steps) = self;
        let (all, clients) = (session.steps.len(), &session.clients);
        writeln!(f, "session with seed {}, {all} steps, differs at {steps}, clients {clients:?}", session.seed)?;
        for (number, step) in session.steps.iter().take(*steps).enumerate().skip(steps.saturating_sub(LAST)) {
            writeln!(f, "{number:>4} {step}")?;
        }
        Ok(())
    }
}

/// The first frames that differ, with one before and two after them.
fn from_first_difference(expected: &[Frame], found: &[Frame]) -> (String, String) {
    let same = expected.iter().zip(found).take_while(|(one, other)| one == other).count();
    let show = |frames: &[Frame]| {
        let around = frames.iter().enumerate().skip(same.saturating_sub(1)).take(4);
        around.map(|(number, frame)| format!("{number:>4} {frame:?}\n")).collect::<String>()
    };
    (show(expected), show(found))
}

fn last_lines(text: &str) -> String {
    const LINES: usize = 8;
    const WIDTH: usize = 200;
    let lines: Vec<String> = text.lines().map(|line| line.chars().take(WIDTH).collect()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

impl Side<'_> {
    fn play(&self, session: &Session) -> Transcript {
        let mut progress = Progress { address: &self.address, step: 0 };
        let (mut clients, mut transcript): (Vec<_>, Vec<_>) =
            session.clients.iter().map(|parameters| Client::connect(&self.address, parameters)).unzip();
        for (number, step) in session.steps.iter().enumerate() {
            progress.step = number;
            transcript.push(exact(&clients[step.client].take(step, self)));
        }
        for client in &mut clients {
            client.wire.send(&message::terminate());
            transcript.push(exact(&client.wire.read_to_end()));
        }
        transcript
    }

    /// Waits until the statement sleeps, and cancels it.
    fn cancel(&self, key: &[u8]) {
        const ASLEEP: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_until("the statement sleeps", DEADLINE, || self.postgres.value(ASLEEP) == "1");
        let mut wire = Wire::connect(&self.address).unwrap();
        wire.send(&message::cancel_request(key));
        assert_eq!(wire.bytes_to_end(), b"", "the answer to a cancel request");
    }
}

/// On a panic, prints the step at which a session hangs.
struct Progress<'a> {
    address: &'a Address,
    step: usize,
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{:?} did not get beyond step {}", self.address, self.step);
        }
    }
}

struct Client {
    wire: Wire,
    key: Vec<u8>,
    /// The server skips messages up to a Sync, so there is no answer to wait for.
    skipped: bool,
    ended: bool,
}

impl Client {
    fn connect(address: &Address, parameters: &[(&str, String)]) -> (Self, Vec<Frame>) {
        let mut wire = Wire::connect(address).unwrap();
        let mut all = vec![("user", SUPERUSER), ("database", "postgres")];
        all.extend(parameters.iter().map(|(name, value)| (*name, value.as_str())));
        let greeting = wire.start(&all, "");
        let key = greeting.iter().find(|frame| frame.tag == b'K').map(|frame| frame.body.clone());
        let ended = key.is_none();
        (Self { wire, key: key.unwrap_or_default(), skipped: false, ended }, exact(&greeting))
    }

    fn take(&mut self, step: &Step, side: &Side) -> Vec<Frame> {
        if self.ended {
            return Vec::new();
        }
        let bytes = step.bytes();
        let pieces: Vec<&[u8]> = bytes.chunks(step.piece).collect();
        let (key, skipped) = (&self.key, self.skipped);
        let frames = self.wire.send_while(&pieces, |wire| match step.then {
            Then::End => wire.read_to_end(),
            Then::Settled => read_until_settled(wire),
            Then::Until(_) | Then::Cancel(_) if skipped => Vec::new(),
            Then::Until(tags) => wire.read_until_any(tags),
            Then::Cancel(tags) => {
                side.cancel(key);
                wire.read_until_any(tags)
            }
        });
        match step.then {
            Then::Settled => self.skipped = false,
            Then::Until(tags) | Then::Cancel(tags) if !skipped => {
                let last = frames.last().map(|frame| frame.tag);
                self.skipped = last == Some(b'E');
                self.ended = last.is_none_or(|last| !tags.contains(&last));
            }
            Then::End => self.ended = true,
            _ => {}
        }
        frames
    }
}

/// Reads up to the answers to the empty queries at the end.
fn read_until_settled(wire: &mut Wire) -> Vec<Frame> {
    let (mut frames, mut answered) = (Vec::new(), 0);
    while answered < EMPTY_QUERIES {
        let Some(frame) = wire.frame() else { break };
        answered = match (frame.tag, frames.last().map(|last: &Frame| last.tag)) {
            (b'Z', Some(b'I')) => answered + 1,
            (b'I', Some(b'Z')) => answered,
            _ => 0,
        };
        frames.push(frame);
    }
    frames
}
