//! The life of a proxy: start, reload, limits, timeouts, shutdown. Uses the real program and signals.

mod limits;
mod reload;
mod rotation;
mod start;
mod stop;
mod threads;
mod timeouts;
mod watch;

use crate::support::guardian::Folder;
use crate::support::{Postgres, Proxy};
use std::path::PathBuf;

/// A proxy with a settings file that can be replaced.
struct WithFile {
    proxy: Proxy,
    file: PathBuf,
    _folder: Folder,
}

impl WithFile {
    fn start(postgres: &Postgres, policies: &str, settings: &str) -> Self {
        let folder = Folder::new("settings");
        let file = folder.join("fencegate.yaml");
        std::fs::write(&file, settings).unwrap();
        let proxy = Proxy::start(postgres, policies, &["--config", &file.display().to_string()]);
        WithFile { proxy, file, _folder: folder }
    }

    fn reload_with(&mut self, settings: &str) {
        std::fs::write(&self.file, settings).unwrap();
        self.proxy.sighup();
    }
}
