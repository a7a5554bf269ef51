//! The session's server process, as the fence knows it.
//!
//! Owns the activity that is reported to the fence, and the Admit under way. Must never report a process as idle while
//! the server may run something for the session.

use super::host::Host;
use fencegate_fence::session::{Activity, SessionFence};
use std::sync::Arc;

/// The server process of a session.
pub struct Process {
    pub fence: Arc<SessionFence>,
    /// The activity reported last.
    activity: Activity,
    /// An admission was revoked, and its row may still exist.
    revoked: bool,
    admit: Option<Admit>,
}

/// An Admit that has begun and not ended.
pub(super) struct Admit {
    /// The first of its resources.
    pub(super) resource: String,
    /// The client was told that the Admit has failed.
    is_abandoned: bool,
    /// The message must not follow a question.
    pub(super) stands_alone: bool,
}

impl Process {
    pub(super) fn new(fence: Arc<SessionFence>) -> Self {
        Process { fence, activity: Activity::Idle, revoked: false, admit: None }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.activity == Activity::Idle
    }

    pub(super) fn is_busy(&self) -> bool {
        self.activity == Activity::Busy
    }

    /// Bytes are about to be sent to the server.
    pub(super) fn begin_forwarding(&mut self) {
        if !self.is_busy() {
            self.activity = Activity::Busy;
            self.fence.set_activity(Activity::Busy);
        }
    }

    /// The fence has recorded that a write begins: it counts the process as busy.
    pub(super) fn write_begun(&mut self) {
        self.activity = Activity::Busy;
    }

    /// Reports the activity to the fence if it has changed. Revoked admissions are released as soon as nothing runs.
    pub(super) fn report(&mut self, activity: Activity, host: &impl Host) {
        if activity == self.activity {
            return;
        }
        self.activity = activity;
        self.fence.set_activity(activity);
        // Otherwise a client that never pauses between statements would reach the limit for a transaction.
        if activity == Activity::Idle && self.fence.is_full() {
            host.release();
        }
        if self.revoked && activity != Activity::Busy {
            self.revoked = activity != Activity::Idle;
            host.release();
        }
    }

    /// A newer token has revoked an admission.
    pub(super) fn revoke(&mut self) {
        self.revoked = true;
    }

    /// An Admit begins.
    pub(super) fn begin_admit(&mut self, resource: String, stands_alone: bool) {
        self.admit = Some(Admit { resource, is_abandoned: false, stands_alone });
    }

    /// The Admit that is under way.
    pub(super) fn admit(&self) -> Option<&Admit> {
        self.admit.as_ref()
    }

    pub(super) fn admit_mut(&mut self) -> Option<&mut Admit> {
        self.admit.as_mut()
    }

    /// The client has received another answer. The Admit continues.
    pub(super) fn abandon_admit(&mut self) {
        self.admit.iter_mut().for_each(|admit| admit.is_abandoned = true);
    }

    /// The Admit has ended. Returns true if it was abandoned.
    pub(super) fn end_admit(&mut self) -> bool {
        self.admit.take().is_some_and(|admit| admit.is_abandoned)
    }

    /// Returns true while an abandoned Admit is under way.
    pub(super) fn has_abandoned_admit(&self) -> bool {
        self.admit.as_ref().is_some_and(|admit| admit.is_abandoned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::host;
    use fencegate_fence::session::IdentityError;
    use std::sync::atomic::Ordering::Relaxed;

    fn process() -> Process {
        Process::new(Arc::new(SessionFence::new(Err(IdentityError::NoAnswer))))
    }

    #[test]
    fn revoked_admissions_are_released_once_no_statement_runs() {
        let (mut process, host) = (process(), host());
        let releases = || host.released.load(Relaxed);
        process.begin_forwarding();
        assert!(process.is_busy() && process.fence.activity() == Activity::Busy);
        process.revoke();
        process.report(Activity::Busy, &host);
        assert_eq!(releases(), 0, "a statement may be running");
        process.report(Activity::Waiting, &host);
        process.report(Activity::Idle, &host);
        assert_eq!(releases(), 2, "in the transaction, and after it");
        process.report(Activity::Waiting, &host);
        assert_eq!(releases(), 2, "no revocation is left");
    }

    #[test]
    fn an_abandoned_admit_counts_until_it_ends() {
        let mut process = process();
        process.abandon_admit();
        assert!(!process.has_abandoned_admit(), "no Admit is pending");
        process.begin_admit("scheduler".to_owned(), false);
        assert!(!process.has_abandoned_admit());
        process.abandon_admit();
        assert!(process.has_abandoned_admit() && process.end_admit());
        assert!(!process.has_abandoned_admit() && !process.end_admit());
    }
}
