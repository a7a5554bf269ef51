//! Every statement type of the grammar has its own row in `classify`.

use super::classify;
use super::{OpaqueReason, Statement, StatementKind};
use pg_query::NodeEnum;
use pg_query::protobuf::Node;
use prost::Message;

/// More than the number of node kinds, which are the fields of [`Node`], numbered from 1.
const FIELDS: u32 = 1_000;

/// Parts of statements and of function bodies, which no client can send alone.
const FRAGMENTS: [&str; 5] = ["PlassignStmt", "RawStmt", "ReplicaIdentityStmt", "ReturnStmt", "SetOperationStmt"];

#[test]
fn every_statement_type_has_a_row() {
    let (mut types, mut forgotten) = (Vec::new(), Vec::new());
    for (name, node) in (1..FIELDS).filter_map(node) {
        if !name.ends_with("Stmt") || FRAGMENTS.contains(&name.as_str()) {
            continue;
        }
        if classify::classify(&node).opaque == Some(OpaqueReason::UnknownStatement) {
            forgotten.push(name.clone());
        }
        types.push(name);
    }
    assert!(types.len() > 100 && types.iter().any(|name| name == "MergeStmt"), "{types:?}");
    assert!(forgotten.is_empty(), "no row in classify.rs: {forgotten:?}");
}

#[test]
fn statement_types_without_a_row_are_opaque() {
    let raw = (1..FIELDS).filter_map(node).find(|(name, _)| name == "RawStmt").unwrap();
    assert_eq!(classify::classify(&raw.1), Statement { kind: StatementKind::Unknown, ..opaque() });
}

fn opaque() -> Statement {
    let mut statement = Statement::default();
    statement.set_runs_code(OpaqueReason::UnknownStatement);
    statement
}

/// The name of the field's node kind, and an empty node of this kind.
fn node(field: u32) -> Option<(String, NodeEnum)> {
    let mut bytes = Vec::new();
    prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, &mut bytes);
    bytes.push(0);
    let node = Node::decode(bytes.as_slice()).unwrap().node?;
    let shown = format!("{node:?}");
    Some((shown.split('(').next().unwrap().to_owned(), node))
}
