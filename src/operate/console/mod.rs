//! The console: commands of an operator, and their answers as rows.
//!
//! Owns the commands, their error messages, and the types of their columns. Must never decide which roles may use the
//! console, nor access the client's socket: both belong to the proxy.

mod about;
mod admissions;
mod client;
mod command;
mod control;
mod driver_statement;
mod fences;
pub mod frontend;
mod leases;
mod lexer;
mod notices;
mod policies;
mod rejections;
mod reload;
mod reset;
mod result_set;
mod server;
mod sessions;
mod stats;
mod views;

pub use client::{Console, Proxy};
pub use rejections::Rejected;
pub use reload::ReloadedItem;
pub use result_set::refusal;
pub use server::{PreparedCommand, told};
pub use sessions::OpenSession;
pub use views::ServerRow;

use command::{COMMANDS, Command, Show};
use driver_statement::DriverStatement;
use fencegate_wire::error::ErrorText;
use result_set::{Heading, ResultSet, Table, headings};

/// The columns of a command's result; None if it has no rows.
fn headings_of(command: &Command) -> Vec<Heading> {
    match command {
        Command::Show(Show::Fences) => headings(&fences::table()),
        Command::Show(Show::Sessions) => headings(&sessions::table()),
        Command::Show(Show::Admissions) => headings(&admissions::table()),
        Command::Show(Show::Leases) => headings(&leases::table()),
        Command::Show(Show::Policies) => headings(&policies::table()),
        Command::Show(Show::Rejections) => headings(&rejections::table()),
        Command::Show(Show::Stats) => headings(&stats::table()),
        Command::Show(Show::Databases) => headings(&views::databases()),
        Command::Show(Show::Clients) => headings(&views::clients()),
        Command::Show(Show::Servers) => headings(&views::servers()),
        Command::Show(Show::Config) => headings(&about::settings()),
        Command::Show(Show::Version) => headings(&about::version()),
        Command::Show(Show::Help) => headings(&about::commands()),
        Command::Reload => headings(&reload::table()),
        Command::FenceReset(_) => headings(&reset::table()),
        Command::DriverStatement(DriverStatement::Ask(question)) => headings(&question.table()),
        Command::Control(_) | Command::DriverStatement(_) => Vec::new(),
    }
}

/// Not cancel-safe: a command may be half done. Commands without rows are handled elsewhere.
async fn run(console: &Console, command: &Command) -> Result<ResultSet, ErrorText> {
    Ok(match command {
        Command::Show(Show::Fences) => fences::show(console).await,
        Command::Show(Show::Sessions) => ResultSet::show(&sessions::table(), console.proxy.sessions()),
        Command::Show(Show::Admissions) => admissions::show(console).await,
        Command::Show(Show::Leases) => leases::show(console).await,
        Command::Show(Show::Policies) => policies::show(console).await,
        Command::Show(Show::Rejections) => ResultSet::show(&rejections::table(), console.proxy.rejections()),
        Command::Show(Show::Stats) => ResultSet::show(&stats::table(), stats::counts(console)),
        Command::Show(Show::Databases) => views::show_databases(console).await,
        Command::Show(Show::Clients) => ResultSet::show(&views::clients(), console.proxy.sessions()),
        Command::Show(Show::Servers) => views::show_servers(console).await,
        Command::Show(Show::Config) => ResultSet::show(&about::settings(), console.proxy.settings().shown.clone()),
        Command::Show(Show::Version) => ResultSet::show(&about::version(), [console]),
        Command::Show(Show::Help) => ResultSet::show(&about::commands(), &COMMANDS),
        Command::Reload => reload::reload(console).await?,
        Command::FenceReset(reset) => reset::reset(console, reset).await?,
        Command::Control(_) | Command::DriverStatement(_) => ResultSet::show(&Table::<()>::new(), []),
    })
}
