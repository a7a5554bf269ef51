//! docker-compose.yml, as docker-compose itself reads it.

use crate::compose::project;
use crate::support::programs::run;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Command;

#[derive(Debug, Deserialize)]
pub struct Compose {
    pub services: BTreeMap<String, Service>,
}

#[derive(Debug, Deserialize)]
pub struct Service {
    pub image: String,
    pub build: Option<Build>,
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    #[serde(default)]
    pub depends_on: BTreeMap<String, Dependency>,
    pub healthcheck: Option<Healthcheck>,
    #[serde(default)]
    volumes: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct Build {
    pub target: String,
}

#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub condition: Condition,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    ServiceHealthy,
    ServiceCompletedSuccessfully,
}

#[derive(Debug, Deserialize)]
pub struct Healthcheck {
    pub test: Vec<String>,
}

impl Compose {
    pub fn read() -> Self {
        let output = run(Command::new("docker-compose").arg("-f").arg(project("docker-compose.yml")).arg("config"));
        let text = String::from_utf8(output.stdout).unwrap();
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

impl Service {
    /// The source of each mount, a path or the name of a volume, and its target in the container.
    pub fn mounts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.volumes.iter().map(|volume| {
            let mut parts = volume.split(':');
            (parts.next().unwrap(), parts.next().expect("a place in the container"))
        })
    }
}
