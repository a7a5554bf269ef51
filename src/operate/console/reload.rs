//! `RELOAD`: reads settings, policies and certificates again.

use super::client::Console;
use super::result_set::ColumnType::{Boolean, Text};
use super::result_set::{ResultSet, Table, TableColumn, shortened};
use fencegate_wire::error::ErrorText;

/// An item that differs from before the reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadedItem {
    /// Kind of the item: policy, setting or certificate.
    pub what: &'static str,
    /// Name of the item.
    pub name: String,
    /// The change: added, removed, or the changed part.
    pub change: String,
    /// The previous value, if it can be shown.
    pub before: Option<String>,
    /// The new value, if it can be shown.
    pub after: Option<String>,
    /// True if the change is in force. Otherwise it needs a restart.
    pub in_force: bool,
}

/// A row per change.
pub(super) fn table() -> Table<ReloadedItem> {
    vec![
        TableColumn("what", Text, |it| it.what.into()),
        TableColumn("name", Text, |it| (&it.name).into()),
        TableColumn("change", Text, |it| (&it.change).into()),
        TableColumn("before", Text, |it| it.before.clone().into()),
        TableColumn("after", Text, |it| it.after.clone().into()),
        TableColumn("in_force", Boolean, |it| it.in_force.into()),
    ]
}

/// Maximum number of errors in a message, because clients limit its length.
const MOST_ERRORS: usize = 20;

/// Fails with F0000 and all faults with their positions; then nothing has changed.
/// Not cancel-safe: some databases may have the new policies and others not.
pub(super) async fn reload(console: &Console) -> Result<ResultSet, ErrorText> {
    tracing::info!(role = console.role, "reload_requested");
    let changes = console.proxy.reload().await.map_err(|errors| refused(&errors))?;
    Ok(ResultSet::tagged("RELOAD", &table(), changes))
}

fn refused(errors: &[String]) -> ErrorText {
    let (first, others) =
        errors.split_first().map_or(("the configuration cannot be read", &[][..]), |(it, rest)| (it, rest));
    ErrorText::new("F0000", first)
        .detail(shortened(others.to_vec(), MOST_ERRORS, "\n"))
        .hint("The previous configuration stays in force. Correct the errors and run RELOAD again. `fencegate policy check` checks policies without a proxy.")
}
