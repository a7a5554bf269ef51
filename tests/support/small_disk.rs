//! A small file system, which a test can fill.
//!
//! It is mounted in a mount namespace of its own, so that nothing is left when its process ends. Only root may mount.

use super::guardian::{Folder, Program};
use super::wait::{DEADLINE, wait_until};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub struct SmallDisk {
    // Before the folder: fields are dropped in this order.
    /// Keeps the namespace.
    holder: Program,
    folder: Folder,
}

impl SmallDisk {
    /// None, with a line, where the tests may not mount a file system.
    pub fn mount(megabytes: u32) -> Option<Self> {
        let may_mount = Command::new("unshare")
            .args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !may_mount {
            eprintln!("skipped: only root may mount a small file system");
            return None;
        }
        let folder = Folder::new("disk");
        fs::create_dir(folder.join("mount")).unwrap();
        let mount = "mount -t tmpfs -o size=$2m,mode=777 none \"$1\" && : >\"$1/mounted\" && exec sleep infinity";
        let path = folder.join("mount").display().to_string();
        let holder = ["unshare", "--mount", "sh", "-c", mount, "sh", &path, &megabytes.to_string()];
        let disk = SmallDisk { holder: Program::start(&holder, &folder.join("log"), "KILL"), folder };
        wait_until("the file system is mounted", DEADLINE, || disk.outside().join("mounted").exists());
        Some(disk)
    }

    /// Its path for processes that are started by [`Self::command`].
    pub fn inside(&self) -> PathBuf {
        self.folder.join("mount")
    }

    /// Its path for all other processes.
    pub fn outside(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.holder.pid(), self.inside().display()))
    }

    /// Stands before the command of a process that uses it. The process id stays the same.
    pub fn command(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--mount=/proc/{}/ns/mnt", self.holder.pid())]
    }

    /// Leaves no room.
    pub fn fill(&self) {
        let mut filler = File::options().append(true).create(true).open(self.outside().join("filler")).unwrap();
        loop {
            match filler.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Removes what [`Self::fill`] has written.
    pub fn make_space(&self) {
        fs::remove_file(self.outside().join("filler")).unwrap();
    }
}
