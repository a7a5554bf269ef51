//! The policies in a database, as this proxy knows them: in force, superseded by another proxy, or enforced. Also whether a
//! fenced table exists.
//!
//! Owns the comparison of resources with the policies in force. Must never query the database.

use fencegate_policy::Resource;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A proxy repeats its announcement after this time, so that it counts as recently seen if it is lost.
const REPEATED: Duration = Duration::from_secs(60);

/// The policies of one database.
#[derive(Debug)]
pub(super) struct Policies {
    in_force: RwLock<InForce>,
    /// Resources for which another proxy has loaded different policies later. No session is admitted to them until a reload.
    superseded: Mutex<BTreeSet<String>>,
    enforced: Mutex<Enforced>,
    /// At least one fenced table exists, according to the last reading of the catalog.
    has_fenced_tables: AtomicBool,
}

/// The policies in force.
#[derive(Debug)]
struct InForce {
    /// The resources that a notification's name may mean.
    resources: Vec<Arc<Resource>>,
    /// The fingerprints of `resources`, for fast lookups.
    fingerprints: HashSet<String>,
    loaded: Load,
}

/// A load of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) at: Instant,
    /// The time of the load by the clock of the database, from [`super::store::Store::now`]; 0 until it was queried.
    pub(super) there: i64,
}

/// The fences that this process enforces, and its last announcement of them.
#[derive(Debug, Default)]
struct Enforced {
    /// By fingerprint.
    fences: BTreeSet<String>,
    /// The last announcement, its connection and its time; `None` before the first.
    announced: Option<(u64, BTreeSet<String>, tokio::time::Instant)>,
}

impl InForce {
    fn of(resources: &[Arc<Resource>], loaded: Load) -> Self {
        let fingerprints = resources.iter().map(|resource| resource.fingerprint.clone()).collect();
        InForce { resources: resources.to_vec(), fingerprints, loaded }
    }
}

impl Default for Policies {
    /// No policies.
    fn default() -> Self {
        Policies {
            in_force: RwLock::new(InForce::of(&[], Load { at: Instant::now(), there: 0 })),
            superseded: Mutex::default(),
            enforced: Mutex::default(),
            has_fenced_tables: AtomicBool::new(false),
        }
    }
}

impl Policies {
    /// Puts the resources in force. Forgets that policies of an earlier load were superseded, and fences that are no longer in
    /// force.
    pub(super) fn put(&self, resources: &[Arc<Resource>], loaded: Instant) {
        let mut in_force = self.in_force.write();
        // Policies that are recorded again keep their load time.
        let there = if in_force.loaded.at == loaded { in_force.loaded.there } else { 0 };
        if in_force.loaded.at != loaded {
            self.superseded.lock().clear();
        }
        *in_force = InForce::of(resources, Load { at: loaded, there });
        drop(in_force);
        let in_force: HashSet<&str> = resources.iter().map(|it| it.fingerprint.as_str()).collect();
        self.enforced.lock().fences.retain(|fence| in_force.contains(fence.as_str()));
    }

    /// Returns true if a resource is in force.
    pub(super) fn has_any(&self) -> bool {
        !self.in_force.read().resources.is_empty()
    }

    /// Returns true if the resource is in force with exactly this policy.
    pub(super) fn is_in_force(&self, resource: &Resource) -> bool {
        self.in_force.read().fingerprints.contains(&resource.fingerprint)
    }

