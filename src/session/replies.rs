//! What the server still owes: one entry for each forwarded message that it will answer, in order.
//!
//! Owns the rules by which replies, errors and COPY take entries away. So a message of the proxy's
//! own finds its place, and "nothing is owed" means that no statement is running.
//! Chapters "Message Flow", "Extended Query", "COPY Operations".

pub use super::request::{Audience, Defined, Request};
use std::collections::VecDeque;

/// Entries beyond which no more messages are read from the client.
const MOST: usize = 10_000;

/// What their statements may hold before that, in bytes.
const HEAVIEST: usize = 8 << 20;

/// One forwarded message that the server will answer.
#[derive(Debug)]
pub struct Reply {
    /// What it was.
    pub to: Request,
    /// For whom the answer is.
    pub audience: Audience,
    /// It may write.
    writes: bool,
    /// What its statements hold, in bytes.
    weight: usize,
}

/// The queue, and where in a COPY from the client the session is.
#[derive(Debug, Default)]
pub struct Replies {
    queue: VecDeque<Reply>,
    /// The server reads COPY data, and the client has not ended it: Sync is ignored.
    copying_in: bool,
    /// A COPY from the client has begun, and not ended.
    copy_begun: bool,
    /// A Sync has been sent within a COPY. If that fails, nothing tells whether the server had read the Sync, and ignored
    /// it, or will answer it. Only in sessions whose statements are not judged.
    sync_in_doubt: bool,
    /// The client has sent a Sync within the COPY, and no data since. It was not passed on: the server would ignore it.
    sync_withheld: bool,
    /// The server skips what comes, up to a Sync that has not been sent yet.
    skipping: bool,
    /// Entries whose statements may change `lease.fence`.
    affecting_parameter: usize,
    /// Entries whose statements may change how text is read.
    affecting_lexing: usize,
    /// Entries whose statements may write.
    writing: usize,
    /// The next entry was admitted to what it may write.
    admitting: bool,
    /// Entries whose statements may change the catalogue.
    changing_catalogue: usize,
    /// Entries whose statements may be a COPY from the client.
    copying: usize,
    /// Entries in place of what is rejected.
    rejecting: usize,
    /// What the statements of all entries hold, in bytes.
    weight: usize,
    /// Statements that may have done so have completed; ReadyForQuery comes after the report of it.
    lexing_unreported: bool,
    /// Code has run since the server said its search path: any may have set it.
    path_unsaid: bool,
    /// Code has run since the last ReadyForQuery. The end of an implicit transaction runs what it has put off.
    code_ran: bool,
}

impl Replies {
    /// The message that is forwarded next was admitted to what it may write, though only the catalogue may have told that.
    pub fn admitted(&mut self) {
        self.admitting = true;
    }

    /// A message was forwarded.
    pub fn push(&mut self, to: Request, audience: Audience) {
        let writes = std::mem::take(&mut self.admitting) || to.may_write();
        if self.copying_in {
            match to {
                Request::CopyData => return self.sync_withheld = false,
                Request::Sync => return self.sync_in_doubt = true,
                // Anything else ends the COPY, the right way or with an error. Until it came, the server has ignored the Sync.
                _ => (self.copying_in, self.sync_withheld) = (false, false),
            }
        }
        if self.skipping {
            match to {
                Request::Sync => self.skipping = false,
                _ => return,
            }
        }
        let more_data =
            matches!((&to, self.queue.back()), (Request::CopyData, Some(Reply { to: Request::CopyData, .. })));
        if to.is_copy() && self.queue.is_empty() || more_data {
            return;
        }
        self.affecting_parameter += usize::from(to.affects_parameter());
        self.affecting_lexing += usize::from(to.affects_lexing());
        self.writing += usize::from(writes);
        self.changing_catalogue += usize::from(to.changes_catalogue());
        self.copying += usize::from(to.may_copy_in());
        self.rejecting += usize::from(audience.is_rejection());
        let weight = to.weight();
        self.weight += weight;
        self.queue.push_back(Reply { to, audience, writes, weight });
    }

    /// Nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// As much is owed as may be.
    pub fn is_full(&self) -> bool {
        self.queue.len() >= MOST || self.weight >= HEAVIEST
    }

    /// The server ignores everything up to the next Sync.
    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// What the client sends up to its next Sync counts as skipped: the server would skip it, had a Sync of the proxy's not
    /// ended the pipeline.
    pub fn skip_to_sync(&mut self) {
        self.skipping = true;
    }

    /// The server waits for COPY data.
    pub fn is_copying_in(&self) -> bool {
        self.copying_in
    }

    /// The last message forwarded will not be answered before a Sync or Flush follows.
    pub fn needs_flush(&self) -> bool {
        let answered = self.queue.iter().rev().find(|reply| !reply.to.is_copy());
        answered.is_some_and(|reply| reply.to.is_extended())
    }

    /// What the next reply answers.
    pub fn front(&mut self) -> Option<&mut Reply> {
        while self.queue.front().is_some_and(|reply| reply.to.is_copy()) {
            self.queue.pop_front();
        }
        self.queue.front_mut()
    }

    /// For whom the next message of the server is.
    pub fn audience(&mut self) -> Audience {
        self.front().map_or(Audience::Client, |reply| reply.audience.clone())
    }

