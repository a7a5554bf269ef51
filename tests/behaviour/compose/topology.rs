//! The services as processes: container addresses become local ports, and mounted files become their sources.

use crate::compose::dockerfile::Dockerfile;
use crate::compose::file::{Compose, Condition, Service};
use crate::support::example::example;
use crate::support::guardian::{Folder, Port, Program};
use crate::support::programs::postgres_program;
use crate::support::proxy::BINARY;
use crate::support::wait::{DEADLINE, wait_until};
use crate::support::{Options, Postgres};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The running programs and their addresses.
pub struct Topology {
    // Before the folder and the server: fields are dropped in this order.
    programs: HashMap<String, Program>,
    folder: Folder,
    compose: Compose,
    dockerfile: Dockerfile,
    database: Option<Postgres>,
    /// By service and container port.
    ports: RefCell<HashMap<(String, u16), Port>>,
}

impl Topology {
    pub fn new() -> Self {
        Self {
            programs: HashMap::new(),
            folder: Folder::new("compose"),
            compose: Compose::read(),
            dockerfile: Dockerfile::read(),
            database: None,
            ports: RefCell::default(),
        }
    }

    /// Starts a service after the conditions on its dependencies hold.
    pub fn start(&mut self, service: &str) {
        if self.programs.contains_key(service) || service == "postgres" && self.database.is_some() {
            return;
        }
        let dependencies = self.dependencies(service);
        // Start all first: members of etcd become healthy together.
        dependencies.iter().for_each(|(dependency, _)| self.start(dependency));
        for (dependency, condition) in dependencies {
            match condition {
                Condition::ServiceHealthy => self.wait_until_healthy(&dependency),
                Condition::ServiceCompletedSuccessfully => {
                    let code = self.programs.get_mut(&dependency).unwrap().wait();
                    assert_eq!(code, 0, "{dependency}:\n{}", self.log(&dependency));
                }
            }
        }
        if service == "postgres" {
            self.database = Some(self.start_database());
            return;
        }
        let command = self.command(service);
        let program = Program::start(&command, &self.log_path(service), "KILL");
        self.programs.insert(service.to_owned(), program);
    }

    pub fn database(&self) -> &Postgres {
        self.database.as_ref().expect("a service depends on it")
    }

    pub fn signal(&mut self, service: &str, name: &str) {
        self.programs.get_mut(service).unwrap().signal(name);
    }

    /// The local address for a container's address.
    pub fn address(&self, target: &str) -> String {
        let (service, _) = target.split_once(':').expect("a port");
        self.translate(service, target)
    }

    pub fn log(&self, service: &str) -> String {
        fs::read_to_string(self.log_path(service)).unwrap_or_default()
    }

    fn log_path(&self, service: &str) -> PathBuf {
        self.folder.join(&format!("{service}.log"))
    }

    fn service(&self, name: &str) -> &Service {
        &self.compose.services[name]
    }

    fn dependencies(&self, service: &str) -> Vec<(String, Condition)> {
        self.service(service).depends_on.iter().map(|(name, it)| (name.clone(), it.condition)).collect()
    }

    /// Starts the database as the image does, and runs the scripts mounted for it.
    fn start_database(&self) -> Postgres {
        const SCRIPTS: &str = "/docker-entrypoint-initdb.d/";
        let service = self.service("postgres");
        let postgres = Postgres::start(Options::default());
        let database = &service.environment["POSTGRES_DB"];
        postgres.sql(&format!("CREATE DATABASE {database}"));
        let scripts = service.mounts().filter(|(_, target)| target.starts_with(SCRIPTS));
        scripts.for_each(|(script, _)| drop(postgres.sql_in(database, &fs::read_to_string(script).unwrap())));
        postgres
    }

    /// Runs the health check until it succeeds.
    fn wait_until_healthy(&mut self, name: &str) {
        let service = self.service(name);
        let test = match (&service.healthcheck, &service.build) {
            (Some(check), _) => check.test.strip_prefix(&["CMD".to_owned()]).expect("a command").to_vec(),
            (None, Some(build)) => self.dockerfile.stage(&build.target).healthcheck.clone(),
            (None, None) => panic!("{name} has no health check"),
        };
        let mut environment = self.environment(name);
        // In the container, the default ports are the service's own.
        match name {
            "postgres" => environment.insert("PGPORT".into(), self.database().port().to_string()),
            _ if name.starts_with("etcd") => {
                environment.insert("ETCDCTL_ENDPOINTS".into(), format!("127.0.0.1:{}", self.port(name, 2379)))
            }
            _ => None,
        };
        let program = match test[0].as_str() {
            "fencegate" => PathBuf::from(BINARY),
            program if name == "postgres" => postgres_program(program),
            program => PathBuf::from(program),
        };
        let mut check = Command::new(program);
        check.args(&test[1..]).env_clear().env("PATH", PATH).envs(environment);
        check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let log = self.log_path(name);
        wait_until(format!("{name} is healthy"), DEADLINE, || {
            let ended = self.programs.get_mut(name).and_then(Program::exit_status);
            assert_eq!(ended, None, "{}", fs::read_to_string(&log).unwrap_or_default());
            check.status().unwrap().success()
        });
    }

