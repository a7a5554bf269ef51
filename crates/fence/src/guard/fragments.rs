//! The SQL that several files of the guard include by its name.

use fencegate_postgres::sql_file::Fragment;

pub(super) const FRAGMENTS: &[Fragment] = &[
    ("admitted_users", include_str!("sql/fragments/admitted_users.sql")),
    ("cascade", include_str!("sql/fragments/cascade.sql")),
    ("content", include_str!("sql/fragments/content.sql")),
    ("dependent_schema", include_str!("sql/fragments/dependent_schema.sql")),
    ("is_guards", include_str!("sql/fragments/is_guards.sql")),
    ("is_here", include_str!("sql/fragments/is_here.sql")),
    ("is_temporary", include_str!("sql/fragments/is_temporary.sql")),
    ("may_admit_to", include_str!("sql/fragments/may_admit_to.sql")),
    ("parts", include_str!("sql/fragments/parts.sql")),
    ("sealed_content", include_str!("sql/fragments/sealed_content.sql")),
    ("may_terminate", include_str!("../store/sql/fragments/may_terminate.sql")),
];
