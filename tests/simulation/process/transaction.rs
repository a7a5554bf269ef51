//! The state of a transaction, and the settings within it.

use crate::judge::Write;
use crate::server::View;

/// `lease.fence`, `search_path`, and how strings are read.
#[derive(Clone)]
pub struct Setting {
    pub startup: Option<String>,
    pub session: Option<String>,
    pub local: Option<Option<String>>,
    /// `standard_conforming_strings`. `local_strings`: the value until the transaction ends.
    pub session_strings: bool,
    pub local_strings: Option<bool>,
    /// True if `search_path` is the other schema. `local_path`: the value until the transaction ends.
    pub other_path: bool,
    pub local_path: Option<bool>,
}

pub struct Transaction {
    /// An explicit BEGIN was executed.
    pub is_block: bool,
    pub failed: bool,
    /// The snapshot of all its statements, from the first statement that needs one.
    pub is_repeatable: bool,
    pub snapshot: Option<u64>,
    /// Number of statements that have succeeded.
    pub statements: usize,
    pub writes: Vec<Write>,
    /// The views that it has defined; None: dropped.
    pub views: Vec<(u8, Option<View>)>,
    /// The previous setting.
    pub before: Setting,
    pub savepoints: Vec<Savepoint>,
}

/// The values that a rollback restores.
#[derive(Clone)]
pub struct Savepoint {
    pub name: u8,
    pub setting: Setting,
    pub writes: usize,
    pub views: usize,
}

impl Setting {
    pub fn new(startup: Option<String>) -> Setting {
        Setting {
            session: startup.clone(),
            startup,
            local: None,
            session_strings: true,
            local_strings: None,
            other_path: false,
            local_path: None,
        }
    }

    pub fn current(&self) -> Option<&String> {
        self.local.as_ref().unwrap_or(&self.session).as_ref()
    }

    pub fn is_other_path(&self) -> bool {
        self.local_path.unwrap_or(self.other_path)
    }

    pub fn plain_strings(&self) -> bool {
        self.local_strings.unwrap_or(self.session_strings)
    }

    pub fn set_strings(&mut self, are_plain: bool, local: bool) {
        match local {
            true => self.local_strings = Some(are_plain),
            false => (self.session_strings, self.local_strings) = (are_plain, None),
        }
    }

    pub fn set_path(&mut self, other: bool, local: bool) {
        match local {
            true => self.local_path = Some(other),
            false => (self.other_path, self.local_path) = (other, None),
        }
    }

    /// The transaction has ended.
    pub fn end_local(&mut self) {
        (self.local, self.local_path, self.local_strings) = (None, None, None);
    }

    pub fn set(&mut self, value: &str, local: bool) {
        let value = Some(value.to_owned());
        match local {
            true => self.local = Some(value),
            false => (self.session, self.local) = (value, None),
        }
    }
}

impl Transaction {
    pub fn new(before: &Setting) -> Transaction {
        Transaction {
            is_block: false,
            failed: false,
            is_repeatable: false,
            snapshot: None,
            statements: 0,
            writes: Vec::new(),
            views: Vec::new(),
            before: before.clone(),
            savepoints: Vec::new(),
        }
    }
}
