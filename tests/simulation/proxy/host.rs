//! The state of the proxy that a session sees, and the operations that it requests.

use super::Proxy;
use crate::world::{Chances, pass};
use fencegate_fence::Claim;
use fencegate_fence::session::{Epoch, SessionFence, Token};
use fencegate_policy::{PolicySet, Resource};
use fencegate_session::host::{CatalogRequest, CatalogView, Changes};
use fencegate_session::judge::{Need, PassedWrite};
use fencegate_session::parameter::ParameterValue;
use fencegate_session::pending_definitions::PendingDefinitions;
use fencegate_session::rejection::Rejection;
use fencegate_session::task::{ParsePermit, Room};
use fencegate_session::{Done, Host, Task};
use fencegate_statement::{Analysis, Cache, Lexing, Statement};
use fencegate_wire::client_error::ClientError;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The effects of most texts depend on nothing else, so all histories share them.
static CACHE: LazyLock<Cache> = LazyLock::new(Cache::default);

/// The state of the proxy that a session sees.
pub(super) struct Hosting {
    pub(super) proxy: Arc<Proxy>,
    number: u64,
    policies: Arc<PolicySet>,
    receiver: watch::Receiver<Arc<PolicySet>>,
    fence: Arc<SessionFence>,
    /// Draws the texts that need a permit, and how long the session waits for it.
    chances: Chances,
}

impl Hosting {
    pub(super) fn new(proxy: &Arc<Proxy>, fence: Arc<SessionFence>) -> Hosting {
        Hosting {
            policies: proxy.policies.borrow().clone(),
            receiver: proxy.policies.subscribe(),
            number: 1 + proxy.begun.fetch_add(1, Ordering::Relaxed),
            proxy: proxy.clone(),
            fence,
            chances: Chances::new(&proxy.world),
        }
    }

    pub(super) fn perform(&self, task: Task) -> (JoinHandle<Done>, Arc<()>) {
        let (downstream, wanted) = (self.proxy.downstream.clone(), Arc::new(()));
        let handle = match task {
            Task::Admit(needs) => {
                let admitted = downstream.admit(needs, &self.fence, Arc::downgrade(&wanted), |_| ());
                tokio::spawn(Box::pin(async move { Done::Admit(admitted.await) }))
            }
            Task::CatchUp(of, within) => tokio::spawn(async move {
                timeout(within, downstream.catch_up_with(&of)).await.ok();
                Done::Tried
            }),
            Task::CheckOwner(..) => tokio::spawn(async { Done::CheckedOwner(HashSet::new()) }),
            Task::VacateDatabase(..) => tokio::spawn(async { Done::VacatedDatabase }),
            Task::ParsePermit { out_of_process } => {
                let mut dice = self.chances.next();
                tokio::spawn(async move {
                    let most = if dice.chance(50) { 3 } else { 60 };
                    pass(&mut dice, most).await;
                    Done::ParsePermit(dice.chance(90).then(|| ParsePermit::new((), out_of_process)))
                })
            }
            Task::Room { .. } => tokio::spawn(async { Done::Room(None) }),
        };
        (handle, wanted)
    }
}

impl Host for Hosting {
    fn user(&self) -> &str {
        "app"
    }

    fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    fn adopt_policies(&mut self) -> bool {
        if self.receiver.has_changed().unwrap_or(false) {
            self.policies = self.receiver.borrow_and_update().clone();
        }
        false
    }

    fn is_fenced(&self) -> bool {
        true
    }

    fn policies(&self) -> &PolicySet {
        &self.policies
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        self.proxy.downstream.fence.known_stale(resource, token)
    }

    fn release(&self) {
        let (database, fence) = (self.proxy.downstream.fence.clone(), self.fence.clone());
        tokio::spawn(async move { database.release(&fence).await });
    }

    fn catalog(&self, wanted: Option<&CatalogRequest>) -> CatalogView {
        self.proxy.downstream.catalog(wanted)
    }

    fn changes(&self) -> Changes {
        self.proxy.downstream.changes()
    }

    fn is_unread(&self, wanted: &CatalogRequest) -> bool {
        self.proxy.downstream.is_unread(wanted)
    }

    fn forget_catalog(&self) {
        self.proxy.downstream.forget_catalog();
    }

    fn catalog_changed(&self) {
        let downstream = self.proxy.downstream.clone();
        downstream.forget_catalog();
        tokio::spawn(async move {
            downstream.fence.announce_catalog().await;
            downstream.read_soon();
        });
    }

    fn note_harmless_change(&self, doubts: u64) -> bool {
        self.proxy.downstream.note_harmless_change(doubts)
    }

    fn forget_database(&self, _name: &str) {}

    fn definitions_of_others(&self) -> Vec<Arc<PendingDefinitions>> {
        self.proxy.downstream.definitions.except(self.number)
    }

    fn publish_definitions(&self, pending: &PendingDefinitions) {
        self.proxy.downstream.definitions.publish(self.number, pending);
    }

    fn withdraw_definitions(&self) {
        let downstream = &self.proxy.downstream;
        downstream.definitions.withdraw(self.number, downstream.changes().doubts);
    }

    fn read(
        &self,
        text: &[u8],
        lexing: Lexing,
        with_rows: bool,
        permit: Option<ParsePermit>,
    ) -> Result<Analysis, Task> {
        let permits = self.proxy.world.plan.permits;
        if permits > 0 && !permit.as_ref().is_some_and(|permit| permit.out_of_process) {
            // A text may need a second permit, to be parsed in another process.
            let out_of_process = permit.is_some();
            if self.chances.next().chance(permits) {
                return Err(Task::ParsePermit { out_of_process });
            }
        }
        let cache = if text.contains(&b'\\') { &self.proxy.odd_texts } else { &*CACHE };
        Ok(cache.get(text, lexing, with_rows).expect("all statements are short"))
    }

    fn room(&self, _bytes: usize, _there: usize, _behind: bool) -> Option<Room> {
        None
    }

    fn without_delaying_others<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    fn note_query(&self) {}

    fn note_presented(&self, _value: &ParameterValue) {}

    fn note_application_name(&self, _name: &str) {}

    fn note_admitted(&mut self, _resource: &Resource) {}

    fn note_rejected(&self, rejection: &Rejection, _statement: &Statement) {
        self.proxy.world.say(|| format!("{} rejects: {}", self.proxy.name, rejection.text().message));
    }

    fn note_passed(&self, _passed: Vec<PassedWrite>) {}

    fn observe(&self, _need: Need, _claim: Claim) {}
}
