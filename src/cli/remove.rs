//! `fencegate remove`: removes all fencegate objects from a database.

use super::exit::{Ended, database, failed, runtime};
use super::output::print;
use fencegate_fence::guard;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Database URL, as a superuser or a member of the roles that own the schema and the guarded tables:
    /// postgres://user@host/database
    #[arg(long, visible_alias = "database", env = "FENCEGATE_CONTROL", hide_env_values = true, value_name = "URL")]
    control: String,
    /// Keep the function fencegate.token for column defaults that call it
    #[arg(long)]
    keep_token: bool,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let config = database("--control", &arguments.control)?;
    let removed = runtime()?.block_on(guard::remove_everything(&config, arguments.keep_token)).map_err(failed)?;
    let mut text: String = removed.objects.iter().map(|object| format!("removed {object}\n")).collect();
    if removed.objects.is_empty() {
        text.push_str("nothing to remove\n");
    }
    if let Some((role, groups)) = &removed.memberships {
        text.push_str(&format!(
            "role {role} keeps its grants, which count in all databases of the server. If no other database needs them: \
             REVOKE {groups} FROM {role}\n"
        ));
    }
    print(&text);
    Ok(ExitCode::SUCCESS)
}
