//! The sessions of this proxy in one database, by server process.
//!
//! Owns which sessions a drain may have to revoke. A session that is not registered is never admitted, because no drain could
//! revoke it. Must never hold its own lock while a session waits.

use super::session::{Epoch, Identity, SessionFence};
use super::store::Key;
use dashmap::DashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The registered sessions.
#[derive(Debug, Default)]
pub(super) struct Registry {
    sessions: DashMap<Key, Arc<SessionFence>>,
    /// Set if a session that had admissions has ended, until its rows are deleted.
    left_rows: AtomicBool,
}

/// The server process of a session.
pub(super) fn key(identity: &Identity) -> Key {
    (identity.pid, identity.backend_start.clone())
}

impl Registry {
    pub(super) fn insert(&self, key: Key, session: Arc<SessionFence>) {
        self.sessions.insert(key, session);
    }

    /// Returns true if the watcher has work: the session had admissions, or was the last one.
    pub(super) fn remove(&self, key: &Key) -> bool {
        let removed = self.sessions.remove(key);
        let had_admissions = removed.is_some_and(|(_, session)| session.has_presented());
        if had_admissions {
            self.left_rows.store(true, Ordering::Relaxed);
        }
        had_admissions || self.is_empty()
    }

    /// True if a session that had admissions has ended since the last call.
    pub(super) fn take_left_rows(&self) -> bool {
        self.left_rows.swap(false, Ordering::Relaxed)
    }

    /// The session of the server process, if it is one of this proxy.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<SessionFence>> {
        self.sessions.get(key).map(|session| session.clone())
    }

    /// Returns true if the session of the server process is registered.
    pub(super) fn has(&self, identity: &Identity) -> bool {
        self.sessions.contains_key(&key(identity))
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The server processes of all sessions.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.sessions.iter().map(|session| session.key().clone()).collect()
    }

    /// The sessions for which `state` is Some, each with that value.
    pub(super) fn in_state(&self, state: fn(&SessionFence) -> Option<u64>) -> Vec<(Key, u64)> {
        self.sessions.iter().filter_map(|session| Some((session.key().clone(), state(&session)?))).collect()
    }

    /// The resources of current and former admissions of all sessions.
    pub(super) fn presented(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.sessions.iter().for_each(|session| session.add_presented(&mut names));
        names
    }

    /// Records that the session's admission was deleted. A newer token for the resource can no longer be the reason if the
    /// process ends.
    pub(super) fn released(&self, key: &Key, resource: &str, epoch: Epoch) {
        if let Some(session) = self.sessions.get(key) {
            session.released(resource, epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Presented;

    const SEVEN: Epoch = Epoch { generation: 1, token: 7 };

    fn process(pid: i32, start: &str) -> Identity {
        let (backend_start, same) = (start.to_owned(), || "1".to_owned());
        Identity { pid, backend_start, system_identifier: same(), postmaster_start: same() }
    }

    fn registered(sessions: &Registry, identity: &Identity) -> Arc<SessionFence> {
        let session = Arc::new(SessionFence::new(Ok(identity.clone())));
        sessions.insert(key(identity), session.clone());
        session
    }

    #[test]
    fn a_process_is_found_by_its_pid_and_its_start() {
        let (sessions, identity) = (Registry::default(), process(1, "1"));
        let session = registered(&sessions, &identity);
        assert!(sessions.get(&key(&identity)).is_some_and(|found| Arc::ptr_eq(&found, &session)));
        let later = process(1, "2");
        assert!(sessions.has(&identity) && !sessions.has(&later) && sessions.get(&key(&later)).is_none());
        assert!(!sessions.remove(&key(&later)));
        assert_eq!((sessions.len(), sessions.keys()), (1, vec![key(&identity)]));
        assert!(sessions.remove(&key(&identity)) && sessions.is_empty());
    }

    #[test]
    fn only_the_end_of_an_admitted_or_last_session_is_work_for_the_watcher() {
        let sessions = Registry::default();
        let [reader, writer, last] = [1, 2, 3].map(|pid| process(pid, "1"));
        registered(&sessions, &reader);
        registered(&sessions, &last);
        let admitted = registered(&sessions, &writer);
        admitted.present("r", Presented { epoch: SEVEN, lock_name: "r".to_owned() });
        assert_eq!((sessions.remove(&key(&reader)), sessions.take_left_rows()), (false, false));
        assert_eq!((sessions.remove(&key(&writer)), sessions.take_left_rows()), (true, true));
        assert_eq!((sessions.remove(&key(&last)), sessions.take_left_rows()), (true, false));
    }

    #[test]
    fn a_released_resource_is_no_longer_presented() {
        let (sessions, identity) = (Registry::default(), process(1, "1"));
        let session = registered(&sessions, &identity);
        session.present("r", Presented { epoch: SEVEN, lock_name: "r".to_owned() });
        sessions.released(&key(&process(2, "1")), "r", SEVEN);
        sessions.released(&key(&identity), "r", Epoch { token: 6, ..SEVEN });
        assert_eq!(sessions.presented(), BTreeSet::from(["r".to_owned()]));
        sessions.released(&key(&identity), "r", SEVEN);
        assert!(sessions.presented().is_empty());
    }

    #[test]
    fn only_sessions_in_a_state_are_reported_with_it() {
        let sessions = Registry::default();
        let (one, two) = (process(1, "1"), process(2, "1"));
        let (within, _) = (registered(&sessions, &one), registered(&sessions, &two));
        within.begin_step();
        assert_eq!(sessions.in_state(SessionFence::step), [(key(&one), 1)]);
    }
}
