//! The events that histories have tried, by the session's situation: the stage of the client's message at hand, and the
//! server's next reply.
//!
//! Owns the list of combinations that cannot occur, with the reasons.

use fencegate_session::{Done, Owed, Situation, StageKind};
use fencegate_wire::frame::HEADER;
use fencegate_wire::tag::{backend, frontend};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// An event that a session receives. If several messages arrive together, the first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    ClientQueries,
    /// A message of the extended protocol except Sync.
    ClientExtends,
    ClientSyncs,
    ClientCopies,
    /// Terminate, or the end of the connection.
    ClientLeaves,
    /// A message that belongs to a result.
    ServerReplies,
    ServerFails,
    ServerIsReady,
    ServerCopiesIn,
    ServerEnds,
    Admitted,
    Refused,
    /// Another task is done.
    TaskDone,
    Revoked,
    Wakes,
}

pub type Combination = (Situation, Event);

const STAGES: [StageKind; 8] = [
    StageKind::Reading,
    StageKind::Settling,
    StageKind::Asking,
    StageKind::Requesting,
    StageKind::Performing,
    StageKind::BehindAdmit,
    StageKind::Restarting,
    StageKind::Discarding,
];

const OWED: [Owed; 10] = [
    Owed::Nothing,
    Owed::Skips,
    Owed::CopyIn,
    Owed::Own,
    Owed::OwnAhead,
    Owed::Rejection,
    Owed::Query,
    Owed::Extended,
    Owed::Sync,
    Owed::FunctionCall,
];

const EVENTS: [Event; 15] = [
    Event::ClientQueries,
    Event::ClientExtends,
    Event::ClientSyncs,
    Event::ClientCopies,
    Event::ClientLeaves,
    Event::ServerReplies,
    Event::ServerFails,
    Event::ServerIsReady,
    Event::ServerCopiesIn,
    Event::ServerEnds,
    Event::Admitted,
    Event::Refused,
    Event::TaskDone,
    Event::Revoked,
    Event::Wakes,
];

/// The tag that represents the end of a connection.
const END: u8 = 0;

impl Event {
    pub fn of_task(done: &Done) -> Event {
        match done {
            Done::Admit(Ok(())) => Event::Admitted,
            Done::Admit(Err(_)) => Event::Refused,
            _ => Event::TaskDone,
        }
    }

    pub fn of_client(tag: u8) -> Event {
        match tag {
            frontend::QUERY => Event::ClientQueries,
            frontend::SYNC => Event::ClientSyncs,
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => Event::ClientCopies,
            frontend::TERMINATE | END => Event::ClientLeaves,
            _ => Event::ClientExtends,
        }
    }

    pub fn of_server(tag: u8) -> Event {
        match tag {
            backend::ERROR => Event::ServerFails,
            backend::READY => Event::ServerIsReady,
            backend::COPY_IN => Event::ServerCopiesIn,
            END => Event::ServerEnds,
            _ => Event::ServerReplies,
        }
    }
}

/// Finds the messages in the bytes of one direction.
#[derive(Default)]
pub struct Messages {
    head: Vec<u8>,
    /// Number of bytes of the current message that have not arrived.
    rest: usize,
}

impl Messages {
    /// The tag of the first message that begins in these bytes.
    pub fn read(&mut self, bytes: Option<&[u8]>) -> Option<u8> {
        let Some(mut bytes) = bytes else { return Some(END) };
        let mut first = None;
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let Some((byte, others)) = bytes.split_first() else { break };
            if self.head.is_empty() {
                first.get_or_insert(*byte);
            }
            self.head.push(*byte);
            bytes = others;
            if let Ok([_, length @ ..]) = <[u8; HEADER]>::try_from(&self.head[..]) {
                self.rest = u32::from_be_bytes(length) as usize - size_of::<u32>();
                self.head.clear();
            }
        }
        first
    }
}

#[derive(Default)]
pub struct Coverage(Mutex<BTreeSet<Combination>>);

