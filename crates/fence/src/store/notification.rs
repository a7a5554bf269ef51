//! Notifications that a control connection receives.
//!
//! Owns the payloads, and which method of the [`Listener`] each one calls. Must never trust a payload: any role can send
//! one.

use super::Listener;
use super::common::Common;
use crate::session::Identity;
use tokio_postgres::Notification;

/// Where the functions of `leases.sql` announce elections.
pub(super) const LEASE_CHANNEL: &str = "fencegate_lease";
/// The payload that announces a catalog change. No resource can have this name.
pub(super) const CATALOG_CHANGED: &str = "{catalogue}";
/// Begins the payloads for single sessions. No resource can have such a name.
const OF_PROCESS: &str = "{process}";

/// The payload for the session with this server process.
pub fn process_payload(identity: &Identity) -> String {
    format!("{OF_PROCESS} {} {}", identity.pid, identity.backend_start)
}

/// Passes the notification on.
pub(super) fn pass_on(news: &Notification, listener: &dyn Listener, common: &Common) {
    if news.channel() == LEASE_CHANNEL {
        listener.lease_changed(news.payload());
    } else if news.payload().starts_with(OF_PROCESS) {
        // Only that session listens for it.
    } else if news.payload() != CATALOG_CHANGED {
        listener.announced(news.payload());
    } else if !common.is_own(news.process_id()) {
        listener.catalog_changed();
    }
}
