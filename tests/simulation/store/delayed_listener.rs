//! Delivers notifications to a proxy, late.

use super::Gate;
use crate::world::{Chances, World, delay, moment};
use fencegate_fence::store::Listener;
use std::fmt;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Delivers notifications to a proxy, late.
pub struct DelayedListener {
    world: Arc<World>,
    /// The proxy's listener.
    name: String,
    inner: Arc<dyn Listener>,
    chances: Chances,
    proxy: Arc<Gate>,
}

impl DelayedListener {
    pub fn new(world: Arc<World>, name: &str, inner: Arc<dyn Listener>, proxy: Arc<Gate>) -> Arc<Self> {
        let chances = Chances::new(&world);
        Arc::new(DelayedListener { world, name: name.to_owned(), inner, chances, proxy })
    }

    fn later(&self, tell: impl FnOnce(&dyn Listener) + Send + 'static) {
        let (inner, proxy) = (self.inner.clone(), self.proxy.clone());
        let due = if self.world.is_calm() { None } else { delay(&mut self.chances.next()) };
        tokio::spawn(async move {
            if let Some(due) = due {
                sleep_until(due).await;
            }
            proxy.runs().await;
            tell(&*inner);
        });
    }
}

impl fmt::Debug for DelayedListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a listener, over a network")
    }
}

impl Listener for DelayedListener {
    fn listens(&self, connection: u64) {
        self.inner.listens(connection);
        let mut dice = self.chances.next();
        if self.world.fault(&mut dice, self.world.plan.listening) {
            let (world, name) = (self.world.clone(), self.name.clone());
            tokio::spawn(async move {
                moment(&mut dice).await;
                world.server.store.lose_connection(&name);
            });
        }
    }

    fn lost(&self, connection: u64) {
        self.inner.lost(connection);
    }

    fn announced(&self, resource: &str) {
        let resource = resource.to_owned();
        self.later(move |inner| inner.announced(&resource));
    }

    fn lease_changed(&self, election: &str) {
        let election = election.to_owned();
        self.later(move |inner| inner.lease_changed(&election));
    }

    fn catalog_changed(&self) {
        let (world, name, announced) = (self.world.clone(), self.name.clone(), Instant::now());
        self.later(move |inner| {
            inner.catalog_changed();
            world.server.record_notification(&name, announced);
        });
    }
}