    /// The command line, with only the container's environment.
    fn command(&self, name: &str) -> Vec<String> {
        let service = self.service(name);
        let mut words: Vec<String> = match &service.build {
            Some(build) => {
                let stage = self.dockerfile.stage(&build.target);
                let command = if service.command.is_empty() { &stage.command } else { &service.command };
                [stage.entrypoint.as_slice(), command].concat()
            }
            None => service.command.clone(),
        };
        words = words.iter().map(|word| self.translate(name, word)).collect();
        words[0] = match words[0].as_str() {
            "fencegate" => BINARY.to_owned(),
            "distributed_cron" => example("distributed_cron").display().to_string(),
            "psql" => postgres_program("psql").display().to_string(),
            other => other.to_owned(),
        };
        let environment = self.environment(name).into_iter().map(|(name, value)| format!("{name}={value}"));
        let before = ["env".to_owned(), "-i".to_owned(), format!("PATH={PATH}")];
        before.into_iter().chain(environment).chain(words).collect()
    }

    fn environment(&self, name: &str) -> BTreeMap<String, String> {
        let service = self.service(name);
        let image = service.build.as_ref().map(|build| self.dockerfile.stage(&build.target).environment.clone());
        let all = image.unwrap_or_default().into_iter().chain(service.environment.clone());
        let mut environment: BTreeMap<_, _> = all.map(|(key, value)| (key, self.translate(name, &value))).collect();
        // PGHOST and PGPORT are separate variables.
        if let Some(host) = environment.get("PGHOST").cloned() {
            let port = environment["PGPORT"].parse().unwrap();
            environment.insert("PGHOST".into(), "127.0.0.1".into());
            environment.insert("PGPORT".into(), self.port(&host, port).to_string());
        }
        environment
    }

    /// Translates a word of a command, or a value of the environment, for a process without a container.
    fn translate(&self, service: &str, word: &str) -> String {
        let (flag, value) = word.split_once('=').map_or(("", word), |(flag, value)| (flag, value));
        for (source, target) in self.service(service).mounts() {
            if let Some(rest) = value.strip_prefix(target).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                // Without containers, a volume is a folder.
                let source = if source.starts_with('/') { source.into() } else { self.folder.join(source) };
                let path = format!("{}{rest}", source.display());
                return if flag.is_empty() { path } else { format!("{flag}={path}") };
            }
        }
        let own = self.replace_ports(word, "0.0.0.0:", service);
        let word = self
            .compose
            .services
            .keys()
            .fold(own, |word, other| self.replace_ports(&word, &format!("{other}:"), other));
        self.replace_hosts(&word)
    }

    /// Replaces addresses of the service that have a port.
    fn replace_ports(&self, word: &str, before: &str, service: &str) -> String {
        let mut parts = word.split(before);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for rest in parts {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match rest[..digits].parse() {
                Ok(port) => write!(replaced, "127.0.0.1:{}{}", self.port(service, port), &rest[digits..]).unwrap(),
                Err(_) => write!(replaced, "{before}{rest}").unwrap(),
            }
        }
        replaced
    }

    /// Replaces the hosts and ports of a connection string.
    fn replace_hosts(&self, word: &str) -> String {
        let value = |key: &str| word.split([' ', '=']).skip_while(|it| *it != key).nth(1).map(str::to_owned);
        let (Some(hosts), Some(ports)) = (value("host"), value("port")) else { return word.to_owned() };
        let pairs = hosts.split(',').zip(ports.split(','));
        let here: Vec<_> = pairs.map(|(host, port)| self.port(host, port.parse().unwrap()).to_string()).collect();
        let local = vec!["127.0.0.1"; here.len()].join(",");
        word.replace(&format!("host={hosts} port={ports}"), &format!("host={local} port={}", here.join(",")))
    }

    /// The local port for this port of the service's container.
    fn port(&self, service: &str, port: u16) -> u16 {
        if service == "postgres" {
            assert_eq!(port, 5432);
            return self.database().port();
        }
        self.ports.borrow_mut().entry((service.to_owned(), port)).or_insert_with(Port::claim).number()
    }
}
