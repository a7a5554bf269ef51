//! The messages of one session, step by step, and the transcript of the responses.

use crate::support::{Frame, Wire};

/// One step of a client.
#[derive(Clone)]
pub enum Step {
    /// Sends messages that do not end in a Sync, and reads up to this message type or an error.
    Until(Vec<u8>, u8),
    /// Sends messages, and reads up to this number of ReadyForQuery.
    Ready(Vec<u8>, usize),
}

/// Runs the steps. If the server ends the session, the remaining steps have no effect.
pub fn converse(wire: &mut Wire, steps: &[Step]) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for step in steps {
        match step {
            Step::Until(messages, tag) => {
                wire.send(messages);
                // After an error, the server skips messages without an answer.
                if !skips(&frames) {
                    frames.extend(wire.read_until_any(&[*tag, b'E']));
                }
            }
            Step::Ready(messages, count) => {
                wire.send(messages);
                (0..*count).for_each(|_| frames.extend(wire.read_until_any(b"Z")));
            }
        }
    }
    frames
}

fn skips(frames: &[Frame]) -> bool {
    frames.iter().rev().take_while(|frame| frame.tag != b'Z').any(|frame| frame.tag == b'E')
}
