//! Types of statements, and the reasons why a text is opaque.
//!
//! Owns their display names. Must never compare these: every decision compares the values.

use super::Unreadable;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// An enum whose values have a name for people each.
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

            /// For errors, hints and logs.
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
        Syntax "it is not in the grammar that the proxy knows",
        TooComplex "it is too long or nested too deeply to be checked",
        Encoding "it has characters outside ASCII in a client encoding that the proxy cannot read",
        UnknownStatement "it is a statement that the proxy does not know",
        UnknownTransaction "it is a transaction statement of an unknown kind",
        UnknownExpression "it has an expression that the proxy does not know",
        NamelessFunction "it calls a function without a name",
        Do "DO runs code",
        Call "CALL runs a procedure",
        CursorByName "it runs a cursor or portal by its name",
        FencegatesOwn "it touches what fencegate keeps in the database",
        FencegatesOwnByPath "the search path may resolve a name in it to one of fencegate's own objects",
        SystemCatalog "it writes the server's own catalog",
        Cascade "CASCADE also changes what depends on it, which it does not name",
        TablesUnnamed "it moves tables that it does not name",
        DropsOwned "it drops whatever a role owns",
        ReassignsOwned "it changes whatever a role owns",
        ForeignSchema "it makes tables that it does not name",
        TypeInUse "it changes tables that use the type",
        TablesOfType "it changes tables of that type",
        SchemaRenamed "it renames every table of the schema",
        ExtensionScript "it runs the extension's script",
        ExtensionContents "it changes what the extension holds",
        ExtensionDropped "it drops what the extension holds",
        ExtensionMoved "it moves the tables that the extension holds",
        Subscription "it lets another server write tables",
        UnseenPrepared "it runs a prepared statement that the proxy has not seen",
        PreparedTransaction "it runs a transaction statement by way of a prepared one",
        PreparesTooMuch "what its text prepares and executes is too much to be checked",
        UnseenStatement "the proxy has not seen the prepared statement",
        UnseenPortal "the proxy has not seen the portal",
        SeveralStatements "several statements in one",
        NotSql "it is no SQL",
        NamesNoFunction "it names no function",
        CutShort "the message is cut short",
        TooLong "the statement is longer than 16 MiB",
        NoRoom "the proxy holds too many statements of more than 1 MiB at present",
    }
}

impl StatementKind {
    /// `DISCARD`, of whatever it discards.
    pub fn is_discard(self) -> bool {
        matches!(self, StatementKind::Discard | StatementKind::DiscardAll | StatementKind::DiscardTemp)
    }

    /// It runs in its transaction as a whole: SELECT, INSERT, UPDATE, DELETE or MERGE. Its names are resolved before any of
    /// it runs.
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
