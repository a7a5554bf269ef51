//! The host of the tests: it knows what they say, and keeps what it is told.

use crate::catalogue::Catalogue;
use crate::fence::Claim;
use crate::fence::session::{Epoch, SessionFence, Token};
use crate::policy::{PolicySet, Resource};
use crate::session::host::{Changes, Host, Seen, Wanted};
use crate::session::judge::{Need, PassedWrite};
use crate::session::parameter::ParameterValue;
use crate::session::rejection::Rejection;
use crate::session::suspects::Suspects;
use crate::session::task::{ParsePermit, Room, Task};
use crate::statement::{Analysis, Lexing, Statement, analyse, analyse_rows};
use crate::wire::client_error::ClientError;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

thread_local! {
    /// How often a session of this thread has worked at length.
    pub static AT_LENGTH: Cell<usize> = const { Cell::new(0) };
}

/// A proxy with one session, which knows its catalogue.
pub struct OneSession {
    pub policies: PolicySet,
    pub catalogue: Arc<Catalogue>,
    pub fence: Arc<SessionFence>,
    pub released: AtomicUsize,
    /// Another session is defining something for so many looks.
    pub looks: AtomicUsize,
    /// Statements are judged.
    pub fenced: bool,
    /// From the next step on.
    pub takes_up: bool,
    /// The catalogue was last asked for what a statement has to know of it.
    pub wanted: AtomicBool,
    /// And for what CASCADE takes.
    pub wanted_cascades: AtomicBool,
    /// Reading the catalogue may tell more.
    pub is_unread: bool,
    /// So many changes of the catalogue that may concern fenced tables were seen.
    pub doubts: AtomicU64,
    /// What it was told, in its order.
    pub told: Arc<Mutex<Vec<String>>>,
}

impl OneSession {
    pub fn new(policies: PolicySet, catalogue: Arc<Catalogue>, fence: Arc<SessionFence>) -> Self {
        let (released, looks) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (fenced, takes_up, wanted) = (true, false, AtomicBool::new(false));
        let (wanted_cascades, is_unread) = (AtomicBool::new(false), false);
        let (doubts, told) = (AtomicU64::new(0), Arc::default());
        OneSession {
            policies,
            catalogue,
            fence,
            released,
            looks,
            fenced,
            takes_up,
            wanted,
            wanted_cascades,
            is_unread,
            doubts,
            told,
        }
    }

    /// What it was told since the last call.
    pub fn told(&self) -> String {
        std::mem::take(&mut *self.told.lock()).join(", ")
    }

    fn hear(&self, what: impl Into<String>) {
        self.told.lock().push(what.into());
    }
}

impl Host for OneSession {
    fn user(&self) -> &str {
        "postgres"
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    fn take_up_policies(&mut self) -> bool {
        self.fenced |= self.takes_up;
        std::mem::take(&mut self.takes_up)
    }

    fn is_fenced(&self) -> bool {
        self.fenced
    }

    fn policies(&self) -> &PolicySet {
        &self.policies
    }

    fn known_stale(&self, _: &str, token: Token) -> Option<Epoch> {
        (token < 40).then_some(Epoch { generation: 1, token: 40 })
    }

    fn release(&self) {
        self.released.fetch_add(1, Relaxed);
    }

    fn catalogue(&self, wanted: Option<&Wanted>) -> Seen {
        self.wanted.store(wanted.is_some(), Relaxed);
        self.wanted_cascades.store(wanted.is_some_and(|wanted| wanted.cascades), Relaxed);
        let doubts = self.doubts.load(Relaxed);
        Seen { catalogue: self.catalogue.clone(), is_current: true, doubts, ..Seen::default() }
    }

    fn changes(&self) -> Changes {
        Changes::default()
    }

    fn is_unread(&self, _: &Wanted) -> bool {
        self.is_unread
    }

    fn forget_catalogue(&self) {
        self.hear("forget");
    }

    fn catalogue_changed(&self) {
        self.hear("changed");
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        let is_noted = doubts == self.doubts.load(Relaxed);
        if is_noted {
            self.hear("harmless");
        }
        is_noted
    }

    fn forget_database(&self, name: &str) {
        self.hear(format!("database {name}"));
    }

    fn suspects_of_others(&self) -> Vec<Arc<Suspects>> {
        let is_defined = self.looks.fetch_update(Relaxed, Relaxed, |looks| looks.checked_sub(1)).is_ok();
        is_defined.then(|| Arc::new(Suspects::everything())).into_iter().collect()
    }

    fn publish_suspects(&self, _: &Suspects) {
        self.hear("publish");
    }

    fn withdraw_suspects(&self) {
        self.hear("withdraw");
    }

    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, _: Option<ParsePermit>) -> Result<Analysis, Task> {
        Ok(Arc::new(if with_rows { analyse_rows(text, lexing) } else { analyse(text, lexing) }))
    }

    fn room(&self, _: usize, _: usize, _: bool) -> Option<Room> {
        None
    }

    fn at_length<R>(work: impl FnOnce() -> R) -> R {
        AT_LENGTH.set(AT_LENGTH.get() + 1);
        work()
    }

    fn note_query(&self) {
        self.hear("query");
    }

    fn note_presented(&self, _: &ParameterValue) {}

    fn note_application_name(&self, _: &str) {}

    fn note_admitted(&mut self, _: &Resource) {}

    fn note_rejected(&self, rejection: &Rejection, _: &Statement) {
        self.hear(format!("rejected {}", rejection.kind().label()));
    }

    fn note_passed(&self, passed: Vec<PassedWrite>) {
        if !passed.is_empty() {
            self.hear(format!("passed {}", passed.len()));
        }
    }

    fn observe(&self, need: Need, _: Claim) {
        self.hear(format!("observed {}={}", need.resource.name, need.token));
    }
}
