//! A forwarded message that the server will answer: its kind, and its possible effects.

use fencegate_statement::{ParameterEffect, Statement, StatementKind, TransactionEffect};
use fencegate_wire::error::ErrorText;
use std::sync::Arc;

/// The receiver of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The client. It sees the whole answer.
    Client,
    /// The proxy. The client must see only an error.
    Proxy,
    /// The proxy, before the client's next message. The client must not even see an error.
    ProxyAhead,
    /// The proxy's statement replaces a rejected one: the client receives the error as its own.
    Rejection {
        /// Number of characters that the proxy put before the client's text, to subtract from an error's position.
        shift: usize,
        /// The error that the client receives.
        text: Arc<ErrorText>,
    },
}

/// A name that a message defines, and the number of that definition.
#[derive(Debug)]
pub struct Defined {
    pub name: Vec<u8>,
    pub sequence: u64,
}

/// A forwarded message.
#[derive(Debug)]
pub enum Request {
    /// A simple query: answered up to ReadyForQuery.
    Query {
        /// Its statements; empty if they were not judged.
        statements: Vec<Arc<Statement>>,
        /// How many of them the server has completed.
        completed: usize,
        /// Names that its PREPAREs define: index of the statement, name, number to confirm.
        defines: Vec<(usize, String, u64)>,
    },
    /// Parse: defines a statement, where statements are judged.
    Parse { defines: Option<Defined> },
    /// Bind: defines a portal, where statements are judged.
    Bind {
        /// The definition to confirm.
        defines: Option<Defined>,
        /// Planning the statement may call functions that are declared immutable or stable, whatever they do.
        plans: Arc<Statement>,
    },
    /// Describe.
    Describe,
    /// Execute.
    Execute {
        /// The statement that it runs.
        statement: Arc<Statement>,
        /// The name that its PREPARE defines, and the number to confirm.
        defines: Option<(String, u64)>,
    },
    /// Close, where statements are not judged.
    Close,
    /// Close of a statement.
    CloseStatement { name: Vec<u8> },
    /// Close of a portal.
    ClosePortal { name: Vec<u8> },
    /// Sync: ReadyForQuery.
    Sync,
    /// A fast-path call: answered up to ReadyForQuery.
    FunctionCall,
    /// Any number of CopyData messages: never answered.
    CopyData,
    /// CopyDone or CopyFail: never answered, but ends a COPY from the client.
    CopyEnd,
}

/// A set of possible effects of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects(u8);

impl Effects {
    /// Its statements may change `lease.fence`.
    pub(crate) const PARAMETER: Effects = Effects(1);
    /// Its statements may change how text is read.
    pub(crate) const LEXING: Effects = Effects(2);
    /// It may undo settings of earlier messages although later messages still run: it fails without skipping them, or it
    /// ends the transaction of a SET LOCAL.
    pub(crate) const UNDOES: Effects = Effects(4);
    /// It may change the catalog.
    pub(crate) const CATALOG: Effects = Effects(8);
    /// It may be a COPY from the client.
    pub(crate) const COPIES: Effects = Effects(16);
    /// It replaces a rejected message.
    pub(crate) const REJECTS: Effects = Effects(32);
    /// A policy concerns it: it writes or locks fenced tables, or calls functions of the policies.
    pub(crate) const FENCED: Effects = Effects(64);
    /// Number of different effects.
    pub(crate) const COUNT: usize = 7;

    /// These effects, and others if `has_more`.
    pub(crate) fn with(self, more: Effects, has_more: bool) -> Self {
        if has_more { Effects(self.0 | more.0) } else { self }
    }

    /// Returns true if the set contains one of these.
    pub(crate) fn has(self, effects: Effects) -> bool {
        self.0 & effects.0 != 0
    }

    /// The places of the effects in a list of all.
    pub(crate) fn places(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let place = (rest != 0).then(|| rest.trailing_zeros() as usize);
            rest &= rest.wrapping_sub(1);
            place
        })
    }
}

/// Returns true if planning at Bind may call a function that sets `lease.fence`. Bind does not plan definitions, CALL
/// or DO.
pub(crate) fn planning_may_set_parameter(statement: &Statement) -> bool {
    let is_definition = statement.opaque.is_none() && statement.changes_catalog;
    let is_utility = is_definition || matches!(statement.kind, StatementKind::Call | StatementKind::Do);
    statement.parameter == ParameterEffect::Unknown && !is_utility
}

impl Audience {
    /// Returns true if the client sees the answer, or an error in it.
    pub(crate) fn is_clients(&self) -> bool {
        !matches!(self, Audience::Proxy | Audience::ProxyAhead)
    }

