//! Upgrades without a disconnect: a proxy takes over the listening sockets of the running one.

mod exchange;
mod load;
mod reloads;
mod sessions;
mod sockets;

use crate::support::fenced::init;
use crate::support::guardian::{Folder, Port, Program};
use crate::support::proxy::BINARY;
use crate::support::{Address, DEADLINE, Options, Postgres, Wire, wait_until};
use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const SCHEMA: &str = "CREATE TABLE t (id bigserial, token bigint DEFAULT fencegate.token('r'))";
const POLICIES: &str = "version: 1\nresources: [{name: r, tables: [public.t]}]\n";

/// A server, and the addresses at which successive proxies serve it.
struct Site {
    postgres: Postgres,
    folder: Folder,
    port: Port,
    http: Port,
    started: Cell<u32>,
}

/// A proxy of the site.
struct Generation {
    program: Program,
    log: PathBuf,
}

impl Site {
    fn new() -> Self {
        let postgres = Postgres::start(Options::default());
        init(&postgres, "postgres");
        postgres.sql(SCHEMA);
        let folder = Folder::new("site");
        fs::create_dir(folder.join("policies")).unwrap();
        fs::create_dir(folder.join("socket")).unwrap();
        fs::write(folder.join("policies/policies.yaml"), POLICIES).unwrap();
        Self { postgres, folder, port: Port::claim(), http: Port::claim(), started: Cell::new(0) }
    }

    fn address(&self) -> Address {
        Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number())))
    }

    /// The proxy's Unix socket for clients.
    fn socket(&self) -> PathBuf {
        self.folder.join("socket/.s.PGSQL.6432")
    }

    /// The socket for successors.
    fn path(&self) -> PathBuf {
        self.folder.join("take-over.sock")
    }

    fn login(&self) -> Wire {
        Wire::login(&self.address(), "postgres", "postgres")
    }

    /// The command line of a proxy, with these addresses.
    fn command(&self, arguments: &[&str]) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        let mut command = vec![BINARY.to_owned(), "proxy".into(), "--take-over".into(), text(self.path())];
        command.extend(["--control".into(), self.postgres.control_url()]);
        if !arguments.contains(&"--upstream") {
            command.extend(["--upstream".into(), self.postgres.url()]);
        }
        command.extend(["--policies".into(), text(self.folder.join("policies"))]);
        command.extend(["--allow-unauthenticated", "unix,127.0.0.0/8"].map(str::to_owned));
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        command
    }

    /// Starts a proxy with addresses other than the usual ones.
    fn start_with(&self, arguments: &[&str]) -> Generation {
        let number = self.started.replace(self.started.get() + 1);
        let log = self.folder.join(&format!("log-{number}"));
        Generation { program: Program::start(&self.command(arguments), &log, "KILL"), log }
    }

    /// Starts a proxy with the usual addresses and these settings.
    fn start(&self, arguments: &[&str]) -> Generation {
        let (listen, http) = (format!("127.0.0.1:{}", self.port.number()), format!("127.0.0.1:{}", self.http.number()));
        let socket = self.folder.join("socket").display().to_string();
        let usual = ["--listen", &listen, "--listen", &socket, "--http", &http];
        self.start_with(&[&usual, arguments].concat())
    }

    /// The first proxy. Waits until it listens.
    fn first(&self, arguments: &[&str]) -> Generation {
        let mut first = self.start(arguments);
        first.wait_for("metrics_served");
        first
    }

    /// Starts a successor and waits until it has taken over.
    fn upgrade(&self, predecessor: &mut Generation, arguments: &[&str]) -> Generation {
        let mut successor = self.start(arguments);
        successor.wait_for("metrics_served");
        predecessor.wait_for("sockets_handed_over");
        successor
    }
}

impl Generation {
    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        wait_until(format!("the log has {text:?}"), DEADLINE, || {
            let (status, log) = (self.program.exit_status(), self.log());
            assert!(log.contains(text) || status.is_none(), "the proxy ended with {status:?}:\n{log}");
            log.contains(text)
        });
    }
}
