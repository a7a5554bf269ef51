//! One of PostgreSQL's test suites, run by its own driver.

use crate::compat::outcome::Outcome;
use crate::support::guardian::Folder;
use crate::support::postgres::{SUPERUSER, give_to_server, server_command};
use crate::support::postgres_source::{compile_test_functions, isolation_tests, regression_tests};
use crate::support::programs::{self, postgres_program};
use crate::support::wire::Address;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A suite in a separate folder, so that the paths in its output are the same in each run.
pub struct Suite {
    name: &'static str,
    schedule: &'static str,
    driver: PathBuf,
    folder: Folder,
    database: &'static str,
    database_exists: bool,
}

impl Suite {
    pub fn regression() -> Self {
        let suite = Self::new("pg_regress", "parallel_schedule", &regression_tests(), "regress/pg_regress");
        compile_test_functions(&suite.folder.join("regress.so"));
        for extension in ["refint.so", "autoinc.so"] {
            fs::copy(libraries().join(extension), suite.folder.join(extension)).unwrap();
        }
        suite
    }

    pub fn isolation() -> Self {
        let driver = "isolation/pg_isolation_regress";
        Self::new("pg_isolation_regress", "isolation_schedule", &isolation_tests(), driver)
    }

    fn new(name: &'static str, schedule: &'static str, tests: &Path, driver: &str) -> Self {
        let folder = Folder::new("suite");
        programs::run(Command::new("cp").arg("-r").arg(tests.join(".")).arg(folder.path()));
        let driver = libraries().join("pgxs/src/test").join(driver);
        assert!(driver.exists(), "{} comes with Debian's postgresql-client-15", driver.display());
        Self { name, schedule, driver, folder, database: "regression", database_exists: false }
    }

    /// Uses an existing database.
    pub fn in_existing_database(mut self) -> Self {
        self.database_exists = true;
        self
    }

    pub fn name(&self) -> &str {
        self.name
    }

    pub fn database(&self) -> &str {
        self.database
    }

    /// Runs all tests against the server at this address.
    pub fn run(&self, address: &Address) -> Outcome {
        let results = self.folder.join("results");
        let _ = fs::remove_dir_all(&results);
        // The server writes results as well.
        give_to_server(self.folder.path());
        let output = self.command(address).output().unwrap();
        Outcome::new(String::from_utf8_lossy(&output.stdout).into_owned(), &results)
    }

    fn command(&self, address: &Address) -> Command {
        let (host, port) = address.host_and_port();
        let command = server_command(&self.driver);
        let mut command = {
            let mut it = Command::new(&command[0]);
            it.args(&command[1..]);
            it
        };
        for (option, path) in [
            ("--inputdir", self.folder.path()),
            ("--outputdir", self.folder.path()),
            ("--dlpath", self.folder.path()),
            ("--bindir", postgres_program("psql").parent().unwrap()),
        ] {
            command.arg(option).arg(path);
        }
        command.arg("--schedule").arg(self.folder.join(self.schedule));
        command.args(["--host", &host, "--port", &port, "--user", SUPERUSER, "--dbname", self.database]);
        command.args(self.database_exists.then_some("--use-existing"));
        programs::for_address(&mut command, address, self.database);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }
}

/// The folder with PostgreSQL's libraries and test drivers.
fn libraries() -> PathBuf {
    postgres_program("postgres").ancestors().nth(2).unwrap().join("lib")
}
