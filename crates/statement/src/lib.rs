//! The effects of a statement, as far as its text shows them: text → [`Script`].
//!
//! Owns the parsers' results and their cache. Must never guess: anything that the text does not show is reported as
//! opaque or unknown, and the caller refuses it or queries the server. Nothing here depends on policies, sessions or
//! tokens, so results can be cached by text.
//!
//! Overview: [`analyze()`] reads a text from the parser's summary, or from the tree, where `classify` has a row for every
//! statement type. `nested`, `ddl`, `query` and `expression` handle the details, and `conditions` the affected rows.
//! `lexical` reads texts that are too large for the parsers, as far as their tokens prove something. Untrusted texts pass
//! through [`Cache`]: `cost` decides which ones the parsers may read immediately; a potentially expensive text is parsed in
//! another process (`reader_process`).
//!
//! No text shows the code that triggers, rules, views, defaults, row security, casts, operators, and functions in
//! another schema with a harmless name run. The catalog and the guard cover these.

mod analyze;
mod arrays;
mod bound;
mod cache;
mod classify;
mod conditions;
mod cost;
mod ddl;
mod elements;
mod encoding;
mod expression;
mod facts;
mod functions;
mod kind;
mod lexical;
mod nested;
mod own;
mod parameter;
mod query;
pub mod reader_process;
mod recent;
pub mod rows;
mod shape;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test that panics has failed")]
mod tests;
mod tokens;
mod values;

pub(crate) use analyze::{LONGEST_TREE, read_text};
pub use analyze::{analyze, analyze_rows, read_tokens};
pub use cache::{Analysis, Cache};
pub use facts::TEMPORARY;
pub use kind::{OpaqueReason, StatementKind};
pub use own::OWN_SCHEMAS;

use serde::{Deserialize, Serialize};

/// A statement's operation on a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operation {
    /// `INSERT`, `COPY … FROM`, the insert action of `MERGE`.
    Insert,
    /// `UPDATE`, `INSERT … ON CONFLICT DO UPDATE` (as well as [`Operation::Insert`]), the update action of `MERGE`.
    Update,
    /// `DELETE`, the delete action of `MERGE`.
    Delete,
    /// `TRUNCATE`.
    Truncate,
    /// `CASCADE` in `TRUNCATE`, as well as [`Operation::Truncate`]: empties the tables that refer to the relation too.
    TruncateCascade,
    /// Changes or drops the table, its triggers or its rules.
    Ddl,
    /// `CASCADE` in `DROP TABLE` and `ALTER TABLE`, in addition to [`Operation::Ddl`]: also drops the relation's
    /// dependents.
    Cascade,
    /// `SELECT … FOR UPDATE/SHARE` and `LOCK TABLE`, other than in the mode of a plain SELECT: writes nothing, but can
    /// block writers.
    Lock,
    /// `SELECT`, or any other mention: writes nothing, but a view, or row security, may call a function that does.
    Read,
}

/// A relation as a statement names it, folded and unquoted as Postgres does it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RelationName {
    /// None when the statement leaves it to the search path.
    pub schema: Option<String>,
    /// The relation's own name.
    pub name: String,
}

/// One relation that a statement writes, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Write {
    /// The written relation.
    pub relation: RelationName,
    /// How it is written.
    pub operation: Operation,
    /// The affected rows, as far as the text shows them.
    pub rows: rows::Rows,
}

/// A statement's effect on the session parameter `lease.fence`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParameterEffect {
    /// Nothing.
    #[default]
    None,
    /// `SET [SESSION | LOCAL] lease.fence = value`.
    Set {
        /// The value that the server will store.
        value: String,
        /// `SET LOCAL`: until the end of the transaction.
        local: bool,
    },
    /// `RESET lease.fence`, `SET lease.fence TO DEFAULT` (`local` for `SET LOCAL … TO DEFAULT`): back to the startup value.
    Reset {
        /// `SET LOCAL … TO DEFAULT`.
        local: bool,
    },
    /// `RESET ALL`, `DISCARD ALL`: back to the startup value.
    ResetAll,
    /// It may have changed in a way that the text does not show. Only the server knows the value.
    Unknown,
}

