//! The random operations on both stores, and concurrent actions of server processes.

use super::{Both, ELECTION, FUTURE, PROXIES, SESSIONS, Session, holders, key, plain, row, sorted, table};
use crate::fence::server::connect;
use crate::support::identity::identity;
use fencegate_fence::session::{Epoch, Identity};
use fencegate_fence::store::{AdmissionRow, Key, Marked, Recorded};
use fencegate_fence::{First, Higher};
use fencegate_testing::dice::Dice;

impl Both {
    /// Runs one operation, and returns its name.
    pub(super) async fn step(&mut self, dice: &mut Dice) -> String {
        let proxy = dice.below(PROXIES);
        if dice.chance(25) {
            return self.step_of_a_session(dice).await;
        }
        let resource = if dice.chance(50) { &self.resources[0] } else { dice.pick(&self.resources) };
        let resource = resource[usize::from(dice.chance(8))].clone();
        let name = resource.name.clone();
        let loaded = if dice.chance(80) { self.times[1] } else { *dice.pick(&self.times) };
        let current = self.current(&name).await;
        let epoch = |dice: &mut Dice| {
            let near = current.filter(|_| dice.chance(70)).unwrap_or(Epoch { generation: 1, token: 1 });
            let generation = near.generation + i64::from(dice.chance(10)) - i64::from(dice.chance(10));
            Epoch { generation, token: (near.token + dice.below(4) as i64 - 1).max(1) }
        };
        match dice.below(40) {
            0..=8 => {
                let Some(identity) = self.any_identity(dice) else { return "nobody is there".into() };
                let token = current.filter(|_| dice.chance(90)).unwrap_or(epoch(dice)).token;
                let what = format!("admit {} to {name} under {token}", identity.pid);
                let (real, memory) = ask!(self, proxy, admit(&identity, &resource, token, loaded));
                self.saw("not fenceable", real.unfenceable.is_some());
                let recorded = real.current.as_ref().map(|(_, recorded)| *recorded);
                self.saw("of older policies", recorded == Some(Recorded::Older));
                self.saw("of other policies", recorded == Some(Recorded::Others));
                let admitted = (real.admission.clone(), memory.admission.clone());
                self.saw("admitted", admitted.0.as_ref().is_some_and(|(_, is_new)| *is_new));
                self.saw("admitted again", admitted.0.as_ref().is_some_and(|(_, is_new)| !is_new));
                same!(what, (plain(real), plain(memory)));
                if let (Some((real, _)), Some((memory, _))) = admitted {
                    self.read.push((real, memory));
                }
                what
            }
            9..=13 => {
                let (mut target, known) = (epoch(dice), current.map(|_| epoch(dice)).filter(|_| dice.chance(70)));
                let lease = self.proxies[0].memory.leases(&[ELECTION]).await.unwrap().pop();
                let lease = lease.filter(|_| resource.lease().is_some());
                target.token = lease.as_ref().filter(|_| dice.chance(80)).map_or(target.token, |it| it.token);
                let what = format!("publish {target:?} of {name}, known {known:?}");
                let (real, memory) = ask!(self, proxy, publish(&resource, target, known, loaded));
                self.saw(if real == current { "not raised" } else { "raised" }, true);
                if resource.lease().is_some() {
                    self.saw(if real == current { "not issued" } else { "issued" }, true);
                }
                same!(what, (real, memory));
                what
            }
            14..=19 => {
                let marked = current.filter(|_| dice.chance(90)).unwrap_or(epoch(dice));
                let what = format!("mark {marked:?} of {name}");
                let sorted = |marked| match marked {
                    Marked::Prepared(mut gids) => {
                        gids.sort();
                        Marked::Prepared(gids)
                    }
                    other => other,
                };
                let (real, memory) = ask!(self, proxy, mark(&resource, marked));
                self.saw("drained", real == Marked::Drained);
                self.saw("prepared transaction", matches!(real, Marked::Prepared(_)));
                same!(what, (sorted(real), sorted(memory)));
                what
            }
            20 => {
                let (known, token, force) = (epoch(dice), epoch(dice).token, dice.chance(50));
                let what = format!("reset {name} from {known:?} to {token}, by force: {force}");
                let (mut real, mut memory) = ask!(self, proxy, reset(&resource, known, token, "operator", force));
                self.saw("reset", real.after.is_some());
                let order = |it: &Higher| (-it.token, it.pid, it.is_ours);
                real.higher.sort_by_key(order);
                memory.higher.sort_by_key(order);
                same!(what, (real, memory));
                what
            }
            21..=22 => {
                let bound = current.filter(|_| dice.chance(70)).unwrap_or(epoch(dice));
                let what = format!("holders of {name} below {bound:?}");
                let (real, memory) = ask!(self, proxy, holders(&name, bound));
                same!(what, (holders(&real), holders(&memory)));
                self.read_both(real.into_iter().map(|it| it.row), memory.into_iter().map(|it| it.row));
                what
            }
            23 => {
                let bound = epoch(dice);
                let only = dice.chance(80).then_some((name.as_str(), bound));
                let what = format!("delete the dead of {only:?}");
                same!(what, sorted(ask!(self, proxy, delete_dead(only))));
                what
            }
            24 => {
                let bound = current.filter(|_| dice.chance(70)).unwrap_or(epoch(dice));
                let keys: Vec<Key> = self.identities.iter().map(key).collect();
                let due: Vec<Key> = keys.into_iter().filter(|_| dice.chance(60)).collect();
                if due.is_empty() {
                    return "nobody to terminate".into();
                }
                ask!(self, proxy, terminate(&due, &name, bound));
                self.delete_ended().await;
                format!("terminate {due:?}, admitted to {name} below {bound:?}")
            }
            25..=28 => {
                let rows: Vec<_> = (0..dice.below(4)).filter_map(|_| self.pick_read(dice)).collect();
                if rows.is_empty() {
                    return "nothing to delete".into();
                }
                let what = format!("delete {rows:?}");
                let families: Vec<&str> = rows.iter().map(|(row, _)| self.lock_name(&row.resource)).collect();
                let real: Vec<_> = rows.iter().zip(&families).map(|((row, _), family)| (row, *family)).collect();
                let memory: Vec<_> = rows.iter().zip(&families).map(|((_, row), family)| (row, *family)).collect();
                let proxy = &self.proxies[proxy];
                let real = proxy.real.delete(&real).await.unwrap();
                let memory = proxy.memory.delete(&memory).await.unwrap();
                real.iter().for_each(|_| *self.seen.entry("deleted").or_default() += 1);
                same!(what, sorted((real.iter().map(row).collect(), memory.iter().map(row).collect())));
                what
            }
            29 => {
                let what = format!("policies {} of {name} loaded at {loaded}", resource.fingerprint);
                ask!(self, proxy, record_policy(&resource, loaded));
                what
            }
            30 => {
                let keyed = self.keyed[usize::from(dice.chance(20))].clone();
                let what = format!("policies {} of all keys loaded at {loaded}", keyed.fingerprint);
                ask!(self, proxy, record_policy(&keyed, loaded));
                what
            }
            31 => {
                let enforced: Vec<String> =
                    ["a", "c"].map(str::to_owned).into_iter().filter(|_| dice.chance(50)).collect();
                match dice.below(4) {
                    0 => same!("leave", ask!(self, proxy, leave())),
                    1 => {
                        self.proxies[proxy].real.close(true).await;
                        self.proxies[proxy].memory.close(true).await;
                        // Listen again.
                        self.proxies[proxy].real.beat().await.unwrap();
                    }
                    2 => same!("catalog", ask!(self, proxy, announce_catalog())),
                    _ => same!("announce", ask!(self, proxy, announce_enforced(&enforced))),
                }
                format!("p{proxy} leaves, closes, announces {enforced:?} or the catalog")
            }
            33..=35 => {
                let token = self.current("other").await.map_or(1, |it| it.token) + dice.below(3) as i64;
                let (released, lasts) = (dice.chance(20), dice.chance(80));
                self.memory.lease(ELECTION, token, released, if lasts { FUTURE } else { 0 });
                let expires = if lasts { "1 hour" } else { "0" };
                let lease = format!(
                    "INSERT INTO fencegate_state.lease (election, token, released, acquired, renewed, expires) \
                     VALUES ('{ELECTION}', {token}, {released}, now(), now(), clock_timestamp() + '{expires}'::interval) \
                     ON CONFLICT (election) DO UPDATE SET (token, released, acquired, expires) = \
                       (EXCLUDED.token, EXCLUDED.released, EXCLUDED.acquired, EXCLUDED.expires); \
                     SELECT pg_notify('fencegate_lease', '{ELECTION}')"
                );
                self.world.run(&lease).await;
                format!("lease {token}, released: {released}, lasts: {lasts}")
            }
            36 if dice.chance(50) => {
                let Some(identity) = self.any_identity(dice) else { return "nobody is there".into() };
                let token = current.map_or(1, |it| it.token);
                let another = self.keyed[0].of_key(&format!("new {}", dice.below(40))).unwrap();
                let what = format!("admit {} and {} to {token} together", resource.name, another.name);
                let wanted = [(&*resource, token), (&*another, token)];
                let (real, memory) = ask!(self, proxy, admit_current(&identity, &wanted));
                self.saw("admitted together", !real.is_empty());
                let shown = |rows: &[(AdmissionRow, bool)]| {
                    rows.iter().map(|(it, is_new)| (row(it), *is_new)).collect::<Vec<_>>()
                };
                same!(what, sorted((shown(&real), shown(&memory))));
                what
            }
            36..=37 => {
                let fresh: Vec<_> = (0..dice.below(3)).map(|_| format!("new {}", dice.below(40))).collect();
                let mut resources: Vec<_> = fresh.iter().map(|key| self.keyed[0].of_key(key).unwrap()).collect();
                resources.push(resource);
                resources.sort_by_key(|it| it.name.clone());
                resources.dedup_by_key(|it| it.name.clone());
                let token = if name == "other" { current.map_or(1, |it| it.token) } else { epoch(dice).token };
                let first = |resource| Some(First { identity: self.any_identity(dice)?, resource, token, loaded });
                let Some(firsts) = resources.into_iter().map(first).collect::<Option<Vec<First>>>() else {
                    return "nobody is there".into();
                };
                let what = format!("first tokens {firsts:?}");
                let firsts: Vec<&First> = firsts.iter().collect();
                let (real, memory) = ask!(self, proxy, admit_first(&firsts));
                self.saw("first tokens", !real.is_empty());
                self.saw("no first tokens", real.len() < firsts.len());
                same!(what, sorted((real.iter().map(row).collect(), memory.iter().map(row).collect())));
                what
            }
            38..=39 => {
                let epoch = epoch(dice);
                self.copy_a_row(dice, &name, epoch).await
            }
            32 if dice.chance(30) => {
                self.world.run(&format!("SELECT fencegate.prune('0 s', '{name}')")).await;
                self.memory.prune(&name);
                format!("prune {name}")
            }
            _ => {
                let what = "read".to_owned();
                same!(what, sorted(ask!(self, proxy, epochs_above_admissions())));
                let (real, memory) = ask!(self, proxy, open_transactions());
                same!(what, (real.len(), memory.len()));
                for Identity { pid, .. } in &self.identities {
                    same!(what, ask!(self, proxy, guarded_write(&resource, *pid)));
                }
                what
            }
        }
    }

