//! A random session: the steps of its clients, and how each step detects the end of its response.

use crate::support::message;
use fencegate_testing::dice::Dice;
use std::fmt;

/// One session with all its clients. The first one does most; others notify it, cancel it or compete with it.
pub struct Session {
    pub seed: u64,
    /// The startup parameters of each client beside user and database.
    pub clients: Vec<Vec<(&'static str, String)>>,
    pub steps: Vec<Step>,
}

/// Messages that one client sends without waiting, and what it reads afterwards.
pub struct Step {
    pub client: usize,
    pub messages: Vec<Vec<u8>>,
    /// The bytes are sent in pieces of this many.
    pub piece: usize,
    pub then: Then,
}

/// Up to where the answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// One of these kinds of messages.
    Until(&'static [u8]),
    /// As [`Then::Until`], once the server sleeps in it and has been asked to cancel.
    Cancel(&'static [u8]),
    /// Whatever was sent: the session is brought back to where a query can follow, by messages that are added.
    Settled,
    /// The end of the connection.
    End,
}

/// Larger than any step.
const WHOLE: usize = 1 << 30;

/// How many empty queries in a row end a step: more than any step has itself.
pub const EMPTY_QUERIES: usize = 5;

impl Step {
    /// By the first client, in pieces of chance.
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

    /// The bytes in the pieces that they are sent in.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.messages.concat();
        if self.then == Then::Settled {
            // The first ends a COPY, the second what an error skips; neither does anything otherwise.
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
