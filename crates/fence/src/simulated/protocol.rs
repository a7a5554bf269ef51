//! The steps of the protocol on the state of the database: first tokens, Publish, Mark, reset, and the ends of
//! admissions.
//!
//! Owns the conditions of each step. Must never know of a connection: `in_memory` connects each proxy.

use super::{Admitted, Row, State, version};
use crate::session::{Epoch, Identity, Token};
use crate::store::{AdmissionRow, First, Higher, Key, Marked, ResetReport};
use fencegate_policy::{QualifiedName, Resource};
use std::collections::{BTreeSet, HashSet};

impl State {
    /// Records an admission that this proxy grants.
    pub(super) fn admission(
        &mut self,
        proxy: &str,
        identity: &Identity,
        resource: String,
        epoch: Epoch,
    ) -> AdmissionRow {
        let (at, pid, backend_start) = (self.tick(), identity.pid, identity.backend_start.clone());
        let row = AdmissionRow { pid, backend_start, resource, epoch, version: version(at), ending: false };
        self.admissions.push(Admitted { row: row.clone(), proxy: proxy.to_owned(), at, is_copy: false });
        row
    }

    pub(super) fn admit_first(&mut self, proxy: &str, firsts: &[&First]) -> Vec<AdmissionRow> {
        let mut rows = Vec::new();
        for First { identity, resource, token, loaded } in firsts {
            let (name, policy) = (resource.name.clone(), resource.fingerprint.clone());
            let is_vacant = !self.epochs.contains_key(&name)
                && self.prepared.is_empty()
                && self.admissions.iter().all(|it| it.row.resource != name);
            let is_issued = resource.lease().is_none_or(|lease| self.has_issued(lease, *token));
            if is_vacant && is_issued && self.unfenceable(identity).is_none() {
                let (epoch, updated) = (Epoch { generation: 1, token: *token }, self.tick());
                self.epochs.insert(name.clone(), Row { epoch, drained: true, policy, loaded: *loaded, updated });
                rows.push(self.admission(proxy, identity, name, epoch));
            }
        }
        rows
    }

    pub(super) fn publish(
        &mut self,
        resource: &Resource,
        target: Epoch,
        known: Option<Epoch>,
        loaded: i64,
    ) -> Option<Epoch> {
        let (updated, name) = (self.tick(), resource.name.clone());
        let policy = resource.fingerprint.clone();
        let is_issued = resource.lease().is_none_or(|lease| self.has_issued(lease, target.token));
        let admitted = self.admissions.iter().filter(|it| it.row.resource == name).map(|it| it.row.epoch.generation);
        let generation = 1 + admitted.max().unwrap_or_default();
        match self.epochs.get_mut(&name) {
            _ if !is_issued => {}
            None if known.is_none() => {
                let epoch = Epoch { generation, ..target };
                self.epochs.insert(name, Row { epoch, drained: false, policy, loaded, updated });
            }
            None => {}
            Some(row) => {
                let lowest = known.map_or(0, |known| known.token);
                let is_raised = row.epoch.generation == target.generation && row.epoch.token < target.token;
                if is_raised && row.epoch.token >= lowest && row.policy == policy {
                    (row.epoch, row.drained, row.updated) = (target, false, updated);
                }
            }
        }
        self.announce(&resource.name);
        self.epochs.get(&resource.name).map(|row| row.epoch)
    }

    pub(super) fn mark(&mut self, resource: &Resource, epoch: Epoch) -> Marked {
        let tables: HashSet<&QualifiedName> = resource.tables.iter().map(|table| &table.name).collect();
        let blocking = self.prepared.iter().filter(|(_, (_, it))| it.written.iter().any(|it| tables.contains(it)));
        let gids: Vec<String> = blocking.map(|(gid, _)| gid.clone()).collect();
        let is_free = gids.is_empty() && self.living_below(&resource.name, epoch).next().is_none();
        let updated = self.tick();
        let row = self.epochs.get_mut(&resource.name);
        let is_it = |row: &&mut Row| row.epoch == epoch && !row.drained && row.policy == resource.fingerprint;
        match row.filter(is_it).filter(|_| is_free) {
            Some(row) => {
                (row.drained, row.updated) = (true, updated);
                Marked::Drained
            }
            None if gids.is_empty() => Marked::Nothing,
            None => Marked::Prepared(gids),
        }
    }