/// A statement's effect on the session's search path, as far as its text shows it. Code that it runs may do more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathEffect {
    /// Nothing.
    #[default]
    None,
    /// `SET [SESSION | LOCAL] search_path = value`.
    Set {
        /// The value that the server will show, except for its quotes.
        value: String,
        /// `SET LOCAL`: until the end of the transaction.
        local: bool,
    },
    /// Set to a value that the text does not show.
    Unknown,
}

/// A statement's effect on the transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionEffect {
    /// Nothing.
    #[default]
    None,
    /// `BEGIN`, `START TRANSACTION`.
    Begin,
    /// `COMMIT`, `END`, with or without `AND CHAIN`.
    Commit,
    /// `ROLLBACK`, `ABORT`, with or without `AND CHAIN`.
    Rollback,
    /// `SAVEPOINT name`.
    Savepoint(String),
    /// `RELEASE SAVEPOINT name`.
    Release(String),
    /// `ROLLBACK TO SAVEPOINT name`.
    RollbackTo(String),
    /// `PREPARE TRANSACTION`: moves the transaction's writes out of the server process.
    PrepareTransaction,
}

/// A statement's effect on the session's prepared statements, in SQL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum PreparedEffect {
    /// Nothing.
    #[default]
    None,
    /// `PREPARE name AS statement`. The statement's writes have not happened yet.
    Prepare {
        /// The name, shared with the protocol's prepared statements.
        name: String,
        /// The prepared statement.
        statement: std::sync::Arc<Statement>,
    },
    /// `EXECUTE name`, also within EXPLAIN ANALYZE and CREATE TABLE AS: see [`Statement::executing`].
    Execute {
        /// The name to look up.
        name: String,
        /// Values of the parameters; `None` for an expression.
        arguments: Vec<Option<rows::ColumnValue>>,
    },
    /// `FETCH` or `MOVE` from a cursor: runs the portal of that name, which may come from a Bind; see
    /// [`Statement::executing`].
    Fetch {
        /// The name to look up.
        name: String,
    },
    /// `DEALLOCATE name`.
    Deallocate {
        /// The name.
        name: String,
    },
    /// `DEALLOCATE ALL`, `DISCARD ALL`, (not `DISCARD PLANS`).
    DeallocateAll,
}

/// A function that a statement names in a call, folded and unquoted as Postgres does it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FunctionName {
    /// None when the statement leaves it to the search path.
    pub schema: Option<String>,
    /// The function's own name.
    pub name: String,
}

/// A relation that a statement may redefine, so that later writes to it may also write other relations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Redirect {
    /// The relation's name after the statement.
    pub relation: RelationName,
    /// The relation that later writes reach; None if the text does not show it.
    pub to: Option<RelationName>,
}

/// The effects of one statement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// Start and end of the statement in its text, in bytes (end exclusive, without the semicolon). [`Statement::WHOLE`] if
    /// several texts share the analysis.
    pub range: std::ops::Range<usize>,
    /// Its type.
    pub kind: StatementKind,
    /// The relations that the statement writes or locks.
    pub writes: Vec<Write>,
    /// True if the search path determines the operators or types that identify the written rows.
    pub keys_by_path: bool,
    /// The declared types of the parameters, from `$1`.
    pub declared: Vec<rows::Declared>,
    /// The functions that the statement calls by name, including PostgreSQL's own.
    pub functions: Vec<FunctionName>,
    /// The relations that the statement names and reads, without those that it only writes.
    pub reads: Vec<RelationName>,
    /// True if `reads` may be incomplete.
    pub reads_more: bool,
    /// Its effect on `lease.fence`.
    pub parameter: ParameterEffect,
    /// Its effect on the search path.
    pub path: PathEffect,
    /// Its effect on the transaction.
    pub transaction: TransactionEffect,
    /// Its effect on prepared statements.
    pub prepared: PreparedEffect,
    /// True if the statement names, without a schema, an object that may be fencegate's own, depending on the
    /// search path.
    pub own_by_path: bool,
    /// Why the text does not show what the statement writes, if it does not.
    pub opaque: Option<OpaqueReason>,
    /// True if the statement may change which relations exist, or their dependencies.
    pub changes_catalog: bool,
    /// The relations and types that the statement creates, and the relations that it redefines except for their name.
    pub defines: Vec<RelationName>,
    /// True if the statement changes more of the catalog than `writes`, `redirects` and `defines` name.
    pub changes_unnamed: bool,
    /// Redefinitions that let a write to one relation reach another. Other sessions do not see them before the transaction
    /// ends.
    pub redirects: Vec<Redirect>,
    /// A database that must have no other connection while this runs: `DROP DATABASE x`, `CREATE DATABASE y TEMPLATE x`, `ALTER DATABASE x RENAME/SET TABLESPACE`.
    pub needs_database_alone: Option<ExclusiveUse>,
}

