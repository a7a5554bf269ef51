//! A throwaway etcd with one member, in its own folder.

use super::guardian::{Folder, Port, Program};
use super::programs::{forget_settings, run};
use super::wait::{DEADLINE, wait_for};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

/// A running member; stopped and removed when dropped.
pub struct Etcd {
    // Before the folder: fields are dropped in this order.
    member: Option<Program>,
    folder: Folder,
    client: Port,
    peer: Port,
    /// The name of the data folder within `folder`. A restore changes it.
    data: String,
    /// Set if the member requires client certificates.
    certificates: Option<Certificates>,
    /// Its arguments, except addresses and certificates.
    arguments: Vec<String>,
    /// Name and password of etcdctl's user.
    user: Option<&'static str>,
    /// The keys of candidates, by the test's names for them.
    candidates: Mutex<HashMap<String, String>>,
}

impl Etcd {
    pub fn start() -> Self {
        Self::start_in(Folder::new("etcd"), None, Vec::new())
    }

    /// Starts a member that permits frequent pings. Otherwise it closes the connection of an idle watch after some
    /// seconds, and the client's restart would hide an event that its watch has missed.
    pub fn start_with_lasting_watches() -> Self {
        Self::start_in(Folder::new("etcd"), None, vec!["--grpc-keepalive-min-time=1ms".into()])
    }

    /// Starts a member that accepts only TLS with a client certificate.
    pub fn start_with_tls() -> Self {
        let folder = Folder::new("etcd");
        let certificates = Certificates::make(folder.path());
        Self::start_in(folder, Some(certificates), Vec::new())
    }

