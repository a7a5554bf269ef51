//! Where the demo plays: a throwaway PostgreSQL with a proxy in front of it, in a temporary folder.
//!
//! Owns processes and the folder, by way of a small shell that outlives the demo: a process that is
//! killed cannot clean up after itself. Must never leave anything behind, nor touch another server.

use super::DemoError;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// The policy that the demo's proxy enforces.
const POLICY: &str = "version: 1
resources:
  - name: scheduler
    tables:
      - public.ticks
";
/// How much of the servers' log is shown when they do not start, in lines.
const LOG_LINES: usize = 15;

/// Servers that run; stopped and removed when dropped, and also when this process dies.
pub(super) struct Stage {
    folder: PathBuf,
    guardian: Child,
}

impl Stage {
    /// Starts the servers, and returns once both accept sessions. Cancel-safe: nothing is left.
    pub(super) async fn start() -> Result<Self, DemoError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let postgres = find_postgres(&path, Path::new("/usr/lib/postgresql")).ok_or(DemoError::NoPostgres)?;
        let program = std::env::current_exe().map_err(DemoError::Start)?;
        let folder = make_folder().map_err(DemoError::Start)?;
        let guardian = guardian(&folder, &postgres, &program).inspect_err(|_| {
            // Nobody else would.
            fs::remove_dir_all(&folder).ok();
        });
        let mut stage = Stage { guardian: guardian.map_err(DemoError::Start)?, folder };
        let status = stage.guardian.stdout.take();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            status.map(|status| BufReader::new(status).read_line(&mut line));
            line
        });
        match line.await {
            Ok(line) if line == "ready\n" => Ok(stage),
            _ => Err(DemoError::Servers(stage.end_of_log())),
        }
    }

    /// The folder of both Unix sockets.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn end_of_log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        // It fails only where the guardian is gone, and there is nobody to tell.
        self.guardian.wait().ok();
    }
}

fn make_folder() -> std::io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    // Short, because the path of a Unix socket may have 107 bytes only.
    let folder = std::env::temp_dir().join(format!("fencegate-demo-{}-{now:x}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let written = fs::create_dir(folder.join("policies"))
        .and_then(|()| fs::write(folder.join("policies/scheduler.yaml"), POLICY))
        .inspect_err(|_| drop(fs::remove_dir_all(&folder)));
    written.map(|()| folder)
}

fn guardian(folder: &Path, postgres: &Path, program: &Path) -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(include_str!("guardian.sh")).arg("guardian").args([folder, postgres, program]);
    // What the user has set for other servers is not for these.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PG") || text.starts_with("FENCEGATE_") || text == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    // Out of reach of a Ctrl-C at the terminal: it has to clean up.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// The directory of PostgreSQL's programs: one of PATH's, otherwise the newest of Debian's.
fn find_postgres(path: &OsStr, debian: &Path) -> Option<PathBuf> {
    let is_complete = |directory: &PathBuf| {
        ["initdb", "postgres", "pg_isready", "psql"].iter().all(|program| directory.join(program).is_file())
    };
    if let Some(directory) = std::env::split_paths(path).find(is_complete) {
        return Some(directory);
    }
    let version = |directory: &PathBuf| directory.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    let installed = fs::read_dir(debian).into_iter().flatten().flatten();
    installed.map(|entry| entry.path().join("bin")).filter(is_complete).max_by_key(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_postgres_is_found_and_none_where_there_is_none() {
        let root = std::env::temp_dir().join(format!("fencegate-find-{}", std::process::id()));
        for version in ["9", "15", "16"] {
            fs::create_dir_all(root.join(version).join("bin")).unwrap();
        }
        let nowhere = OsStr::new("/nonexistent");
        assert_eq!(find_postgres(nowhere, &root), None);
        for directory in ["9/bin", "15/bin"] {
            for program in ["initdb", "postgres", "pg_isready", "psql"] {
                fs::write(root.join(directory).join(program), "").unwrap();
            }
        }
        assert_eq!(find_postgres(nowhere, &root), Some(root.join("15/bin")));
        assert_eq!(find_postgres(root.join("9/bin").as_os_str(), &root), Some(root.join("9/bin")));
        fs::remove_dir_all(&root).unwrap();
    }
}