    /// Adds a row of a dump, which was written for another database or cluster, or refers to a process of another
    /// database.
    async fn copy_a_row(&mut self, dice: &mut Dice, resource: &str, epoch: Epoch) -> String {
        let Some(here) = self.sessions.first().map(|session| session.identity.clone()) else {
            return "nobody is there".into();
        };
        let elsewhere = identity(&self.elsewhere).await;
        let own = "fencegate.own_system_identifier(), fencegate.own_database()";
        let (identity, written_for, is_copy) = match dice.below(3) {
            0 => (here, own.replace("own_database()", "own_database()::bigint + 1"), true),
            1 => (here, own.replace("own_system_identifier()", "own_system_identifier() + 1"), true),
            _ => (elsewhere, own.to_owned(), false),
        };
        let (pid, start, Epoch { generation, token }) = (identity.pid, &identity.backend_start, epoch);
        let row = format!(
            "INSERT INTO fencegate_state.admission \
               (pid, backend_start, resource, generation, token, proxy, system_identifier, database) \
             SELECT {pid}, timestamptz 'epoch' + ({start} * 1000000)::bigint * interval '1 microsecond', '{resource}', {generation}, {token}, 'p0', {written_for} \
             ON CONFLICT DO NOTHING"
        );
        self.world.run(&row).await;
        self.memory.put_admission(&key(&identity), resource, epoch, "p0", is_copy);
        self.saw("copied", true);
        format!("a copy has row {row}")
    }

