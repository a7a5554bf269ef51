//! What each kind of statement does: one row for every statement type of the grammar.
//!
//! Must never let a type pass that has no row: it is opaque.

use super::query::Walk;
use super::{
    Operation, ParameterEffect, PreparedEffect, RelationName, Statement, TransactionEffect, ddl, nested, own, parameter,
};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{CopyStmt, DiscardMode, DiscardStmt, TransactionStmt, TransactionStmtKind, VariableSetKind};

/// The server's number of the lock that every SELECT takes: `LOCK TABLE` in that mode is a read, as `pg_dump` sends it.
const ACCESS_SHARE_LOCK: i32 = 1;

/// Why a statement without a row is opaque.
pub(super) const UNKNOWN: &str = "it is a statement that the proxy does not know";

/// What the statement does; its range is the caller's to say.
pub(super) fn classify(node: &N) -> Statement {
    let mut statement = Statement::default();
    statement.kind = describe(node, &mut statement);
    if own::defines_own(node) {
        statement.set_opaque(own::OPAQUE);
    }
    statement.settle();
    statement
}

/// Adds what `node` does to the statement, and names its kind.
pub(super) fn describe(node: &N, into: &mut Statement) -> &'static str {
    match node {
        N::SelectStmt(select) => {
            Walk::new(into).query(node);
            if let Some(effect) = parameter::set_by_query(select) {
                into.parameter = effect;
            }
            if select.into_clause.is_some() { "SELECT INTO" } else { "SELECT" }
        }
        N::InsertStmt(_) => query(node, into, "INSERT"),
        N::UpdateStmt(_) => query(node, into, "UPDATE"),
        N::DeleteStmt(_) => query(node, into, "DELETE"),
        N::MergeStmt(_) => query(node, into, "MERGE"),
        N::CopyStmt(copy) => describe_copy(copy, into),
        N::TruncateStmt(truncate) => ddl::truncate(truncate, into),
        N::LockStmt(lock) => {
            if lock.mode != ACCESS_SHARE_LOCK {
                ddl::write_all(&lock.relations, Operation::Lock, into);
            }
            "LOCK TABLE"
        }

        // What runs another statement, or code.
        N::ExplainStmt(explain) => nested::explain(explain, into),
        N::PrepareStmt(prepare) => nested::prepare(prepare, into),
        N::ExecuteStmt(execute) => nested::execute(execute, into),
        N::DeallocateStmt(deallocate) => nested::deallocate(deallocate, into),
        N::DeclareCursorStmt(declare) => nested::declare_cursor(declare, into),
        N::FetchStmt(fetch) => nested::fetch(fetch, into),
        N::ClosePortalStmt(_) => "CLOSE",
        N::CreateTableAsStmt(create) => nested::create_table_as(create, into),
        // Its rows are replaced, and its query may call anything.
        N::RefreshMatViewStmt(refresh) => {
            if let Some(relation) = &refresh.relation {
                into.add_write(RelationName::from(relation), Operation::Insert);
                into.add_write(RelationName::from(relation), Operation::Delete);
            }
            into.parameter = ParameterEffect::Unknown;
            "REFRESH MATERIALIZED VIEW"
        }
        N::CallStmt(call) => nested::call(call, into),
        N::DoStmt(_) => runs_code(into, "DO", "DO runs code"),
        N::LoadStmt(_) => {
            into.parameter = ParameterEffect::Unknown;
            "LOAD"
        }

        // The session.
        N::TransactionStmt(transaction) => describe_transaction(transaction, into),
        N::VariableSetStmt(set) => {
            into.parameter = parameter::set(set);
            into.path = parameter::set_path(set);
            match set.kind() {
                VariableSetKind::VarReset | VariableSetKind::VarResetAll => "RESET",
                _ => "SET",
            }
        }
        N::VariableShowStmt(_) => "SHOW",
        N::DiscardStmt(discard) => describe_discard(discard, into),
        N::ConstraintsSetStmt(_) => "SET CONSTRAINTS",
        N::ListenStmt(_) => "LISTEN",
        N::UnlistenStmt(_) => "UNLISTEN",
        N::NotifyStmt(_) => "NOTIFY",

        // Tables, and what hangs on them.
        N::CreateStmt(create) => {
            ddl::create_table(create, into);
            "CREATE TABLE"
        }
        N::CreateForeignTableStmt(create) => {
            create.base_stmt.iter().for_each(|table| ddl::create_table(table, into));
            "CREATE FOREIGN TABLE"
        }
        N::AlterTableStmt(alter) => ddl::alter_table(alter, into),
        N::AlterTableMoveAllStmt(_) => opaque(into, "ALTER TABLE ALL", "it moves tables that it does not name"),
        N::DropStmt(drop) => ddl::drop(drop, into),
        N::RenameStmt(rename) => ddl::rename(rename, into),
        N::AlterObjectSchemaStmt(alter) => ddl::set_schema(alter, into),
        N::AlterOwnerStmt(alter) => ddl::on(&alter.relation, into, "ALTER OWNER"),
        N::AlterObjectDependsStmt(alter) => ddl::on(&alter.relation, into, "ALTER DEPENDS ON EXTENSION"),
        N::CreateTrigStmt(create) => {
            // What a view's trigger writes in place of the view is not said.
            into.changes_unnamed = true;
            ddl::on(&create.relation, into, "CREATE TRIGGER")
        }
        N::RuleStmt(create) => {
            ddl::rewrite(&create.relation, &create.actions, into);
            ddl::on(&create.relation, into, "CREATE RULE")
        }
        N::CreatePolicyStmt(create) => ddl::on(&create.table, into, "CREATE POLICY"),
        N::AlterPolicyStmt(alter) => ddl::on(&alter.table, into, "ALTER POLICY"),
        N::CreateSchemaStmt(create) => {
            for element in create.schema_elts.iter().filter_map(|element| element.node.as_ref()) {
                describe(element, into);
            }
            changes(into, "CREATE SCHEMA")
        }
        N::DropOwnedStmt(_) => opaque(into, "DROP OWNED", "it drops whatever a role owns"),
        N::ReassignOwnedStmt(_) => opaque(into, "REASSIGN OWNED", "it changes whatever a role owns"),
        N::ImportForeignSchemaStmt(_) => opaque(into, "IMPORT FOREIGN SCHEMA", "it makes tables that it does not name"),
        N::IndexStmt(index) => {
            ddl::create_index(index, into);
            "CREATE INDEX"
        }
        N::VacuumStmt(vacuum) => one_of(vacuum.is_vacuumcmd, "VACUUM", "ANALYZE"),
        N::ClusterStmt(_) => "CLUSTER",
        N::ReindexStmt(_) => "REINDEX",
        N::CommentStmt(_) => "COMMENT",
        N::SecLabelStmt(_) => "SECURITY LABEL",
        N::GrantStmt(grant) => one_of(grant.is_grant, "GRANT", "REVOKE"),
        N::GrantRoleStmt(grant) => one_of(grant.is_grant, "GRANT", "REVOKE"),
        N::AlterDefaultPrivilegesStmt(_) => "ALTER DEFAULT PRIVILEGES",

        // What is defined is not run now.
        N::ViewStmt(create) => {
            ddl::rewrite(&create.view, create.query.as_deref().map(std::slice::from_ref).unwrap_or_default(), into);
            "CREATE VIEW"
        }
        N::CreateFunctionStmt(_) => changes(into, "CREATE FUNCTION"),
        N::AlterFunctionStmt(_) => changes(into, "ALTER FUNCTION"),
        N::CreateSeqStmt(_) => changes(into, "CREATE SEQUENCE"),
        N::AlterSeqStmt(_) => changes(into, "ALTER SEQUENCE"),
        N::DefineStmt(_) => changes(into, "CREATE"),
        N::CompositeTypeStmt(_) | N::CreateEnumStmt(_) | N::CreateRangeStmt(_) => changes(into, "CREATE TYPE"),
        N::AlterEnumStmt(_) => changes(into, "ALTER TYPE"),
        N::AlterTypeStmt(_) => opaque(into, "ALTER TYPE", "it changes tables that use the type"),
        N::CreateDomainStmt(_) => changes(into, "CREATE DOMAIN"),
        // A new constraint is checked in every table that uses the domain.
        N::AlterDomainStmt(alter) => {
            ddl::alter_domain(alter, into);
            into.parameter = ParameterEffect::Unknown;
            changes(into, "ALTER DOMAIN")
        }
        N::CreateCastStmt(_) => changes(into, "CREATE CAST"),
        N::CreateConversionStmt(_) => changes(into, "CREATE CONVERSION"),
        N::CreateTransformStmt(_) => changes(into, "CREATE TRANSFORM"),
        N::CreateOpClassStmt(_) => changes(into, "CREATE OPERATOR CLASS"),
        N::CreateOpFamilyStmt(_) => changes(into, "CREATE OPERATOR FAMILY"),
        N::AlterOpFamilyStmt(_) => changes(into, "ALTER OPERATOR FAMILY"),
        N::AlterOperatorStmt(_) => changes(into, "ALTER OPERATOR"),
        N::AlterCollationStmt(_) => changes(into, "ALTER COLLATION"),
        N::CreateStatsStmt(_) => "CREATE STATISTICS",
        N::AlterStatsStmt(_) => "ALTER STATISTICS",
        N::AlterTsdictionaryStmt(_) => "ALTER TEXT SEARCH DICTIONARY",
        N::AlterTsconfigurationStmt(_) => "ALTER TEXT SEARCH CONFIGURATION",
        N::CreateAmStmt(_) => changes(into, "CREATE ACCESS METHOD"),
        N::CreatePlangStmt(_) => changes(into, "CREATE LANGUAGE"),
        N::CreateEventTrigStmt(_) => changes(into, "CREATE EVENT TRIGGER"),
        N::AlterEventTrigStmt(_) => changes(into, "ALTER EVENT TRIGGER"),

        // Extensions bring scripts with them.
        N::CreateExtensionStmt(_) => {
            into.parameter = ParameterEffect::Unknown;
            into.changes_unnamed = true;
            changes(into, "CREATE EXTENSION")
        }
        N::AlterExtensionStmt(_) => runs_code(into, "ALTER EXTENSION", "it runs the extension's script"),
        N::AlterExtensionContentsStmt(_) => opaque(into, "ALTER EXTENSION", "it changes what the extension holds"),

        // Replication and foreign data.
        N::CreateSubscriptionStmt(_) => opaque(into, "CREATE SUBSCRIPTION", "it lets another server write tables"),
        N::AlterSubscriptionStmt(_) => opaque(into, "ALTER SUBSCRIPTION", "it lets another server write tables"),
        N::DropSubscriptionStmt(_) => "DROP SUBSCRIPTION",
        N::CreatePublicationStmt(_) => "CREATE PUBLICATION",
        N::AlterPublicationStmt(_) => "ALTER PUBLICATION",
        N::CreateFdwStmt(_) => "CREATE FOREIGN DATA WRAPPER",
        N::AlterFdwStmt(_) => "ALTER FOREIGN DATA WRAPPER",
        N::CreateForeignServerStmt(_) => "CREATE SERVER",
        N::AlterForeignServerStmt(_) => "ALTER SERVER",
        N::CreateUserMappingStmt(_) => "CREATE USER MAPPING",
        N::AlterUserMappingStmt(_) => "ALTER USER MAPPING",
        N::DropUserMappingStmt(_) => "DROP USER MAPPING",

        // The cluster: databases, roles, tablespaces, the server.
        N::CreatedbStmt(create) => ddl::create_database(create, into),
        N::DropdbStmt(drop) => ddl::drop_database(drop, into),
        N::AlterDatabaseStmt(alter) => ddl::alter_database(alter, into),
        N::AlterDatabaseSetStmt(_) | N::AlterDatabaseRefreshCollStmt(_) => "ALTER DATABASE",
        N::CreateRoleStmt(_) => "CREATE ROLE",
        N::AlterRoleStmt(_) | N::AlterRoleSetStmt(_) => "ALTER ROLE",
        N::DropRoleStmt(_) => "DROP ROLE",
        N::CreateTableSpaceStmt(_) => "CREATE TABLESPACE",
        N::DropTableSpaceStmt(_) => "DROP TABLESPACE",
        N::AlterTableSpaceOptionsStmt(_) => "ALTER TABLESPACE",
        N::AlterSystemStmt(_) => "ALTER SYSTEM",
        N::CheckPointStmt(_) => "CHECKPOINT",

        _ => runs_code(into, "unknown", UNKNOWN),
    }
}

