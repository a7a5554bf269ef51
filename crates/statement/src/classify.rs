//! The effects of each kind of statement: one row for every statement type of the grammar.
//!
//! Must never let a type pass that has no row: such a type is opaque.

use super::facts::parts;
use super::own::Concern;
use super::query::Walk;
use super::{
    OpaqueReason, Operation, ParameterEffect, PreparedEffect, RelationName, Statement, StatementKind,
    TransactionEffect, ddl, nested, own, parameter,
};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    CopyStmt, CreateSchemaStmt, DiscardMode, DiscardStmt, LockStmt, RefreshMatViewStmt, SelectStmt, TransactionStmt,
    TransactionStmtKind, VariableSetKind, VariableSetStmt,
};

/// The server's number for the lock mode of every SELECT. `LOCK TABLE` in that mode, as `pg_dump` sends it, is a read.
const ACCESS_SHARE_LOCK: i32 = 1;

/// The effects of the statement. The caller sets its range.
pub(super) fn classify(node: &N) -> Statement {
    let mut statement = Statement::default();
    statement.kind = describe(node, &mut statement);
    match own::defined(node) {
        Concern::Own => statement.set_opaque(OpaqueReason::FencegatesOwn),
        Concern::ByPath => statement.own_by_path = true,
        Concern::None => {}
    }
    statement.settle();
    statement
}

