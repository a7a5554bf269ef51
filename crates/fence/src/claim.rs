//! On whose behalf a fence is raised: the privileges that a statement requires, and the role that runs it.

use fencegate_policy::QualifiedName;
use fencegate_statement::{Operation, RelationName};
use std::sync::Arc;

/// One operation by which a statement affects a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequiredPrivilege {
    /// The statement writes or locks the relation, which is named as in the statement.
    Write(RelationName, Operation),
    /// The statement calls the function.
    Call(QualifiedName),
}

/// The role as which the session acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The session's current role.
    Current(String),
    /// Any role that this login role is a member of: the session may change its role before the statement runs.
    AnyOf(String),
}

/// The statement on whose behalf a session would raise a fence.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The privileges that its statement requires.
    pub privileges: Arc<[RequiredPrivilege]>,
    /// The statement needs only one of these privileges, but it is unknown which.
    pub one_suffices: bool,
    /// The role that runs the statement. None: it must be determined before the token can be raised.
    pub role: Option<Role>,
    /// The login role of the session.
    pub login: String,
}

/// When an Admit may raise the epoch to its token.
#[derive(Clone, Copy)]
pub enum Raise<'a> {
    /// Always.
    Freely,
    /// If the server would permit the session's role to do what the claim describes.
    WhoMay(&'a Claim),
    /// Never: the token must already be the epoch's.
    Never,
}
