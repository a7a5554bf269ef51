//! PostgreSQL's own tests: Debian's source package, fetched and verified by apt, kept in the build folder.

use super::programs::made_once;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGE: &str = "postgresql-15";
const RELEASE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian/";
const REGRESSION_TESTS: &str = "src/test/regress";
const ISOLATION_TESTS: &str = "src/test/isolation";
/// The headers for compiling extensions.
const HEADERS_PACKAGE: &str = "postgresql-server-dev-15";
const HEADERS: &str = "usr/include/postgresql/15/server";

/// The regression tests of the newest source on the mirror.
pub fn regression_tests() -> PathBuf {
    folder().join(REGRESSION_TESTS)
}

/// The isolation tests.
pub fn isolation_tests() -> PathBuf {
    folder().join(ISOLATION_TESTS)
}

/// Compiles the functions in C that the regression tests call, as a library that the server loads.
pub fn compile_test_functions(library: &Path) {
    run(Command::new("cc")
        .args(["-O1", "-fPIC", "-shared", "-I"])
        .arg(folder().join(HEADERS))
        .arg("-o")
        .arg(library)
        .arg(regression_tests().join("regress.c")));
}

/// The version of the source package.
pub fn release() -> String {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let is_description = |name: String| Some(name.strip_suffix(".dsc")?.split_once('_')?.1.to_owned());
    files.filter_map(is_description).next().unwrap()
}

fn folder() -> PathBuf {
    made_once(PACKAGE, &[PACKAGE, RELEASE, REGRESSION_TESTS, ISOLATION_TESTS, HEADERS_PACKAGE], |folder| {
        for needed in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(needed)).unwrap();
        }
        let kept = format!("[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} {RELEASE} main", mirror());
        fs::write(folder.join("sources.list"), format!("deb-src {kept}\ndeb {kept}\n")).unwrap();
        run(apt(folder).args(["update", "--error-on=any"]));
        run(apt(folder).args(["source", "--download-only", PACKAGE]));
        let tests = format!(
            "tar -xjf *.orig.tar.bz2 --strip-components=1 --wildcards '*/{REGRESSION_TESTS}/*' '*/{ISOLATION_TESTS}/*'"
        );
        run(Command::new("sh").args(["-c", &tests]).current_dir(folder));
        // Only the headers: installing the package would also install a compiler.
        run(apt(folder).args(["download", HEADERS_PACKAGE]));
        let headers = format!("dpkg-deb --fsys-tarfile {HEADERS_PACKAGE}_*.deb | tar -x ./{HEADERS}");
        run(Command::new("sh").args(["-c", &headers]).current_dir(folder));
        fs::remove_dir_all(folder.join("lists")).unwrap();
    })
}

/// The mirror that this machine uses for packages of that release, if any.
fn mirror() -> String {
    let format = "$(CODENAME) $(COMPONENT) $(REPO_URI)";
    let known = Command::new("apt-get").args(["indextargets", "--format", format]).output();
    let known = known.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let ours = known.lines().find_map(|line| line.strip_prefix(RELEASE)?.strip_prefix(" main "));
    ours.unwrap_or(MIRROR).to_owned()
}

/// apt with its own lists, so that it needs no root and does not change the machine's state. It treats no package as
/// installed and has no preferences: otherwise it would look for this machine's version, which its lists may not have.
pub fn apt(folder: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let shown = folder.display();
    for option in [
        "APT::Sandbox::User=root".to_owned(),
        "APT::Default-Release=".to_owned(),
        "Acquire::Languages=none".to_owned(),
        "Dir::State::status=/dev/null".to_owned(),
        "Dir::Etc::Preferences=/dev/null".to_owned(),
        "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
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
        Err(error) => format!("{}: {error}", command.get_program().display()),
    };
    panic!("Debian's source package {PACKAGE} is not usable: {why}");
}