/// Adds the effects of `node` to the statement, and returns its kind. The table of this file: longer effects have
/// functions of their own.
pub(super) fn describe(node: &N, into: &mut Statement) -> StatementKind {
    match node {
        N::SelectStmt(select) => describe_select(node, select, into),
        N::InsertStmt(_) => query(node, into, StatementKind::Insert),
        N::UpdateStmt(_) => query(node, into, StatementKind::Update),
        N::DeleteStmt(_) => query(node, into, StatementKind::Delete),
        N::MergeStmt(_) => query(node, into, StatementKind::Merge),
        N::CopyStmt(copy) => describe_copy(copy, into),
        N::TruncateStmt(truncate) => ddl::truncate(truncate, into),
        N::LockStmt(lock) => describe_lock(lock, into),

        // Statements that run another statement, or code.
        N::ExplainStmt(explain) => nested::explain(explain, into),
        N::PrepareStmt(prepare) => nested::prepare(prepare, into),
        N::ExecuteStmt(execute) => nested::execute(execute, into),
        N::DeallocateStmt(deallocate) => nested::deallocate(deallocate, into),
        N::DeclareCursorStmt(declare) => nested::declare_cursor(declare, into),
        N::FetchStmt(fetch) => nested::fetch(fetch, into),
        N::ClosePortalStmt(_) => StatementKind::Close,
        N::CreateTableAsStmt(create) => nested::create_table_as(create, into),
        N::RefreshMatViewStmt(refresh) => describe_refresh(refresh, into),
        N::CallStmt(call) => nested::call(call, into),
        N::DoStmt(_) => runs_code(into, StatementKind::Do, OpaqueReason::Do),
        N::LoadStmt(_) => {
            into.parameter = ParameterEffect::Unknown;
            StatementKind::Load
        }

        // The session.
        N::TransactionStmt(transaction) => describe_transaction(transaction, into),
        N::VariableSetStmt(set) => describe_set(set, into),
        N::VariableShowStmt(_) => StatementKind::Show,
        N::DiscardStmt(discard) => describe_discard(discard, into),
        N::ConstraintsSetStmt(_) => StatementKind::SetConstraints,
        N::ListenStmt(_) => StatementKind::Listen,
        N::UnlistenStmt(_) => StatementKind::Unlisten,
        N::NotifyStmt(_) => StatementKind::Notify,

        // Tables and dependent objects.
        N::CreateStmt(create) => {
            ddl::create_table(create, into);
            StatementKind::CreateTable
        }
        N::CreateForeignTableStmt(create) => {
            create.base_stmt.iter().for_each(|table| ddl::create_table(table, into));
            StatementKind::CreateForeignTable
        }
        N::AlterTableStmt(alter) => ddl::alter_table(alter, into),
        N::AlterTableMoveAllStmt(_) => opaque(into, StatementKind::AlterTableAll, OpaqueReason::TablesUnnamed),
        N::DropStmt(drop) => ddl::drop(drop, into),
        N::RenameStmt(rename) => ddl::rename(rename, into),
        N::AlterObjectSchemaStmt(alter) => ddl::set_schema(alter, into),
        N::AlterOwnerStmt(alter) => ddl::on(&alter.relation, into, StatementKind::AlterOwner),
        N::AlterObjectDependsStmt(alter) => ddl::on(&alter.relation, into, StatementKind::AlterDependsOnExtension),
        N::CreateTrigStmt(create) => {
            // The text does not show the writes of a view's INSTEAD OF trigger.
            into.changes_unnamed = true;
            ddl::on(&create.relation, into, StatementKind::CreateTrigger)
        }
        N::RuleStmt(create) => {
            ddl::rewrite(&create.relation, &create.actions, into);
            ddl::on(&create.relation, into, StatementKind::CreateRule)
        }
        N::CreatePolicyStmt(create) => ddl::on(&create.table, into, StatementKind::CreatePolicy),
        N::AlterPolicyStmt(alter) => ddl::on(&alter.table, into, StatementKind::AlterPolicy),
        N::CreateSchemaStmt(create) => describe_schema(create, into),
        N::DropOwnedStmt(_) => opaque(into, StatementKind::DropOwned, OpaqueReason::DropsOwned),
        N::ReassignOwnedStmt(_) => opaque(into, StatementKind::ReassignOwned, OpaqueReason::ReassignsOwned),
        N::ImportForeignSchemaStmt(_) => opaque(into, StatementKind::ImportForeignSchema, OpaqueReason::ForeignSchema),
        N::IndexStmt(index) => {
            ddl::create_index(index, into);
            StatementKind::CreateIndex
        }
        N::VacuumStmt(vacuum) => one_of(vacuum.is_vacuumcmd, StatementKind::Vacuum, StatementKind::Analyze),
        N::ClusterStmt(_) => StatementKind::Cluster,
        N::ReindexStmt(_) => StatementKind::Reindex,
        N::CommentStmt(_) => StatementKind::Comment,
        N::SecLabelStmt(_) => StatementKind::SecurityLabel,
        N::GrantStmt(grant) => one_of(grant.is_grant, StatementKind::Grant, StatementKind::Revoke),
        N::GrantRoleStmt(grant) => one_of(grant.is_grant, StatementKind::Grant, StatementKind::Revoke),
        N::AlterDefaultPrivilegesStmt(_) => StatementKind::AlterDefaultPrivileges,

        // A definition does not run now.
        N::ViewStmt(create) => {
            ddl::rewrite(&create.view, create.query.as_deref().map(std::slice::from_ref).unwrap_or_default(), into);
            if create.replace {
                ddl::replace_view(&create.view, into);
            }
            StatementKind::CreateView
        }
        N::CreateFunctionStmt(create) => {
            ddl::define_unnest(&parts(&create.funcname), into);
            changes(into, StatementKind::CreateFunction)
        }
        N::AlterFunctionStmt(_) => changes(into, StatementKind::AlterFunction),
        N::CreateSeqStmt(_) => changes(into, StatementKind::CreateSequence),
        N::AlterSeqStmt(_) => changes(into, StatementKind::AlterSequence),
        N::DefineStmt(_) => changes(into, StatementKind::Create),
        N::CompositeTypeStmt(create) => {
            into.defines.extend(create.typevar.as_ref().map(RelationName::from));
            changes(into, StatementKind::CreateType)
        }
        N::CreateEnumStmt(create) => ddl::create_type(&create.type_name, into, StatementKind::CreateType),
        N::CreateRangeStmt(create) => {
            ddl::name_multirange(&create.params, into);
            ddl::create_type(&create.type_name, into, StatementKind::CreateType)
        }
        N::AlterEnumStmt(_) => changes(into, StatementKind::AlterType),
        N::AlterTypeStmt(_) => opaque(into, StatementKind::AlterType, OpaqueReason::TypeInUse),
        N::CreateDomainStmt(create) => ddl::create_type(&create.domainname, into, StatementKind::CreateDomain),
        // A new constraint is checked in every table that uses the domain.
        N::AlterDomainStmt(alter) => {
            ddl::alter_domain(alter, into);
            into.parameter = ParameterEffect::Unknown;
            changes(into, StatementKind::AlterDomain)
        }
        N::CreateCastStmt(_) => changes(into, StatementKind::CreateCast),
        N::CreateConversionStmt(_) => changes(into, StatementKind::CreateConversion),
        N::CreateTransformStmt(_) => changes(into, StatementKind::CreateTransform),
        N::CreateOpClassStmt(_) => changes(into, StatementKind::CreateOperatorClass),
        N::CreateOpFamilyStmt(_) => changes(into, StatementKind::CreateOperatorFamily),
        N::AlterOpFamilyStmt(_) => changes(into, StatementKind::AlterOperatorFamily),
        N::AlterOperatorStmt(_) => changes(into, StatementKind::AlterOperator),
        N::AlterCollationStmt(_) => changes(into, StatementKind::AlterCollation),
        N::CreateStatsStmt(_) => StatementKind::CreateStatistics,
        N::AlterStatsStmt(_) => StatementKind::AlterStatistics,
        N::AlterTsdictionaryStmt(_) => StatementKind::AlterTextSearchDictionary,
        N::AlterTsconfigurationStmt(_) => StatementKind::AlterTextSearchConfiguration,
        N::CreateAmStmt(_) => changes(into, StatementKind::CreateAccessMethod),
        N::CreatePlangStmt(_) => changes(into, StatementKind::CreateLanguage),
        N::CreateEventTrigStmt(_) => changes(into, StatementKind::CreateEventTrigger),
        N::AlterEventTrigStmt(_) => changes(into, StatementKind::AlterEventTrigger),

        // Extensions bring scripts with them.
        N::CreateExtensionStmt(_) => {
            into.parameter = ParameterEffect::Unknown;
            into.changes_unnamed = true;
            changes(into, StatementKind::CreateExtension)
        }
        N::AlterExtensionStmt(_) => runs_code(into, StatementKind::AlterExtension, OpaqueReason::ExtensionScript),
        N::AlterExtensionContentsStmt(_) => {
            opaque(into, StatementKind::AlterExtension, OpaqueReason::ExtensionContents)
        }

        // Replication and foreign data.
        N::CreateSubscriptionStmt(_) => opaque(into, StatementKind::CreateSubscription, OpaqueReason::Subscription),
        N::AlterSubscriptionStmt(_) => opaque(into, StatementKind::AlterSubscription, OpaqueReason::Subscription),
        N::DropSubscriptionStmt(_) => StatementKind::DropSubscription,
        N::CreatePublicationStmt(_) => StatementKind::CreatePublication,
        N::AlterPublicationStmt(_) => StatementKind::AlterPublication,
        N::CreateFdwStmt(_) => StatementKind::CreateForeignDataWrapper,
        N::AlterFdwStmt(_) => StatementKind::AlterForeignDataWrapper,
        N::CreateForeignServerStmt(_) => StatementKind::CreateServer,
        N::AlterForeignServerStmt(_) => StatementKind::AlterServer,
        N::CreateUserMappingStmt(_) => StatementKind::CreateUserMapping,
        N::AlterUserMappingStmt(_) => StatementKind::AlterUserMapping,
        N::DropUserMappingStmt(_) => StatementKind::DropUserMapping,

        // The cluster: databases, roles, tablespaces, the server.
        N::CreatedbStmt(create) => ddl::create_database(create, into),
        N::DropdbStmt(drop) => ddl::drop_database(drop, into),
        N::AlterDatabaseStmt(alter) => ddl::alter_database(alter, into),
        N::AlterDatabaseSetStmt(_) | N::AlterDatabaseRefreshCollStmt(_) => StatementKind::AlterDatabase,
        N::CreateRoleStmt(_) => StatementKind::CreateRole,
        N::AlterRoleStmt(_) | N::AlterRoleSetStmt(_) => StatementKind::AlterRole,
        N::DropRoleStmt(_) => StatementKind::DropRole,
        N::CreateTableSpaceStmt(_) => StatementKind::CreateTablespace,
        N::DropTableSpaceStmt(_) => StatementKind::DropTablespace,
        N::AlterTableSpaceOptionsStmt(_) => StatementKind::AlterTablespace,
        N::AlterSystemStmt(_) => StatementKind::AlterSystem,
        N::CheckPointStmt(_) => StatementKind::Checkpoint,

        _ => runs_code(into, StatementKind::Unknown, OpaqueReason::UnknownStatement),
    }
}

