//! SIGHUP applies all or nothing; after a fault, the previous configuration stays in force.

use super::WithFile;
use crate::support::fenced::code;
use crate::support::{DEADLINE, Options, Postgres, Proxy, Wire};

const POLICIES: &str = "version: 1\nresources: [{name: jobs, tables: [public.jobs]}]\n";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";

fn start(settings: &str) -> (WithFile, Postgres) {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (id int)");
    (WithFile::start(&postgres, POLICIES, settings), postgres)
}

fn login(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), "postgres", "postgres")
}

#[test]
fn changed_settings_are_logged_including_those_that_need_a_restart() {
    let (mut world, _postgres) = start("max_connections: 10\n");
    world.reload_with("max_connections: 20\nworkers: 3\n");
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    let log = world.proxy.log();
    let changes: Vec<_> = log.lines().filter(|line| line.contains("setting_changed")).collect();
    assert!(changes.len() == 2, "{log}");
    assert!(changes[0].contains(r#"key="max_connections" before="10" after="20" applied=true"#), "{log}");
    assert!(changes[1].contains(r#"key="workers""#) && changes[1].contains(r#"after="3" applied=false"#), "{log}");
}

#[test]
fn faults_in_settings_and_policies_are_reported_together_and_nothing_is_applied() {
    let (mut world, _postgres) = start("max_connections: 10\n");
    world.proxy.write_policies("version: 1\nresources: [{name: jobs, tables: [public.free], mod: observe}]\n");
    world.reload_with("max_connections: 20\nmax_conections: 30\n");
    world.proxy.wait_for_log("policies.yaml:2:", DEADLINE);
    let log = world.proxy.log();
    assert!(log.contains("fencegate.yaml:2:1: unknown key `max_conections`"), "{log}");
    assert!(!log.contains("setting_changed"), "{log}");
    assert_eq!(code(&mut login(&world.proxy), WRITE), "LF002");
}

#[test]
fn missing_files_keep_the_previous_configuration() {
    let (mut world, postgres) = start("max_connections: 10\n");
    std::fs::remove_file(&world.file).unwrap();
    world.proxy.remove_policies();
    world.proxy.sighup();
    world.proxy.wait_for_log("cannot read the directory", DEADLINE);
    let log = world.proxy.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("reload_failed")).collect();
    assert!(lines.len() == 2 && lines[0].contains("fencegate.yaml: cannot read the file"), "{log}");
    assert_eq!(code(&mut login(&world.proxy), WRITE), "LF002");
    assert_eq!(postgres.value("SELECT count(*) FROM jobs"), "0");
}
