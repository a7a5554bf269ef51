//! A PostgreSQL server in its own folder.

use super::certificates::{Authority, Certificate};
use super::guardian::{Folder, Port, Program};
use super::programs::{postgres_18, postgres_program};
use super::small_disk::SmallDisk;
use super::wait::{DEADLINE, wait_for};
use super::wire::{Address, Fields, Wire, error_in, message};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// The server refuses to run as root. Tests that run as root start it as the user that Debian's package creates.
const UNPRIVILEGED_USER: &str = "postgres";
pub const SUPERUSER: &str = "postgres";

/// Rows of text; None is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// The version of PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The newest version that is installed on this machine.
    #[default]
    Installed,
    /// 18, from an npm package.
    Eighteen,
}

impl Release {
    fn program(self, name: &str) -> PathBuf {
        match self {
            Self::Installed => postgres_program(name),
            Self::Eighteen => postgres_18().join("bin").join(name),
        }
    }
}

/// Settings that differ between servers.
#[derive(Clone, Default, PartialEq)]
pub struct Options {
    release: Release,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    /// Files to copy to the data folder, with their names there.
    files: Vec<(PathBuf, &'static str)>,
    is_unused: bool,
    has_own_identifier: bool,
    /// Command that starts the server's command.
    wrapper: Vec<String>,
    /// The WAL folder: its path for the server, and its path for the test.
    wal: Option<(PathBuf, PathBuf)>,
}

impl Options {
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// A setting as in postgresql.conf; a later one wins.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Enables TLS with this certificate.
    pub fn tls(mut self, certificate: &Certificate) -> Self {
        self.files.push((certificate.pem.clone(), "server.crt"));
        self.files.push((certificate.key.clone(), "server.key"));
        self.setting("ssl", "on")
    }

    /// Verifies client certificates against this authority.
    pub fn client_authority(mut self, authority: &Authority) -> Self {
        self.files.push((authority.pem(), "clients.crt"));
        self.setting("ssl_ca_file", "clients.crt")
    }

    /// Requires a server that no test has used, so that objects get the same OIDs as on every new server.
    pub fn unused(mut self) -> Self {
        self.is_unused = true;
        self
    }

    /// Gives the server its own system identifier. Other servers of a release share one, because they start from the
    /// same data folder.
    pub fn own_identifier(mut self) -> Self {
        self.has_own_identifier = true;
        self.unused()
    }

    /// Makes this file system visible to the server.
    pub fn sees(mut self, disk: &SmallDisk) -> Self {
        self.wrapper = disk.command();
        self.unused()
    }

    /// Puts the WAL on this file system.
    pub fn wal_on(mut self, disk: &SmallDisk) -> Self {
        self.wal = Some((disk.inside().join("pg_wal"), disk.outside().join("pg_wal")));
        self.sees(disk)
    }

    /// True if other tests may need the same options.
    pub fn is_common(&self) -> bool {
        self.release == Release::Installed && self.files.is_empty() && !self.is_unused
    }

    /// Adds a line to pg_hba.conf, before the last lines, which trust all users, and after the first lines, which
    /// always admit the superuser for the tests and the control connection.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.into());
        self
    }
}

/// A running server; stopped and removed when dropped.
pub struct Server {
    // Before the folder: fields are dropped in this order.
    program: Option<Program>,
    folder: Folder,
    port: Port,
    options: Options,
    /// Length of the log before this test, in bytes.
    log_start: usize,
    /// The superuser's session in the database `postgres`, kept between statements of the test.
    session: Mutex<Option<Wire>>,
}

impl Server {
    pub fn start(options: Options) -> Self {
        let folder = Folder::new("pg");
        match options.has_own_identifier {
            true => init_data(options.release, &folder),
            false => copy_folder(&template(options.release), &folder.join("data")),
        }
        fs::write(folder.join("data/pg_hba.conf"), hba_file(&options.hba)).unwrap();
        for (file, name) in &options.files {
            fs::copy(file, folder.join("data").join(name)).unwrap();
        }
        if let Some((inside, outside)) = &options.wal {
            let wal = folder.join("data/pg_wal");
            copy_folder(&wal, outside);
            give_to_server(outside);
            fs::remove_dir_all(&wal).unwrap();
            symlink(inside, &wal).unwrap();
        }
        give_to_server(&folder.join("data"));
        give_to_server(folder.path());
        let mut server =
            Self { program: None, folder, port: Port::claim(), options, log_start: 0, session: Mutex::default() };
        server.start_again();
        server
    }

    /// Makes the server accept client certificates of these authorities on new connections, if it checks certificates.
    pub fn trust_clients_of(&self, authorities: &[&Authority]) {
        let pem = |authority: &&Authority| fs::read_to_string(authority.pem()).unwrap();
        fs::write(self.folder.join("data/clients.crt"), authorities.iter().map(pem).collect::<String>()).unwrap();
        self.sql("SELECT pg_reload_conf()");
    }

