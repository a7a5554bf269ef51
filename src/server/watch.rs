//! Reloads after files of settings, policies or certificates have changed, for a kubelet or cert-manager that replaces them.
//!
//! Polls: notifications of the kernel do not cover network file systems, and are lost when a directory is replaced.

use super::reload::reload;
use crate::config::{Settings, SettingsArguments};
use crate::state::shared::Shared;
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The state of all files that a reload reads. It changes with each file that is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Takes the fingerprint of the file of the settings, and of the files that the settings name.
    #[must_use]
    pub fn of(settings: &Settings, arguments: &SettingsArguments) -> Self {
        let named = settings.shown.iter().filter(|it| it.setting.value == "FILE").filter_map(|it| it.value.as_deref());
        let files = named.chain(arguments.config.as_deref()).map(|path| state(path.as_ref()));
        let policies = fs::read_dir(&settings.policies).into_iter().flatten().flatten();
        // Policies have no other names. A kubelet prepares the next version in hidden directories.
        let policies = policies.filter(|it| !it.file_name().as_encoded_bytes().starts_with(b"."));
        let policies = policies.map(|it| state(&it.path()));
        // A sum, because a directory has no order.
        Self(files.chain(policies).fold(0, u64::wrapping_add))
    }
}

/// Zero if there is no such file. Follows symbolic links: a kubelet replaces the directory that they lead through.
fn state(path: &Path) -> u64 {
    let hash = |it: &fs::Metadata| {
        let version = (it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec());
        BuildHasherDefault::<DefaultHasher>::default().hash_one((path, it.dev(), it.ino(), it.size(), version))
    };
    fs::metadata(path).as_ref().map_or(0, hash)
}

/// Reloads after each change, until it succeeds. `loaded`: taken before the proxy first read the files. Never returns.
pub(super) async fn watch_files(shared: &Shared, interval: Duration, mut loaded: Fingerprint) {
    let mut last = loaded;
    loop {
        sleep(interval).await;
        let (settings, arguments) = (shared.settings(), shared.arguments.clone());
        let Ok(seen) = spawn_blocking(move || Fingerprint::of(&settings, &arguments)).await else { continue };
        // A file that changes between two looks may not have been written completely.
        let is_complete = seen == std::mem::replace(&mut last, seen);
        // Taken before the reload, so that the next look detects changes made during it.
        if seen != loaded && is_complete && reload(shared).await.is_ok() {
            loaded = seen;
        }
    }
}
