//! The setup of `make`: the packages that it installs, and the builds that it skips.

use crate::support::guardian::{Folder, Program};
use crate::support::programs::{self, forget_settings, run};
use crate::support::{DEADLINE, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Takes a lock as apt does, and holds it.
const HOLDER: &str = "import fcntl, signal, sys
file = open(sys.argv[1], 'w')
fcntl.lockf(file, fcntl.LOCK_EX)
open(sys.argv[1] + '.held', 'w')
signal.pause()";

/// apt with its own folders, in which one package can be installed. dpkg is a program that does nothing.
fn apt(folder: &Folder) {
    for place in ["lists/partial", "cache/archives/partial", "dpkg", "repository", "package/DEBIAN", "bin"] {
        fs::create_dir_all(folder.join(place)).unwrap();
    }
    let control = "Package: etcd-client\nVersion: 99\nArchitecture: all\nMaintainer: nobody\nDescription: nothing\n";
    fs::write(folder.join("package/DEBIAN/control"), control).unwrap();
    let package = folder.join("repository/etcd-client.deb");
    run(Command::new("dpkg-deb").arg("--build").arg(folder.join("package")).arg(&package));
    let sum = run(Command::new("sha256sum").arg(&package)).stdout;
    let sum = String::from_utf8(sum).unwrap().split(' ').next().unwrap().to_owned();
    let size = fs::metadata(&package).unwrap().len();
    let index = format!("{control}Filename: ./etcd-client.deb\nSize: {size}\nSHA256: {sum}\n");
    fs::write(folder.join("repository/Packages"), index).unwrap();
    let here = folder.path().display();
    let source = format!("deb [trusted=yes] file:{here}/repository ./\n");
    fs::write(folder.join("sources.list"), source).unwrap();
    fs::write(folder.join("dpkg/status"), "").unwrap();
    let settings = [
        ("Dir", ""),
        ("Dir::Etc", ""),
        ("Dir::Etc::sourcelist", "sources.list"),
        ("Dir::State", ""),
        ("Dir::State::lists", "lists"),
        ("Dir::State::status", "dpkg/status"),
        ("Dir::Cache", "cache"),
        ("Dir::Log", ""),
    ];
    let settings = settings.map(|(name, place)| format!("{name} \"{here}/{place}\";\n")).concat();
    let others = "Dir::Bin::dpkg \"/bin/true\";\nAPT::Sandbox::User \"\";\n";
    fs::write(folder.join("apt.conf"), settings + others).unwrap();
}

/// All programs of this machine except etcdctl, and an `id` that always reports root, because the test's user owns
/// apt's folders.
fn programs_without_etcdctl(folder: &Path) {
    let path = std::env::var_os("PATH").unwrap();
    for program in std::env::split_paths(&path).filter_map(|place| fs::read_dir(place).ok()).flatten().flatten() {
        if program.file_name() != "etcdctl" && program.file_name() != "id" {
            // The first program with a name counts.
            let _ = symlink(program.path(), folder.join(program.file_name()));
        }
    }
    fs::write(folder.join("id"), "#!/bin/sh\necho 0\n").unwrap();
    fs::set_permissions(folder.join("id"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn setup_waits_for_apt_locks() {
    if Command::new("apt-get").arg("--version").output().is_err() {
        return;
    }
    for lock in ["lists/lock", "cache/archives/lock", "dpkg/lock-frontend"] {
        let folder = Folder::new("apt");
        apt(&folder);
        programs_without_etcdctl(&folder.join("bin"));
        let (lock, log) = (folder.join(lock), folder.join("log"));
        let held = lock.with_file_name(format!("{}.held", lock.file_name().unwrap().to_str().unwrap()));
        let holder = Program::start(&["python3", "-c", HOLDER, lock.to_str().unwrap()], &folder.join("held"), "KILL");
        wait_until("the lock is held", DEADLINE, || held.exists());
        let [configuration, path] = ["APT_CONFIG=apt.conf", "PATH=bin"].map(|setting| {
            let (name, file) = setting.split_once('=').unwrap();
            format!("{name}={}", folder.join(file).display())
        });
        let script = format!("{ROOT}/scripts/setup.sh");
        let mut setup = Program::start(&["env", &configuration, &path, "sh", &script, "test"], &log, "KILL");
        let printed = || fs::read_to_string(&log).unwrap();
        wait_until(format!("it waits for {}", lock.display()), DEADLINE, || {
            assert_eq!(setup.exit_status(), None, "{}", printed());
            printed().contains(&format!("waiting: Could not get lock {}", lock.display()))
        });
        drop(holder);
        // dpkg has installed nothing, which the script detects.
        assert_eq!(setup.wait(), 1);
        let last =
            "what this system's packages offer is not enough (PostgreSQL 14 or later is needed); missing: etcd-client";
        assert_eq!(printed().lines().last(), Some(last), "{}", printed());
    }
}

/// The commands of a target, not executed.
fn commands(target: &str) -> Vec<String> {
    let mut make = Command::new("make");
    forget_settings(&mut make);
    let output = run(make.args(["--dry-run", "--no-print-directory", target]).current_dir(ROOT));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The units that a cargo command would compile, without the profile's name, which has no effect.
fn units(command: &str) -> BTreeSet<String> {
    let arguments = command.split_whitespace().skip(1).take_while(|word| *word != "--");
    let mut cargo = programs::cargo();
    cargo.args(arguments).args(["--unit-graph", "-Z", "unstable-options"]);
    let output = run(cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(ROOT));
    let graph: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unit = |unit: &Value| {
        let parts = ["pkg_id", "mode", "platform", "features", "profile"].map(|part| unit[part].clone());
        let mut unit = Value::Array(parts.into_iter().chain([unit["target"]["name"].clone()]).collect());
        unit[4]["name"].take();
        unit.to_string()
    };
    graph["units"].as_array().unwrap().iter().map(unit).collect()
}

/// Checks that the programs of `targets` are built from the units that `first` builds.
fn share_units(first: &str, targets: &[&str]) {
    let of = |target: &str| {
        let builds = commands(target).into_iter();
        builds.filter(|line| line.starts_with("cargo build")).collect::<Vec<_>>()
    };
    let [build] = &of(first)[..] else { panic!("{:?}", commands(first)) };
    let built = units(build);
    for target in targets {
        let commands = of(target);
        assert!(!commands.is_empty(), "{target}");
        for command in commands {
            let units = units(&command);
            // Each program of our own packages is a unit of its own.
            let again: Vec<_> = units.difference(&built).filter(|unit| !unit.contains(ROOT)).collect();
            assert!(again.is_empty(), "{command} would also compile\n{again:#?}");
            let own = built.iter().filter(|unit| unit.contains(ROOT));
            let own: Vec<_> = own.filter(|unit| !units.contains(*unit)).collect();
            assert!(own.is_empty(), "{command} would not use\n{own:#?}");
        }
    }
}

#[test]
fn make_does_not_rebuild_an_up_to_date_build() {
    share_units("build", &["deb", "bench", "failover", "renewals", "guard", "definitions"]);
    share_units("demo", &["distributed_cron", "job_queue"]);
}