    /// Makes the server present this certificate on new connections.
    pub fn replace_certificate(&self, certificate: &Certificate) {
        for (file, name) in [(&certificate.pem, "server.crt"), (&certificate.key, "server.key")] {
            fs::copy(file, self.folder.join("data").join(name)).unwrap();
        }
        give_to_server(&self.folder.join("data"));
        self.sql("SELECT pg_reload_conf()");
    }

    /// Starts and promotes a base backup of the server.
    pub fn promoted_backup(&self) -> Self {
        let mut copy = self.base_backup(&[]);
        copy.start_as_standby();
        copy.sql("SELECT pg_promote()");
        copy
    }

    /// Makes a base backup, without starting it. The backup inherits the settings, but not the port and folder.
    pub fn base_backup(&self, arguments: &[&str]) -> Self {
        let folder = Folder::new("pg");
        give_to_server(folder.path());
        let mut backup = server_command(&self.options.release.program("pg_basebackup"));
        let [host, port, data] = [
            self.socket_dir().display().to_string(),
            self.port().to_string(),
            folder.join("data").display().to_string(),
        ];
        backup.extend(["-c", "fast", "-U", SUPERUSER, "-h", &host, "-p", &port, "-D", &data].map(str::to_owned));
        backup.extend(arguments.iter().map(ToString::to_string));
        run(&backup);
        let options = self.options.clone();
        Self { program: None, folder, port: Port::claim(), options, log_start: 0, session: Mutex::default() }
    }

    /// Makes this stopped server a standby of `to`, with pg_rewind. Does not start it.
    pub fn rewind(&self, to: &Self) {
        let mut rewind = server_command(&self.options.release.program("pg_rewind"));
        let source = format!("host={} port={} user={SUPERUSER} dbname=postgres", to.socket_dir().display(), to.port());
        let data = self.folder.join("data").display().to_string();
        rewind.extend(["--no-sync", "-R", "-D", &data, "--source-server", &source].map(str::to_owned));
        run(&rewind);
    }

    /// Starts a stopped server.
    pub fn start_again(&mut self) {
        assert!(self.program.is_none(), "the server runs already");
        let mut program = Program::start(&self.command(), &self.log_path(), "QUIT");
        let ready = || {
            if let Some(status) = program.exit_status() {
                panic!("postgres ended with {status}:\n{}", self.log());
            }
            let mut wire = Wire::connect(&self.socket()).ok()?;
            let greeting = wire.start(&[("user", SUPERUSER), ("database", "postgres")], "");
            (!greeting.is_empty() && error_in(&greeting).is_none()).then_some(wire)
        };
        *self.session.get_mut().unwrap() = Some(wait_for("postgres is ready", DEADLINE, ready));
        self.program = Some(program);
    }

    /// Shuts the server down: sessions end, and a checkpoint is written.
    pub fn stop(&mut self) {
        self.end("INT");
    }

    /// Ends the server as in a crash.
    pub fn crash(&mut self) {
        self.end("QUIT");
    }

    /// Kills the postmaster. The other processes end when they notice.
    pub fn kill9(&mut self) {
        self.end("KILL");
    }

    pub fn is_running(&self) -> bool {
        self.program.is_some()
    }

    /// Restarts the server as a standby, which has no primary. A test may promote it.
    pub fn restart_as_standby(&mut self) {
        self.stop();
        self.start_as_standby();
    }

    fn start_as_standby(&mut self) {
        let signal = self.folder.join("data/standby.signal");
        fs::write(&signal, "").unwrap();
        give_to_server(&signal);
        self.start_again();
    }

    /// Crashes the server and restarts it, which runs recovery.
    pub fn crash_restart(&mut self) {
        self.crash();
        self.start_again();
    }

    fn end(&mut self, signal: &str) {
        let mut program = self.program.take().expect("the server runs");
        program.signal(signal);
        program.wait();
    }

    /// Runs SQL as the superuser in the database `postgres`; an error fails the test. Blocks, and needs no runtime.
    pub fn sql(&self, sql: &str) -> Rows {
        self.sql_in("postgres", sql)
    }

