//! Types of statements, and the reasons why a text is opaque.
//!
//! Owns their display names. Must never compare these: every decision compares the values.

use super::Unreadable;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Defines an enum whose values have display names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$of_value:meta])* $value:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $(#[doc = $text] $(#[$of_value])* $value,)*
        }

        impl $name {
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$value),*];

            /// The name for errors, hints and logs.
            pub const fn text(self) -> &'static str {
                match self {
                    $($name::$value => $text,)*
                }
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

named! {
    /// A statement's type, as far as errors and decisions tell types apart.
    #[derive(Default)]
    StatementKind {
        #[default]
        Unspecified "statement",
        Unknown "unknown",
        ReplicationCommand "replication command",
        Portal "portal",
        FunctionCall "fast-path function call",
        OfProxy "statement of the proxy",
        Alter "ALTER",
        AlterCollation "ALTER COLLATION",
        AlterDatabase "ALTER DATABASE",
        AlterDefaultPrivileges "ALTER DEFAULT PRIVILEGES",
        AlterDependsOnExtension "ALTER DEPENDS ON EXTENSION",
        AlterDomain "ALTER DOMAIN",
        AlterEventTrigger "ALTER EVENT TRIGGER",
        AlterExtension "ALTER EXTENSION",
        AlterForeignDataWrapper "ALTER FOREIGN DATA WRAPPER",
        AlterForeignTable "ALTER FOREIGN TABLE",
        AlterFunction "ALTER FUNCTION",
        AlterIndex "ALTER INDEX",
        AlterMaterializedView "ALTER MATERIALIZED VIEW",
        AlterOperator "ALTER OPERATOR",
        AlterOperatorFamily "ALTER OPERATOR FAMILY",
        AlterOwner "ALTER OWNER",
        AlterPolicy "ALTER POLICY",
        AlterPublication "ALTER PUBLICATION",
        AlterRole "ALTER ROLE",
        AlterRule "ALTER RULE",
        AlterSchema "ALTER SCHEMA",
        AlterSequence "ALTER SEQUENCE",
        AlterServer "ALTER SERVER",
        AlterStatistics "ALTER STATISTICS",
        AlterSubscription "ALTER SUBSCRIPTION",
        AlterSystem "ALTER SYSTEM",
        AlterTable "ALTER TABLE",
        AlterTableAll "ALTER TABLE ALL",
        AlterTablespace "ALTER TABLESPACE",
        AlterTextSearchConfiguration "ALTER TEXT SEARCH CONFIGURATION",
        AlterTextSearchDictionary "ALTER TEXT SEARCH DICTIONARY",
        AlterTrigger "ALTER TRIGGER",
        AlterType "ALTER TYPE",
        AlterUserMapping "ALTER USER MAPPING",
        AlterView "ALTER VIEW",
        Analyze "ANALYZE",
        Begin "BEGIN",
        Call "CALL",
        Checkpoint "CHECKPOINT",
        Close "CLOSE",
        Cluster "CLUSTER",
        Comment "COMMENT",
        Commit "COMMIT",
        CommitPrepared "COMMIT PREPARED",
        CopyFrom "COPY FROM",
        CopyTo "COPY TO",
        Create "CREATE",
        CreateAccessMethod "CREATE ACCESS METHOD",
        CreateCast "CREATE CAST",
        CreateConversion "CREATE CONVERSION",
        CreateDatabase "CREATE DATABASE",
        CreateDomain "CREATE DOMAIN",
        CreateEventTrigger "CREATE EVENT TRIGGER",
        CreateExtension "CREATE EXTENSION",
        CreateForeignDataWrapper "CREATE FOREIGN DATA WRAPPER",
        CreateForeignTable "CREATE FOREIGN TABLE",
        CreateFunction "CREATE FUNCTION",
        CreateIndex "CREATE INDEX",
        CreateLanguage "CREATE LANGUAGE",
        CreateMaterializedView "CREATE MATERIALIZED VIEW",
        CreateOperatorClass "CREATE OPERATOR CLASS",
        CreateOperatorFamily "CREATE OPERATOR FAMILY",
        CreatePolicy "CREATE POLICY",
        CreatePublication "CREATE PUBLICATION",
        CreateRole "CREATE ROLE",
        CreateRule "CREATE RULE",
        CreateSchema "CREATE SCHEMA",
        CreateSequence "CREATE SEQUENCE",
        CreateServer "CREATE SERVER",
        CreateStatistics "CREATE STATISTICS",
        CreateSubscription "CREATE SUBSCRIPTION",
        CreateTable "CREATE TABLE",
        CreateTableAs "CREATE TABLE AS",
        CreateTablespace "CREATE TABLESPACE",
        CreateTransform "CREATE TRANSFORM",
        CreateTrigger "CREATE TRIGGER",
        CreateType "CREATE TYPE",
        CreateUserMapping "CREATE USER MAPPING",
        CreateView "CREATE VIEW",
        Deallocate "DEALLOCATE",
        DeclareCursor "DECLARE CURSOR",
        Delete "DELETE",
        Discard "DISCARD",
        DiscardAll "DISCARD ALL",
        DiscardTemp "DISCARD TEMP",
        Drop "DROP",
        Do "DO",
        DropDatabase "DROP DATABASE",
        DropExtension "DROP EXTENSION",
        DropForeignTable "DROP FOREIGN TABLE",
        DropFunction "DROP FUNCTION",
        DropIndex "DROP INDEX",
        DropMaterializedView "DROP MATERIALIZED VIEW",
        DropOwned "DROP OWNED",
        DropPolicy "DROP POLICY",
        DropRole "DROP ROLE",
        DropRule "DROP RULE",
        DropSchema "DROP SCHEMA",
        DropSequence "DROP SEQUENCE",
        DropSubscription "DROP SUBSCRIPTION",
        DropTable "DROP TABLE",
        DropTablespace "DROP TABLESPACE",
        DropTrigger "DROP TRIGGER",
        DropType "DROP TYPE",
        DropUserMapping "DROP USER MAPPING",
        DropView "DROP VIEW",
        Execute "EXECUTE",
        Explain "EXPLAIN",
        ExplainAnalyze "EXPLAIN ANALYZE",
        Fetch "FETCH",
        Grant "GRANT",
        ImportForeignSchema "IMPORT FOREIGN SCHEMA",
        Insert "INSERT",
        Listen "LISTEN",
        Load "LOAD",
        LockTable "LOCK TABLE",
        Merge "MERGE",
        Move "MOVE",
        Notify "NOTIFY",
        Prepare "PREPARE",
        PrepareTransaction "PREPARE TRANSACTION",
        ReassignOwned "REASSIGN OWNED",
        RefreshMaterializedView "REFRESH MATERIALIZED VIEW",
        Reindex "REINDEX",
        Release "RELEASE",
        Reset "RESET",
        Revoke "REVOKE",
        Rollback "ROLLBACK",
        RollbackPrepared "ROLLBACK PREPARED",
        RollbackTo "ROLLBACK TO",
        Savepoint "SAVEPOINT",
        SecurityLabel "SECURITY LABEL",
        Select "SELECT",
        SelectInto "SELECT INTO",
        Set "SET",
        SetConstraints "SET CONSTRAINTS",
        Show "SHOW",
        StartTransaction "START TRANSACTION",
        Truncate "TRUNCATE",
        Unlisten "UNLISTEN",
        Update "UPDATE",
        Vacuum "VACUUM",
    }
}