fn one_of(is_first: bool, first: &'static str, second: &'static str) -> &'static str {
    if is_first { first } else { second }
}

fn query(node: &N, into: &mut Statement, kind: &'static str) -> &'static str {
    Walk::new(into).query(node);
    kind
}

fn changes(into: &mut Statement, kind: &'static str) -> &'static str {
    into.changes_catalogue = true;
    kind
}

fn opaque(into: &mut Statement, kind: &'static str, why: &'static str) -> &'static str {
    into.set_opaque(why);
    kind
}

pub(super) fn runs_code(into: &mut Statement, kind: &'static str, why: &'static str) -> &'static str {
    into.set_runs_code(why);
    kind
}

fn describe_copy(copy: &CopyStmt, into: &mut Statement) -> &'static str {
    let mut walk = Walk::new(into);
    walk.maybe(&copy.query);
    walk.maybe(&copy.where_clause);
    match &copy.relation {
        Some(relation) if copy.is_from => {
            into.add_write(RelationName::from(relation), Operation::Insert);
            "COPY FROM"
        }
        relation => {
            into.reads.extend(relation.iter().map(RelationName::from));
            "COPY TO"
        }
    }
}

fn describe_discard(discard: &DiscardStmt, into: &mut Statement) -> &'static str {
    match discard.target() {
        DiscardMode::DiscardAll => {
            into.parameter = ParameterEffect::ResetAll;
            into.prepared = PreparedEffect::DeallocateAll;
            changes(into, "DISCARD ALL")
        }
        DiscardMode::DiscardTemp => changes(into, "DISCARD TEMP"),
        _ => "DISCARD",
    }
}

