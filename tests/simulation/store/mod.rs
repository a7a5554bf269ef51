//! The store as one proxy reaches it: over a network that is slow, breaks, and may deliver requests after their callers
//! have given up.
//!
//! Owns the faults of control connections. Each operation takes effect at one moment or never. A fault is reported as
//! PostgreSQL's own store reports it.

mod delayed_listener;
mod gate;

pub use delayed_listener::DelayedListener;
pub use gate::{Gate, State};

use super::server::qualified;
use super::world::{Chances, Dice, World, moment, pass};
use async_trait::async_trait;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use fencegate_fence::session::{Epoch, Identity, Token};
use fencegate_fence::store::{
    AdmissionRow, EpochRow, Found, Holder, Key, Marked, Report, ResetReport, Store, StoreError,
};
use fencegate_fence::{Admission, Blocker, Bounded, Enforcement, Fences, First, RequiredPrivilege, Role, StoredLease};
use fencegate_policy::Resource;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};
pub struct Reached {
    world: Arc<World>,
    inner: Arc<dyn Store>,
    chances: Chances,
    proxy: Arc<Gate>,
}

/// The fate of an operation.
enum Fate {
    Done,
    /// The request never arrives.
    Lost,
    /// The operation is executed, and its reply is lost.
    Unanswered,
    /// The request arrives after its caller has received an error.
    Late(Duration),
}

impl Reached {
    pub fn new(world: Arc<World>, inner: Arc<dyn Store>, proxy: Arc<Gate>) -> Arc<Self> {
        let chances = Chances::new(&world);
        Arc::new(Reached { world, inner, chances, proxy })
    }

    /// Draws the fate of an operation, and sends it to the server.
    async fn sent(&self, dice: &mut Dice) -> Fate {
        self.proxy.runs().await;
        self.takes_a_moment(dice).await;
        self.world.server.time_passes();
        if !self.world.fault(dice, self.world.plan.control) {
            return Fate::Done;
        }
        match dice.below(3) {
            0 => Fate::Lost,
            1 => Fate::Unanswered,
            _ => Fate::Late(Duration::from_millis(dice.below(4000) as u64)),
        }
    }

    /// The delay of the reply. Some replies are so late that much has changed in the meantime.
    async fn answered(&self, dice: &mut Dice) {
        self.takes_a_moment(dice).await;
        if self.world.fault(dice, self.world.plan.control) {
            pass(dice, 800).await;
        }
        self.proxy.runs().await;
    }

    /// The delay of the request, and of the reply.
    async fn takes_a_moment(&self, dice: &mut Dice) {
        moment(dice).await;
        let lag = self.world.plan.lag;
        if lag > 0 && dice.chance(50) && !self.world.is_calm() {
            pass(dice, lag).await;
        }
    }

    /// For operations that only read: they may fail.
    async fn look<T>(&self, read: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut dice = self.chances.next();
        match self.sent(&mut dice).await {
            Fate::Done => {
                let read = read.await;
                self.answered(&mut dice).await;
                read
            }
            _ => {
                self.answered(&mut dice).await;
                Err(broken())
            }
        }
    }
}

fn broken() -> StoreError {
    StoreError::TimedOut(Duration::from_secs(5))
}

impl fmt::Debug for Reached {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the store in memory, over a network")
    }
}

/// An operation that changes the database, with its arguments, which are kept for a late arrival.
macro_rules! change {
    ($self:ident, $inner:ident => $done:expr) => {{
        let mut dice = $self.chances.next();
        let fate = $self.sent(&mut dice).await;
        let $inner = $self.inner.clone();
        let done = async move { $done };
        let answer = match fate {
            Fate::Done => done.await,
            Fate::Lost => Err(broken()),
            Fate::Unanswered => done.await.and(Err(broken())),
            Fate::Late(by) => {
                tokio::spawn(async move {
                    sleep(by).await;
                    done.await.ok();
                });
                sleep(Duration::from_millis(dice.below(200) as u64)).await;
                Err(broken())
            }
        };
        $self.answered(&mut dice).await;
        answer
    }};
}

#[async_trait]
impl Store for Reached {
    async fn admit(&self, identity: &Identity, of: &Resource, token: Token, loaded: i64) -> Result<Report, StoreError> {
        let (identity, of) = (identity.clone(), of.clone());
        change!(self, inner => inner.admit(&identity, &of, token, loaded).await)
    }

    async fn admit_current(
        &self,
        identity: &Identity,
        wanted: &[(&Resource, Token)],
    ) -> Result<Vec<(AdmissionRow, bool)>, StoreError> {
        let wanted: Vec<(Resource, Token)> = wanted.iter().map(|(of, token)| ((*of).clone(), *token)).collect();
        let identity = identity.clone();
        change!(self, inner => {
            inner.admit_current(&identity, &wanted.iter().map(|(of, token)| (of, *token)).collect::<Vec<_>>()).await
        })
    }

