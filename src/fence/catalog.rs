//! Reading the catalog of a database, and telling other proxies that it has changed.

use super::database::Database;
use super::store::StoreError;
use crate::catalog::{Catalog, Dependencies, Fenced};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Database {
    /// Reads the catalog for what is fenced, as it is for all sessions. Cancel safe.
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

    /// Reads what CASCADE may take from the fenced tables. Cancel safe.
    pub async fn dependencies(self: &Arc<Self>, fences: Fenced<'_>) -> Result<Dependencies, StoreError> {
        self.store().dependencies(fences).await
    }

    /// Returns when another proxy announces that the catalog has changed; announcements at the same time count once.
    /// Cancel safe.
    pub fn catalog_announced(&self) -> impl Future<Output = ()> + use<> {
        let memory = self.memory.clone();
        async move { memory.catalog.notified().await }
    }

    /// Tells the other proxies that the catalog has changed. Cancel safe: they may not be told.
    pub async fn announce_catalog(self: &Arc<Self>) {
        if let Err(error) = self.store().announce_catalog().await {
            tracing::debug!(database = self.name(), %error, "catalog_change_not_announced");
        }
    }

    /// The number of the connection that listens to announcements; 0 where none does.
    pub fn listener(&self) -> u64 {
        self.memory.listener()
    }

    /// The number of the connection that has begun to listen last, whether it still does or not; 0: none has yet.
    pub fn last_listener(&self) -> u64 {
        self.memory.last_listener()
    }

    /// How full the server's queue of notifications is, from 0 to 1; None while nothing listens.
    pub fn queue_usage(&self) -> Option<f64> {
        *self.queue_usage.lock()
    }

    /// It has, or has had since this process began, the schema `fencegate`: a control connection has listened there.
    pub fn was_prepared(&self) -> bool {
        self.last_listener() != 0
    }
}
