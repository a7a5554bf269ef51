//! Reading the catalog of a database, and announcing its changes to other proxies.

use super::database::Database;
use super::store::StoreError;
use fencegate_catalog::{Catalog, Dependencies, Fenced};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Database {
    /// Reads the catalog of the fenced tables, as it is for all sessions. Cancel-safe.
    pub async fn catalog(self: &Arc<Self>, fences: Fenced<'_>) -> Result<Catalog, StoreError> {
        let catalog = self.store().catalog(fences, None).await?;
        self.has_fenced_tables.store(catalog.has_fenced_tables(), Ordering::Relaxed);
        Ok(catalog)
    }

    /// The catalog as the session with this schema of temporary relations sees it. Cancel-safe.
    pub async fn catalog_of_session(&self, fences: Fenced<'_>, temporary: &str) -> Result<Catalog, StoreError> {
        let failed = |error| StoreError::CatalogOfSession { schema: temporary.to_owned(), error: Box::new(error) };
        self.store.catalog(fences, Some(temporary)).await.map_err(failed)
    }

    /// Reads the objects that CASCADE may drop from the fenced tables. Cancel-safe.
    pub async fn dependencies(self: &Arc<Self>, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.store().dependencies(fences).await
    }

    /// Returns after another proxy has announced a catalog change. Simultaneous announcements count once. Cancel-safe.
    pub fn catalog_announced(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.catalog.notified().await }
    }

    /// Announces to other proxies that the catalog has changed. Cancel-safe: the announcement may be lost.
    pub async fn announce_catalog(self: &Arc<Self>) {
        if let Err(error) = self.store().announce_catalog().await {
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
        *self.queue_usage.lock()
    }

    /// Returns true if the database has had the schema `fencegate` since this process began: a control connection has listened
    /// there.
    pub fn was_prepared(&self) -> bool {
        self.last_listener() != 0
    }
}
