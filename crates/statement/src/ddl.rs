//! Definitions: their effects on tables, triggers and rules.
//!
//! Must never treat a statement as harmless that can change or drop a table without naming it: such a statement is
//! opaque.

use super::facts::{TEMPORARY, parts, string};
use super::query::{Walk, range_var};
use super::rows::UNNEST;
use super::{ExclusiveUse, OpaqueReason, Operation, Redirect, RelationName, Statement, StatementKind, own};
use pg_query::NodeEnum as N;
use pg_query::protobuf::{
    AlterDatabaseStmt, AlterDomainStmt, AlterObjectSchemaStmt, AlterTableCmd, AlterTableStmt, AlterTableType,
    Constraint, CreateStmt, CreatedbStmt, DropBehavior, DropStmt, DropdbStmt, IndexStmt, Node, ObjectType,
    PartitionBoundSpec, RangeVar, RenameStmt, TruncateStmt,
};

/// The kind of `ALTER` of this type of object, where decisions or errors distinguish it.
fn altered(object: ObjectType) -> StatementKind {
    match object {
        ObjectType::ObjectTable | ObjectType::ObjectColumn | ObjectType::ObjectTabconstraint => {
            StatementKind::AlterTable
        }
        ObjectType::ObjectForeignTable => StatementKind::AlterForeignTable,
        ObjectType::ObjectView => StatementKind::AlterView,
        ObjectType::ObjectMatview => StatementKind::AlterMaterializedView,
        ObjectType::ObjectIndex => StatementKind::AlterIndex,
        ObjectType::ObjectSequence => StatementKind::AlterSequence,
        ObjectType::ObjectTrigger => StatementKind::AlterTrigger,
        ObjectType::ObjectRule => StatementKind::AlterRule,
        ObjectType::ObjectPolicy => StatementKind::AlterPolicy,
        ObjectType::ObjectSchema => StatementKind::AlterSchema,
        ObjectType::ObjectDatabase => StatementKind::AlterDatabase,
        ObjectType::ObjectExtension => StatementKind::AlterExtension,
        ObjectType::ObjectType | ObjectType::ObjectAttribute => StatementKind::AlterType,
        ObjectType::ObjectFunction => StatementKind::AlterFunction,
        _ => StatementKind::Alter,
    }
}

/// Like [`altered`], for `DROP`.
fn dropped(object: ObjectType) -> StatementKind {
    match object {
        ObjectType::ObjectTable | ObjectType::ObjectColumn | ObjectType::ObjectTabconstraint => {
            StatementKind::DropTable
        }
        ObjectType::ObjectForeignTable => StatementKind::DropForeignTable,
        ObjectType::ObjectView => StatementKind::DropView,
        ObjectType::ObjectMatview => StatementKind::DropMaterializedView,
        ObjectType::ObjectIndex => StatementKind::DropIndex,
        ObjectType::ObjectSequence => StatementKind::DropSequence,
        ObjectType::ObjectTrigger => StatementKind::DropTrigger,
        ObjectType::ObjectRule => StatementKind::DropRule,
        ObjectType::ObjectPolicy => StatementKind::DropPolicy,
        ObjectType::ObjectSchema => StatementKind::DropSchema,
        ObjectType::ObjectDatabase => StatementKind::DropDatabase,
        ObjectType::ObjectExtension => StatementKind::DropExtension,
        ObjectType::ObjectType | ObjectType::ObjectAttribute => StatementKind::DropType,
        ObjectType::ObjectFunction => StatementKind::DropFunction,
        _ => StatementKind::Drop,
    }
}

/// A definition that concerns one relation, if it names one.
pub(super) fn on(relation: &Option<RangeVar>, into: &mut Statement, kind: StatementKind) -> StatementKind {
    into.changes_catalog = true;
    write(relation, Operation::Ddl, into);
    kind
}

/// A type shares the namespace of relations. Other names that the server generates begin with `_` or end in
/// `multirange`.
pub(super) fn create_type(name: &[Node], into: &mut Statement, kind: StatementKind) -> StatementKind {
    into.changes_catalog = true;
    into.defines.extend(RelationName::from_parts(&parts(name)));
    kind
}

/// The type of several ranges, if the parameters of a range type name it.
pub(super) fn name_multirange(parameters: &[Node], into: &mut Statement) {
    if let Some(N::TypeName(multirange)) = option(parameters, "multirange_type_name").and_then(|it| it.node.as_ref()) {
        into.defines.extend(RelationName::from_parts(&parts(&multirange.names)));
    }
}

