//! Reading the catalog of a database, and announcing its changes to other proxies.

use super::Database;
use crate::store::StoreError;
use fencegate_catalog::{Catalog, Dependencies, Fenced};

impl Database {
    /// Reads the catalog of the fenced tables, as it is for all sessions. Cancel-safe.
    pub async fn catalog(&self, fences: Fenced<'_>) -> Result<Catalog, StoreError> {
        let catalog = self.context().store().catalog(fences, None).await?;
        self.policies.set_fenced_tables(catalog.has_fenced_tables());
        Ok(catalog)
    }

    /// The catalog as the session with this schema of temporary relations sees it. Cancel-safe.
    pub async fn catalog_of_session(&self, fences: Fenced<'_>, temporary: &str) -> Result<Catalog, StoreError> {
        let failed = |error| StoreError::CatalogOfSession { schema: temporary.to_owned(), error: Box::new(error) };
        self.store.catalog(fences, Some(temporary)).await.map_err(failed)
    }

    /// Reads the objects that CASCADE may drop from the fenced tables. Cancel-safe.
    pub async fn dependencies(&self, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.context().store().dependencies(fences).await
    }

    /// Returns after another proxy has announced a catalog change. Simultaneous announcements count once. Cancel-safe.
    pub fn catalog_announced(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.catalog.notified().await }
    }

    /// Announces to other proxies that the catalog has changed. Cancel-safe: the announcement may be lost.
    pub async fn announce_catalog(&self) {
        if let Err(error) = self.context().store().announce_catalog().await {
            tracing::debug!(database = self.name(), %error, "catalog_change_not_announced");
        }
    }

    /// The number of the connection that listens for announcements. 0: none does.
    pub fn listener(&self) -> u64 {
        self.memory.listener()
    }

    /// The number of the connection that began to listen last, even if it no longer listens. 0: none has yet.
    pub fn last_listener(&self) -> u64 {
        self.memory.last_listener()
    }

    /// How full the server's notification queue is, from 0 to 1. None while no connection listens.
    pub fn queue_usage(&self) -> Option<f64> {
        self.watcher.queue_usage()
    }

    /// Returns true if the database has had the schema `fencegate` since this process began: a control connection has listened
    /// there.
    pub fn was_prepared(&self) -> bool {
        self.last_listener() != 0
    }
}
