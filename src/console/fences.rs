//! `SHOW FENCES`: every resource in every database that has had sessions, and the keys used last.

use super::{Answer, Scene, unreadable};
use crate::fence::{Database, Fence};
use crate::policy::{Mode, Resource};
use crate::wire::error::ErrorText;

const COLUMNS: [&str; 9] =
    ["database", "resource", "mode", "election", "generation", "token", "drained", "admissions", "leader"];

/// A row per database and resource; what nobody has written to under a token has no epoch, and so has a keyed resource:
/// its keys follow it. Cancel-safe.
pub(super) async fn show(scene: &Scene<'_>) -> Answer {
    let (mut rows, mut warnings, mut notices) = (Vec::new(), Vec::new(), Vec::new());
    for database in scene.databases.iter().filter(|database| scene.policies.applies_to(database.name())) {
        let fences = match database.fences(&scene.policies.resources).await {
            Ok(fences) => fences,
            Err(reason) => {
                warnings.push(unreadable(database, &reason));
                continue;
            }
        };
        for resource in &scene.policies.resources {
            rows.push(row(scene, database, resource, fences.plain.get(&resource.name)));
            let keys = fences.of_keys.iter().filter(|_| resource.keyed.is_some());
            let of_it = keys.filter_map(|(name, fence)| Some((resource.called(name)?, fence)));
            rows.extend(of_it.map(|(key, fence)| row(scene, database, &key, Some(fence))));
        }
        if fences.left_out > 0 {
            notices.push(left_out(database, fences.left_out));
        }
    }
    Answer { warnings, notices, columns: &COLUMNS, tag: format!("SHOW {}", rows.len()), rows }
}

fn row(scene: &Scene<'_>, database: &Database, resource: &Resource, fence: Option<&Fence>) -> Vec<Option<String>> {
    let leader = resource.election.as_ref().and_then(|election| scene.leaders.get(election));
    let mode = match resource.mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    };
    vec![
        Some(database.name().to_owned()),
        Some(resource.name.clone()),
        Some(mode.to_owned()),
        resource.election_shown(),
        fence.map(|fence| fence.epoch.generation.to_string()),
        fence.map(|fence| fence.epoch.token.to_string()),
        fence.map(|fence| fence.drained.to_string()),
        fence.map(|fence| fence.admissions.to_string()),
        leader.map(ToString::to_string),
    ]
}

fn left_out(database: &Database, number: usize) -> ErrorText {
    let message = format!("database \"{}\" has the fences of {number} more keys", database.name());
    ErrorText::new("00000", message)
        .hint("These are the ones updated last. SELECT from fencegate.epoch for the others.")
}