    /// An action of the server processes, without a store.
    async fn step_of_a_session(&mut self, dice: &mut Dice) -> String {
        if self.sessions.len() < SESSIONS && dice.chance(60) {
            let client = connect(&self.world.config(&format!("{}_app", self.world.database))).await;
            let identity = identity(&client).await;
            self.memory.begin_process(&identity);
            self.identities.retain(|it| it.pid != identity.pid);
            self.identities.push(identity.clone());
            // Old identities belong to ended processes, or are no longer needed.
            self.identities.drain(..self.identities.len().saturating_sub(2 * SESSIONS));
            let what = format!("process {} begins", identity.pid);
            self.sessions.push(Session { client, identity, in_transaction: false });
            return what;
        }
        if self.sessions.is_empty() {
            return "no session".into();
        }
        let number = dice.below(self.sessions.len());
        let name = *dice.pick(&["ticks", "other"]);
        let gid = format!("{}_{}", self.world.database, self.gids);
        let family = self.lock_name(&dice.pick(&self.resources)[0].name).to_owned();
        let Session { client, identity, in_transaction } = &mut self.sessions[number];
        let pid = identity.pid;
        let begin = if *in_transaction { "" } else { "BEGIN; " };
        let (what, statement) = match dice.below(8) {
            0 => {
                self.memory.end_process(pid);
                let session = self.sessions.remove(number);
                drop(session.client);
                self.wait_for_the_end_of(pid).await;
                return format!("process {pid} ends");
            }
            1..=2 => {
                self.memory.write(pid, &table(name), false);
                ("writes", format!("{begin}INSERT INTO {name} VALUES (1)"))
            }
            3 => {
                self.memory.write(pid, &table(name), true);
                ("locks rows", format!("{begin}SELECT FROM {name} FOR UPDATE"))
            }
            4 => {
                self.memory.guard_passes(pid, &family);
                let lock = format!("{begin}SELECT pg_advisory_xact_lock_shared(hashtext('{family}'), {pid})");
                ("is let pass by the guard", lock)
            }
            5 if *in_transaction => {
                self.memory.prepare(pid, &gid);
                self.gids += 1;
                self.prepared.push(gid.clone());
                ("prepares", format!("PREPARE TRANSACTION '{gid}'"))
            }
            _ => {
                self.memory.end_transaction(pid);
                ("ends its transaction", "ROLLBACK".to_owned())
            }
        };
        client.batch_execute(&statement).await.unwrap();
        *in_transaction = !matches!(what, "prepares" | "ends its transaction");
        if self.prepared.len() > 1 || dice.chance(20) {
            self.end_prepared().await;
        }
        format!("process {pid} {what}: {statement}")
    }