    pub fn sql_in(&self, database: &str, sql: &str) -> Rows {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    pub fn try_sql(&self, database: &str, sql: &str) -> Result<Rows, Fields> {
        // The kept session would block statements on databases.
        if database != "postgres" || sql.to_ascii_uppercase().contains("DATABASE") {
            self.end_session();
            return Wire::login(&self.socket(), SUPERUSER, database).rows(sql);
        }
        let kept = self.session.lock().unwrap().take().filter(Wire::is_silent);
        let mut wire = kept.unwrap_or_else(|| Wire::login(&self.socket(), SUPERUSER, database));
        let result = wire.rows(sql);
        // Reset the session for the next statement, unless it has ended or is still in a transaction.
        if wire.rows("DISCARD ALL").is_ok_and(|_| wire.is_silent()) {
            self.session.lock().unwrap().get_or_insert(wire);
        }
        result
    }

    /// Ends the session that is kept for [`Server::sql`], and returns when its process has ended.
    pub fn end_session(&self) {
        let session = self.session.lock().unwrap().take();
        if let Some(mut session) = session {
            session.send(&message::tagged(b'X', b""));
            session.read_to_end();
        }
    }

    /// The first column of the first row; empty if there is none.
    pub fn value(&self, sql: &str) -> String {
        self.sql(sql).into_iter().flatten().next().flatten().unwrap_or_default()
    }

    /// A superuser's session in tokio-postgres.
    pub async fn connect(&self, database: &str) -> tokio_postgres::Client {
        super::target::connect(&self.address(), SUPERUSER, database).await
    }

    pub fn address(&self) -> Address {
        Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port())))
    }

    pub fn socket(&self) -> Address {
        Address::Unix(self.folder.join(&format!(".s.PGSQL.{}", self.port())))
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn socket_dir(&self) -> &Path {
        self.folder.path()
    }

    /// The URL without user and database.
    pub fn url(&self) -> String {
        format!("postgres://127.0.0.1:{}", self.port())
    }

    /// The superuser's URL, without database.
    pub fn control_url(&self) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/", self.port())
    }

    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Hides everything logged so far.
    pub fn forget_log(&mut self) {
        self.log_start = fs::metadata(self.log_path()).map_or(0, |log| log.len() as usize);
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn command(&self) -> Vec<String> {
        let defaults = [
            ("port", self.port().to_string()),
            ("listen_addresses", "127.0.0.1".into()),
            ("unix_socket_directories", self.folder.path().display().to_string()),
            ("fsync", "off".into()),
            ("wal_level", "logical".into()),
            ("max_connections", "200".into()),
            ("max_prepared_transactions", "20".into()),
            // Within the server's folder, which is removed even after a kill.
            ("dynamic_shared_memory_type", "mmap".into()),
            // Small, because many servers run at once.
            ("shared_buffers", "32MB".into()),
            ("lc_messages", "C".into()),
        ];
        let defaults = defaults.map(|(name, value)| (name.to_owned(), value));
        let settings = defaults.iter().chain(&self.options.settings);
        let mut command = self.options.wrapper.clone();
        command.extend(server_command(&self.options.release.program("postgres")));
        command.extend(["-D".to_owned(), self.folder.join("data").display().to_string()]);
        command.extend(settings.flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]));
        command
    }
}

fn hba_file(lines: &[String]) -> String {
    let first = format!("local all {SUPERUSER} trust\nhost all {SUPERUSER} 127.0.0.1/32 trust\n");
    let last = "local all all trust\nhost all all 127.0.0.1/32 trust\nlocal replication all trust\n";
    lines.iter().fold(first, |file, line| file + line + "\n") + last
}

/// A data folder created by initdb, which takes a second or two. Created once, and kept in the build folder.
fn template(release: Release) -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name: String =
        server_version(release).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let template = tmp.join(name);
    let lock = File::create(tmp.join("template.lock")).unwrap();
    lock.lock().unwrap();
    if !template.exists() {
        // The server's user may not enter the build folder.
        let folder = Folder::new("initdb");
        init_data(release, &folder);
        let unfinished = tmp.join("template.unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        copy_folder(&folder.join("data"), &unfinished);
        fs::rename(&unfinished, &template).unwrap();
    }
    template
}

/// Runs initdb for `data` in this folder.
fn init_data(release: Release, folder: &Folder) {
    give_to_server(folder.path());
    let mut command = server_command(&release.program("initdb"));
    let arguments = ["--no-sync", "-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "-D"];
    command.extend(arguments.map(str::to_owned));
    command.push(folder.join("data").display().to_string());
    run(&command);
}

fn server_version(release: Release) -> String {
    let output = Command::new(release.program("postgres")).arg("--version").output().expect("postgres --version");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The command line that starts a program of the server as a user that it accepts. The command executes the program in
/// place, so that the process id is the program's.
pub fn server_command(program: &Path) -> Vec<String> {
    let program = program.display().to_string();
    if !is_root() {
        return vec![program];
    }
    let ids = [format!("--reuid={UNPRIVILEGED_USER}"), format!("--regid={UNPRIVILEGED_USER}")];
    let [user, group] = ids;
    // The user may not be allowed to enter the current directory.
    vec!["env".into(), "-C/".into(), "setpriv".into(), user, group, "--init-groups".into(), program]
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

pub fn give_to_server(path: &Path) {
    if is_root() {
        run(&["chown", "-R", &format!("{UNPRIVILEGED_USER}:"), &path.display().to_string()]);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    run(&["cp", "-a", &from.display().to_string(), &to.display().to_string()]);
}

fn run<S: AsRef<std::ffi::OsStr>>(command: &[S]) {
    let output = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).output().expect("it starts");
    let shown = || String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {}", command[0].as_ref(), shown());
}