    /// The resource in force with this name, which may be that of a key. Resources of keys are created on each call, because
    /// their number is unbounded.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Resource>> {
        self.in_force.read().resources.iter().find_map(|resource| resource.called(name))
    }

    /// The resources in force that are not keyed, and their load.
    pub(super) fn plain(&self) -> (Vec<Arc<Resource>>, Load) {
        let in_force = self.in_force.read();
        let plain = in_force.resources.iter().filter(|resource| resource.keyed.is_none());
        (plain.cloned().collect(), in_force.loaded)
    }

    /// The names of the resources in force that are not keyed.
    pub(super) fn plain_names(&self) -> Vec<String> {
        let in_force = self.in_force.read();
        let plain = in_force.resources.iter().filter(|resource| resource.keyed.is_none());
        plain.map(|resource| resource.name.clone()).collect()
    }

    /// The resources with a lease, without those of keys.
    pub(super) fn leased(&self) -> Vec<Arc<Resource>> {
        self.in_force.read().resources.iter().filter(|it| it.lease().is_some()).cloned().collect()
    }

    /// Returns true if `is_such` holds for a resource in force.
    pub(super) fn has_such(&self, is_such: fn(&Resource) -> bool) -> bool {
        self.in_force.read().resources.iter().any(|it| is_such(it))
    }

    /// The load of the policies in force.
    pub(super) fn load(&self) -> Load {
        self.in_force.read().loaded
    }

    /// The time at which the policies in force were loaded, by the database's clock, because the clocks of proxies may differ.
    /// 0, which counts as oldest, if the resource is not in force or the time is not known yet.
    pub(super) fn loaded(&self, resource: &Resource) -> i64 {
        if self.is_in_force(resource) { self.load().there } else { 0 }
    }

    /// Records when the policies were loaded by the database's clock, if they are those of that load and the time is not known.
    pub(super) fn set_loaded_there(&self, at: Instant, there: i64) {
        let mut in_force = self.in_force.write();
        if in_force.loaded == (Load { at, there: 0 }) {
            in_force.loaded.there = there;
        }
    }

    /// Records whether the resource's policies are superseded. Returns true if they are, and were not before. Ignores resources
    /// that are not in force.
    pub(super) fn supersede(&self, resource: &Resource, is_superseded: bool) -> bool {
        if !self.is_in_force(resource) {
            return false;
        }
        let name = resource.lock_name();
        let mut superseded = self.superseded.lock();
        if is_superseded {
            return superseded.insert(name.to_owned());
        }
        superseded.remove(name);
        false
    }

    /// The resources for which another proxy is known to have recorded policies that were loaded later. Keyed resources appear
    /// under the name of their lock.
    pub(super) fn superseded(&self) -> BTreeSet<String> {
        self.superseded.lock().clone()
    }

    /// Records that the fence counts as enforced here.
    pub(super) fn enforce(&self, resource: &Resource) {
        self.enforced.lock().fences.insert(resource.fingerprint.clone());
    }

    /// The fingerprints of the fences that count as enforced here.
    pub(super) fn enforced(&self) -> BTreeSet<String> {
        self.enforced.lock().fences.clone()
    }

    /// Returns true if the same was announced over this connection recently.
    pub(super) fn is_announced(&self, connection: u64) -> bool {
        let known = self.enforced.lock();
        connection != 0
            && known.announced.as_ref().is_some_and(|(over, fences, at)| {
                *over == connection && *fences == known.fences && at.elapsed() < REPEATED
            })
    }

    /// Records that these fences were announced over this connection just now.
    pub(super) fn announced(&self, connection: u64, fences: BTreeSet<String>) {
        self.enforced.lock().announced = Some((connection, fences, tokio::time::Instant::now()));
    }

    /// Returns true if at least one fenced table exists, according to the last reading of the catalog.
    pub(super) fn has_fenced_tables(&self) -> bool {
        self.has_fenced_tables.load(Ordering::Relaxed)
    }

    pub(super) fn set_fenced_tables(&self, has_fenced_tables: bool) {
        self.has_fenced_tables.store(has_fenced_tables, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(names: &[&str]) -> Vec<Arc<Resource>> {
        let resource = |name: &&str| format!("  - {{name: {name}, tables: [public.{name}]}}\n");
        let text = format!("version: 1\nresources:\n{}", names.iter().map(resource).collect::<String>());
        fencegate_policy::join([("a.yaml".into(), Ok(text.into()))]).unwrap().resources
    }

    #[test]
    fn the_load_time_belongs_to_one_load() {
        let (policies, both) = (Policies::default(), resources(&["one", "two"]));
        let (first, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        policies.put(&both, first);
        policies.set_loaded_there(later, 8);
        assert_eq!(policies.loaded(&both[0]), 0, "the time is that of another load");
        policies.set_loaded_there(first, 7);
        policies.set_loaded_there(first, 8);
        assert_eq!(policies.loaded(&both[0]), 7, "the load time is already known");
        policies.put(&both[..1], first);
        assert_eq!((policies.loaded(&both[0]), policies.loaded(&both[1])), (7, 0), "the second policy is not in force");
        policies.put(&both, later);
        assert_eq!(policies.loaded(&both[0]), 0);
    }

    #[test]
    fn policies_are_superseded_until_the_next_load() {
        let (policies, both) = (Policies::default(), resources(&["one", "two"]));
        let load = Instant::now();
        policies.put(&both[..1], load);
        let news = [true, true, false, true].map(|it| policies.supersede(&both[0], it));
        assert_eq!(news, [true, false, false, true]);
        assert!(!policies.supersede(&both[1], true), "the policy is not in force");
        policies.put(&both, load);
        assert_eq!(policies.superseded(), BTreeSet::from(["one".to_owned()]));
        policies.put(&both, load + Duration::from_secs(1));
        assert!(policies.superseded().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_is_valid_for_its_connection_and_fences_for_a_while() {
        let (policies, one) = (Policies::default(), resources(&["one"]));
        policies.put(&one, Instant::now());
        policies.announced(1, policies.enforced());
        assert!(policies.is_announced(1) && !policies.is_announced(2) && !policies.is_announced(0));
        policies.enforce(&one[0]);
        assert!(!policies.is_announced(1), "the fences have changed");
        policies.announced(1, policies.enforced());
        tokio::time::advance(REPEATED).await;
        assert!(!policies.is_announced(1));
        policies.announced(1, policies.enforced());
        policies.put(&[], Instant::now());
        assert!(policies.enforced().is_empty() && !policies.is_announced(1));
    }
}
