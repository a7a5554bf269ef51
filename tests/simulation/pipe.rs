//! One direction of a connection: bytes arrive in order, late, and split at any position.

use super::world::{Dice, delay};
use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// The writing end. If it is dropped, the other end reads the pending bytes, and then the end.
pub struct Writer(UnboundedSender<(Instant, Bytes)>);

/// The reading end.
pub struct Reader {
    arriving: UnboundedReceiver<(Instant, Bytes)>,
    /// Bytes that have arrived and are not read yet.
    chunk: Bytes,
    /// Time of the write.
    pub sent: Instant,
    /// Time of the arrival.
    due: Option<Instant>,
    dice: Dice,
}

/// A direction with its own random delays.
pub fn pipe(dice: Dice) -> (Writer, Reader) {
    let (writer, arriving) = unbounded_channel();
    (Writer(writer), Reader { arriving, chunk: Bytes::new(), sent: Instant::now(), due: None, dice })
}

impl Writer {
    pub fn write(&self, bytes: Bytes) {
        if !bytes.is_empty() {
            // The reading end may be closed.
            self.0.send((Instant::now(), bytes)).ok();
        }
    }

    /// Writes all bytes, and empties the buffer.
    pub fn write_all_of(&self, output: &mut BytesMut) {
        if !output.is_empty() {
            self.write(std::mem::take(output).freeze());
        }
    }
}

/// Appends the received bytes to the unread ones. Copies nothing if there are none.
pub fn receive(input: &mut BytesMut, chunk: Bytes) {
    match input.is_empty() {
        true => *input = chunk.into(),
        false => input.extend_from_slice(&chunk),
    }
}

impl Reader {
    /// Returns the next bytes; None at the end. Cancel-safe.
    pub async fn read(&mut self) -> Option<Bytes> {
        if self.chunk.is_empty() {
            (self.sent, self.chunk) = self.arriving.recv().await?;
            self.due = delay(&mut self.dice);
        }
        if let Some(due) = self.due {
            sleep_until(due).await;
            self.due = None;
        }
        let is_cut = self.chunk.len() > 1 && self.dice.chance(12);
        let cut = if is_cut { 1 + self.dice.below(self.chunk.len() - 1) } else { self.chunk.len() };
        if is_cut {
            self.due = delay(&mut self.dice);
        }
        Some(self.chunk.split_to(cut))
    }
}
