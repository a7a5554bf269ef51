//! `SHOW FENCES`: every resource in every database that has had sessions.

use super::{Answer, Scene, unreadable};
use crate::policy::Mode;

const COLUMNS: [&str; 9] =
    ["database", "resource", "mode", "election", "generation", "token", "drained", "admissions", "leader"];

/// A row per database and resource; what nobody has written to under a token has no epoch. Cancel-safe.
pub(super) async fn show(scene: &Scene<'_>) -> Answer {
    let (mut rows, mut warnings) = (Vec::new(), Vec::new());
    for database in scene.databases.iter().filter(|database| scene.policies.applies_to(database.name())) {
        let fences = match database.fences().await {
            Ok(fences) => fences,
            Err(reason) => {
                warnings.push(unreadable(database, &reason));
                continue;
            }
        };
        for resource in &scene.policies.resources {
            let fence = fences.get(&resource.name);
            let leader = resource.election.as_ref().and_then(|election| scene.leaders.get(election));
            let mode = match resource.mode {
                Mode::Enforce => "enforce",
                Mode::Observe => "observe",
            };
            rows.push(vec![
                Some(database.name().to_owned()),
                Some(resource.name.clone()),
                Some(mode.to_owned()),
                resource.election.as_ref().map(ToString::to_string),
                fence.map(|fence| fence.epoch.generation.to_string()),
                fence.map(|fence| fence.epoch.token.to_string()),
                fence.map(|fence| fence.drained.to_string()),
                fence.map(|fence| fence.admissions.to_string()),
                leader.map(ToString::to_string),
            ]);
        }
    }
    Answer { warnings, columns: &COLUMNS, tag: format!("SHOW {}", rows.len()), rows }
}
