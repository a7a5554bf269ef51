//! The properties that must always hold, and the states that must be reached so that the properties are really tested.
//!
//! Owns the properties, under the names that docs/internals/verification.md uses. Must never rely on the protocol's own
//! state: it sees only commits, replies to clients, and the current epochs.

use crate::protocol::{Protocol, pick};
use crate::state::*;
use stateright::Property;

/// Commits the writes, which were made under these epochs.
pub fn commit(state: &mut State, writes: [Write; TWO]) {
    for (resource, write) in writes.into_iter().enumerate() {
        let Write::Under(epoch, _) = write else { continue };
        state.wrong.order |= state.newest[resource].is_some_and(|newest| epoch.is_older(newest));
        state.wrong.after_drained |= state.epochs[resource].is_some_and(|it| it.drained && epoch.is_older(it.epoch));
        state.newest[resource] = Some(epoch);
    }
}

/// The client of the session receives that its transaction is committed.
pub fn told_committed(state: &mut State, session: Session) {
    state.wrong.outcome |= state.sessions[session].writes != [Write::None; TWO];
}

/// The client of the session, which ends, receives that its transaction was rolled back.
pub fn told_rolled_back(state: &mut State, session: Session) {
    let SessionState { at, writes, .. } = state.sessions[session];
    state.wrong.outcome |= at == At::Committed && writes == [Write::None; TWO];
}

/// The client receives LF001 in reply to a write under this token.
pub fn told_stale(state: &mut State, resource: Resource, token: Token) {
    state.wrong.stale |= token >= state.highest[resource];
}

/// The client of the session receives LF001 because its process was terminated.
pub fn told_overtaken(state: &mut State, session: Session) {
    let rows = state.sessions[session].rows.into_iter().zip(state.epochs);
    let mut pairs = rows.filter_map(|(row, now)| Some((row?, now)));
    // If the epoch was deleted in the meantime, the client does not receive LF001.
    state.wrong.stale |= !pairs.any(|(row, now)| now.is_none_or(|now| row.is_older(now.epoch)));
}

pub const ORDER: &str = "tokens never decrease in commit order";
pub const DRAINED: &str = "nothing below a drained epoch is committed";
pub const OUTCOME: &str = "acknowledged writes are committed";
pub const STALE: &str = "only overtaken sessions get LF001";

pub const ALWAYS: [&str; 4] = [ORDER, DRAINED, OUTCOME, STALE];

type Seen = fn(&Protocol, &State) -> bool;