    /// The next reply is complete.
    pub fn pop(&mut self) -> Option<Reply> {
        self.front()?;
        let reply = self.queue.pop_front()?;
        self.settled(&reply);
        let runs_code = reply.to.affects_lexing();
        // A literal is read as its type says, too: one of an array or row of domains runs their checks.
        self.code_ran |= runs_code || matches!(reply.to, Request::Parse { .. });
        self.path_unsaid |= runs_code;
        self.lexing_unreported |= runs_code;
        if matches!(reply.to, Request::Query { .. } | Request::Sync | Request::FunctionCall) {
            self.lexing_unreported = false;
            self.path_unsaid |= std::mem::take(&mut self.code_ran);
        }
        self.front();
        Some(reply)
    }

    /// Something is under way that may change `lease.fence`.
    pub fn affect_parameter(&self) -> bool {
        self.affecting_parameter > 0
    }

    /// Something is under way that may write.
    pub fn may_write(&self) -> bool {
        self.writing > 0
    }

    /// A rejection is under way: what follows it in the same pipeline will be skipped.
    pub fn reject(&self) -> bool {
        self.rejecting > 0
    }

    /// Something is under way that may change the catalogue.
    pub fn change_catalogue(&self) -> bool {
        self.changing_catalogue > 0
    }

    /// Something is under way, or done and not reported yet, that may change how text is read.
    pub fn lexing_in_doubt(&self) -> bool {
        self.affecting_lexing > 0 || self.lexing_unreported
    }

    /// The server was asked.
    pub fn lexing_known(&mut self) {
        self.lexing_unreported = false;
    }

    /// Something is under way, or done since the server said its search path, that may have set it.
    pub fn path_in_doubt(&self) -> bool {
        self.affecting_lexing > 0 || self.path_unsaid
    }

    /// The server has said it, after all that it has answered.
    pub fn path_said(&mut self) {
        self.path_unsaid = false;
    }

    fn settled(&mut self, reply: &Reply) {
        self.affecting_parameter -= usize::from(reply.to.affects_parameter());
        self.affecting_lexing -= usize::from(reply.to.affects_lexing());
        self.writing -= usize::from(reply.writes);
        self.changing_catalogue -= usize::from(reply.to.changes_catalogue());
        self.copying -= usize::from(reply.to.may_copy_in());
        self.rejecting -= usize::from(reply.audience.is_rejection());
        self.weight -= reply.weight;
    }

    /// The server reports an error. Takes away, and returns, what it will not answer any more.
    pub fn error(&mut self) -> Vec<Reply> {
        (self.copy_begun, self.copying_in) = (false, false);
        if !self.front().is_some_and(|reply| reply.to.is_extended()) {
            return Vec::new();
        }
        (self.path_unsaid, self.code_ran) = (true, true);
        // What it did before, it may have committed.
        self.lexing_unreported |= self.queue.front().is_some_and(|reply| reply.to.affects_lexing());
        let sync = self.queue.iter().position(|reply| matches!(reply.to, Request::Sync));
        self.skipping = sync.is_none();
        let skipped: Vec<Reply> = self.queue.drain(..sync.unwrap_or(self.queue.len())).collect();
        skipped.iter().for_each(|reply| self.settled(reply));
        skipped
    }

    /// The server asks for COPY data: it ignores every Sync that was sent before the data ends.
    pub fn copy_in(&mut self) {
        (self.copy_begun, self.copying_in) = (true, true);
        self.sync_withheld = false;
        let mut index = 1;
        while let Some(reply) = self.queue.get(index).filter(|_| self.copying_in) {
            match reply.to {
                Request::Sync => {
                    self.queue.remove(index);
                    self.sync_in_doubt = true;
                }
                Request::CopyData => index += 1,
                _ => self.copying_in = false,
            }
        }
    }

    /// A COPY at the front has ended well: if it was one from the client, what belongs to it is over.
    pub fn copy_done(&mut self) {
        if !std::mem::take(&mut self.copy_begun) {
            return;
        }
        self.copying_in = false;
        while let Some(Reply { to: Request::CopyData, .. }) = self.queue.get(1) {
            self.queue.remove(1);
        }
        if let Some(Reply { to: Request::CopyEnd, .. }) = self.queue.get(1) {
            self.queue.remove(1);
        }
        (self.sync_withheld, self.sync_in_doubt) = (false, false);
    }

    /// A COPY from the client may begin, before which the server has to see no Sync.
    pub fn may_copy_in(&self) -> bool {
        self.copying > 0
    }

    /// A Sync within the COPY is not passed on.
    pub fn withhold_sync(&mut self) {
        self.sync_withheld = true;
    }

    /// The COPY has failed where the server, most likely, would not have read the Sync yet: it is to be sent now.
    pub fn take_withheld_sync(&mut self) -> bool {
        std::mem::take(&mut self.sync_withheld)
    }

    /// The server may have answered, or may answer, a Sync that was sent within a COPY: what it owes is not sure.
    pub fn is_sync_in_doubt(&self) -> bool {
        self.sync_in_doubt
    }

    /// It has answered that Sync: it skips no more.
    pub fn sync_answered(&mut self) {
        self.skipping = false;
    }
}

#[cfg(test)]
mod tests;