pub(super) fn write_all(relations: &[Node], operation: Operation, into: &mut Statement) {
    for relation in relations {
        if let Some(N::RangeVar(relation)) = &relation.node {
            into.add_write(RelationName::from(relation), operation);
        }
    }
}

/// A view or a rule: writes to the relation may become writes to whatever its queries name.
pub(super) fn rewrite(relation: &Option<RangeVar>, queries: &[Node], into: &mut Statement) {
    into.changes_catalog = true;
    let Some(relation) = relation else { return };
    into.defines.push(relation.into());
    let mut from = RelationName::from(relation);
    // The server creates a temporary view in the session's own schema, whatever the search path is.
    if relation.relpersistence == "t" {
        from.schema = Some(TEMPORARY.to_owned());
    }
    let mut defined = Statement::default();
    let mut walk = Walk::new(&mut defined);
    queries.iter().filter(|query| !matches!(query.node, Some(N::NotifyStmt(_)))).for_each(|query| walk.node(query));
    let named = std::mem::take(&mut walk.relations);
    defined.settle();
    let mut lead = |to| into.redirects.push(Redirect { relation: from.clone(), to });
    // The text does not show all targets.
    if defined.opaque.is_some() {
        lead(None);
    }
    named.into_iter().for_each(|name| lead(Some(name.into())));
    // A later write to the relation does not show this one.
    if let Some(why) = defined.writes.iter().find_map(own::written) {
        into.set_opaque(why);
    }
    into.own_by_path |= defined.own_by_path;
}

/// An index computes its expressions for every row. A unique index decides which row an upsert hits, so its table
/// counts as a way to itself.
pub(super) fn create_index(index: &IndexStmt, into: &mut Statement) {
    into.changes_catalog = true;
    let mut walk = Walk::new(into);
    walk.nodes(&index.index_params);
    walk.maybe(&index.where_clause);
    if let Some(table) = index.relation.as_ref().filter(|_| index.unique) {
        into.redirects.push(Redirect { relation: table.into(), to: Some(table.into()) });
    }
}

fn write(relation: &Option<RangeVar>, operation: Operation, into: &mut Statement) {
    if let Some(relation) = relation {
        into.add_write(RelationName::from(relation), operation);
    }
}

pub(super) fn truncate(truncate: &TruncateStmt, into: &mut Statement) -> StatementKind {
    write_all(&truncate.relations, Operation::Truncate, into);
    if truncate.behavior() == DropBehavior::DropCascade {
        write_all(&truncate.relations, Operation::TruncateCascade, into);
    }
    StatementKind::Truncate
}

/// A new table changes those that it inherits from, is a partition of, or refers to (these get triggers).
pub(super) fn create_table(create: &CreateStmt, into: &mut Statement) {
    into.changes_catalog = true;
    into.defines.extend(create.relation.as_ref().map(RelationName::from));
    write_all(&create.inh_relations, Operation::Ddl, into);
    for parent in create.inh_relations.iter().filter_map(range_var) {
        redirect_both(&create.relation, parent, into);
    }
    for constraint in constraints(&create.table_elts).chain(constraints(&create.constraints)) {
        refer(&create.relation, constraint, into);
    }
    if let Some(bound) = &create.partbound {
        walk_bound(bound, into);
    }
}

/// A new foreign key changes the table that it refers to. If it cascades, a delete there writes here.
fn refer(table: &Option<RangeVar>, constraint: &Constraint, into: &mut Statement) {
    write(&constraint.pktable, Operation::Ddl, into);
    if let (Some(table), Some(referenced)) = (table, &constraint.pktable) {
        into.redirects.push(Redirect { relation: referenced.into(), to: Some(table.into()) });
    }
}

/// A child and its parent are ways to each other.
fn redirect_both(child: &Option<RangeVar>, parent: &RangeVar, into: &mut Statement) {
    let Some(child) = child else { return };
    for (from, to) in [(child, parent), (parent, child)] {
        into.redirects.push(Redirect { relation: from.into(), to: Some(to.into()) });
    }
}

/// The constraints of a table or of its columns.
fn constraints(elements: &[Node]) -> impl Iterator<Item = &Constraint> {
    let nested = elements.iter().flat_map(|element| match &element.node {
        Some(N::ColumnDef(column)) => column.constraints.as_slice(),
        _ => std::slice::from_ref(element),
    });
    nested.filter_map(|element| match &element.node {
        Some(N::Constraint(constraint)) => Some(&**constraint),
        _ => None,
    })
}