fn describe_transaction(transaction: &TransactionStmt, into: &mut Statement) -> &'static str {
    let savepoint = || transaction.savepoint_name.clone();
    let (effect, kind) = match transaction.kind() {
        TransactionStmtKind::TransStmtBegin => (TransactionEffect::Begin, "BEGIN"),
        TransactionStmtKind::TransStmtStart => (TransactionEffect::Begin, "START TRANSACTION"),
        TransactionStmtKind::TransStmtCommit => (TransactionEffect::Commit, "COMMIT"),
        TransactionStmtKind::TransStmtRollback => (TransactionEffect::Rollback, "ROLLBACK"),
        TransactionStmtKind::TransStmtSavepoint => (TransactionEffect::Savepoint(savepoint()), "SAVEPOINT"),
        TransactionStmtKind::TransStmtRelease => (TransactionEffect::Release(savepoint()), "RELEASE"),
        TransactionStmtKind::TransStmtRollbackTo => (TransactionEffect::RollbackTo(savepoint()), "ROLLBACK TO"),
        TransactionStmtKind::TransStmtPrepare => (TransactionEffect::PrepareTransaction, "PREPARE TRANSACTION"),
        TransactionStmtKind::TransStmtCommitPrepared => {
            // Whatever was prepared around the proxy defines.
            into.changes_catalogue = true;
            into.changes_unnamed = true;
            (TransactionEffect::None, "COMMIT PREPARED")
        }
        TransactionStmtKind::TransStmtRollbackPrepared => (TransactionEffect::None, "ROLLBACK PREPARED"),
        TransactionStmtKind::Undefined => {
            return runs_code(into, "unknown", "it is a transaction statement of an unknown kind");
        }
    };
    into.transaction = effect;
    kind
}
