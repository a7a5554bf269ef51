//! Whether the server behind the control connections answers.
//!
//! Must leave no connection behind: one would be in the way of whoever drops the database.

use super::control::text;
use crate::tls::ControlConfig;

/// Connects, asks something, and closes the connection. Without a limit of its own on time. Cancel-safe: the connection
/// is closed.
///
/// # Errors
/// What the server or the system says.
pub async fn probe(config: &ControlConfig) -> Result<(), String> {
    let asked = async {
        let (client, connection) = config.connect().await?;
        // Ends when the client is dropped.
        tokio::spawn(connection);
        client.simple_query("SELECT 1").await
    };
    asked.await.map(drop).map_err(|error| text(&error))
}