    async fn admit_first(&self, firsts: &[&First]) -> Result<Vec<AdmissionRow>, StoreError> {
        let (firsts, world): (Vec<First>, _) = (firsts.iter().copied().cloned().collect(), self.world.clone());
        change!(self, inner => {
            let made = inner.admit_first(&firsts.iter().collect::<Vec<_>>()).await;
            made.iter().flatten().for_each(|row| world.judge.raised(&row.resource, row.epoch.token));
            world.say(|| format!("first tokens {firsts:?}: {made:?}"));
            made
        })
    }

    async fn publish(
        &self,
        of: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Result<Option<Epoch>, StoreError> {
        let (of, world) = (of.clone(), self.world.clone());
        change!(self, inner => {
            let before = inner.epochs(&[&of.name]).await?.pop().map(|row| row.epoch);
            let published = inner.publish(&of, target, known, loaded).await;
            if before != Some(target) && matches!(published, Ok(Some(now)) if now == target) {
                world.judge.raised(&of.name, target.token);
            }
            world.say(|| format!("publish {} of {}: {published:?}", target.token, of.name));
            published
        })
    }

    async fn mark(&self, of: &Resource, epoch: Epoch) -> Result<Marked, StoreError> {
        let (of, world) = (of.clone(), self.world.clone());
        change!(self, inner => {
            let marked = inner.mark(&of, epoch).await;
            world.say(|| format!("mark {epoch:?} of {}: {marked:?}", of.name));
            marked
        })
    }

    async fn reset(
        &self,
        of: &Resource,
        known: Epoch,
        token: Token,
        role: &str,
        force: bool,
    ) -> Result<ResetReport, StoreError> {
        let (of, role, world) = (of.clone(), role.to_owned(), self.world.clone());
        change!(self, inner => {
            let reset = inner.reset(&of, known, token, &role, force).await;
            world.say(|| format!("reset {} from {known:?} to {token}: {reset:?}", of.name));
            reset
        })
    }

    async fn holders(&self, resource: &str, bound: Epoch) -> Result<Vec<Holder>, StoreError> {
        self.look(self.inner.holders(resource, bound)).await
    }

    async fn delete_dead(&self, only: Option<(&str, Epoch)>) -> Result<Vec<(Key, Token)>, StoreError> {
        let only = only.map(|(resource, bound)| (resource.to_owned(), bound));
        change!(self, inner => inner.delete_dead(only.as_ref().map(|(it, bound)| (it.as_str(), *bound))).await)
    }

    async fn terminate(&self, processes: &[Key], resource: &str, bound: Epoch) -> Result<(), StoreError> {
        let (processes, resource, world) = (processes.to_vec(), resource.to_owned(), self.world.clone());
        let dice = Mutex::new(self.chances.next());
        change!(self, inner => {
            let is_due = inner.epochs(&[&resource]).await?.first().is_some_and(|row| row.epoch >= bound);
            let holders = inner.holders(&resource, bound).await?;
            inner.terminate(&processes, &resource, bound).await?;
            let due: Vec<Key> = holders.iter().map(|it| it.row.key()).filter(|it| processes.contains(it)).collect();
            if is_due {
                world.say(|| format!("terminate {due:?}"));
                world.server.tell_to_end(&due, || deafness(&world, &mut dice.lock().unwrap()));
            }
            Ok(())
        })
    }

    async fn delete(&self, rows: &[(&AdmissionRow, &str)]) -> Result<Vec<AdmissionRow>, StoreError> {
        let rows: Vec<_> = rows.iter().map(|(row, family)| ((*row).clone(), (*family).to_owned())).collect();
        let world = self.world.clone();
        change!(self, inner => {
            let rows: Vec<_> = rows.iter().map(|(row, family)| (row, family.as_str())).collect();
            let deleted = inner.delete(&rows).await;
            world.say(|| format!("delete admissions: {deleted:?}"));
            deleted
        })
    }

    async fn lockers(&self, resource: &Resource, pids: &[i32]) -> Result<HashSet<i32>, StoreError> {
        self.look(self.inner.lockers(resource, pids)).await
    }

    async fn guarded_write(&self, resource: &Resource, pid: i32) -> Result<Option<Epoch>, StoreError> {
        self.look(self.inner.guarded_write(resource, pid)).await
    }

    async fn admissions_of(&self, identity: &Identity) -> Result<Vec<AdmissionRow>, StoreError> {
        self.look(self.inner.admissions_of(identity)).await
    }

    async fn epochs(&self, resources: &[&str]) -> Result<Vec<EpochRow>, StoreError> {
        self.look(self.inner.epochs(resources)).await
    }

    async fn epochs_above_admissions(&self) -> Result<Vec<(String, Epoch)>, StoreError> {
        self.look(self.inner.epochs_above_admissions()).await
    }

    async fn leases(&self, elections: &[&str]) -> Result<Vec<StoredLease>, StoreError> {
        self.look(self.inner.leases(elections)).await
    }

    async fn all_leases(&self, most: usize) -> Result<Bounded<StoredLease>, StoreError> {
        self.look(self.inner.all_leases(most)).await
    }

    async fn now(&self) -> Result<i64, StoreError> {
        self.look(self.inner.now()).await
    }

    async fn record_policy(&self, of: &Resource, loaded: i64) -> Result<(), StoreError> {
        let (of, world) = (of.clone(), self.world.clone());
        change!(self, inner => {
            let recorded = inner.record_policy(&of, loaded).await;
            world.say(|| format!("record policies {} of {}, loaded at {loaded}: {recorded:?}", &of.fingerprint[..4], of.name));
            recorded
        })
    }

    async fn superseded(&self, resources: &[Arc<Resource>], loaded: i64) -> Result<Vec<String>, StoreError> {
        self.look(self.inner.superseded(resources, loaded)).await
    }

    async fn announce_enforced(&self, fingerprints: &[String]) -> Result<(), StoreError> {
        let fingerprints = fingerprints.to_vec();
        change!(self, inner => inner.announce_enforced(&fingerprints).await)
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.look(self.inner.leave()).await
    }

    async fn enforcement(&self, resources: &[Arc<Resource>]) -> Result<Enforcement, StoreError> {
        self.look(self.inner.enforcement(resources)).await
    }

    async fn has_other_sessions(&self, own: &[Key]) -> Result<bool, StoreError> {
        self.look(self.inner.has_other_sessions(own)).await
    }

    async fn open_transactions(&self) -> Result<HashSet<String>, StoreError> {
        self.look(self.inner.open_transactions()).await
    }

    async fn denied(
        &self,
        resource: &Resource,
        privileges: &[RequiredPrivilege],
        role: &Role,
    ) -> Result<Option<String>, StoreError> {
        self.look(self.inner.denied(resource, privileges, role)).await
    }

    async fn admissions(&self, most: usize) -> Result<Bounded<Admission>, StoreError> {
        self.look(self.inner.admissions(most)).await
    }

    async fn fences(&self, resources: &[Arc<Resource>], most_keys: usize) -> Result<Fences, StoreError> {
        self.look(self.inner.fences(resources, most_keys)).await
    }

    /// The tables, and the views that lead to them.
    async fn catalog(&self, _fences: Fenced<'_>, _temporary: Option<&str>) -> Result<Catalog, StoreError> {
        let read = async {
            let tables = self.world.plan.fenced().iter().map(|table| (qualified(*table), table.is_keyed()));
            let views = self.world.server.views().into_iter().filter(|(_, view)| view.table.is_fenced());
            let views = views.map(|(name, view)| (format!("v{name}"), qualified(view.table)));
            Ok(Catalog::with_views(tables, views))
        };
        self.look(async { self.inner.beat().await.and(read.await) }).await
    }

    async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.inner.dependencies(fences).await
    }