fn walk_bound(bound: &PartitionBoundSpec, into: &mut Statement) {
    let mut walk = Walk::new(into);
    walk.nodes(&bound.listdatums);
    for datum in bound.lowerdatums.iter().chain(&bound.upperdatums) {
        match &datum.node {
            Some(N::PartitionRangeDatum(datum)) => walk.maybe(&datum.value),
            _ => walk.node(datum),
        }
    }
}

pub(super) fn alter_table(alter: &AlterTableStmt, into: &mut Statement) -> StatementKind {
    into.changes_catalog = true;
    match alter.objtype() {
        ObjectType::ObjectType => into.set_opaque(OpaqueReason::TablesOfType),
        _ => write(&alter.relation, Operation::Ddl, into),
    }
    for command in &alter.cmds {
        if let Some(N::AlterTableCmd(command)) = &command.node {
            if command.behavior() == DropBehavior::DropCascade && alter.objtype() != ObjectType::ObjectType {
                write(&alter.relation, Operation::Cascade, into);
            }
            alter_command(&alter.relation, command, into);
        }
    }
    altered(alter.objtype())
}

fn alter_command(table: &Option<RangeVar>, command: &AlterTableCmd, into: &mut Statement) {
    match command.def.as_ref().and_then(|definition| definition.node.as_ref()) {
        Some(N::PartitionCmd(partition)) => {
            write(&partition.name, Operation::Ddl, into);
            if let Some(table) = table.as_ref().filter(|_| command.subtype() == AlterTableType::AtAttachPartition) {
                redirect_both(&partition.name, table, into);
            }
            if let Some(bound) = &partition.bound {
                walk_bound(bound, into);
            }
        }
        // INHERIT and NO INHERIT.
        Some(N::RangeVar(parent)) => {
            into.add_write(RelationName::from(parent), Operation::Ddl);
            if command.subtype() == AlterTableType::AtAddInherit {
                redirect_both(table, parent, into);
            }
        }
        Some(N::Constraint(constraint)) => alter_constraint(table, constraint, into),
        // ADD COLUMN and ALTER COLUMN TYPE compute the default or the new value of every row.
        Some(N::ColumnDef(column)) => {
            Walk::new(into).maybe(&column.raw_default);
            constraints(&column.constraints).for_each(|constraint| alter_constraint(table, constraint, into));
        }
        Some(
            N::ReplicaIdentityStmt(_)
            | N::RoleSpec(_)
            | N::TypeName(_)
            | N::List(_)
            | N::AtalterConstraint(_)
            | N::Integer(_)
            | N::String(_),
        )
        | None => {}
        Some(expression) => Walk::new(into).visit(expression),
    }
}

/// CREATE OR REPLACE VIEW alters a view that exists. A temporary one is in the session's own schema.
pub(super) fn replace_view(view: &Option<RangeVar>, into: &mut Statement) {
    if let Some(view) = view.as_ref().filter(|view| view.relpersistence != "t") {
        into.add_write(view.into(), Operation::Ddl);
    }
}

/// A new constraint is evaluated. A new default is not.
pub(super) fn alter_domain(alter: &AlterDomainStmt, into: &mut Statement) {
    if let Some(N::Constraint(constraint)) = alter.def.as_ref().and_then(|definition| definition.node.as_ref()) {
        alter_constraint(&None, constraint, into);
    }
}

fn alter_constraint(table: &Option<RangeVar>, constraint: &Constraint, into: &mut Statement) {
    refer(table, constraint, into);
    let mut walk = Walk::new(into);
    walk.maybe(&constraint.raw_expr);
    walk.nodes(&constraint.exclusions);
    walk.maybe(&constraint.where_clause);
}

pub(super) fn drop(drop: &DropStmt, into: &mut Statement) -> StatementKind {
    into.changes_catalog = true;
    let is_table = matches!(drop.remove_type(), ObjectType::ObjectTable | ObjectType::ObjectForeignTable);
    let cascades = drop.behavior() == DropBehavior::DropCascade;
    for object in &drop.objects {
        let Some(N::List(names)) = &object.node else { continue };
        let names = parts(&names.items);
        let relation = match drop.remove_type() {
            _ if is_table => names.as_slice(),
            ObjectType::ObjectView => {
                into.defines.extend(RelationName::from_parts(&names));
                names.as_slice()
            }
            // DROP INDEX does not name the table.
            ObjectType::ObjectIndex => {
                into.changes_unnamed = true;
                continue;
            }
            ObjectType::ObjectTrigger | ObjectType::ObjectRule | ObjectType::ObjectPolicy => {
                names.split_last().map_or(&[][..], |(_, relation)| relation)
            }
            _ => continue,
        };
        if let Some(relation) = RelationName::from_parts(relation) {
            if is_table && cascades {
                into.add_write(relation.clone(), Operation::Cascade);
            }
            into.add_write(relation, Operation::Ddl);
        }
    }
    if cascades && !is_table {
        into.set_opaque(OpaqueReason::Cascade);
    } else if drop.remove_type() == ObjectType::ObjectExtension {
        into.set_opaque(OpaqueReason::ExtensionDropped);
    }
    dropped(drop.remove_type())
}

