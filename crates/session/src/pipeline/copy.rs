//! COPY from the client: the messages of the pipeline while the server reads COPY data.
//!
//! Owns the state of that COPY. Must never forward a Sync within it without recording that: the server ignores the Sync
//! while it reads data, and answers it if the COPY has failed.

use super::request::Effects;
use super::{Pipeline, Reply, Request};

/// The state of a COPY from the client.
#[derive(Debug, Default)]
pub(super) struct CopyIn {
    /// The server reads COPY data that the client has not ended: it ignores Sync.
    reading: bool,
    /// A COPY from the client has begun and not ended.
    begun: bool,
    /// A Sync was sent within a COPY. If the COPY fails, it is unknown whether the server ignored the Sync or will
    /// answer it. Only in sessions whose statements are not judged.
    sync_in_doubt: bool,
    /// The client has sent a Sync within the COPY, and no data since. The proxy withheld it because the server would
    /// ignore it.
    sync_withheld: bool,
}

impl CopyIn {
    /// Records a forwarded message. Returns false if the server will not answer it as part of the queue.
    pub(super) fn takes(&mut self, to: &Request) -> bool {
        if !self.reading {
            return true;
        }
        match to {
            Request::CopyData => self.sync_withheld = false,
            Request::Sync => self.sync_in_doubt = true,
            // Any other message ends the COPY, normally or with an error. Until then the server has ignored the Sync.
            _ => {
                (self.reading, self.sync_withheld) = (false, false);
                return true;
            }
        }
        false
    }

    /// The server reports an error.
    pub(super) fn fail(&mut self) {
        (self.begun, self.reading) = (false, false);
    }
}

impl Pipeline {
    /// Returns true if the server waits for COPY data.
    pub fn is_copying_in(&self) -> bool {
        self.copy.reading
    }

    /// Returns true if a COPY from the client may begin: the server must see no Sync before it.
    pub fn may_copy_in(&self) -> bool {
        self.owed.has(Effects::COPIES)
    }

    /// The server requests COPY data. It ignores every Sync that was sent before the data ends.
    pub fn copy_in(&mut self) {
        (self.copy.begun, self.copy.reading) = (true, true);
        self.copy.sync_withheld = false;
        let mut index = 1;
        while let Some(reply) = self.queue.get(index).filter(|_| self.copy.reading) {
            match reply.to {
                Request::Sync => {
                    self.queue.remove(index);
                    self.copy.sync_in_doubt = true;
                }
                Request::CopyData => index += 1,
                _ => self.copy.reading = false,
            }
        }
    }

    /// A COPY at the front has succeeded. If it was from the client, its messages are answered.
    pub fn copy_done(&mut self) {
        if !std::mem::take(&mut self.copy.begun) {
            return;
        }
        while let Some(Reply { to: Request::CopyData, .. }) = self.queue.get(1) {
            self.queue.remove(1);
        }
        if let Some(Reply { to: Request::CopyEnd, .. }) = self.queue.get(1) {
            self.queue.remove(1);
        }
        self.copy = CopyIn::default();
    }

    /// The proxy withholds a Sync within the COPY.
    pub fn withhold_sync(&mut self) {
        self.copy.sync_withheld = true;
    }

    /// Returns true if the COPY has failed and the withheld Sync must be sent now. The server most likely has not read
    /// it yet.
    pub fn take_withheld_sync(&mut self) -> bool {
        std::mem::take(&mut self.copy.sync_withheld)
    }

    /// Returns true if the server may answer a Sync that was sent within a COPY: the owed replies are not certain.
    pub fn is_sync_in_doubt(&self) -> bool {
        self.copy.sync_in_doubt
    }

    /// The server has answered that Sync and skips no more.
    pub fn sync_answered(&mut self) {
        self.skipping = false;
    }
}
