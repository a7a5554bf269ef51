//! The chart in deploy/helm and the kustomizations in deploy/kubernetes, without a cluster: `check.py` renders them, compares
//! them, validates their objects, and runs their containers as processes.

use crate::support::guardian::Folder;
use crate::support::programs::{made_once, postgres_program, python, run};
use crate::support::proxy::BINARY;
use crate::support::{Options, Postgres};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Helm and kustomize, as libraries. They declare a newer Python, for bindings that the check does not use.
const LIBRARIES: [&str; 2] = ["helm-sdkpy==0.1.32", "pykustomize==0.1.4"];
/// Schemas of the Kubernetes API.
const SCHEMAS: &str = "kubernetes-validate==1.37.0";

fn packages() -> PathBuf {
    made_once("kubernetes", &[&LIBRARIES[..], &[SCHEMAS]].concat(), |folder| {
        let pip = || {
            let mut pip = Command::new(python().with_file_name("pip"));
            pip.args(["install", "--quiet", "--target"]).arg(folder);
            pip
        };
        run(pip().args(["--no-deps", "--ignore-requires-python"]).args(LIBRARIES));
        run(pip().arg(SCHEMAS));
    })
}

#[test]
fn pods_of_the_chart_and_the_kustomizations_run() {
    let (postgres, folder) = (Postgres::start(Options::default()), Folder::new("kubernetes"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/soak/kubernetes/check.py");
    let mut check = Command::new(python());
    check.arg(script).arg(packages()).arg(BINARY).arg(postgres_program("psql")).arg(postgres.port().to_string());
    let output = run(check.arg(folder.path()).env("PYTHONDONTWRITEBYTECODE", "1"));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
