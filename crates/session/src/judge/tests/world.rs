//! Facts of a judgment, set one by one, and its outcome in a form that tests compare.

use super::*;
use crate::parameter::ParameterValue;
use fencegate_catalog::Catalog;
use fencegate_fence::store::StoreError;
use fencegate_statement::{Lexing, analyze, analyze_rows};
use fencegate_wire::client_error::{ClientError, ErrorKind};

/// Facts of a judgment other than the text and the session's token.
#[derive(Clone)]
pub(super) struct World {
    admitted: HashMap<String, Token>,
    known: HashMap<String, Token>,
    written: HashMap<String, Token>,
    observed: HashMap<String, Token>,
    is_refused: bool,
    pending: PendingDefinitions,
    definitions_of_others: Vec<Arc<PendingDefinitions>>,
    catalog: Arc<Catalog>,
    freshness: Freshness,
    changes_catalog: bool,
    shadows_keys: bool,
    knows_path: bool,
    reads_rows: bool,
    owes: bool,
    parameter_in_doubt: bool,
    is_exempt: bool,
}

/// How current the catalog is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    Current,
    Unread,
    /// No control connection listens to announcements of changes.
    NoListener,
}

/// Nothing is admitted, written or under way, and the catalog is current.
pub(super) fn world() -> World {
    World {
        admitted: HashMap::new(),
        known: HashMap::new(),
        written: HashMap::new(),
        observed: HashMap::new(),
        is_refused: false,
        pending: PendingDefinitions::default(),
        definitions_of_others: Vec::new(),
        catalog: Arc::new(Catalog::of_tables(policies().resources.iter().map(|it| it.tables[0].name.clone()))),
        freshness: Freshness::Current,
        changes_catalog: false,
        shadows_keys: false,
        knows_path: false,
        reads_rows: false,
        owes: false,
        parameter_in_doubt: false,
        is_exempt: false,
    }
}

impl World {
    /// The process is admitted to the scheduler under this token.
    pub(super) fn admitted(mut self, token: Token) -> Self {
        self.admitted.insert("scheduler".to_owned(), token);
        self
    }

    /// The proxy knows this epoch of the scheduler.
    pub(super) fn knows(mut self, token: Token) -> Self {
        self.known.insert("scheduler".to_owned(), token);
        self
    }

    /// The transaction has written to the scheduler under this token.
    pub(super) fn has_written(mut self, token: Token) -> Self {
        self.written.insert("scheduler".to_owned(), token);
        self
    }

    /// The transaction has written to the trial, which only observes, under this token.
    pub(super) fn was_observed(mut self, token: Token) -> Self {
        self.observed.insert("trial".to_owned(), token);
        self
    }

    /// An Admit to the scheduler has failed.
    pub(super) fn refused(mut self) -> Self {
        self.is_refused = true;
        self
    }

    /// This transaction may have turned every relation into a way to a fenced table.
    pub(super) fn defines(mut self) -> Self {
        self.pending = PendingDefinitions::everything();
        self
    }

    /// Another session may have turned every relation into a way to a fenced table.
    pub(super) fn others_define(mut self) -> Self {
        self.definitions_of_others.push(Arc::new(PendingDefinitions::everything()));
        self
    }

    /// The catalog has these contents.
    pub(super) fn with_catalog(mut self, catalog: Catalog) -> Self {
        self.catalog = Arc::new(catalog);
        self
    }

    /// No fenced table exists.
    pub(super) fn without_tables(self) -> Self {
        self.with_catalog(Catalog::of_tables([]))
    }

    /// Only the table of the trial exists.
    pub(super) fn with_trial_only(self) -> Self {
        self.with_catalog(Catalog::of_tables([policies().resources[2].tables[0].name.clone()]))
    }

    /// The catalog has changed and was not read.
    pub(super) fn unread(mut self) -> Self {
        self.freshness = Freshness::Unread;
        self
    }

    /// No control connection listens to announcements of changes.
    pub(super) fn without_listener(mut self) -> Self {
        self.freshness = Freshness::NoListener;
        self
    }

    /// This transaction has changed the catalog in a way that concerns fenced tables.
    pub(super) fn changes_catalog(mut self) -> Self {
        self.changes_catalog = true;
        self
    }

    /// This transaction may have created operators or types on which keys depend.
    pub(super) fn shadows_keys(mut self) -> Self {
        self.shadows_keys = true;
        self
    }

    /// The search path was queried.
    pub(super) fn knows_path(mut self) -> Self {
        self.knows_path = true;
        self
    }

    /// Texts are read for the rows that they write.
    pub(super) fn reads_rows(mut self) -> Self {
        self.reads_rows = true;
        self
    }

    /// The server owes replies.
    pub(super) fn owes(mut self) -> Self {
        self.owes = true;
        self
    }

