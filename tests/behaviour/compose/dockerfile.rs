//! The parts of the Dockerfile that matter for processes without containers.

use crate::compose::read;
use std::collections::BTreeMap;

/// The stages in order.
#[derive(Debug)]
pub struct Dockerfile {
    stages: Vec<(String, Stage)>,
}

/// A stage, including everything inherited from its base stage.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// The image at the end of its chain of stages.
    pub from: String,
    pub environment: BTreeMap<String, String>,
    pub user: String,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub healthcheck: Vec<String>,
    run: Vec<String>,
    copied: Vec<String>,
}

impl Dockerfile {
    pub fn read() -> Self {
        let text = read("Dockerfile").replace("\\\n", "");
        let instructions = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut dockerfile = Self { stages: Vec::new() };
        let mut images = BTreeMap::new();
        for (name, rest) in instructions.map(|line| line.split_once(' ').expect("an instruction")) {
            if name == "ARG" && dockerfile.stages.is_empty() {
                let (name, image) = rest.split_once('=').expect("name=image");
                images.insert(format!("${{{name}}}"), image);
            } else if name == "FROM" {
                let (from, name) = rest.split_once(" AS ").expect("a name");
                let from = images.get(from).copied().unwrap_or(from);
                let begun = dockerfile.stages.iter().find(|(name, _)| name == from).map(|(_, stage)| stage.clone());
                let stage = begun.unwrap_or_else(|| Stage { from: from.to_owned(), ..Stage::default() });
                dockerfile.stages.push((name.to_owned(), stage));
            } else {
                dockerfile.stages.last_mut().expect("FROM comes first").1.add(name, rest);
            }
        }
        dockerfile
    }

    pub fn stage(&self, name: &str) -> &Stage {
        &self.stages.iter().find(|(it, _)| it == name).unwrap_or_else(|| panic!("no stage {name}")).1
    }

    pub fn last(&self) -> &Stage {
        &self.stages.last().expect("a stage").1
    }

    pub fn is_before(&self, one: &str, other: &str) -> bool {
        let position = |name| self.stages.iter().position(|(it, _)| it == name).expect("a stage");
        position(one) < position(other)
    }

    /// The files copied from the project.
    pub fn copied(&self) -> impl Iterator<Item = String> {
        self.stage("build").copied.iter().cloned()
    }
}

impl Stage {
    fn add(&mut self, instruction: &str, rest: &str) {
        match instruction {
            "ENV" => self.environment.extend(rest.split_whitespace().map(|pair| {
                let (name, value) = pair.split_once('=').expect("name=value");
                (name.to_owned(), value.to_owned())
            })),
            "USER" => self.user = rest.to_owned(),
            "ENTRYPOINT" => self.entrypoint = strings(rest),
            "CMD" => self.command = strings(rest),
            "HEALTHCHECK" => self.healthcheck = strings(rest.split_once("CMD ").expect("CMD").1),
            "RUN" => self.run.push(rest.to_owned()),
            "COPY" if !rest.starts_with("--from=") => {
                let mut paths: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
                paths.pop().expect("where to");
                self.copied.extend(paths);
            }
            "ARG" | "COPY" | "LABEL" | "WORKDIR" | "EXPOSE" | "STOPSIGNAL" => {}
            other => panic!("unsupported instruction {other}"),
        }
    }

    /// True if a RUN instruction contains this text.
    pub fn runs(&self, text: &str) -> bool {
        self.run.iter().any(|run| run.contains(text))
    }
}

/// A list in JSON, which is also YAML.
fn strings(json: &str) -> Vec<String> {
    serde_saphyr::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}
