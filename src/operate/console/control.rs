//! `KILL`, `PAUSE` and `RESUME`: operators' commands on sessions.

use super::client::Console;
use super::command::Control;
use fencegate_wire::error::ErrorText;

/// Runs the command and returns the tag of the answer.
/// Not cancel-safe: a database may stay paused.
pub(super) async fn run(console: &Console, control: &Control) -> Result<&'static str, ErrorText> {
    let Console { proxy, role, has_left, .. } = console;
    match control {
        Control::Kill(session) => {
            if !proxy.kill(*session) {
                let text = ErrorText::new("42704", format!("there is no session {session}"));
                return Err(text.hint("SHOW SESSIONS lists the sessions."));
            }
            tracing::warn!(role, session, "session_killed");
            Ok("KILL")
        }
        Control::Pause(database) => {
            if proxy.database(database).await.is_none() {
                let text = ErrorText::new("3D000", format!("database \"{database}\" does not exist"));
                return Err(text.hint("A name folds to lower case unless it is quoted."));
            }
            tracing::warn!(role, database, "database_paused");
            tokio::select! {
                biased;
                is_held = proxy.pause(database) => match is_held {
                    true => Ok("PAUSE"),
                    false => {
                        let text = format!("database \"{database}\" was resumed before all its sessions were idle");
                        Err(ErrorText::new("55000", text))
                    }
                },
                () = has_left.cancelled() => Err(ErrorText::new("57014", "the client disconnected; the database stays paused")),
            }
        }
        Control::Resume(database) => {
            if !proxy.resume(database) {
                return Err(ErrorText::new("55000", format!("database \"{database}\" is not paused")));
            }
            tracing::warn!(role, database, "database_resumed");
            Ok("RESUME")
        }
    }
}