named! {
    /// Why a statement's text does not show what it may write or change.
    OpaqueReason {
        Syntax "the proxy cannot parse it",
        TooComplex "it is too long or too deeply nested to check",
        Encoding "it contains non-ASCII characters in an encoding that the proxy cannot read",
        UnknownStatement "the proxy does not know this type of statement",
        UnknownTransaction "the proxy does not know this type of transaction statement",
        UnknownExpression "it contains a type of expression that the proxy does not know",
        NamelessFunction "it contains a function call without a function name",
        Do "it runs procedural code",
        Call "it runs a procedure",
        CursorByName "it runs a cursor or portal by name",
        FencegatesOwn "it affects fencegate's own objects",
        FencegatesOwnByPath "the search path may resolve a name in it to one of fencegate's own objects",
        SystemCatalog "it writes to a system catalog",
        Cascade "CASCADE changes dependent objects, which it does not name",
        TablesUnnamed "it moves tables that it does not name",
        DropsOwned "it drops all objects that a role owns",
        ReassignsOwned "it changes all objects that a role owns",
        ForeignSchema "it creates tables that it does not name",
        TypeInUse "it changes tables that use the type",
        TablesOfType "it changes tables of that type",
        SchemaRenamed "it changes the schema name of every table in the schema",
        ExtensionScript "it runs the extension's script",
        ExtensionContents "it changes the extension's member objects",
        ExtensionDropped "it drops the extension's member objects",
        ExtensionMoved "it moves the extension's tables",
        Subscription "it lets another server write to tables",
        UnseenPrepared "it executes a prepared statement that the proxy has not seen",
        PreparedTransaction "it executes a prepared transaction statement",
        PreparesTooMuch "its PREPARE and EXECUTE statements are too long to check",
        UnseenStatement "the proxy has not seen the prepared statement",
        UnseenPortal "the proxy has not seen the portal",
        SeveralStatements "one message contains several statements",
        NotSql "it is not SQL",
        NamesNoFunction "it identifies the function only by its OID",
        CutShort "the message is truncated",
        TooLong "the statement is longer than 16 MiB",
        NoRoom "the proxy already holds too many statements of more than 1 MiB",
    }
}

impl StatementKind {
    /// `DISCARD` in any form.
    pub fn is_discard(self) -> bool {
        matches!(self, StatementKind::Discard | StatementKind::DiscardAll | StatementKind::DiscardTemp)
    }

    /// True for SELECT, INSERT, UPDATE, DELETE and MERGE. They run as a whole in their transaction, and their names are
    /// resolved before any of it runs.
    pub fn is_query(self) -> bool {
        use StatementKind::{Delete, Insert, Merge, Select, Update};
        matches!(self, Select | Insert | Update | Delete | Merge)
    }
}

impl From<&Unreadable> for OpaqueReason {
    fn from(unreadable: &Unreadable) -> Self {
        match unreadable {
            Unreadable::Syntax => OpaqueReason::Syntax,
            Unreadable::TooComplex => OpaqueReason::TooComplex,
            Unreadable::Encoding => OpaqueReason::Encoding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Users distinguish kinds and reasons by these names.
    #[test]
    fn kinds_and_reasons_have_unique_names() {
        let kinds: HashSet<&str> = StatementKind::ALL.iter().map(|kind| kind.text()).collect();
        let reasons: HashSet<&str> = OpaqueReason::ALL.iter().map(|reason| reason.text()).collect();
        assert_eq!((kinds.len(), reasons.len()), (StatementKind::ALL.len(), OpaqueReason::ALL.len()));
    }
}