    /// Starts a member that issues JSON web tokens to its users. A token contains the revision of users and roles, and
    /// is invalid after the revision changes.
    pub fn start_with_jwt() -> Self {
        let folder = Folder::new("etcd");
        let file = |name: &str| folder.join(name).display().to_string();
        let (private, public) = (file("jwt.key"), file("jwt.pub"));
        run(Command::new("openssl").args(["genrsa", "-out", &private, "2048"]));
        run(Command::new("openssl").args(["rsa", "-in", &private, "-pubout", "-out", &public]));
        let tokens = format!("--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
        Self::start_in(folder, None, vec![tokens])
    }

    fn start_in(folder: Folder, certificates: Option<Certificates>, arguments: Vec<String>) -> Self {
        let (client, peer) = (Port::claim(), Port::claim());
        let (data, candidates) = ("data".into(), Mutex::default());
        let mut etcd =
            Self { member: None, folder, client, peer, data, certificates, arguments, user: None, candidates };
        etcd.start_again();
        etcd
    }

    /// Requires a name and a password from every client: `root:secret` has all permissions; `gate:pass word` may read
    /// keys with this prefix.
    pub fn enable_users(&mut self, prefix: &str) {
        run(&mut self.etcdctl(&["user", "add", "root:secret"]));
        run(&mut self.etcdctl(&["user", "grant-role", "root", "root"]));
        run(&mut self.etcdctl(&["role", "add", "observer"]));
        run(&mut self.etcdctl(&["role", "grant-permission", "observer", "read", "--prefix=true", prefix]));
        run(&mut self.etcdctl(&["user", "add", "gate:pass word"]));
        run(&mut self.etcdctl(&["user", "grant-role", "gate", "observer"]));
        run(&mut self.etcdctl(&["auth", "enable"]));
        self.user = Some("root:secret");
    }

    /// Adds a user that may read and write keys with this prefix. A user without a password logs in with a certificate
    /// that has the user as its common name.
    pub fn add_user(&self, user: &str, password: Option<&str>, prefix: &str) {
        let role = format!("writer of {user}");
        run(&mut self.etcdctl(&["role", "add", &role]));
        run(&mut self.etcdctl(&["role", "grant-permission", &role, "readwrite", "--prefix=true", prefix]));
        match password {
            Some(password) => run(&mut self.etcdctl(&["user", "add", &format!("{user}:{password}")])),
            None => run(&mut self.etcdctl(&["user", "add", user, "--no-password"])),
        };
        run(&mut self.etcdctl(&["user", "grant-role", user, &role]));
    }

    /// Changes users and roles, so that all earlier logins have an outdated revision.
    pub fn change_roles(&self) {
        run(&mut self.etcdctl(&["role", "add", "unused"]));
        run(&mut self.etcdctl(&["role", "delete", "unused"]));
    }

    pub fn delete_user(&self, user: &str) {
        run(&mut self.etcdctl(&["user", "delete", user]));
    }

    pub fn change_password(&self, user: &str, password: &str) {
        let file = self.folder.join("password");
        fs::write(&file, format!("{password}\n")).unwrap();
        let mut change = self.etcdctl(&["user", "passwd", user, "--interactive=false"]);
        run(change.stdin(fs::File::open(&file).unwrap()));
    }

    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client.number())
    }

    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("it was started with TLS")
    }

    /// Puts the key of a candidate, and returns its create_revision. The last part of the name identifies the candidate
    /// in the test; the last part of the key is its lease.
    pub fn put_new(&self, name: &str) -> i64 {
        self.put_candidate(name, "somebody")
    }

    /// Like [`Self::put_new`], with this value.
    pub fn put_candidate(&self, name: &str, value: &str) -> i64 {
        let lease = self.grant();
        let key = format!("{}/{}", name.rsplit_once('/').unwrap().0, lease.trim_start_matches('0'));
        self.candidates.lock().unwrap().insert(name.to_owned(), key.clone());
        self.put(&key, value, &lease)
    }

    /// Puts exactly this key under a new lease, and returns its revision.
    pub fn lease_and_put(&self, key: &str) -> i64 {
        self.put(key, "somebody", &self.grant())
    }

    fn grant(&self) -> String {
        let granted = run(&mut self.etcdctl(&["lease", "grant", "3600"])).stdout;
        String::from_utf8(granted).unwrap().split(' ').nth(1).expect("lease ID granted with TTL").to_owned()
    }

    fn put(&self, key: &str, value: &str, lease: &str) -> i64 {
        revision(&run(&mut self.etcdctl(&["put", key, value, &format!("--lease={lease}"), "--write-out=json"])))
    }

    /// Puts this key under a separate lease if it is absent, as many clients do. Returns the lease, which
    /// [`Self::revoke`] ends, and the key's create_revision.
    pub fn put_if_absent(&self, key: &str) -> Option<(String, i64)> {
        let lease = self.grant();
        let file = self.folder.join("transaction");
        fs::write(&file, format!("create(\"{key}\") = \"0\"\n\nput --lease={lease} {key} somebody\n\n\n")).unwrap();
        let output = run(self.etcdctl(&["txn", "--write-out=json"]).stdin(fs::File::open(&file).unwrap()));
        let succeeded = String::from_utf8_lossy(&output.stdout).contains("\"succeeded\":true");
        succeeded.then(|| (lease, revision(&output)))
    }

    /// Revokes the lease, which deletes its keys.
    pub fn revoke(&self, lease: &str) {
        run(&mut self.etcdctl(&["lease", "revoke", lease]));
    }

    /// Revokes all leases.
    pub fn revoke_all(&self) {
        let leases = run(&mut self.etcdctl(&["lease", "list"])).stdout;
        // The first line is their number.
        String::from_utf8(leases).unwrap().lines().skip(1).for_each(|lease| self.revoke(lease));
    }

    /// Deletes this key, or the key of the candidate with this name.
    pub fn delete(&self, name: &str) {
        let key = self.candidates.lock().unwrap().remove(name);
        run(&mut self.etcdctl(&["del", key.as_deref().unwrap_or(name)]));
    }

    pub fn port(&self) -> u16 {
        self.client.number()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a signal. STOP silences the member as a paused machine would; CONT resumes it.
    pub fn signal(&mut self, name: &str) {
        self.member.as_mut().expect("etcd runs").signal(name);
    }

    /// Suspends the member, and returns when every thread has stopped; `CONT` resumes it.
    pub fn pause(&mut self) {
        self.member.as_mut().expect("etcd runs").pause();
    }

    /// Kills the member without a clean shutdown.
    pub fn kill9(&mut self) {
        let mut member = self.member.take().expect("etcd runs");
        member.signal("KILL");
        member.wait();
    }

    /// Restarts a killed member with its data.
    pub fn start_again(&mut self) {
        assert!(self.member.is_none(), "etcd runs already");
        let (url, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer.number()));
        let data = self.folder.join(&self.data).display().to_string();
        let mut command = vec![
            "etcd".to_owned(),
            format!("--data-dir={data}"),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // The minimum: passwords are checked often, and need no protection.
            "--bcrypt-cost=4".into(),
        ];
        command.extend(self.arguments.iter().cloned());
        if let Some(certificates) = &self.certificates {
            let file = |name: &str| certificates.file(name).display().to_string();
            command.push("--client-cert-auth".into());
            command.push(format!("--trusted-ca-file={}", file("ca.pem")));
            command.push(format!("--cert-file={}", file("server.pem")));
            command.push(format!("--key-file={}", file("server.key")));
        }
        self.member = Some(Program::start(&command, &self.folder.join("log"), "KILL"));
        wait_for("etcd is healthy", DEADLINE, || {
            let health = self.etcdctl(&["endpoint", "health"]).output().unwrap();
            health.status.success().then_some(())
        });
    }

    /// Creates new certificates in their own folder. Restarts the member, which then trusts both authorities.
    pub fn with_next_certificates(&mut self) -> Certificates {
        let folder = self.folder.join("next");
        fs::create_dir(&folder).unwrap();
        let next = Certificates::make(&folder);
        let both = ["ca.pem", "next/ca.pem"].map(|file| fs::read_to_string(self.folder.join(file)).unwrap());
        fs::write(self.folder.join("ca.pem"), both.concat()).unwrap();
        self.kill9();
        self.start_again();
        next
    }

    /// Writes all data to a file.
    pub fn save_snapshot(&self, name: &str) {
        run(&mut self.etcdctl(&["snapshot", "save", &self.folder.join(name).display().to_string()]));
    }

    /// Kills the member, and restarts it from a snapshot, which decreases its revision.
    pub fn restore_snapshot(&mut self, name: &str) {
        self.kill9();
        let data = format!("{}-restored", self.data);
        let peer = format!("http://127.0.0.1:{}", self.peer.number());
        run(self
            .etcdctl(&["snapshot", "restore", &self.folder.join(name).display().to_string()])
            .arg(format!("--data-dir={}", self.folder.join(&data).display()))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}")));
        self.data = data;
        self.start_again();
    }

    /// A call of etcdctl, etcd's own client.
    pub fn etcdctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        forget_settings(&mut command);
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.url()));
        // A busy machine may need more than the default of 5 s to check a password.
        command.arg(format!("--command-timeout={}s", DEADLINE.as_secs())).args(arguments);
        if let Some(certificates) = &self.certificates {
            command.arg(format!("--cacert={}", certificates.file("ca.pem").display()));
            command.arg(format!("--cert={}", certificates.file("client.pem").display()));
            command.arg(format!("--key={}", certificates.file("client.key").display()));
        }
        command.args(self.user.map(|user| format!("--user={user}")));
        command
    }
}

/// The revision in a JSON reply.
fn revision(answer: &Output) -> i64 {
    let text = String::from_utf8_lossy(&answer.stdout);
    let (_, rest) = text.split_once("\"revision\":").expect("a header");
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// A folder with `ca.pem`, `server.pem` and `client.pem`, and their keys.
pub struct Certificates(PathBuf);

impl Certificates {
    fn make(folder: &Path) -> Self {
        let openssl = |arguments: &str| {
            run(Command::new("openssl").current_dir(folder).args(arguments.split(' ')));
        };
        let new_key = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        openssl(&format!("{new_key} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"));
        // etcd connects to itself as a client, with the server's certificate.
        let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        fs::write(folder.join("extensions"), extensions).unwrap();
        for name in ["server", "client"] {
            openssl(&format!("{new_key} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
            let sign = "x509 -req -days 2 -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions";
            openssl(&format!("{sign} -in {name}.csr -out {name}.pem"));
        }
        Self(folder.to_owned())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
