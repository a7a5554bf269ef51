//! The programs in `deploy/`, docker-compose.yml and the Dockerfile work as configured there. Tests read commands and
//! environment from these files and run them as local processes, without containers.

mod dockerfile;
mod file;
mod topology;

use crate::support::guardian::{Folder, Port};
use crate::support::proxy::{BINARY, NO_POLICIES, fencegate};
use crate::support::wait::{DEADLINE, wait_for, wait_until};
use crate::support::{Options, Postgres, Proxy, programs};
use dockerfile::Dockerfile;
use file::{Compose, Service};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use topology::Topology;

const PAGE: &str = include_str!("../../../examples/distributed_cron/README.md");
const LEADERS: [&str; 2] = ["cron-a", "cron-b"];

/// A file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn a_paused_leader_is_succeeded_and_its_late_write_gets_lf001() {
    let mut topology = Topology::new();
    LEADERS.into_iter().for_each(|service| topology.start(service));
    let leads = |topology: &Topology, service: &&str| topology.log(service).contains(" leads under token ");
    let old = wait_for("a node leads", DEADLINE, || LEADERS.into_iter().find(|it| leads(&topology, it)));
    let new = LEADERS.into_iter().find(|it| *it != old).unwrap();
    wait_until("the leader ticks", DEADLINE, || topology.log(old).contains(" tick "));
    // `docker compose pause`, and `unpause`.
    topology.signal(old, "STOP");
    wait_until("the other one ticks", DEADLINE, || topology.log(new).contains(" tick "));
    topology.signal(old, "CONT");
    wait_until("its late write is rejected", DEADLINE, || topology.log(old).contains("rejected: LF001"));

    let written = "SELECT (SELECT count(*) - count(DISTINCT tick) FROM ticks), \
        (SELECT count(*) FROM ticks a JOIN ticks b ON a.id < b.id AND a.token > b.token)";
    let none = Some("0".to_owned());
    assert_eq!(
        topology.database().sql_in("app", written),
        [[none.clone(), none]],
        "each once, and in the order of tokens"
    );
}

#[test]
fn files_and_services_named_in_deploy_exist() {
    let compose = Compose::read();
    let dockerfile = Dockerfile::read();
    for (name, service) in &compose.services {
        for source in service.mounts().map(|(source, _)| source).filter(|source| source.starts_with('/')) {
            assert!(Path::new(source).exists(), "{name} mounts {source}");
        }
        if let Some(build) = &service.build {
            dockerfile.stage(&build.target);
        } else {
            let (_, tag) = service.image.rsplit_once(':').expect("a tag");
            assert!(tag.contains(|c: char| c.is_ascii_digit()), "{name}: {tag} is no version");
        }
        for dependency in service.depends_on.keys() {
            assert!(compose.services.contains_key(dependency), "{name} depends on {dependency}");
        }
    }
    let ignored = read(".dockerignore");
    for source in dockerfile.copied() {
        assert!(project(&source).exists(), "the Dockerfile copies {source}");
        assert!(ignored.lines().any(|line| line == format!("!{source}")), ".dockerignore leaves {source} out");
    }
}

/// The addresses that the Prometheus of docker-compose.yml scrapes for a job.
fn scraped(job: &str) -> BTreeSet<String> {
    #[derive(serde::Deserialize)]
    struct Prometheus {
        scrape_configs: Vec<Scrape>,
    }
    #[derive(serde::Deserialize)]
    struct Scrape {
        job_name: String,
        static_configs: Vec<Targets>,
    }
    #[derive(serde::Deserialize)]
    struct Targets {
        targets: Vec<String>,
    }
    let prometheus: Prometheus = serde_saphyr::from_str(&read("deploy/prometheus/prometheus.yml")).unwrap();
    let of_job = prometheus.scrape_configs.into_iter().filter(|it| it.job_name == job);
    of_job.flat_map(|it| it.static_configs).flat_map(|it| it.targets).collect()
}

#[test]
fn prometheus_scrapes_the_proxies() {
    let compose = Compose::read();
    let stage = Dockerfile::read().stage("fencegate").clone();
    let (_, port) = stage.environment["FENCEGATE_HTTP"].rsplit_once(':').unwrap();
    let is_proxy = |service: &Service| service.image == "fencegate" && service.command.is_empty();
    let proxies = compose.services.iter().filter(|(_, service)| is_proxy(service));
    let expected: BTreeSet<String> = proxies.map(|(name, _)| format!("{name}:{port}")).collect();
    assert_eq!(scraped("fencegate"), expected);
}

#[test]
fn prometheus_scrapes_the_leaders() {
    let targets = scraped("fencegate-lead");
    let services: Vec<&str> = targets.iter().map(|target| target.split(':').next().unwrap()).collect();
    assert_eq!(services, LEADERS);
    let mut topology = Topology::new();
    LEADERS.into_iter().for_each(|service| topology.start(service));
    let pages = || targets.iter().map(|target| page(&topology.address(target))).collect::<String>();
    let is_led = |page: &str| {
        [0, 1]
            .into_iter()
            .all(|leads| page.matches(&format!("fencegate_leader{{election=\"/cron/leader\"}} {leads}\n")).count() == 1)
    };
    wait_until("one of the two leads", DEADLINE, || is_led(&pages()));
}

/// The current page at this address; empty if no program listens.
fn page(address: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        stream.read_to_string(&mut answer).unwrap();
    }
    answer
}

