//! Postgres' own regression tests: Debian's source package, fetched and checked by apt, kept in the build folder.

use crate::support::programs::made_once;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGE: &str = "postgresql-15";
const RELEASE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian/";

/// The folder `src/test/regress` of the newest source that the mirror has.
pub fn regression_tests() -> PathBuf {
    folder().join("src/test/regress")
}

/// Which version it is.
pub fn release() -> String {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let is_description = |name: String| Some(name.strip_suffix(".dsc")?.split_once('_')?.1.to_owned());
    files.filter_map(is_description).next().unwrap()
}

fn folder() -> PathBuf {
    made_once(PACKAGE, &[PACKAGE, RELEASE], |folder| {
        for needed in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(needed)).unwrap();
        }
        let source = format!("deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {}", mirror());
        fs::write(folder.join("sources.list"), format!("{source} {RELEASE} main\n")).unwrap();
        run(apt(folder).args(["update", "--error-on=any"]));
        run(apt(folder).args(["source", "--download-only", PACKAGE]));
        let tests = "tar -xjf *.orig.tar.bz2 --strip-components=1 --wildcards '*/src/test/regress/*'";
        run(Command::new("sh").args(["-c", tests]).current_dir(folder));
        fs::remove_dir_all(folder.join("lists")).unwrap();
    })
}

/// Where this machine gets its packages of that release from, if it does.
fn mirror() -> String {
    let format = "$(CODENAME) $(COMPONENT) $(REPO_URI)";
    let known = Command::new("apt-get").args(["indextargets", "--format", format]).output();
    let known = known.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let ours = known.lines().find_map(|line| line.strip_prefix(RELEASE)?.strip_prefix(" main "));
    ours.unwrap_or(MIRROR).to_owned()
}

/// apt with lists of its own, so that it neither needs root nor changes what the machine knows.
fn apt(folder: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let shown = folder.display();
    for option in [
        "APT::Sandbox::User=root".to_owned(),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::Etc::SourceList={shown}/sources.list"),
        format!("Dir::State::Lists={shown}/lists"),
        format!("Dir::Cache={shown}/cache"),
    ] {
        command.args(["-o", &option]);
    }
    command.arg("-qq").current_dir(folder);
    command
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let why = match &output {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or_default().to_owned(),
        Err(error) => error.to_string(),
    };
    panic!("Debian's source package {PACKAGE} cannot be fetched: {why}");
}
