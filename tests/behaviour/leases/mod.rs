//! Leases in PostgreSQL: the functions of the schema `fencegate`, against a real server.

mod api;
mod authority;
mod contention;
mod hostile;
mod leading;
mod list;
mod rights;
mod shared;
mod upgrade;

use crate::fence::server::{World, connect};
use crate::support::DEADLINE;
use std::ops::Deref;
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A database in which its role `…_app` may lead every election.
pub struct Leases(World);

impl Deref for Leases {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Leases {
    pub async fn new() -> Self {
        let leases = Self(World::new().await);
        leases.may_lead(&leases.app(), "*").await;
        leases
    }

    pub fn app(&self) -> String {
        format!("{}_app", self.database)
    }

    pub async fn may_lead(&self, role: &str, elections: &str) -> Vec<String> {
        fencegate_fence::grant_leases(&self.control_config("postgres"), role, elections).await.unwrap()
    }

    /// A session of the role that may lead.
    pub async fn session(&self) -> Client {
        connect(&self.config(&self.app())).await
    }

    /// A call on its own connection, as with a pool in transaction mode.
    pub async fn call(&self, call: &str) -> String {
        call_in(&self.session().await, call).await
    }

    /// Moves the times of the election's lease into the past.
    pub async fn age(&self, election: &str, time: &str) {
        self.run(&format!(
            "UPDATE fencegate_state.lease SET acquired = acquired - interval '{time}', renewed = renewed - interval '{time}', \
             expires = expires - interval '{time}', last_day = ((expires - interval '{time}') AT TIME ZONE 'UTC')::date WHERE election = '{election}'"
        ))
        .await;
    }

    /// The ended leases of the election, as `token holder role how`.
    pub async fn history(&self, election: &str) -> String {
        self.ask(&format!(
            "SELECT coalesce(string_agg(format('%s %s %s %s', token, holder, replace(role, current_database(), ''), how), ', ' \
             ORDER BY token), '') FROM fencegate_state.lease_history WHERE election = '{election}'"
        ))
        .await
    }
}

/// The token that `acquire` returned.
pub fn token_in(answer: &str) -> Option<i64> {
    // Tokens are shorter than every SQLSTATE.
    answer.parse().ok().filter(|_| answer.len() < 5)
}

/// The first column of a call's result: empty for no row or null, the SQLSTATE on failure.
pub async fn call_in(client: &Client, call: &str) -> String {
    let query = format!("SELECT * FROM fencegate.{call}");
    match timeout(DEADLINE, client.simple_query(&query)).await.expect("the call is answered") {
        Ok(messages) => messages
            .iter()
            .find_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
                _ => None,
            })
            .unwrap_or_default(),
        Err(error) => error.code().expect("the server answers").code().to_owned(),
    }
}
