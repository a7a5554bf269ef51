//! A host with scripted answers that records notifications.

use crate::host::{CatalogRequest, CatalogView, Changes, Host};
use crate::judge::{Need, PassedWrite};
use crate::parameter::ParameterValue;
use crate::pending_definitions::PendingDefinitions;
use crate::rejection::Rejection;
use crate::task::{ParsePermit, Room, Task};
use fencegate_catalog::Catalog;
use fencegate_fence::Claim;
use fencegate_fence::session::{Epoch, SessionFence, Token};
use fencegate_policy::{PolicySet, Resource};
use fencegate_statement::{Analysis, Lexing, Statement, analyze, analyze_rows};
use fencegate_wire::client_error::ClientError;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

thread_local! {
    /// Number of long computations by sessions of this thread.
    pub static WITHOUT_DELAYING_OTHERS: Cell<usize> = const { Cell::new(0) };
}

/// A proxy with one session and a known catalog.
pub struct OneSession {
    pub policies: PolicySet,
    pub catalog: Arc<Catalog>,
    pub fence: Arc<SessionFence>,
    pub released: AtomicUsize,
    /// Number of lookups that still find pending definitions of another session.
    pub looks: AtomicUsize,
    /// Statements are judged.
    pub fenced: bool,
    /// Statements are judged from the next step on.
    pub takes_up: bool,
    /// The last catalog request was for a statement's information.
    pub wanted: AtomicBool,
    /// The last catalog request included the dependents that CASCADE removes.
    pub wanted_cascades: AtomicBool,
    /// The catalog has unread changes.
    pub is_unread: bool,
    /// Number of observed catalog changes that may concern fenced tables.
    pub doubts: AtomicU64,
    /// Notifications in order.
    pub notifications: Arc<Mutex<Vec<String>>>,
}

impl OneSession {
    pub fn new(policies: PolicySet, catalog: Arc<Catalog>, fence: Arc<SessionFence>) -> Self {
        let (released, looks) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (fenced, takes_up, wanted) = (true, false, AtomicBool::new(false));
        let (wanted_cascades, is_unread) = (AtomicBool::new(false), false);
        let (doubts, notifications) = (AtomicU64::new(0), Arc::default());
        OneSession {
            policies,
            catalog,
            fence,
            released,
            looks,
            fenced,
            takes_up,
            wanted,
            wanted_cascades,
            is_unread,
            doubts,
            notifications,
        }
    }

    /// Notifications since the last call.
    pub fn notifications(&self) -> String {
        std::mem::take(&mut *self.notifications.lock()).join(", ")
    }

    fn notify(&self, what: impl Into<String>) {
        self.notifications.lock().push(what.into());
    }
}

impl Host for OneSession {
    fn user(&self) -> &str {
        "postgres"
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    fn adopt_policies(&mut self) -> bool {
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

    fn catalog(&self, wanted: Option<&CatalogRequest>) -> CatalogView {
        self.wanted.store(wanted.is_some(), Relaxed);
        self.wanted_cascades.store(wanted.is_some_and(|wanted| wanted.cascades), Relaxed);
        let doubts = self.doubts.load(Relaxed);
        CatalogView { catalog: self.catalog.clone(), is_current: true, doubts, ..CatalogView::default() }
    }

    fn changes(&self) -> Changes {
        Changes::default()
    }

    fn is_unread(&self, _: &CatalogRequest) -> bool {
        self.is_unread
    }

    fn forget_catalog(&self) {
        self.notify("forget");
    }

    fn catalog_changed(&self) {
        self.notify("changed");
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        let is_noted = doubts == self.doubts.load(Relaxed);
        if is_noted {
            self.notify("harmless");
        }
        is_noted
    }

    fn forget_database(&self, name: &str) {
        self.notify(format!("database {name}"));
    }

    fn definitions_of_others(&self) -> Vec<Arc<PendingDefinitions>> {
        let is_defined = self.looks.fetch_update(Relaxed, Relaxed, |looks| looks.checked_sub(1)).is_ok();
        is_defined.then(|| Arc::new(PendingDefinitions::everything())).into_iter().collect()
    }

    fn publish_definitions(&self, _: &PendingDefinitions) {
        self.notify("publish");
    }

    fn withdraw_definitions(&self) {
        self.notify("withdraw");
    }

    fn read(&self, text: &[u8], lexing: Lexing, with_rows: bool, _: Option<ParsePermit>) -> Result<Analysis, Task> {
        Ok(Arc::new(if with_rows { analyze_rows(text, lexing) } else { analyze(text, lexing) }))
    }

    fn room(&self, _: usize, _: usize, _: bool) -> Option<Room> {
        None
    }

    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
        WITHOUT_DELAYING_OTHERS.set(WITHOUT_DELAYING_OTHERS.get() + 1);
        work()
    }

    fn note_query(&self) {
        self.notify("query");
    }

    fn note_presented(&self, _: &ParameterValue) {}

    fn note_application_name(&self, _: &str) {}

    fn note_admitted(&mut self, _: &Resource) {}

    fn note_rejected(&self, rejection: &Rejection, _: &Statement) {
        self.notify(format!("rejected {}", rejection.kind().label()));
    }

    fn note_passed(&self, passed: Vec<PassedWrite>) {
        if !passed.is_empty() {
            self.notify(format!("passed {}", passed.len()));
        }
    }

    fn observe(&self, need: Need, _: Claim) {
        self.notify(format!("observed {}={}", need.resource.name, need.token));
    }
}
