//! A random session: the steps of its clients, and how each step detects the end of its response.

use crate::support::message;
use fencegate_testing::dice::Dice;
use std::fmt;

/// One session with all its clients. The first client does most. Others notify it, cancel it or compete with it.
pub struct Session {
    pub seed: u64,
    /// Startup parameters of each client, without user and database.
    pub clients: Vec<Vec<(&'static str, String)>>,
    pub steps: Vec<Step>,
}

/// Messages that one client sends without waiting, and the end of the answer that it reads afterwards.
pub struct Step {
    pub client: usize,
    pub messages: Vec<Vec<u8>>,
    /// Number of bytes in each piece that is sent.
    pub piece: usize,
    pub then: Then,
}

/// The end of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// One of these message types.
    Until(&'static [u8]),
    /// Like [`Then::Until`], but first waits until the server sleeps and sends a cancel request.
    Cancel(&'static [u8]),
    /// After any messages: appends messages that make the session ready for a query.
    Settled,
    /// The end of the connection.
    End,
}

/// Larger than any step.
const WHOLE: usize = 1 << 30;

/// Number of consecutive empty queries that end a step. No step contains that many itself.
pub const EMPTY_QUERIES: usize = 5;

impl Step {
    /// A step of the first client, in pieces of random length.
    pub fn new(dice: &mut Dice, messages: Vec<Vec<u8>>, then: Then) -> Self {
        let few = messages.iter().map(Vec::len).sum::<usize>() < 2000;
        let piece = match dice.below(10) {
            0 if few => 1,
            1 if few => dice.between(1, 30),
            2 => dice.between(1000, 9000),
            _ => WHOLE,
        };
        Self { client: 0, messages, piece, then }
    }

    /// All bytes of the step, including those that settle the session.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.messages.concat();
        if self.then == Then::Settled {
            // The first ends a COPY, and the second ends skipping after an error. Otherwise they have no effect.
            bytes.extend([message::copy_fail("settle"), message::sync()].concat());
            bytes.extend(message::query("").repeat(EMPTY_QUERIES));
        }
        bytes
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 600;
        write!(f, "client {}, pieces of {}, then {:?}:", self.client, self.piece, self.then)?;
        for message in &self.messages {
            let text = message[..message.len().min(SHOWN)].escape_ascii().to_string();
            write!(f, "\n      {text}{}", if message.len() > SHOWN { " …" } else { "" })?;
        }
        Ok(())
    }
}