    pub(crate) fn is_rejection(&self) -> bool {
        matches!(self, Audience::Rejection { .. })
    }
}

impl Request {
    /// A simple query with these statements, which define no names.
    pub fn query(statements: Vec<Arc<Statement>>) -> Self {
        Request::Query { statements, completed: 0, defines: Vec::new() }
    }

    /// A Bind whose portal does not matter.
    pub fn bind() -> Self {
        Request::Bind { defines: None, plans: Arc::default() }
    }

    /// An Execute whose statement does not matter.
    pub fn execute() -> Self {
        Request::Execute { statement: Arc::default(), defines: None }
    }

    /// All possible effects of the request.
    pub(crate) fn effects(&self) -> Effects {
        match self {
            // Most requests.
            Request::Bind { plans: it, .. } | Request::Execute { statement: it, .. }
                if it.only_reads() && it.functions.is_empty() =>
            {
                Effects::LEXING
            }
            Request::Query { .. } | Request::Bind { .. } | Request::Execute { .. } | Request::FunctionCall => {
                Effects::default()
                    .with(Effects::PARAMETER, self.affects_parameter())
                    .with(Effects::LEXING, self.affects_lexing())
                    .with(Effects::UNDOES, self.may_undo())
                    .with(Effects::CATALOG, self.changes_catalog())
                    .with(Effects::COPIES, self.may_copy_in())
            }
            Request::Sync => Effects::UNDOES,
            _ => Effects::default(),
        }
    }

    pub(crate) fn affects_parameter(&self) -> bool {
        matches!(self, Request::FunctionCall)
            || matches!(self, Request::Bind { plans, .. } if planning_may_set_parameter(plans))
            || self.statements().iter().any(|statement| statement.parameter != ParameterEffect::None)
    }

    /// Returns true if the request may change standard_conforming_strings or client_encoding.
    pub(crate) fn affects_lexing(&self) -> bool {
        let may_set = |statement: &Statement| !statement.runs_nothing();
        match self {
            // A query without statements was not judged.
            Request::Query { statements, .. } => {
                statements.is_empty() || statements.iter().any(|statement| may_set(statement))
            }
            // Its values are parsed by their types' input functions, domains included, and planning evaluates immutable
            // functions.
            Request::Bind { plans: statement, .. } => may_set(statement) || !statement.declared.is_empty(),
            Request::Execute { statement, .. } => may_set(statement),
            Request::FunctionCall => true,
            _ => false,
        }
    }

    /// Returns true if the request may undo what earlier ones have set: see [`Effects::UNDOES`].
    pub(crate) fn may_undo(&self) -> bool {
        let controls = |it: &Arc<Statement>| it.opaque.is_some() || it.transaction != TransactionEffect::None;
        !self.is_extended() && !self.is_copy() || self.statements().iter().any(controls)
    }

    pub(crate) fn changes_catalog(&self) -> bool {
        self.statements().iter().any(|statement| statement.changes_catalog)
    }

    /// True if the request may be a COPY from the client. A named statement may be one too.
    pub(crate) fn may_copy_in(&self) -> bool {
        use StatementKind::{CopyFrom, Execute, Fetch, Portal};
        self.statements().iter().any(|it| it.opaque.is_some() || matches!(it.kind, CopyFrom | Execute | Fetch | Portal))
    }

    /// True if the proxy cannot read its text.
    pub(crate) fn is_unread(&self) -> bool {
        self.statements().iter().all(|statement| statement.is_unread())
    }

    /// True if the request may commit while it runs, so that an error does not roll back everything before it.
    pub fn may_commit(&self) -> bool {
        self.statements().iter().any(|statement| statement.opaque.is_some())
    }

    /// Approximate memory of its statements, in bytes. An Execute usually runs its portal's statement.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Request::Query { statements, .. } => statements.iter().map(|statement| statement.weight()).sum(),
            Request::Execute { statement, .. } if Arc::strong_count(statement) == 1 => statement.weight(),
            _ => 0,
        }
    }

    pub(crate) fn statements(&self) -> &[Arc<Statement>] {
        match self {
            Request::Query { statements, .. } => statements,
            Request::Execute { statement, .. } => std::slice::from_ref(statement),
            _ => &[],
        }
    }

    /// Returns true if an error in the answer makes the server skip everything up to the next Sync.
    pub(crate) fn is_extended(&self) -> bool {
        !matches!(self, Request::Query { .. } | Request::Sync | Request::FunctionCall) && !self.is_copy()
    }

    /// Returns true for a part of a COPY from the client, which is not answered.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self, Request::CopyData | Request::CopyEnd)
    }
}