/// Records a new function named `unnest`, which may hide the catalog's own.
pub(super) fn define_unnest(name: &[&str], into: &mut Statement) {
    if name.last() == Some(&UNNEST) {
        into.defines.extend(RelationName::from_parts(name));
    }
}

/// `ALTER INDEX t RENAME` and the like also work for tables, so the stated kind of relation does not matter.
pub(super) fn rename(rename: &RenameStmt, into: &mut Statement) -> StatementKind {
    into.changes_catalog = true;
    define_unnest(&[&rename.newname], into);
    match rename.rename_type() {
        ObjectType::ObjectSchema => into.set_opaque(OpaqueReason::SchemaRenamed),
        ObjectType::ObjectAttribute => into.set_opaque(OpaqueReason::TablesOfType),
        ObjectType::ObjectDatabase => into.needs_database_alone = exclusive_use(&rename.subname),
        _ => write(&rename.relation, Operation::Ddl, into),
    }
    if is_relation(rename.rename_type())
        && let Some(relation) = rename.relation.as_ref().map(RelationName::from)
    {
        let renamed = RelationName { name: rename.newname.clone(), ..relation.clone() };
        into.redirects.push(Redirect { relation: renamed, to: Some(relation) });
    }
    altered(rename.rename_type())
}

/// Returns true for a whole relation, false for a part of one.
fn is_relation(object: ObjectType) -> bool {
    use ObjectType::{ObjectForeignTable, ObjectIndex, ObjectMatview, ObjectSequence, ObjectTable, ObjectView};
    [ObjectTable, ObjectView, ObjectForeignTable, ObjectMatview, ObjectIndex, ObjectSequence].contains(&object)
}

pub(super) fn set_schema(alter: &AlterObjectSchemaStmt, into: &mut Statement) -> StatementKind {
    into.changes_catalog = true;
    if let Some(N::ObjectWithArgs(function)) = alter.object.as_ref().and_then(|object| object.node.as_ref()) {
        define_unnest(&parts(&function.objname), into);
    }
    match alter.object_type() {
        ObjectType::ObjectExtension => into.set_opaque(OpaqueReason::ExtensionMoved),
        _ => write(&alter.relation, Operation::Ddl, into),
    }
    if let Some(relation) = alter.relation.as_ref().map(RelationName::from) {
        let moved = RelationName { schema: Some(alter.newschema.clone()), ..relation.clone() };
        into.redirects.push(Redirect { relation: moved, to: Some(relation) });
    }
    altered(alter.object_type())
}

/// The template must have no other connection. The default template is `template1`.
pub(super) fn create_database(create: &CreatedbStmt, into: &mut Statement) -> StatementKind {
    let template = option(&create.options, "template").and_then(string).unwrap_or("template1");
    into.needs_database_alone = Some(ExclusiveUse { database: template.to_owned(), by_force: false, is_copied: true });
    StatementKind::CreateDatabase
}

pub(super) fn alter_database(alter: &AlterDatabaseStmt, into: &mut Statement) -> StatementKind {
    if option(&alter.options, "tablespace").is_some() {
        into.needs_database_alone = exclusive_use(&alter.dbname);
    }
    StatementKind::AlterDatabase
}

pub(super) fn drop_database(drop: &DropdbStmt, into: &mut Statement) -> StatementKind {
    // FORCE is the only existing option.
    let by_force = !drop.options.is_empty();
    into.needs_database_alone = Some(ExclusiveUse { database: drop.dbname.clone(), by_force, is_copied: false });
    StatementKind::DropDatabase
}

fn exclusive_use(database: &str) -> Option<ExclusiveUse> {
    Some(ExclusiveUse { database: database.to_owned(), by_force: false, is_copied: false })
}

fn option<'o>(options: &'o [Node], name: &str) -> Option<&'o Node> {
    options.iter().find_map(|option| match &option.node {
        Some(N::DefElem(option)) if option.defname == name => option.arg.as_deref(),
        _ => None,
    })
}