/// States that must be reached, each by some scenario.
pub const SOMETIMES: [(&str, Seen); 21] = [
    ("a late reply of an Admit meets a floor", |_, it| {
        it.sessions.iter().any(|it| matches!(it.at, At::Granted { late: true, .. }))
    }),
    ("an advance of a proxy that crashed is finished by another", |model, it| {
        // None of its own sessions has the token, so the other proxy has published it.
        let has = |proxy, token| {
            model.scenario.clients.iter().any(|client| client.proxy == Some(proxy) && client.token == token)
        };
        (0..TWO).any(|proxy| {
            let of_another = |advance: Advance| advance.step == Step::Mark && !has(proxy, advance.to.token);
            let it = [it.proxies[proxy], it.proxies[1 - proxy]];
            !it[0].crashed && it[1].crashed && it[0].advance.is_some_and(of_another)
        })
    }),
    ("a process is ended whose proxy sleeps", |_, it| {
        let is_below = |admitted: Option<Epoch>, row: Option<EpochRow>| {
            admitted.zip(row).is_some_and(|(admitted, row)| admitted.is_below(row.epoch))
        };
        let sleeps = |it: &SessionState, rows| it.admitted.into_iter().zip(rows).any(|(its, row)| is_below(its, row));
        it.sessions.iter().any(|session| session.process == Process::Ending && sleeps(session, it.epochs))
    }),
    ("a process is ended in mid-transaction", |_, it| {
        it.sessions.iter().any(|it| it.process == Process::Ending && it.writes.iter().any(|it| *it != Write::None))
    }),
    ("two proxies publish at once", |_, it| {
        let publishes = |it: ProxyState| it.advance.filter(|it| matches!(it.step, Step::Publish(_)));
        let resources = it.proxies.map(|it| publishes(it).map(|it| it.resource));
        resources[0].is_some() && resources[0] == resources[1]
    }),
    ("the last of three leaders commits", |_, it| it.newest.iter().flatten().any(|newest| newest.token == 3)),
    ("a drain meets an idle session", |_, it| meets(it, Activity::Idle)),
    ("a drain meets a waiting session", |_, it| meets(it, Activity::Waiting)),
    ("a drain meets a busy session", |_, it| meets(it, Activity::Busy)),
    ("a waiting session is released", |_, it| {
        let released = |advance: &Advance| {
            let Step::Delete(spared) = advance.step else { return false };
            (0..SESSIONS)
                .any(|at| spared >> at & 1 == 1 && it.sessions[at].writes.iter().any(|write| *write != Write::None))
        };
        it.proxies.iter().filter_map(|it| it.advance.as_ref()).any(released)
    }),
    ("the guard stops a write that no gate saw", |_, it| it.sessions.iter().any(|it| it.outcome == Outcome::Guarded)),
    ("a guarded transaction keeps a Publish waiting", |_, it| {
        it.sessions.iter().any(|it| it.process == Process::Blocking && it.writes.iter().any(|it| *it != Write::None))
    }),
    ("a crash of the server loses admissions and no epoch", |_, it| {
        it.budget.server == Server::HasCrashed(true) && it.epochs.iter().any(Option::is_some)
    }),
    ("a reset lets a lower token write", |_, it| it.newest.iter().flatten().any(|newest| newest.generation > 1)),
    ("a new epoch drains what the deleted one admitted", |_, it| {
        let is_of_before = |row: Epoch| it.epochs[0].is_some_and(|now| row.era < now.epoch.era);
        it.sessions.iter().any(|it| it.process == Process::Ending && it.rows[0].is_some_and(is_of_before))
    }),
    ("a prepared transaction holds up Mark", |_, it| {
        it.prepared.is_some_and(|writes| {
            let waits = |advance: Advance| advance.step == Step::Mark && writes[advance.resource] != Write::None;
            it.proxies.iter().any(|it| it.advance.is_some_and(waits))
        })
    }),
    ("a Query makes the first epochs of two sessions", |_, it| {
        it.proxies.iter().any(|it| matches!(it.firsts, Some(Firsts::Looked(all)) if all.count_ones() == 2))
    }),
    ("a first token finds another's", |_, it| {
        let is_there =
            |session: Session| matches!(it.sessions[session].at, At::First(resource) if it.epochs[resource].is_some());
        let looks = |it: &ProxyState| matches!(it.firsts, Some(Firsts::Locked(all)) if pick(all).any(is_there));
        it.proxies.iter().any(looks)
    }),
    ("first tokens are asked for beside a Publish", |_, it| {
        // One of its sessions uses a Query for first tokens while another uses Publish.
        let publishes = |it: &ProxyState| it.advance.is_some_and(|it| matches!(it.step, Step::Publish(_)));
        it.proxies.iter().any(|it| it.firsts.is_some() && publishes(it))
    }),
    ("a session raises its own token", |model, it| {
        let raised = |at: usize, it: &SessionState| {
            model.client(at).next.is_some_and(|next| it.rows.iter().flatten().any(|row| row.token == next))
        };
        it.sessions.iter().enumerate().any(|(at, it)| raised(at, it))
    }),
    ("a session has written under another token", |_, it| {
        it.sessions.iter().any(|it| it.outcome == Outcome::WrittenUnderAnotherToken)
    }),
];

fn meets(state: &State, activity: Activity) -> bool {
    state.proxies.iter().filter_map(|it| it.advance).any(|advance| {
        advance.step == Step::Revoke
            && state.sessions.iter().enumerate().any(|(session, it)| {
                advance.by != Some(session)
                    && it.activity == activity
                    && it.process.lives()
                    && it.rows[advance.resource].is_some_and(|row| row.is_below(advance.to))
            })
    })
}

pub fn properties(reaches: &[&str]) -> Vec<Property<Protocol>> {
    let always: [fn(&Protocol, &State) -> bool; 4] =
        [|_, it| !it.wrong.order, |_, it| !it.wrong.after_drained, |_, it| !it.wrong.outcome, |_, it| !it.wrong.stale];
    let always = ALWAYS.into_iter().zip(always).map(|(name, holds)| Property::always(name, holds));
    let sometimes = SOMETIMES.into_iter().filter(|(name, _)| reaches.contains(name));
    always.chain(sometimes.map(|(name, is_seen)| Property::sometimes(name, is_seen))).collect()
}