    pub(super) fn reset(
        &mut self,
        proxy: &str,
        resource: &Resource,
        known: Epoch,
        token: Token,
        force: bool,
    ) -> ResetReport {
        let lives =
            |it: &&Admitted| it.row.resource == resource.name && it.row.epoch.token > token && self.is_alive(it);
        let higher = self.admissions.iter().filter(lives);
        let higher: BTreeSet<_> = higher.map(|it| (-it.row.epoch.token, it.row.pid, it.proxy.clone())).collect();
        let is_ours = |it: &str| it == proxy;
        let higher: Vec<Higher> =
            higher.iter().map(|(token, pid, it)| Higher { pid: *pid, token: -token, is_ours: is_ours(it) }).collect();
        let updated = self.tick();
        let Some(row) = self.epochs.get_mut(&resource.name) else {
            self.announce(&resource.name);
            return ResetReport { before: None, same_policy: false, higher, after: None };
        };
        let (before, same_policy) = (row.epoch, row.policy == resource.fingerprint);
        let after = (same_policy && before == known && (force || higher.is_empty())).then(|| {
            let epoch = Epoch { generation: before.generation + 1, token };
            (row.epoch, row.drained, row.updated) = (epoch, false, updated);
            epoch
        });
        self.announce(&resource.name);
        ResetReport { before: Some(before), same_policy, higher, after }
    }

    pub(super) fn delete_dead(&mut self, only: Option<(&str, Epoch)>) -> Vec<(Key, Token)> {
        let is_asked = |row: &AdmissionRow| only.is_none_or(|(name, bound)| row.resource == name && row.epoch < bound);
        let is_due = |it: &Admitted| is_asked(&it.row) && !self.is_alive(it);
        let dead: HashSet<u32> = self.admissions.iter().filter(|it| is_due(it)).map(|it| it.row.version).collect();
        let deleted = self.admissions.extract_if(.., |it| dead.contains(&it.row.version));
        deleted.map(|it| (it.row.key(), it.row.epoch.token)).collect()
    }

    pub(super) fn terminate(&mut self, processes: &[Key], resource: &str, bound: Epoch) {
        if self.epochs.get(resource).is_none_or(|row| row.epoch < bound) {
            return;
        }
        let due = self.living_below(resource, bound).filter(|row| processes.contains(&row.key()));
        let due: HashSet<u32> = due.map(|row| row.version).collect();
        let (mut version, mut ended) = (self.tick(), Vec::new());
        for it in self.admissions.iter_mut().filter(|it| due.contains(&it.row.version)) {
            version += 1;
            (it.row.ending, it.row.version) = (true, u32::try_from(version & 0xffff_ffff).unwrap());
            ended.push(it.row.pid);
        }
        self.clock = version;
        if !self.ends_late {
            ended.iter().for_each(|pid| drop(self.processes.remove(pid)));
        }
    }

    pub(super) fn delete(&mut self, rows: &[(&AdmissionRow, &str)]) -> Vec<AdmissionRow> {
        let mut deleted = Vec::new();
        for (row, family) in rows {
            let open = self.processes.get(&row.pid).and_then(|process| process.transaction.as_ref());
            let prepared = self.prepared.values().filter(|(pid, _)| *pid == row.pid).map(|(_, it)| it);
            if prepared.chain(open).any(|transaction| transaction.guarded.contains(*family)) {
                continue;
            }
            let is_it =
                |it: &Admitted| AdmissionRow { ending: row.ending, ..it.row.clone() } == **row && !it.row.ending;
            if let Some(place) = self.admissions.iter().position(is_it) {
                deleted.push(self.admissions.remove(place).row);
            }
        }
        deleted
    }

    pub(super) fn lockers(&self, resource: &Resource, pids: &[i32]) -> HashSet<i32> {
        let locks = |pid: &&i32| {
            let transaction = self.processes.get(*pid).and_then(|process| process.transaction.as_ref());
            transaction.is_some_and(|it| {
                let is_locked = resource.tables.iter().any(|table| it.locked.contains(&table.name));
                is_locked || !resource.functions.is_empty() && !it.written.is_empty()
            })
        };
        pids.iter().filter(locks).copied().collect()
    }

    pub(super) fn guarded_write(&self, resource: &Resource, pid: i32) -> Option<Epoch> {
        let process = self.processes.get(&pid)?;
        let passed = process.transaction.as_ref().is_some_and(|it| it.guarded.contains(resource.lock_name()));
        let mut admissions = self.admissions.iter().filter(|it| it.row.pid == pid && self.is_alive(it));
        let is_admitted = admissions.any(|it| it.row.resource == resource.name);
        self.epochs.get(&resource.name).filter(|_| passed && is_admitted).map(|row| row.epoch)
    }
}
