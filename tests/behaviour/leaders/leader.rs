//! One leader: a session that writes under its token in every way until it is refused. The leader whose turn it is
//! raises the token. The others continue under their old token, as zombies do, until a write is refused or their
//! session is terminated. Then they write under the highest token.

use crate::support::Frame;
use crate::support::message::{bind_text, execute, parse, query, sync};
use crate::support::ticks;
use crate::support::wire::{Address, Wire, error_in};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// State that all leaders share.
pub struct Reign {
    /// The highest token that an election has issued.
    pub token: AtomicI64,
    pub over: AtomicBool,
    /// The tokens under which a write was acknowledged.
    pub ruled: Mutex<HashSet<i64>>,
}

impl Default for Reign {
    fn default() -> Self {
        Self { token: AtomicI64::new(1), over: AtomicBool::new(false), ruled: Mutex::default() }
    }
}

/// The route of a leader to the server.
pub enum Door {
    Proxy(Address),
    /// A proxy that compares the token with a number in its memory, and then forwards the write.
    Memory {
        server: Address,
        highest: AtomicI64,
    },
}

impl Door {
    pub fn memory(server: Address) -> Self {
        Door::Memory { server, highest: AtomicI64::new(0) }
    }

    fn address(&self) -> &Address {
        match self {
            Door::Proxy(address) | Door::Memory { server: address, .. } => address,
        }
    }

    /// False if a write under this token is refused before it is forwarded.
    fn admits(&self, token: i64) -> bool {
        match self {
            Door::Proxy(_) => true,
            Door::Memory { highest, .. } => highest.fetch_max(token, Ordering::SeqCst) <= token,
        }
    }
}

/// The outcome of a write.
enum Written {
    Committed,
    Refused,
    CutOff,
}

pub struct Leader<'a> {
    number: usize,
    /// Total number of leaders.
    leaders: usize,
    door: &'a Door,
    reign: &'a Reign,
    token: i64,
    writes: usize,
    wire: Wire,
    acknowledged: Vec<String>,
}

impl<'a> Leader<'a> {
    pub fn new(number: usize, leaders: usize, door: &'a Door, reign: &'a Reign) -> Self {
        let token = reign.token.load(Ordering::SeqCst);
        let wire = connect(door, token);
        Self { number, leaders, door, reign, token, writes: 0, wire, acknowledged: Vec::new() }
    }

    /// Writes until the end; returns the acknowledged writes.
    pub fn run(mut self) -> Vec<String> {
        while !self.reign.over.load(Ordering::SeqCst) {
            self.take_office_when_elected();
            let note = format!("{} {}", self.number, self.writes);
            match self.write(&note) {
                Written::Committed => {
                    self.acknowledged.push(note);
                    self.reign.ruled.lock().unwrap().insert(self.token);
                }
                Written::Refused => self.present(self.reign.token.load(Ordering::SeqCst)),
                Written::CutOff => self.start_again(self.reign.token.load(Ordering::SeqCst)),
            }
            self.writes += 1;
        }
        self.acknowledged
    }

    fn take_office_when_elected(&mut self) {
        let token = self.reign.token.load(Ordering::SeqCst);
        if token > self.token && usize::try_from(token).unwrap() % self.leaders == self.number {
            self.present(token);
        }
    }

    fn present(&mut self, token: i64) {
        self.token = token;
        // The session may have been cut off since its last write.
        if let Written::CutOff = self.exchange(&query(&format!("SET lease.fence = {token}"))) {
            self.start_again(token);
        }
    }

    fn start_again(&mut self, token: i64) {
        self.token = token;
        self.wire = connect(self.door, token);
    }

    /// One write, in one of several ways. A rejected write leaves no transaction open.
    fn write(&mut self, note: &str) -> Written {
        if !self.door.admits(self.token) {
            return Written::Refused;
        }
        let insert = format!("INSERT INTO ticks (note) VALUES ('{note}')");
        match self.writes % 5 {
            0 => self.exchange(&query(&insert)),
            1 => self.in_a_transaction(&insert),
            2 => {
                let values = bind_text("", "tick", &[Some(note.as_bytes())]);
                self.exchange(&[values, execute("", 0), sync()].concat())
            }
            3 => self.exchange(&query(&format!("{insert}; {insert}"))),
            _ => self.exchange(&query(&format!("BEGIN; {insert}; COMMIT"))),
        }
    }

    fn in_a_transaction(&mut self, insert: &str) -> Written {
        for sql in ["BEGIN", insert, "SELECT 1", "COMMIT"] {
            match self.exchange(&query(sql)) {
                Written::Committed => {}
                failed => return failed,
            }
        }
        Written::Committed
    }

    /// Sends the bytes and reads the whole answer. After an error no transaction is left open.
    fn exchange(&mut self, bytes: &[u8]) -> Written {
        let frames = self.wire.exchange(bytes);
        let end = frames.last().expect("the session does not end without an error");
        // A session may be cut off immediately after one of its writes was refused.
        let Some(error) = frames.iter().rfind(|frame| frame.tag == b'E').map(Frame::fields) else {
            assert_eq!(end.tag, b'Z', "the session ended without an error");
            return Written::Committed;
        };
        match (error.severity(), error.code()) {
            // 57P01: the session received a signal meant for its earlier admission, after it had presented the highest
            // token.
            ("FATAL", "LF001" | "57P01") => Written::CutOff,
            // LF006: the process was terminated while it waited for admission. Nothing was written; retry.
            ("ERROR", "LF001" | "LF006") if end.tag == b'Z' && end.body == b"I" => Written::Refused,
            ("ERROR", "LF001" | "LF006") => match self.exchange(&query("ROLLBACK")) {
                Written::Committed => Written::Refused,
                cut_off => cut_off,
            },
            _ => panic!("leader {} under token {}: {error:?}", self.number, self.token),
        }
    }
}

/// A session with a prepared statement, under the token.
fn connect(door: &Door, token: i64) -> Wire {
    let mut wire = ticks::session(door.address(), token);
    let prepare = parse("tick", "INSERT INTO ticks (note) VALUES ($1)", &[]);
    let frames = wire.exchange(&[prepare, sync()].concat());
    assert_eq!(error_in(&frames), None);
    wire
}
