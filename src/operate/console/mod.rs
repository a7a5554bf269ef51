//! The console: commands of an operator, and their answers as rows.
//!
//! Owns the commands, their error messages, and the types of their columns. Must never decide which roles may use the
//! console, nor access the client's socket: both belong to the proxy.

mod client;
mod command;
mod control;
mod driver_statement;
mod fences;
pub mod frontend;
mod result_set;
mod server;
mod views;

pub use client::Rejected;
pub use client::{Console, Proxy};
pub use control::ReloadedItem;
pub use result_set::refusal;
pub use server::{PreparedCommand, error_info};
pub use views::{OpenSession, ServerRow};

use command::{COMMANDS, Command, Show};
use driver_statement::DriverStatement;
use fencegate_wire::error::ErrorText;
use result_set::{Heading, ResultSet, Table, headings};

/// The columns of a command's result; None if it has no rows.
fn headings_of(command: &Command) -> Vec<Heading> {
    match command {
        Command::Show(Show::Fences) => headings(&fences::table()),
        Command::Show(Show::Sessions) => headings(&views::sessions()),
        Command::Show(Show::Admissions) => headings(&fences::admission_table()),
        Command::Show(Show::Leases) => headings(&fences::lease_table()),
        Command::Show(Show::Policies) => headings(&fences::policy_table()),
        Command::Show(Show::Rejections) => headings(&client::table()),
        Command::Show(Show::Stats) => headings(&views::table()),
        Command::Show(Show::Databases) => headings(&views::databases()),
        Command::Show(Show::Clients) => headings(&views::clients()),
        Command::Show(Show::Servers) => headings(&views::servers()),
        Command::Show(Show::Config) => headings(&views::settings()),
        Command::Show(Show::Version) => headings(&views::version()),
        Command::Show(Show::Help) => headings(&views::commands()),
        Command::Reload => headings(&control::reload_table()),
        Command::FenceReset(_) => headings(&control::table()),
        Command::DriverStatement(DriverStatement::Ask(question)) => headings(&question.table()),
        Command::Control(_) | Command::DriverStatement(_) => Vec::new(),
    }
}

/// Not cancel-safe: a command may be half done. Commands without rows are handled elsewhere.
async fn run(console: &Console, command: &Command) -> Result<ResultSet, ErrorText> {
    Ok(match command {
        Command::Show(Show::Fences) => fences::show(console).await,
        Command::Show(Show::Sessions) => ResultSet::show(&views::sessions(), console.proxy.sessions()),
        Command::Show(Show::Admissions) => fences::show_admissions(console).await,
        Command::Show(Show::Leases) => fences::show_leases(console).await,
        Command::Show(Show::Policies) => fences::show_policies(console).await,
        Command::Show(Show::Rejections) => ResultSet::show(&client::table(), console.proxy.rejections()),
        Command::Show(Show::Stats) => ResultSet::show(&views::table(), views::counts(console)),
        Command::Show(Show::Databases) => views::show_databases(console).await,
        Command::Show(Show::Clients) => ResultSet::show(&views::clients(), console.proxy.sessions()),
        Command::Show(Show::Servers) => views::show_servers(console).await,
        Command::Show(Show::Config) => ResultSet::show(&views::settings(), console.proxy.settings().shown.clone()),
        Command::Show(Show::Version) => ResultSet::show(&views::version(), [console]),
        Command::Show(Show::Help) => ResultSet::show(&views::commands(), &COMMANDS),
        Command::Reload => control::reload(console).await?,
        Command::FenceReset(reset) => control::reset(console, reset).await?,
        Command::Control(_) | Command::DriverStatement(_) => ResultSet::show(&Table::<()>::new(), []),
    })
}