fn one_of(is_first: bool, first: StatementKind, second: StatementKind) -> StatementKind {
    if is_first { first } else { second }
}

fn query(node: &N, into: &mut Statement, kind: StatementKind) -> StatementKind {
    Walk::new(into).query(node);
    kind
}

fn changes(into: &mut Statement, kind: StatementKind) -> StatementKind {
    into.changes_catalog = true;
    kind
}

fn opaque(into: &mut Statement, kind: StatementKind, why: OpaqueReason) -> StatementKind {
    into.set_opaque(why);
    kind
}

pub(super) fn runs_code(into: &mut Statement, kind: StatementKind, why: OpaqueReason) -> StatementKind {
    into.set_runs_code(why);
    kind
}

fn describe_select(node: &N, select: &SelectStmt, into: &mut Statement) -> StatementKind {
    Walk::new(into).query(node);
    if let Some(effect) = parameter::set_by_query(select) {
        into.parameter = effect;
    }
    if select.into_clause.is_some() { StatementKind::SelectInto } else { StatementKind::Select }
}

fn describe_lock(lock: &LockStmt, into: &mut Statement) -> StatementKind {
    if lock.mode != ACCESS_SHARE_LOCK {
        ddl::write_all(&lock.relations, Operation::Lock, into);
    }
    StatementKind::LockTable
}

