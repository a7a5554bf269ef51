//! SIGHUP: whole or not at all, and what was in force stays where something is wrong.

use crate::support::fenced::code;
use crate::support::guardian::Folder;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire};
use std::fs;

const POLICIES: &str = "version: 1\nresources: [{name: jobs, tables: [public.jobs]}]\n";
const WRITE: &str = "INSERT INTO jobs VALUES (1)";

/// A proxy with a file of settings, which can be replaced.
struct World {
    proxy: Proxy,
    postgres: Postgres,
    folder: Folder,
}

impl World {
    fn start(settings: &str) -> Self {
        let postgres = Postgres::start(Options::default());
        postgres.sql("CREATE TABLE jobs (id int)");
        let folder = Folder::new("settings");
        fs::write(folder.join("fencegate.yaml"), settings).unwrap();
        let file = folder.join("fencegate.yaml").display().to_string();
        let proxy =
            Proxy::start_with(&postgres, &ProxyOptions::default().policies(POLICIES).arguments(&["--config", &file]));
        Self { proxy, postgres, folder }
    }

    fn reload_with(&mut self, settings: &str) {
        fs::write(self.folder.join("fencegate.yaml"), settings).unwrap();
        self.proxy.sighup();
    }

    fn login(&self) -> Wire {
        Wire::login(&self.proxy.address(), "postgres", "postgres")
    }
}

#[test]
fn what_has_changed_is_logged_and_what_has_to_wait_is_said() {
    let mut world = World::start("max_connections: 10\n");
    world.reload_with("max_connections: 20\nhttp: 127.0.0.1:1\n");
    world.proxy.wait_for_log("policies_loaded", DEADLINE);
    let log = world.proxy.log();
    let changes: Vec<_> = log.lines().filter(|line| line.contains("setting_changed")).collect();
    assert!(changes.len() == 2, "{log}");
    assert!(changes[0].contains(r#"key="http" before="" after="127.0.0.1:1" applied=false"#), "{log}");
    assert!(changes[1].contains(r#"key="max_connections" before="10" after="20" applied=true"#), "{log}");
}

#[test]
fn faults_in_settings_and_policies_are_told_together_and_nothing_is_applied() {
    let mut world = World::start("max_connections: 10\n");
    world.proxy.write_policies("version: 1\nresources: [{name: jobs, tables: [public.free], mod: observe}]\n");
    world.reload_with("max_connections: 20\nmax_conections: 30\n");
    world.proxy.wait_for_log("policies.yaml:2:", DEADLINE);
    let log = world.proxy.log();
    assert!(log.contains("fencegate.yaml:2:1: unknown key `max_conections`"), "{log}");
    assert!(!log.contains("setting_changed"), "{log}");
    assert_eq!(code(&mut world.login(), WRITE), "LF002");
}

#[test]
fn files_that_vanish_leave_what_was_in_force() {
    let mut world = World::start("max_connections: 10\n");
    fs::remove_file(world.folder.join("fencegate.yaml")).unwrap();
    world.proxy.remove_policies();
    world.proxy.sighup();
    world.proxy.wait_for_log("cannot read the directory", DEADLINE);
    let log = world.proxy.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("not reloaded: what is in force stays")).collect();
    assert!(lines.len() == 2 && lines[0].contains("fencegate.yaml: cannot read the file"), "{log}");
    assert_eq!(code(&mut world.login(), WRITE), "LF002");
    assert_eq!(world.postgres.value("SELECT count(*) FROM jobs"), "0");
}
