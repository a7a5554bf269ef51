//! Temporary servers for the demo and the examples: PostgreSQL, etcd, and a proxy in front, in a temporary folder.
//!
//! Owns the processes and the folder through a small shell that outlives this process, because a killed process cannot
//! clean up. Must never leave a process or a file behind, nor affect another server.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of log lines to show if the servers do not start.
const LOG_LINES: usize = 15;

/// Why the servers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A program is not installed; with the Debian package that contains it.
    #[error("no {0} found: install it (Debian, Ubuntu: apt-get install {1})")]
    Missing(&'static str, &'static str),
    /// The temporary folder or a process could not be created.
    #[error("cannot set up the servers: {0}")]
    Start(#[from] std::io::Error),
    /// A server did not start.
    #[error("the servers did not start; the end of their log:\n{0}")]
    Servers(String),
}

/// Running servers. They are stopped and removed when this is dropped, and when this process dies.
#[derive(Debug)]
pub struct Stage {
    folder: PathBuf,
    programs: PathBuf,
    etcd: String,
    guardian: Child,
}

impl Stage {
    /// Starts the servers with this policy file, and returns once all answer. PostgreSQL has a database `app` with
    /// fencegate's schema, and a superuser `postgres`. `fencegate`: the path of the program.
    /// Cancel-safe: nothing is left.
    pub async fn start(fencegate: &Path, policies: &str) -> Result<Self, StageError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = find_postgres(&path, Path::new("/usr/lib/postgresql"))
            .ok_or(StageError::Missing("PostgreSQL", "postgresql"))?;
        if !std::env::split_paths(&path).any(|directory| directory.join("etcd").is_file()) {
            return Err(StageError::Missing("etcd", "etcd-server"));
        }
        let ports = free_ports()?;
        let folder = make_folder(policies)?;
        let guardian = guardian(&folder, &programs, fencegate, ports).inspect_err(|_| {
            // No other code removes it.
            fs::remove_dir_all(&folder).ok();
        })?;
        let mut stage = Stage { folder, programs, etcd: format!("http://127.0.0.1:{}", ports[0]), guardian };
        let status = stage.guardian.stdout.take();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            status.map(|status| BufReader::new(status).read_line(&mut line));
            line
        });
        match line.await {
            Ok(line) if line == "ready\n" => Ok(stage),
            _ => Err(StageError::Servers(stage.end_of_log())),
        }
    }

    /// The folder of the Unix sockets, PostgreSQL's with port 5432 and the proxy's with port 6432 in its name.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URL of etcd.
    pub fn etcd(&self) -> &str {
        &self.etcd
    }

    /// The directory of psql.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The servers' logs; the proxy's is in JSON.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn end_of_log(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        // Fails only if the guardian has already ended.
        self.guardian.wait().ok();
    }
}

/// Ports for etcd's clients and peers. If another process takes a port before etcd does, etcd does not start.
fn free_ports() -> std::io::Result<[u16; 2]> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()])
}

fn make_folder(policies: &str) -> std::io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    // Short, because the path of a Unix socket is limited to 107 bytes.
    let folder = std::env::temp_dir().join(format!("fencegate-stage-{}-{now:x}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let written = fs::create_dir(folder.join("policies"))
        .and_then(|()| fs::write(folder.join("policies/policies.yaml"), policies))
        .inspect_err(|_| drop(fs::remove_dir_all(&folder)));
    written.map(|()| folder)
}

fn guardian(folder: &Path, programs: &Path, fencegate: &Path, ports: [u16; 2]) -> std::io::Result<Child> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(include_str!("guardian.sh")).arg("guardian").args([folder, programs, fencegate]);
    command.args(ports.map(|port| port.to_string()));
    forget_settings(&mut command);
    // Keep Ctrl-C in the terminal from ending the guardian, which has to clean up.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Removes the user's settings for other servers: they must not affect these servers or their clients.
pub fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_setting = ["PG", "FENCEGATE_", "ETCD_", "ETCDCTL_"].iter().any(|prefix| text.starts_with(prefix));
        if is_setting || text == "RUST_LOG" {
            command.env_remove(name);
        }
    }
}

/// The program `fencegate` in the same folder as the running program.
pub fn program() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("fencegate"))
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
    fn the_newest_complete_postgres_is_found() {
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