    /// A reply that the server owes may change the token.
    pub(super) fn owes_token(mut self) -> Self {
        self.parameter_in_doubt = true;
        self.owes()
    }

    /// The login role bypasses the fences.
    pub(super) fn exempt(mut self) -> Self {
        self.is_exempt = true;
        self
    }

    pub(super) fn judge(&self, policies: &PolicySet, text: &str, token: ParameterValue) -> Outcome {
        self.decide(policies, text, token).into()
    }

    pub(super) fn decide(&self, policies: &PolicySet, text: &str, token: ParameterValue) -> Decision {
        let read = if self.reads_rows { analyze_rows } else { analyze };
        let statements = read(text.as_bytes(), Lexing::USUAL).unwrap().statements;
        let admitted = (!self.observed.is_empty()).then(|| policies.resource_called("trial").cloned()).flatten();
        let seen = CatalogView {
            catalog: self.catalog.clone(),
            is_current: self.freshness == Freshness::Current,
            lacks_listener: self.freshness == Freshness::NoListener,
            ..CatalogView::default()
        };
        let refused =
            self.is_refused.then(|| FenceError::Store { resource: "scheduler".to_owned(), error: StoreError::Vacated });
        let judge = Judge {
            policies,
            standing: self,
            seen: &seen,
            changes_catalog: self.changes_catalog,
            shadows_keys: self.shadows_keys,
            path: self.knows_path.then_some("{pg_catalog,public}"),
            pending: &self.pending,
            definitions_of_others: &self.definitions_of_others,
            exempt: self.is_exempt,
            opaque: policies.opaque_of("postgres"),
            parameter: &Parameter::new(token),
            owed: self.owes,
            parameter_in_doubt: self.parameter_in_doubt,
            written: &self.written,
            observed: &ObservedWrites { written: self.observed.clone(), admitted },
            refused: refused.as_ref(),
            foreign_databases: None,
        };
        judge.statements(&statements)
    }
}

impl Standing for World {
    fn admitted(&self, resource: &str) -> Option<Token> {
        self.admitted.get(resource).copied()
    }

    fn holds_admissions(&self) -> bool {
        !self.admitted.is_empty()
    }

    fn known_stale(&self, resource: &str, token: Token) -> Option<Epoch> {
        let highest = self.known.get(resource).copied().filter(|highest| *highest > token)?;
        Some(Epoch { generation: 1, token: highest })
    }
}

/// The session presents this token.
pub(super) fn token(token: Token) -> ParameterValue {
    value(&token.to_string())
}

/// `lease.fence` has this value.
pub(super) fn value(text: &str) -> ParameterValue {
    ParameterValue::read(Some(text))
}

/// The session presents no token.
pub(super) fn no_token() -> ParameterValue {
    value("")
}

/// The tested parts of a decision.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Forward { needs: Vec<(String, Token)>, passes: Vec<Passes> },
    Reject { index: usize, code: &'static str, needs: Vec<(String, Token)> },
    Settle,
    ReadValue,
    ReadRows,
}

/// Why a write passes a fence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passes {
    Exempt,
    /// The fence only observes, and would reject the write for this reason.
    Observed(ErrorKind),
}

pub(super) fn forward() -> Outcome {
    Outcome::Forward { needs: Vec::new(), passes: Vec::new() }
}

/// The statement at this index is rejected.
pub(super) fn reject(index: usize, code: &'static str) -> Outcome {
    Outcome::Reject { index, code, needs: Vec::new() }
}

impl Outcome {
    /// The session has to be admitted to the resource under the token.
    pub(super) fn needs(mut self, resource: &str, token: Token) -> Self {
        match &mut self {
            Outcome::Forward { needs, .. } | Outcome::Reject { needs, .. } => needs.push((resource.to_owned(), token)),
            Outcome::Settle | Outcome::ReadValue | Outcome::ReadRows => {}
        }
        self
    }

    /// A write passes a fence.
    pub(super) fn passes(mut self, why: Passes) -> Self {
        if let Outcome::Forward { passes, .. } = &mut self {
            passes.push(why);
        }
        self
    }
}

impl From<Decision> for Outcome {
    fn from(decision: Decision) -> Self {
        let named = |needs: Vec<Need>| needs.into_iter().map(|it| (it.resource.name.clone(), it.token)).collect();
        let why = |passed: PassedWrite| match passed.observed {
            Some(rejection) => Passes::Observed(rejection.kind()),
            None => Passes::Exempt,
        };
        match decision {
            Decision::Forward(needs, passed) => {
                Outcome::Forward { needs: named(needs), passes: passed.into_iter().map(why).collect() }
            }
            Decision::Reject(index, rejection, needs) => {
                Outcome::Reject { index, code: rejection.text().code, needs: named(needs) }
            }
            Decision::Settle => Outcome::Settle,
            Decision::ReadValue => Outcome::ReadValue,
            Decision::ReadRows => Outcome::ReadRows,
        }
    }
}