/// The rows of the view are replaced, and its query may call anything.
fn describe_refresh(refresh: &RefreshMatViewStmt, into: &mut Statement) -> StatementKind {
    if let Some(relation) = &refresh.relation {
        into.add_write(RelationName::from(relation), Operation::Insert);
        into.add_write(RelationName::from(relation), Operation::Delete);
    }
    into.parameter = ParameterEffect::Unknown;
    StatementKind::RefreshMaterializedView
}

fn describe_set(set: &VariableSetStmt, into: &mut Statement) -> StatementKind {
    into.parameter = parameter::set(set);
    into.path = parameter::set_path(set);
    match set.kind() {
        VariableSetKind::VarReset | VariableSetKind::VarResetAll => StatementKind::Reset,
        _ => StatementKind::Set,
    }
}

fn describe_schema(create: &CreateSchemaStmt, into: &mut Statement) -> StatementKind {
    for element in create.schema_elts.iter().filter_map(|element| element.node.as_ref()) {
        describe(element, into);
    }
    changes(into, StatementKind::CreateSchema)
}

fn describe_copy(copy: &CopyStmt, into: &mut Statement) -> StatementKind {
    let mut walk = Walk::new(into);
    walk.maybe(&copy.query);
    walk.maybe(&copy.where_clause);
    match &copy.relation {
        Some(relation) if copy.is_from => {
            into.add_write(RelationName::from(relation), Operation::Insert);
            StatementKind::CopyFrom
        }
        relation => {
            into.reads.extend(relation.iter().map(RelationName::from));
            StatementKind::CopyTo
        }
    }
}

fn describe_discard(discard: &DiscardStmt, into: &mut Statement) -> StatementKind {
    match discard.target() {
        DiscardMode::DiscardAll => {
            into.parameter = ParameterEffect::ResetAll;
            into.prepared = PreparedEffect::DeallocateAll;
            changes(into, StatementKind::DiscardAll)
        }
        DiscardMode::DiscardTemp => changes(into, StatementKind::DiscardTemp),
        _ => StatementKind::Discard,
    }
}

fn describe_transaction(transaction: &TransactionStmt, into: &mut Statement) -> StatementKind {
    let savepoint = || transaction.savepoint_name.clone();
    let (effect, kind) = match transaction.kind() {
        TransactionStmtKind::TransStmtBegin => (TransactionEffect::Begin, StatementKind::Begin),
        TransactionStmtKind::TransStmtStart => (TransactionEffect::Begin, StatementKind::StartTransaction),
        TransactionStmtKind::TransStmtCommit => (TransactionEffect::Commit, StatementKind::Commit),
        TransactionStmtKind::TransStmtRollback => (TransactionEffect::Rollback, StatementKind::Rollback),
        TransactionStmtKind::TransStmtSavepoint => {
            (TransactionEffect::Savepoint(savepoint()), StatementKind::Savepoint)
        }
        TransactionStmtKind::TransStmtRelease => (TransactionEffect::Release(savepoint()), StatementKind::Release),
        TransactionStmtKind::TransStmtRollbackTo => {
            (TransactionEffect::RollbackTo(savepoint()), StatementKind::RollbackTo)
        }
        TransactionStmtKind::TransStmtPrepare => {
            (TransactionEffect::PrepareTransaction, StatementKind::PrepareTransaction)
        }
        TransactionStmtKind::TransStmtCommitPrepared => {
            // The transaction may have been prepared around the proxy, and may contain definitions.
            into.changes_catalog = true;
            into.changes_unnamed = true;
            (TransactionEffect::None, StatementKind::CommitPrepared)
        }
        TransactionStmtKind::TransStmtRollbackPrepared => (TransactionEffect::None, StatementKind::RollbackPrepared),
        TransactionStmtKind::Undefined => {
            return runs_code(into, StatementKind::Unknown, OpaqueReason::UnknownTransaction);
        }
    };
    into.transaction = effect;
    kind
}
