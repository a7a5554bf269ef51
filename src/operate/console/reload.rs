//! `RELOAD`: settings, policies and certificates are read again.

use super::Console;
use super::answer::{Answer, Column, Kind};
use crate::wire::error::ErrorText;

/// Something that is another than before the reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// policy, setting or certificate.
    pub what: &'static str,
    /// Which.
    pub name: String,
    /// What of it: added, removed, or the part that has changed.
    pub change: String,
    /// As it was, where that can be said.
    pub before: Option<String>,
    /// As it is now.
    pub after: Option<String>,
    /// It is in force; otherwise it will be after a restart.
    pub in_force: bool,
}

pub(super) const COLUMNS: [Column; 6] = [
    Column("what", Kind::Text),
    Column("name", Kind::Text),
    Column("change", Kind::Text),
    Column("before", Kind::Text),
    Column("after", Kind::Text),
    Column("in_force", Kind::Boolean),
];

/// Not so many errors that the message is longer than a client takes.
const MOST_ERRORS: usize = 20;

/// A row per change. Not cancel-safe: some databases may have the new policies and others not.
///
/// # Errors
/// F0000 with what is wrong and where; then everything is as it was.
pub(super) async fn reload(console: &Console) -> Result<Answer, ErrorText> {
    tracing::info!(role = console.role, "reload_requested");
    let changes = console.proxy.reload().await.map_err(|errors| refused(&errors))?;
    let row = |it: Reloaded| {
        vec![it.what.into(), it.name.into(), it.change.into(), it.before.into(), it.after.into(), it.in_force.into()]
    };
    Ok(Answer { tag: "RELOAD", ..Answer::show(&COLUMNS, changes.into_iter().map(row).collect()) })
}

fn refused(errors: &[String]) -> ErrorText {
    let (first, others) = errors.split_first().map_or(("nothing could be read", &[][..]), |(it, rest)| (it, rest));
    let mut detail: Vec<_> = others.iter().take(MOST_ERRORS).cloned().collect();
    if others.len() > MOST_ERRORS {
        detail.push(format!("and {} more", others.len() - MOST_ERRORS));
    }
    ErrorText::new("F0000", first)
        .detail(detail.join("\n"))
        .hint("Everything stays as it was. Correct it, and give RELOAD again; `fencegate policy check` reads policies without a proxy.")
}
