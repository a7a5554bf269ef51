use super::*;
use fencegate_policy::join;

const POLICIES: &str = "version: 1\nresources:\n  - {name: notes, tables: [public.notes]}\n";

fn epoch(generation: i64, token: Token) -> Epoch {
    Epoch { generation, token }
}

/// Decides with a database whose epoch has token 5.
fn decided(admitted: Option<Epoch>) -> AdmitDecision {
    let policies = join([("a.yaml".into(), Ok(POLICIES.into()))]).unwrap();
    let resource = || "notes".to_owned();
    let row = |epoch| AdmissionRow {
        pid: 1,
        backend_start: "1".to_owned(),
        resource: resource(),
        epoch,
        version: 1,
        ending: false,
    };
    let current = EpochRow { resource: resource(), epoch: epoch(1, 5), drained: true };
    let admission = admitted.map(|epoch| (row(epoch), true));
    let report = Report { unfenceable: None, current: Some((current, Recorded::Same)), admission };
    decide(report, 1, &policies.resources[0], 5)
}

#[test]
fn only_an_admission_under_the_current_epoch_is_accepted() {
    assert!(matches!(decided(Some(epoch(1, 5))), AdmitDecision::Admitted { is_new: true, .. }));
    for other in [None, Some(epoch(1, 4)), Some(epoch(1, 6)), Some(epoch(2, 5))] {
        let AdmitDecision::Refused(refusal) = decided(other) else { panic!("{other:?}") };
        assert_eq!(refusal.to_string(), "resource notes: the database did not admit the session's server process");
    }
}
