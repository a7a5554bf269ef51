//! One direction of a connection: bytes arrive in order, late, and cut anywhere.

use super::world::{Dice, delay};
use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// The end that is written to. Dropped: the other end reads what is under way, and then the end.
pub struct Writer(UnboundedSender<(Instant, Bytes)>);

/// The end that is read.
pub struct Reader {
    arriving: UnboundedReceiver<(Instant, Bytes)>,
    /// Has come, and is not read yet.
    chunk: Bytes,
    /// When it was written.
    pub sent: Instant,
    /// When it has come.
    due: Option<Instant>,
    dice: Dice,
}

/// A direction with its own chance of delays.
pub fn pipe(dice: Dice) -> (Writer, Reader) {
    let (writer, arriving) = unbounded_channel();
    (Writer(writer), Reader { arriving, chunk: Bytes::new(), sent: Instant::now(), due: None, dice })
}

impl Writer {
    /// False when nobody reads any more.
    pub fn write(&self, bytes: Bytes) -> bool {
        bytes.is_empty() || self.0.send((Instant::now(), bytes)).is_ok()
    }
}

impl Reader {
    /// What comes next; None at the end. Cancel-safe.
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