    async fn announce_catalog(&self) -> Result<(), StoreError> {
        self.look(self.inner.announce_catalog()).await
    }

    async fn notify_process(&self, identity: &Identity) -> Result<(), StoreError> {
        self.look(self.inner.notify_process(identity)).await
    }

    async fn beat(&self) -> Result<f64, StoreError> {
        self.look(self.inner.beat()).await
    }

    async fn table_locks(&self) -> Result<Vec<Blocker>, StoreError> {
        self.inner.table_locks().await
    }

    async fn foreign_databases(&self, role: &Role, databases: &[String]) -> Result<HashSet<String>, StoreError> {
        self.look(self.inner.foreign_databases(role, databases)).await
    }

    async fn may_drop_database(&self, role: &Role, by_force: bool) -> Result<bool, StoreError> {
        self.look(self.inner.may_drop_database(role, by_force)).await
    }

    fn found(&self) -> Found {
        self.inner.found()
    }

    fn proxy_connection(&self) -> u64 {
        self.inner.proxy_connection()
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    fn keep_closed(&self, until: Option<Instant>) {
        self.inner.keep_closed(until);
    }

    fn note_login(&self) {
        self.inner.note_login();
    }

    async fn forget_failure(&self) {
        self.inner.forget_failure().await;
    }

    fn close_outdated(&self) {
        self.inner.close_outdated();
    }

    async fn close(&self, wait: bool) {
        self.proxy.runs().await;
        self.inner.close(wait).await;
    }
}

/// Time for which a terminated process may continue.
fn deafness(world: &World, dice: &mut Dice) -> Duration {
    let most = if world.fault(dice, world.plan.slow_ends) { 1500 } else { 3 };
    Duration::from_millis(dice.below(most) as u64)
}
