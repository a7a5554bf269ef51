//! Pages of the documentation, whose code blocks the tests run.

use super::Postgres;
use super::guardian::{Folder, Port, Program};
use super::programs::{self, forget_settings};
use super::proxy::BINARY;
use super::wait::DEADLINE;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Separator before the output of each block, and between the output and the exit status.
const MARK: &str = "=====";

/// The code blocks in this language.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let rest = page.split(&start).skip(1);
    rest.map(|rest| rest.split("\n```").next().unwrap().to_owned()).collect()
}

/// The programs of a page: blocks whose first line is a comment with the name of a file.
fn programs(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("\n```").skip(1).step_by(2).filter_map(|block| {
        let (_, text) = block.split_once('\n')?;
        let (first, _) = text.split_once('\n')?;
        let name = first.strip_prefix("# ").or_else(|| first.strip_prefix("// "))?;
        (name.contains('.') && !name.contains(' ')).then_some((name, text))
    })
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Runs a block of `sh`.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", script]).env("PATH", path()).stdin(Stdio::null());
    forget_settings(&mut command);
    command
}

/// PATH, starting with the folders of the program under test and of PostgreSQL.
fn path() -> String {
    let program = Path::new(BINARY).parent().unwrap().display().to_string();
    let postgres = programs::postgres_program("psql");
    let postgres = postgres.parent().unwrap().display().to_string();
    format!("{program}:{postgres}:{}", std::env::var("PATH").unwrap())
}

/// A block of commands, and the output that the page shows.
struct Step {
    commands: String,
    shown: String,
}

/// The `sh` blocks, each with the `text` block that follows immediately.
fn steps(page: &str) -> Vec<Step> {
    let after = page.split("```sh\n").skip(1).map(|rest| rest.split_once("\n```\n").unwrap().1);
    let shown = after.map(|rest| rest.strip_prefix("```text\n").map_or("", |rest| rest.split("\n```").next().unwrap()));
    let steps = blocks(page, "sh").into_iter().zip(shown);
    steps.map(|(commands, shown)| Step { commands, shown: shown.to_owned() }).collect()
}

/// A new user, who follows pages in one folder, with one server. The server requires passwords; the user has stored the
/// superuser's password, as the pages require.
pub struct Reader<'a> {
    pub folder: Folder,
    postgres: &'a Postgres,
    etcd: Option<String>,
    /// Folders before those in `PATH`.
    pub programs: Vec<PathBuf>,
    proxy: Port,
    http: Port,
}

impl<'a> Reader<'a> {
    pub fn new(postgres: &'a Postgres, etcd: Option<String>) -> Self {
        postgres.sql("ALTER ROLE postgres PASSWORD 'first'");
        // The tests themselves connect through the socket.
        let rules = "local all all trust\nhost all all all scram-sha-256\n";
        fs::write(postgres.value("SHOW hba_file"), rules).unwrap();
        postgres.sql("SELECT pg_reload_conf()");
        let folder = Folder::new("page");
        let passwords = folder.join(".pgpass");
        fs::write(&passwords, "127.0.0.1:*:*:postgres:first\n").unwrap();
        fs::set_permissions(&passwords, fs::Permissions::from_mode(0o600)).unwrap();
        Self { folder, postgres, etcd, programs: Vec::new(), proxy: Port::claim(), http: Port::claim() }
    }

    /// The port of the page's proxy.
    pub fn proxy_port(&self) -> u16 {
        self.proxy.number()
    }

    /// Writes the programs of a page to the reader's folder.
    pub fn save_programs(&self, name: &str) {
        for (file, text) in programs(&read(name)) {
            fs::write(self.folder.join(file), self.here(text) + "\n").unwrap();
        }
    }

    /// The text with the ports of this reader's servers. `make` only prints its commands, because other tests run them.
    pub fn here(&self, text: &str) -> String {
        let etcd = self.etcd.as_deref().unwrap_or("http://127.0.0.1:2379");
        let ports = [("5432", self.postgres.port()), ("6432", self.proxy.number()), ("9432", self.http.number())];
        let text = text.replace("http://127.0.0.1:2379", etcd);
        let text = ports.iter().fold(text, |text, (port, here)| text.replace(port, &here.to_string()));
        match text.strip_prefix("make ") {
            Some(target) => format!("make --dry-run --directory '{}' {target}", env!("CARGO_MANIFEST_DIR")),
            None => text,
        }
    }

    /// Shell commands that enter the reader's folder and set its environment.
    pub fn environment(&self) -> String {
        let folder = self.folder.path().display();
        let programs: String = self.programs.iter().map(|folder| format!("{}:", folder.display())).collect();
        format!("cd '{folder}'; export HOME='{folder}' PATH='{programs}{}'", path())
    }

    /// Runs the page's commands in order, in one shell. Each must print what the page shows, and succeed unless the
    /// page shows an error.
    pub fn follow(&self, name: &str) {
        let steps = steps(&read(name));
        assert!(!steps.is_empty(), "{name}");
        let mut script = format!("set -um; {}; exec 2>&1\n", self.environment());
        for step in &steps {
            script += &format!("echo {MARK}\n{}\necho \"{MARK} $?\"\n", self.here(&step.commands));
        }
        let log = self.folder.join("log");
        let _ = fs::remove_file(&log);
        let mut shell = Program::start(&["bash", "-c", &script], &log, "KILL");
        shell.wait_within(DEADLINE * steps.len().max(1) as u32);
        let printed = fs::read_to_string(&log).unwrap();
        let outputs: Vec<&str> = printed.split(&format!("{MARK}\n")).skip(1).collect();
        assert_eq!(outputs.len(), steps.len(), "{name}: {printed}");
        for (Step { commands, shown }, output) in steps.iter().zip(outputs) {
            let (output, status) = output.rsplit_once(MARK).unwrap_or_else(|| panic!("{name}: {commands}\n{output}"));
            let shown = self.here(shown);
            let fails = shown.starts_with("ERROR") || shown.contains("\nERROR");
            assert_eq!(status.trim() == "0", !fails, "{name}: {commands}\n{output}{status}");
            let mut lines = output.lines();
            for line in shown.lines() {
                assert!(lines.any(|it| words(it) == words(line)), "{name}: no {line:?} in\n{output}\nof\n{commands}");
            }
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