impl Coverage {
    pub fn count(&self, situation: Situation, event: Option<Event>) {
        if let Some(event) = event {
            self.0.lock().unwrap().insert((situation, event));
        }
    }

    pub fn take(&self) -> BTreeSet<Combination> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Why the combination cannot occur.
pub fn impossible(((stage, owed), event): Combination) -> Option<&'static str> {
    use Event::{Admitted, ClientCopies, Refused, ServerCopiesIn, ServerIsReady, ServerReplies, TaskDone, Wakes};
    use StageKind::{Asking, BehindAdmit, Discarding, Performing, Requesting, Restarting, Settling};
    Some(match (stage, owed, event) {
        (Restarting, ..) if owed != Owed::Own => "nothing was owed when the proxy began the transaction again",
        (Restarting, _, Admitted | Refused) => "the only Admit has ended",
        (Discarding, Owed::Skips, _) => "simulated clients end a pipeline before a fast-path call",
        (Discarding, _, ClientCopies) => "simulated clients send no rows directly behind a fast-path call or a Bind",
        (Discarding, _, Admitted | Refused) => "a fast-path call waits for an Admit that was given up",
        (Asking, ..) if owed != Owed::Own => "the answer is owed, and was asked for when nothing was",
        (Settling, Owed::Nothing | Owed::Skips | Owed::CopyIn, _) => "the stage ends at once",
        (_, Owed::CopyIn, Admitted | Refused) if stage != Performing => "a COPY waits for an Admit that was given up",
        (Requesting | BehindAdmit, Owed::CopyIn, _) => "a COPY waits for an Admit that was given up",
        (Requesting | BehindAdmit, _, ServerCopiesIn) => "a COPY waits for an Admit that was given up",
        (_, Owed::Nothing | Owed::Skips, ServerReplies | ServerIsReady) => "the server owes nothing",
        (_, Owed::CopyIn, ServerReplies | ServerIsReady) => "the server reads the data",
        (_, Owed::Query | Owed::Extended, ServerCopiesIn) => return None,
        (_, _, ServerCopiesIn) => "the server owes something else",
        (BehindAdmit, _, TaskDone) => "the only task is the Admit",
        (Performing | BehindAdmit, ..) => return None,
        (_, _, Wakes) => "only a message that waits for a task has a deadline",
        (_, _, TaskDone) => "only an Admit is given up",
        _ => return None,
    })
}

/// For each combination, the number of histories that reached it, and the first of them.
#[derive(Default)]
pub struct Reached(BTreeMap<Combination, (u64, u64)>);

impl Reached {
    pub fn add(&mut self, seed: u64, tried: &BTreeSet<Combination>) {
        for combination in tried {
            self.0.entry(*combination).or_insert((0, seed)).0 += 1;
        }
    }

    /// Prints a line for each hole, and a line with a seed for each combination that fewer than one in a thousand
    /// histories reached. Returns the reached combinations that cannot occur.
    pub fn report(&self, histories: u64) -> Vec<String> {
        let (mut holes, mut surprises) = (0, Vec::new());
        for combination in all() {
            let name = name(&combination);
            match (self.0.get(&combination), impossible(combination)) {
                (Some((times, seed)), None) if times * 1000 < histories => println!("rare {seed} {name}"),
                (Some((_, seed)), Some(why)) => surprises.push(format!("{name} in history {seed}: {why}")),
                (None, None) => {
                    holes += 1;
                    println!("hole {name}");
                }
                (Some(_), None) | (None, Some(_)) => {}
            }
        }
        println!("{} combinations, {holes} holes", self.0.len());
        surprises
    }
}

/// As in `rare.txt`.
pub fn name(((stage, owed), event): &Combination) -> String {
    format!("{stage:?} {owed:?} {event:?}")
}

fn all() -> impl Iterator<Item = Combination> {
    let situations = STAGES.into_iter().flat_map(|stage| OWED.map(|owed| (stage, owed)));
    situations.flat_map(|situation| EVENTS.map(|event| (situation, event)))
}
