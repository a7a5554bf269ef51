//! A small file system, which a test can fill.
//!
//! Mounted in its own mount namespace, which disappears with its process. Only root may mount.

use super::guardian::{Folder, Program};
use super::wait::{DEADLINE, wait_until};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub struct SmallDisk {
    // Before the folder: fields are dropped in this order.
    /// Keeps the namespace alive.
    holder: Program,
    folder: Folder,
}

impl SmallDisk {
    /// Prints a line and returns None if the tests may not mount a file system.
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

    /// The path for processes started by [`Self::command`].
    pub fn inside(&self) -> PathBuf {
        self.folder.join("mount")
    }

    /// The path for all other processes.
    pub fn outside(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.holder.pid(), self.inside().display()))
    }

    /// Start of the command line for a process that uses the file system. The process id stays the same.
    pub fn command(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--mount=/proc/{}/ns/mnt", self.holder.pid())]
    }

    /// Fills the file system.
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

    /// Removes the file that [`Self::fill`] has written.
    pub fn make_space(&self) {
        fs::remove_file(self.outside().join("filler")).unwrap();
    }
}