#[test]
fn the_systemd_unit_passes_valid_arguments() {
    const PROGRAM: &str = "/usr/bin/fencegate";
    let unit = read("deploy/systemd/fencegate.service");
    let value = |key: &str| {
        let start = format!("{key}=");
        unit.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("ExecReload"), "/bin/kill -HUP $MAINPID");
    assert_eq!(value("Restart"), "on-failure");
    assert_eq!(value("RestartPreventExitStatus"), "2", "not after a mistake in the settings");
    // Transactions have 30 s to end by default.
    assert!(value("TimeoutStopSec").parse::<u32>().unwrap() > 30);
    let command = value("ExecStart");
    let arguments = command.strip_prefix(PROGRAM).expect("the program");

    let folder = Folder::new("unit");
    let settings = folder.join("fencegate.yaml");
    fs::write(&settings, "listen: 127.0.0.1:1\n").unwrap();
    let arguments = arguments.replace("/etc/fencegate/fencegate.yaml", &settings.display().to_string());
    let output = fencegate().args(arguments.split_whitespace()).env_clear().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is not set"), "the program has read the file and reports missing settings: {said}");

    // systemd checks the unit, with the path of the program in this build.
    let checked = folder.join("fencegate.service");
    fs::write(&checked, unit.replace(PROGRAM, BINARY)).unwrap();
    let output = programs::run(Command::new("systemd-analyze").arg("verify").arg(&checked));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");

    // The template unit differs only where it must.
    let instances = read("deploy/systemd/fencegate@.service");
    let lines = |unit: &str| -> Vec<String> {
        unit.lines().filter(|line| !line.starts_with('#')).map(|line| line.replace(" (%i)", "")).collect()
    };
    let take_over = format!("{command} --take-over /run/fencegate/take-over.sock");
    let changed = lines(&unit).into_iter().flat_map(|line| match &*line {
        // Clients could not enter the preserved directory of a dynamic user.
        "DynamicUser=yes" => vec![],
        "RuntimeDirectory=fencegate" => vec![line, "RuntimeDirectoryPreserve=yes".to_owned()],
        _ if line == format!("ExecStart={command}") => vec![format!("ExecStart={take_over}")],
        _ => vec![line],
    });
    assert_eq!(lines(&instances), changed.collect::<Vec<_>>());
    let checked = folder.join("fencegate@.service");
    fs::write(&checked, instances.replace(PROGRAM, BINARY)).unwrap();
    let output = programs::run(Command::new("systemd-analyze").arg("verify").arg(&checked));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn the_health_check_accepts_every_address_format() {
    let postgres = Postgres::start(Options::default());
    assert_eq!(Dockerfile::read().last().healthcheck, ["fencegate", "healthcheck"]);
    for host in ["127.0.0.1", "0.0.0.0", "localhost", "[::1]", "[::]"] {
        let port = Port::claim();
        let address = format!("{host}:{}", port.number());
        let _proxy = Proxy::start(&postgres, NO_POLICIES, &["--http", &address]);
        let mut check = Command::new(BINARY);
        check.arg("healthcheck").env_clear().env("FENCEGATE_HTTP", &address);
        wait_until(format!("{address} is healthy"), DEADLINE, || check.status().unwrap().success());
    }
}

#[test]
fn the_image_uses_the_makefiles_build_and_an_unprivileged_user() {
    let dockerfile = Dockerfile::read();
    let build = dockerfile.stage("build");
    assert!(read("Makefile").contains("cargo build --release --locked"));
    assert!(
        build.runs("cargo auditable build --release --locked --package fencegate --package fencegate-examples "),
        "{build:?}"
    );
    let setup = read("scripts/setup.sh");
    for package in ["libclang-dev", "protobuf-compiler", "libprotobuf-dev"] {
        assert!(setup.contains(package) && build.runs(package), "{package}");
    }
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let manifest = read("Cargo.toml");
    let needed = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    let (image, _) = build.from.strip_prefix("rust:").unwrap().split_once("-bookworm@sha256:").expect("a digest");
    assert!(version(image) >= version(needed), "{image} is older than {needed}");
    let files = dockerfile.stage("files");
    assert!(files.from.starts_with("debian:bookworm-slim@sha256:"), "the Debian on which the programs are linked");
    for target in ["fencegate", "distributed_cron", "from-binary", "distributed_cron-from-binary"] {
        let stage = dockerfile.stage(target);
        // A numeric user shows Kubernetes that the user is not root.
        assert!(stage.user.split(':').all(|id| id.parse::<u32>().unwrap() > 0), "{target}");
        assert_eq!(stage.from, "scratch", "{target}");
    }
    // Builders without BuildKit run all stages before the target.
    assert!(dockerfile.is_before("distributed_cron-from-binary", "build"));
    assert_eq!(dockerfile.last().entrypoint, ["fencegate"], "the default target of `docker build`");
}

#[test]
fn services_named_in_the_page_exist() {
    let compose = Compose::read();
    let commands = PAGE.lines().filter_map(|line| line.strip_prefix("docker compose "));
    let words: BTreeSet<&str> = commands.flat_map(str::split_whitespace).collect();
    for word in ["up", "pause", "unpause", "logs"] {
        assert!(words.contains(word), "the page does not contain `docker compose {word}`");
    }
    let named = words.iter().filter(|word| word.contains('-') && !word.starts_with('-'));
    let named: Vec<_> = named.inspect(|name| assert!(compose.services.contains_key(**name), "{name}")).collect();
    assert!(!named.is_empty());
}
