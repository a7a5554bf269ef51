use super::{GENERATION, *};
use futures_util::FutureExt;
use std::sync::Arc;

const FIVE: Epoch = Epoch { generation: 1, token: 5 };

#[test]
fn epochs_are_trusted_only_while_a_connection_listens() {
    let memory = Memory::default();
    memory.learn("r", FIVE);
    assert_eq!(memory.above("r", 4), None);
    assert_eq!((memory.listener(), memory.last_listener()), (0, 0));
    memory.listens(1);
    assert_eq!(memory.above("r", 4), None, "earlier epochs are forgotten");
    memory.learn("r", FIVE);
    assert_eq!(memory.above("r", 4), Some(FIVE));
    assert_eq!(memory.above("r", 5), None);
    assert_eq!(memory.above("other", 4), None);
    memory.lost(2);
    assert_eq!(memory.above("r", 4), Some(FIVE), "another connection was lost");
    assert_eq!((memory.listener(), memory.last_listener()), (1, 1));
    memory.lost(1);
    assert_eq!(memory.above("r", 4), None);
    assert_eq!((memory.listener(), memory.last_listener()), (0, 1));
}

#[test]
fn an_epoch_expires_without_confirmation() {
    let memory = Memory::default();
    memory.listens(1);
    memory.epochs.lock().insert("r", (FIVE, Instant::now() - CONFIRMED_FOR));
    assert_eq!(memory.above("r", 4), None);
}

#[test]
fn only_a_changed_epoch_wakes_the_waiter() {
    let memory = Memory::default();
    let has_changed = || memory.changed.notified().now_or_never().is_some();
    assert!(!has_changed());
    for (epoch, changes) in [(FIVE, true), (FIVE, false), (Epoch { token: 6, ..FIVE }, true), (FIVE, true)] {
        memory.learn("r", epoch);
        assert_eq!(has_changed(), changes, "{epoch:?}");
    }
}

#[test]
fn a_resource_without_an_epoch_is_forgotten() {
    let memory = Memory::default();
    memory.listens(1);
    memory.learn("r", FIVE);
    memory.forget("r");
    assert_eq!(memory.above("r", 4), None);
    assert!(!memory.is_below("r", 6) && !memory.is_current("r", 5));
}

#[test]
fn recently_read_epochs_are_kept_up_to_a_limit() {
    let memory = Memory::default();
    memory.listens(1);
    let name = |number: usize| format!("shard/{number}");
    for number in 0..5 * GENERATION {
        memory.learn(&name(number), FIVE);
        memory.learn("in use", FIVE);
        let epochs = memory.epochs.lock();
        assert!(epochs.young.len() + epochs.old.len() <= 2 * GENERATION);
    }
    assert!(memory.is_current("in use", 5) && memory.is_current(&name(5 * GENERATION - 1), 5));
    assert!(memory.is_current(&name(4 * GENERATION + 1), 5));
    assert!(!memory.is_current(&name(0), 5));
}

#[test]
fn each_rise_is_kept_once_up_to_a_limit() {
    let memory = Memory::default();
    let epoch = |token| Epoch { generation: 1, token };
    memory.learn("r", epoch(1));
    assert!(memory.epoch_changes().is_empty(), "the epoch may be old");
    memory.record_epoch_change("r", None, epoch(1));
    memory.learn("r", epoch(2));
    memory.record_epoch_change("r", Some(epoch(1)), epoch(2));
    let changes: Vec<_> = memory.epoch_changes().iter().map(|it| (it.before, it.after)).collect();
    assert_eq!(changes, [(None, epoch(1)), (Some(epoch(1)), epoch(2))]);
    (3..300).for_each(|token| memory.learn("r", epoch(token)));
    assert_eq!(
        (memory.epoch_changes().len(), memory.epoch_changes().last().unwrap().after),
        (MAX_EPOCH_CHANGES, epoch(299))
    );
}

#[test]
fn too_many_notifications_are_merged() {
    let memory = Memory::default();
    for number in 0..2 * MOST_NEWS {
        memory.announced(&number.to_string());
    }
    let news = memory.take_news();
    assert!(news.all);
    assert_eq!(news.resources.len(), MOST_NEWS);
    assert!(!memory.take_news().all);
}

fn process_of(postmaster: &str) -> Identity {
    Identity {
        pid: 1,
        backend_start: "1".to_owned(),
        system_identifier: "7".to_owned(),
        postmaster_start: postmaster.to_owned(),
    }
}

/// A resource with this issuer.
fn resource(issuer: &str) -> Arc<Resource> {
    let text = format!("version: 1\nresources:\n  - {{name: r, tables: [public.t]{issuer}}}\n");
    fencegate_policy::join([("a.yaml".into(), Ok(text.into()))]).unwrap().resources[0].clone()
}

#[test]
fn a_confirmation_is_for_one_postmaster() {
    let (confirmed, old, new) = (Confirmed::default(), process_of("1"), process_of("2"));
    let r = &resource(", election: /r");
    confirmed.confirm(&old, r, FIVE);
    assert!(!confirmed.is_known(&old) && !confirmed.covers(&old, r, FIVE), "the server may not accept writes");
    confirmed.server_accepts_writes(&old);
    confirmed.confirm(&old, r, FIVE);
    confirmed.confirm(&new, r, FIVE);
    assert!(confirmed.covers(&old, r, FIVE) && !confirmed.covers(&new, r, FIVE));
    for (generation, token, covers) in [(1, 4, false), (1, 6, true), (2, 1, true)] {
        assert_eq!(confirmed.covers(&old, r, Epoch { generation, token }), covers, "{generation}/{token}");
    }
    confirmed.server_accepts_writes(&new);
    assert!(confirmed.is_known(&new) && !confirmed.covers(&new, r, FIVE));
    confirmed.server_accepts_writes(&old);
    assert!(!confirmed.covers(&old, r, FIVE), "the server may have been replaced in the meantime");
}

/// A reload of the policies may change the issuer.
#[test]
fn a_confirmation_is_by_one_issuer() {
    let (confirmed, identity) = (Confirmed::default(), process_of("1"));
    confirmed.server_accepts_writes(&identity);
    let (without, with) = (resource(""), resource(", election: /r"));
    confirmed.confirm(&identity, &without, FIVE);
    assert!(confirmed.covers(&identity, &without, FIVE) && !confirmed.covers(&identity, &with, FIVE));
    confirmed.confirm(&identity, &with, FIVE);
    assert!(confirmed.covers(&identity, &with, FIVE));
    for other in [", election: /s", ", lease: r"] {
        assert!(!confirmed.covers(&identity, &resource(other), FIVE), "{other}");
    }
}
