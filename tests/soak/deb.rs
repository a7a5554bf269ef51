//! The Debian package: what it installs, and what it leaves when it is removed and purged.

use crate::support::guardian::Folder;
use crate::support::proxy::BINARY;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Runs dpkg for this root. The package's scripts run outside the root, and use DPKG_ROOT.
fn dpkg(root: &Path, arguments: &[&str]) {
    let mut command = Command::new("fakeroot");
    command.args(["dpkg", "--force-script-chrootless", "--force-depends", "--log=/dev/null", "--root"]).arg(root);
    run(command.args(arguments));
}

/// Builds a package in the folder.
fn build(folder: &Folder) -> PathBuf {
    let built = Path::new(BINARY).parent().and_then(Path::parent).unwrap();
    run(Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/deb.sh"))
        .arg("dev")
        .arg(folder.path())
        .arg("--fast")
        .env("CARGO_TARGET_DIR", built));
    let mut files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.extension().is_some_and(|end| end == "deb")).expect("a package")
}

#[test]
fn a_package_is_reproducible_and_is_installed_removed_and_purged() {
    let [folder, other] = [(); 2].map(|()| Folder::new("deb"));
    let package = build(&folder);
    assert!(fs::read(&package).unwrap() == fs::read(build(&other)).unwrap(), "the packages differ");
    // lintian leaves a temporary file.
    let mut lintian = Command::new("lintian");
    run(lintian.env("TMPDIR", other.path()).args(["--allow-root", "--fail-on", "error,warning"]).arg(&package));
    let root = folder.join("root");
    for directory in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for file in
        ["var/lib/dpkg/status", "var/lib/dpkg/available", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"]
    {
        fs::write(root.join(file), "").unwrap();
    }

    dpkg(&root, &["--install", &package.display().to_string()]);
    let says = run(Command::new(root.join("usr/bin/fencegate")).arg("--version"));
    assert!(says.starts_with("fencegate "), "{says}");
    let mode = |file: &str| {
        fs::metadata(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).permissions().mode()
    };
    assert_eq!(mode("etc/fencegate/environment") & 0o777, 0o600, "the file contains a password");
    for file in [
        "etc/fencegate/fencegate.yaml",
        "etc/fencegate/policies.d",
        "usr/lib/systemd/system/fencegate.service",
        "usr/lib/systemd/system/fencegate@.service",
        "usr/share/man/man1/fencegate-proxy.1.gz",
        "usr/share/bash-completion/completions/fencegate",
        "usr/share/zsh/vendor-completions/_fencegate",
        "usr/share/fish/vendor_completions.d/fencegate.fish",
    ] {
        mode(file);
    }
    assert!(fs::read_to_string(root.join("etc/passwd")).unwrap().starts_with("fencegate:"), "the unit's user");

    dpkg(&root, &["--remove", "fencegate"]);
    assert!(!root.join("usr/bin/fencegate").exists());
    assert!(root.join("etc/fencegate/fencegate.yaml").exists(), "settings must remain until the package is purged");
    dpkg(&root, &["--purge", "fencegate"]);
    assert!(!root.join("etc/fencegate").exists());
}
