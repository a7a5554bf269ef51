//! The state of a transaction, and `lease.fence` within it.

use crate::simulation::judge::Write;

/// `lease.fence`.
#[derive(Clone, Default)]
pub struct Setting {
    pub startup: Option<String>,
    pub session: Option<String>,
    pub local: Option<Option<String>>,
}

#[derive(Default)]
pub struct Transaction {
    /// BEGIN was said.
    pub is_block: bool,
    pub failed: bool,
    pub writes: Vec<Write>,
    /// The setting before it.
    pub before: Setting,
    pub savepoints: Vec<(u8, Setting, usize)>,
}
impl Setting {
    pub fn current(&self) -> Option<&String> {
        self.local.as_ref().unwrap_or(&self.session).as_ref()
    }

    pub fn set(&mut self, value: &str, local: bool) {
        let value = Some(value.to_owned());
        match local {
            true => self.local = Some(value),
            false => (self.session, self.local) = (value, None),
        }
    }
}
