//! Queries for tests of the fence library, run in a tokio-postgres session.

use fencegate_fence::session::Identity;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The identity of the session's server process, as the proxy queries it when a session starts.
pub async fn identity(client: &Client) -> Identity {
    let row = one(
        client,
        "SELECT pg_backend_pid(), (SELECT extract(epoch FROM backend_start) FROM \
         pg_stat_get_activity(pg_backend_pid())), (SELECT system_identifier FROM pg_control_system()), \
         extract(epoch FROM pg_postmaster_start_time())",
    )
    .await;
    Identity {
        pid: row[0].parse().unwrap(),
        backend_start: row[1].clone(),
        system_identifier: row[2].clone(),
        postmaster_start: row[3].clone(),
    }
}

/// The first row, with the empty text for NULL.
pub async fn one(client: &Client, query: &str) -> Vec<String> {
    let messages = client.simple_query(query).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.unwrap_or_else(|| panic!("no row: {query}"));
    (0..row.len()).map(|index| row.get(index).unwrap_or_default().to_owned()).collect()
}
