//! The console: commands of an operator, and their answers as rows.
//!
//! Owns the commands and the words of their errors. Must never decide who may give them, nor know
//! the client's socket: the proxy does.

mod command;
mod fences;
mod reset;

use crate::fence::{Database, Leaders};
use crate::policy::PolicySet;
use crate::wire::error::{ErrorText, Severity};
use crate::wire::message;
use bytes::BytesMut;
use command::Command;
use std::sync::Arc;

/// Finds a database by its name.
pub type Open<'a> = Box<dyn Fn(&str) -> Arc<Database> + Send + Sync + 'a>;

/// What commands are answered from.
pub struct Scene<'a> {
    /// Who asks, for the log.
    pub role: &'a str,
    /// The policies in force.
    pub policies: Arc<PolicySet>,
    /// The leaders' tokens, as far as they are known.
    pub leaders: Leaders,
    /// The databases that have had sessions.
    pub databases: Vec<Arc<Database>>,
    /// Any database, by its name.
    pub open: Open<'a>,
}

/// What a command says.
struct Answer {
    /// What could not be said in rows.
    warnings: Vec<ErrorText>,
    /// What else is to be known of them.
    notices: Vec<ErrorText>,
    columns: &'static [&'static str],
    rows: Vec<Vec<Option<String>>>,
    tag: String,
}

/// Appends the answers to all commands in the text, in their order, up to the first that fails. What cannot be read
/// is refused whole. Not cancel-safe: a command may be half done.
pub async fn answer(scene: &Scene<'_>, text: &[u8], output: &mut BytesMut) {
    let commands = match command::parse(text) {
        Ok(commands) => commands,
        Err(error) => return error.put(output, Severity::Error),
    };
    if commands.is_empty() {
        message::put_empty_query(output);
    }
    for command in commands {
        match run(scene, command).await {
            Ok(answer) => answer.put(output),
            Err(error) => return error.put(output, Severity::Error),
        }
    }
}

async fn run(scene: &Scene<'_>, command: Command) -> Result<Answer, ErrorText> {
    match command {
        Command::ShowFences => Ok(fences::show(scene).await),
        Command::FenceReset { resource, database, token } => {
            reset::reset(scene, &resource, database.as_deref(), token).await
        }
    }
}

impl Answer {
    fn put(&self, output: &mut BytesMut) {
        for warning in &self.warnings {
            warning.put(output, Severity::Warning);
        }
        for notice in &self.notices {
            notice.put(output, Severity::Notice);
        }
        message::put_row_description(output, self.columns);
        for row in &self.rows {
            message::put_data_row(output, row);
        }
        message::put_command_complete(output, &self.tag);
    }
}

/// Said beside the answer, which is about the other databases.
fn unreadable(database: &Database, reason: &str) -> ErrorText {
    ErrorText::new("01000", format!("database \"{}\" cannot be asked: {reason}", database.name()))
}
