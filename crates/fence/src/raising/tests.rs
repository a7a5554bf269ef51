//! Batching of first tokens into Queries.

use super::*;
use crate::session::Identity;
use fencegate_policy::Resource;
use std::sync::Arc;

fn first(pid: i32, resource: &Arc<Resource>) -> First {
    let (system_identifier, postmaster_start) = ("1".to_owned(), "1".to_owned());
    let identity = Identity { pid, backend_start: pid.to_string(), system_identifier, postmaster_start };
    First { identity, resource: resource.clone(), token: 5, loaded: 1 }
}

fn shards(number: usize) -> Vec<Arc<Resource>> {
    let policies = "version: 1\nresources:\n  - {name: 's/{k}', tables: [{name: public.s, key: k}]}\n";
    let policies = fencegate_policy::join([("a.yaml".into(), Ok(policies.into()))]).unwrap_or_default();
    (0..number).filter_map(|key| policies.resources[0].called(&format!("s/{key}"))).collect()
}

/// The processes of the next batch.
fn next(tokens: &FirstTokens) -> Vec<i32> {
    tokens.next().into_iter().map(|(first, _)| first.identity.pid).collect()
}

#[test]
fn a_query_contains_each_resource_once_and_no_canceled_request() {
    let (tokens, shards) = (FirstTokens::default(), shards(2));
    let mut answers = Vec::new();
    for (pid, shard) in [(1, 0), (2, 0), (3, 1), (4, 0), (5, 1)] {
        let (sender, answer) = oneshot::channel();
        tokens.waiting.lock().push((first(pid, &shards[shard]), sender));
        answers.push(answer);
    }
    drop(answers.remove(1));
    assert_eq!([next(&tokens), next(&tokens), next(&tokens)], [vec![1, 3], vec![4, 5], vec![]]);
}

#[test]
fn a_full_query_leaves_the_rest_to_the_next_one() {
    let tokens = FirstTokens::default();
    let mut answers = Vec::new();
    for (pid, shard) in (0..).zip(shards(MOST + 3)) {
        let (sender, answer) = oneshot::channel();
        tokens.waiting.lock().push((first(pid, &shard), sender));
        answers.push(answer);
    }
    assert_eq!([next(&tokens).len(), next(&tokens).len(), next(&tokens).len()], [MOST, 3, 0]);
}