    pub(super) async fn end_prepared(&mut self) {
        for gid in std::mem::take(&mut self.prepared) {
            self.world.run(&format!("ROLLBACK PREPARED '{gid}'")).await;
            self.memory.end_prepared(&gid);
        }
    }

    /// An identity, which is sometimes wrong.
    fn any_identity(&self, dice: &mut Dice) -> Option<Identity> {
        let mut identity = if dice.chance(85) && !self.sessions.is_empty() {
            self.sessions[dice.below(self.sessions.len())].identity.clone()
        } else if self.identities.is_empty() {
            return None;
        } else {
            dice.pick(&self.identities).clone()
        };
        match dice.below(30) {
            0 => identity.system_identifier = "1".into(),
            1 => identity.postmaster_start = "1".into(),
            2 => identity.backend_start = "1.000000".into(),
            _ => {}
        }
        Some(identity)
    }

    fn pick_read(&self, dice: &mut Dice) -> Option<(AdmissionRow, AdmissionRow)> {
        // Mostly one of the rows read last.
        let from = if dice.chance(70) { self.read.len().saturating_sub(6) } else { 0 };
        (!self.read.is_empty()).then(|| self.read[dice.between(from, self.read.len())].clone())
    }

    fn read_both(&mut self, real: impl Iterator<Item = AdmissionRow>, memory: impl Iterator<Item = AdmissionRow>) {
        let order = |row: &AdmissionRow| (row.key(), row.resource.clone(), row.epoch);
        let (mut real, mut memory): (Vec<_>, Vec<_>) = (real.collect(), memory.collect());
        real.sort_by_key(order);
        memory.sort_by_key(order);
        self.read.extend(real.into_iter().zip(memory));
    }

    fn lock_name(&self, resource: &str) -> &str {
        let it = self.resources.iter().find(|[it, _]| it.name == resource);
        it.map(|[it, _]| it.lock_name()).unwrap()
    }
}