/// A database that a statement needs without other connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveUse {
    /// The database's name.
    pub database: String,
    /// True if the server ends the other connections: `DROP DATABASE x WITH (FORCE)`.
    pub by_force: bool,
    /// True for the template of a new database. Otherwise the database is dropped, renamed or moved.
    pub is_copied: bool,
}

impl Statement {
    /// The range of a statement that is alone in its text, whatever the text's length.
    pub const WHOLE: std::ops::Range<usize> = 0..usize::MAX;

    /// The database that the statement drops, renames or moves. Only its owner may do so.
    pub fn database_to_own(&self) -> Option<&str> {
        self.needs_database_alone.as_ref().filter(|it| !it.is_copied).map(|it| it.database.as_str())
    }

    /// True if the text shows that the session may act as another role afterwards.
    pub fn may_change_role(&self) -> bool {
        let sets_another = matches!(self.kind, StatementKind::Set | StatementKind::Reset)
            && matches!(self.parameter, ParameterEffect::None | ParameterEffect::Unknown);
        let runs_code = self.opaque.is_some() || self.parameter == ParameterEffect::Unknown;
        let goes_back = self.ends_transaction() || matches!(self.transaction, TransactionEffect::RollbackTo(_));
        let sets_token = matches!(self.parameter, ParameterEffect::Set { .. });
        let calls_set_config = self.functions.iter().any(|function| function.name == "set_config");
        sets_another || runs_code || goes_back || self.kind.is_discard() || calls_set_config && !sets_token
    }
}

/// The statements of one query string, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// The statements, in the order in which the server runs them. Empty for an empty query.
    pub statements: Vec<std::sync::Arc<Statement>>,
}

impl Script {
    /// Replaces the written rows of the statements.
    fn with_all_rows(mut self, rows: &rows::Rows) -> Self {
        for statement in self.statements.iter_mut().filter_map(std::sync::Arc::get_mut) {
            statement.writes.iter_mut().for_each(|write| write.rows = rows.clone());
        }
        self
    }
}

/// Why a text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unreadable {
    /// A syntax error in the grammar of the parser's PostgreSQL version.
    Syntax,
    /// Too long or nested too deeply for the parsers.
    TooComplex,
    /// Non-ASCII bytes in a client encoding in which they could hide syntax.
    Encoding,
}

/// The settings that decide how the session's server reads text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lexing {
    /// The session parameter of that name, as reported by ParameterStatus.
    pub standard_conforming_strings: bool,
    /// The class of the session's client_encoding, as reported by ParameterStatus.
    pub encoding: Encoding,
    /// The class of the database's encoding, as reported by ParameterStatus.
    pub server: ServerEncoding,
    /// The server's major version, as reported by ParameterStatus: an older server has fewer key words.
    pub release: u8,
}

/// Classes of database encodings, by their treatment of non-ASCII characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerEncoding {
    /// UTF8: characters stay unchanged, also in unquoted names.
    Utf8,
    /// One byte is one character (or unknown, in SQL_ASCII). In unquoted names, the server folds capital letters by the
    /// database's locale.
    SingleByte,
    /// Several UTF-8 characters may become one. Also any unknown encoding.
    Other,
}

/// Classes of client encodings, by the meaning of bytes above 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// UTF8.
    Utf8,
    /// Every byte above 127 belongs to a character without ASCII bytes: single-byte sets, EUC_*, SQL_ASCII.
    AsciiSafe,
    /// A character may end in an ASCII byte: SJIS, BIG5, GBK, GB18030, UHC, JOHAB. Also any unknown encoding.
    AsciiUnsafe,
}
